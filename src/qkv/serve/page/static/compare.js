/** Two models on one text: what each may see and predicts; and one word in several sentences. */
import { chart, choice, filled, panel, roomIn, slider } from "./controls.js";
import { el, number, paused, percent, show, visible } from "./dom.js";
import { language, t } from "./i18n.js";
import { askPython, stepsPython } from "./python.js";

const EXAMPLE = {
  en: { text: "The cat sat on the mat.", word: "bank", sentences: ["He sat on the bank of the river.", "She put her money in the bank.", "The bank gave him a loan."] },
  zh: { text: "我每天早上都喝一杯咖啡。", word: "苹果", sentences: ["我吃了一个苹果。", "苹果发布了新手机。", "他买了三斤苹果。"] },
};

const LEFT = "left:"; // before the name of an encoder that sees only what came before

export function mount(element, state, api) {
  const text = el("input", { class: "wide", "aria-label": t("compare.text"), value: EXAMPLE[state.page.models.some((model) => model.family === "decoder") || language() === "en" ? "en" : "zh"].text });
  const columns = el("div", { class: "columns" });
  let first = null; // the left model and its predictions
  const table = el("div", { class: "scroll", tabindex: 0 });
  const curves = el("div");
  const chinese = /[\u4e00-\u9fff]/.test(state.text) || language() === "zh";
  const example = EXAMPLE[chinese ? "zh" : "en"];
  const word = el("input", { "aria-label": t("compare.word"), value: state.word || example.word });
  const sentences = el("textarea", { rows: 4, class: "wide", "aria-label": t("compare.sentences") });
  sentences.value = (state.sentences.length ? state.sentences : example.sentences).join("\n");

  const models = () => state.page.models;
  const reader = () => models().find((model) => model.task === "fill")?.id ?? models().find((model) => model.family === "encoder")?.id ?? state.model;
  const sides = []; // what is shown of each model, so that both look at the same word
  const look = (offset) => sides.forEach((side) => side?.look(offset));
  const renew = () => {
    const bert = models().find((model) => model.task === "fill")?.id;
    const gpts = models().filter((model) => model.family === "decoder").map((model) => model.id);
    const left = bert ?? gpts[0];
    const others = [...gpts.filter((id) => id !== left), ...(bert ? [`${LEFT}${bert}`] : [])];
    const right = others.includes(state.other) ? state.other : others[0];
    sides.length = 0;
    show(columns, [left, right].filter(Boolean).map((given, n) => {
      const [model, side] = given.startsWith(LEFT) ? [given.slice(LEFT.length), "left"] : [given, "both"];
      const body = el("div", { class: "scroll", tabindex: 0 }, el("p", { class: "quiet" }, t("loading")));
      filled(body, () => api.ask({ ...state, model }, "predictions", { text: text.value, side }), (answer) => {
        if (!n) first = { model, side: answer };
        sides[n] = drawSide(answer, look);
        return sides[n].elements;
      })();
      const names = Object.fromEntries(others.map((id) => [id, id.startsWith(LEFT) ? t("compare.left", { model: id.slice(LEFT.length) }) : id]));
      const name = n ? choice(t("compare.other"), others, right, (to) => state.set({ other: to }, { push: true }), names) : el("h3", {}, model);
      return el("div", {}, name, body);
    }), right ? null : el("p", { class: "quiet" }, t("compare.alone")));
  };
  const twoCode = () => {
    if (!first) return stepsPython(state);
    const at = first.side.predictions.findIndex((candidates) => candidates.length);
    return { python: askPython({ ...state, model: first.model }, ["comparing", "PredictionsAsk", "predictions"], { text: text.value }, `["predictions"][${at}][0]["probability"]`), number: first.side.predictions[at][0].probability };
  };
  const wordCode = () => ({ python: askPython({ ...state, model: reader() }, ["comparing", "WordAsk", "word_in_sentences"], { word: word.value, sentences: lines() }, '["cosines"][-1][0][1]'), number: renewWord.answer?.cosines.at(-1)[0][1] });
  const renewWord = filled(table, () => api.ask({ ...state, model: reader() }, "word", { word: word.value, sentences: lines() }), (answer) => drawWord(curves, answer, lines()));
  const lines = () => sentences.value.split("\n").map((line) => line.trim()).filter(Boolean);
  text.oninput = paused(250, renew);
  word.oninput = sentences.oninput = paused(250, () => { state.set({ word: word.value, sentences: lines() }); renewWord(); });

  element.append(panel(state, "compare.two", twoCode, text, columns), panel(state, "compare.words", wordCode, el("div", { class: "columns" }, el("div", {}, word, sentences, table), curves)));
  const all = () => { if (state.section === "compare") { renew(); renewWord(); } };
  state.on(["model", "other"], all);
  return { show: all };
}

