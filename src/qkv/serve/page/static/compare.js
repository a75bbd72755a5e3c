/** Two models on one text: what each may see and predicts; and one word in several sentences. */
import { choice, filled, panel, slider } from "./controls.js";
import { el, number, paused, percent, show, visible } from "./dom.js";
import { t } from "./i18n.js";
import { paintMap, prepare } from "./paint.js";
import { askPython, stepsPython } from "./python.js";

const EXAMPLE = {
  en: { word: "bank", sentences: ["He sat on the bank of the river.", "She put her money in the bank.", "The bank gave him a loan."] },
  zh: { word: "苹果", sentences: ["我吃了一个苹果。", "苹果发布了新手机。", "他买了三斤苹果。"] },
};

export function mount(element, state, api) {
  const text = el("input", { class: "wide", "aria-label": t("compare.text"), value: "The cat sat on the mat." });
  const columns = el("div", { class: "columns" });
  let first = null; // the left model and its predictions
  let cosines = null;
  const words = el("div", { class: "word-maps" });
  const chinese = /[\u4e00-\u9fff]/.test(state.text) || document.documentElement.lang.startsWith("zh");
  const example = EXAMPLE[chinese ? "zh" : "en"];
  const word = el("input", { "aria-label": t("compare.word"), value: state.word || example.word });
  const sentences = el("textarea", { rows: 4, class: "wide", "aria-label": t("compare.sentences") });
  sentences.value = (state.sentences.length ? state.sentences : example.sentences).join("\n");

  const models = () => state.page.models;
  const reader = () => models().find((model) => model.family === "encoder")?.id ?? state.model;
  const renew = () => {
    const ids = models().filter((model) => model.task === "fill" || model.family === "decoder").map((model) => model.id);
    const left = ids.includes(reader()) ? reader() : ids[0];
    const others = ids.filter((id) => id !== left);
    const right = others.includes(state.other) ? state.other : others.find((id) => models().some((model) => model.id === id && model.family === "decoder")) ?? others[0];
    show(columns, [left, right].filter(Boolean).map((model, n) => {
      const body = el("div", { class: "scroll", tabindex: 0 }, el("p", { class: "quiet" }, t("loading")));
      filled(body, () => api.ask({ ...state, model }, "predictions", { text: text.value }), (side) => { if (!n) first = { model, side }; return drawSide(side); })();
      const name = n ? choice(t("compare.other"), others, right, (to) => state.set({ other: to }, { push: true })) : el("h3", {}, model);
      return el("div", {}, name, body);
    }), right ? null : el("p", { class: "quiet" }, t("compare.alone")));
  };
  const twoCode = () => {
    if (!first) return stepsPython(state);
    const at = first.side.predictions.findIndex((candidates) => candidates.length);
    return { python: askPython({ ...state, model: first.model }, ["comparing", "PredictionsAsk", "predictions"], { text: text.value }, `["predictions"][${at}][0]["probability"]`), number: first.side.predictions[at][0].probability };
  };
  const wordCode = () => ({ python: askPython({ ...state, model: reader() }, ["comparing", "WordAsk", "word_in_sentences"], { word: word.value, sentences: lines() }, '["cosines"][-1][0][1]'), number: cosines?.at(-1)[0][1] });
  const renewWord = filled(words, () => api.ask({ ...state, model: reader() }, "word", { word: word.value, sentences: lines() }), (answer) => { cosines = answer.cosines; return drawWord(answer, lines()); });
  const lines = () => sentences.value.split("\n").map((line) => line.trim()).filter(Boolean);
  text.oninput = paused(250, renew);
  word.oninput = sentences.oninput = paused(250, () => { state.set({ word: word.value, sentences: lines() }); renewWord(); });

  element.append(panel(state, "compare.two", twoCode, text, columns), panel(state, "compare.words", wordCode, el("div", { class: "row" }, word), sentences, words));
  const all = () => { if (state.section === "compare") { renew(); renewWord(); } };
  state.on(["model", "other"], all);
  all();
  return { show: all };
}

/** One model: tokens with their predictions, and the map of what may be seen. */
function drawSide({ family, tokens, visible: seen, predictions }) {
  const size = Math.max(8, Math.min(22, 260 / tokens.length));
  const canvas = el("canvas", { role: "img", "aria-label": t(`compare.sees.${family}`) });
  const edge = size * tokens.length;
  paintMap(prepare(canvas, edge, edge), Float32Array.from(seen.flat(), (value) => (value ? value : NaN)), tokens.length, tokens.length, 1, "attention",
    { x: 0, y: 0, width: edge, height: edge });
  return [
    el("p", { class: "quiet" }, t(`compare.sees.${family}`)), canvas,
    el("table", { class: "predictions" }, el("tbody", {}, tokens.map((token, n) => el("tr", {},
      el("th", { scope: "row" }, visible(token) || "·"),
      el("td", {}, predictions[n].length ? predictions[n].map((one) => el("span", { class: one.name === token ? "guess hit" : "guess" },
        `${visible(one.name) || "·"} `, el("small", { class: "number" }, percent(one.probability)))) : el("span", { class: "quiet" }, "—")))))),
  ];
}

/** Cosines between the word's vectors, a map per layer and a slider through the layers. */
function drawWord({ cosines }, sentences) {
  const table = el("table", { class: "cosines" });
  const draw = (layer) => show(table, el("caption", { class: "quiet" }, layer ? t("compare.layer", { layer: layer - 1 }) : t("compare.input")),
    el("tbody", {}, sentences.map((sentence, row) => el("tr", {}, el("th", { scope: "row" }, sentence),
      cosines[layer][row].map((value) => el("td", { style: { "--share": Math.max(0, value) }, class: "number" }, number(value, 2)))))));
  const last = cosines.length - 1;
  draw(last);
  return [slider("compare.depth", { low: 0, high: last, step: 1, value: last }, draw), table];
}