/** Where each token begins and ends in the text, spaces and special tokens left out. */
function spansOf(tokens) {
  let end = 0;
  return tokens.map((token) => {
    const start = end;
    if (!/^<.*>$|^\[.*\]$/.test(token)) end += visible(token).replace(/␣/g, "").length;
    return [start, end];
  });
}

/** One model: its tokens, of which one is looked at, and the predictions of all; `look(offset)` chooses a word on both sides. */
function drawSide({ family, tokens, visible: seen, predictions }, look) {
  const spans = spansOf(tokens);
  const sight = seen[0].length > 1 && !seen[0][1] ? "decoder" : "encoder";
  const line = el("p", { class: "sight" });
  const rows = tokens.map((token, n) => el("tr", { onclick: () => look(spans[n][0]) },
    el("th", { scope: "row" }, visible(token) || "·"),
    el("td", {}, predictions[n].length ? predictions[n].map((one) => el("span", { class: one.name === token ? "guess hit" : "guess" },
      `${visible(one.name) || "·"} `, el("small", { class: "number" }, percent(one.probability)))) : el("span", { class: "quiet" }, "—"))));
  const own = (offset) => {
    const chosen = Math.max(0, spans.findIndex(([start, end]) => start <= offset && offset < end));
    const row = family === "decoder" ? chosen - 1 : chosen; // a decoder predicts a token from the one before
    const sees = (n) => n !== chosen && row >= 0 && seen[row][n] > 0;
    show(line, tokens.map((token, n) => el("button", { type: "button", class: n === chosen ? "asked" : sees(n) ? "seen" : "unseen", onclick: () => look(spans[n][0]),
      "aria-label": `${visible(token)}: ${t(`compare.is.${n === chosen ? "asked" : sees(n) ? "seen" : "unseen"}`)}` }, n === chosen ? "?" : visible(token) || "·")));
    rows.forEach((element, n) => element.classList.toggle("chosen", n === chosen));
  };
  const words = spans.filter(([start, end]) => end > start);
  own(words[Math.floor(words.length / 2)]?.[0] ?? 0);
  return { look: own, elements: [el("p", { class: "quiet" }, t(`compare.sees.${sight}`)), line, el("table", { class: "predictions" }, el("tbody", {}, rows))] };
}

const LINES = ["q", "k", "v", "attention"]; // colours of pairs

/** Cosines between the word's vectors: all pairs at one layer, and in `curves` a line per pair through the layers. */
function drawWord(curves, { cosines }, sentences) {
  const table = el("table", { class: "cosines" });
  const last = cosines.length - 1;
  const name = (layer) => (layer ? t("compare.layer", { layer: layer - 1 }) : t("compare.input"));
  const draw = (layer) => {
    show(curves, drawPairs(roomIn(curves, 640), cosines, layer));
    show(table, el("tbody", {}, sentences.map((sentence, row) => el("tr", {}, el("th", { scope: "row" }, `${row + 1}. ${sentence}`),
      cosines[layer][row].map((value) => el("td", { style: { "--share": Math.max(0, value) }, class: "number" }, number(value, 2)))))));
  };
  draw(last);
  return [slider("compare.depth", { low: 0, high: last, step: 1, value: last, format: name }, draw), table];
}

/** A line per pair of sentences from the first layer's input to the last layer's output. */
function drawPairs(width, cosines, chosen) {
  const pairs = cosines[0].flatMap((_, a) => cosines[0].slice(a + 1).map((_, n) => [a, a + 1 + n]));
  const lines = pairs.map(([a, b], n) => ({ colour: LINES[n % LINES.length], name: `${a + 1}–${b + 1}`, points: cosines.map((layer, at) => [at, layer[a][b]]) }));
  return chart(t("compare.words.about"), width, 280, { lines, ticks: [0, 0.5, 1], across: cosines.map((_, layer) => [layer, layer ? layer - 1 : "E"]), marked: chosen });
}
