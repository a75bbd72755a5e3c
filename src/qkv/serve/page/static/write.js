/** Writing, one token at a time: candidates under sliders, the KV cache, the beam tree, a given output. */
import { drawTree } from "./beams.js";
import { describe } from "./change.js";
import { button, filled, panel, slider } from "./controls.js";
import { asText, el, number, paused, percent, show, svg, textWidth, visible } from "./dom.js";
import { language, t } from "./i18n.js";
import { askPython } from "./python.js";
import { WRITES } from "./top.js";

const RULES = {
  temperature: { low: 0, high: 2, step: 0.05, usual: 1, format: (value) => value.toFixed(2) },
  top_k: { low: 0, high: 50, step: 1, usual: 0, format: (value) => (value ? String(value) : t("write.off")) },
  top_p: { low: 0.05, high: 1, step: 0.05, usual: 1, format: (value) => value.toFixed(2) },
  min_p: { low: 0, high: 0.5, step: 0.01, usual: 0, format: (value) => value.toFixed(2) },
};
const PACE = 500; // milliseconds between tokens while it plays

/** Sampling rules of the address. */
function readRules(text) {
  const given = Object.fromEntries(text.split(" ").filter(Boolean).map((pair) => pair.split("=")));
  return Object.fromEntries(Object.entries(RULES).map(([name, { usual }]) => [name, Number(given[name] ?? usual)]));
}

const writeRules = (rules) =>
  Object.entries(rules).filter(([name, value]) => value !== RULES[name].usual).map((pair) => pair.join("=")).join(" ");

export function mount(element, state, api) {
  let answer = null;
  let playing = null;
  const paper = el("div", { class: "paper", "aria-live": "polite" });
  const bars = el("ol", { class: "choices" });
  const note = el("div", { class: "quiet" });
  const key = el("p", { class: "quiet change-key", hidden: true }, t("write.changed"));
  const cache = el("div", { class: "cache" });
  const tree = el("div", { class: "tree" });
  const forced = el("div", { class: "forced scroll", tabindex: 0 });
  const rules = () => readRules(state.rules);
  const sampling = () => state.rules !== "";
  const ids = () => state.written.map(Number).filter(Number.isInteger);

  const waiting = ({ waiting: changes }) => changes.map((change) => describe(change, state)).join(", ");
  const question = () => ({ written: ids(), sample: sampling(), seed: state.written.length, ...rules() });
  const renew = filled(note, () => api.ask(state, "next", question()), (next) => {
    answer = next;
    drawPaper();
    drawBars();
    drawCache(cache, next);
    return [next.waiting.length ? el("p", {}, t("write.waiting", { changes: waiting(next) })) : null, t(next.is_changed ? "write.kept.changed" : "write.kept", { kept: next.n_kept.toLocaleString(), all: next.n_tokens.toLocaleString(), entropy: number(next.entropy, 2) })];
  });
  const soon = paused(60, renew);

  const add = (id) => {
    if (answer?.ended) return pause();
    state.set({ written: [...state.written, String(id)] });
  };
  const step = () => answer && add(answer.next);
  const back = () => state.set({ written: state.written.slice(0, -1) });
  const pause = () => { clearInterval(playing); playing = null; play.textContent = `▶ ${t("write.play")}`; };
  const toggle = () => {
    if (playing) return pause();
    playing = setInterval(step, PACE);
    play.textContent = `❚❚ ${t("write.pause")}`;
    step();
  };
  const play = button(`▶ ${t("write.play")}`, toggle, { class: "chip strong" });

  function drawPaper() {
    const { tokens, n_prompt: first, source, ended } = answer;
    show(paper,
      source.length ? el("p", { class: "quiet source" }, source.map(visible).join(" ")) : null,
      el("p", { class: "written" }, tokens.map((token, n) => el("button", {
        type: "button", class: n < first ? "given" : n === tokens.length - 1 ? "newest" : "", disabled: n < first - 1,
        title: n < first ? t("write.prompt") : t("write.here"),
        onclick: () => state.set({ written: state.written.slice(0, n - first + 1) }, { push: true }),
      }, visible(token) || "·")), ended ? el("span", { class: "quiet" }, t("write.ended")) : el("span", { class: "caret", "aria-hidden": "true" })));
  }

  function drawBars() {
    bars.classList.toggle("changed", answer.is_changed);
    key.hidden = !answer.is_changed;
    const isUsed = bars.contains(document.activeElement);
    bars.replaceChildren(...answer.candidates.map((one) => el("li", { class: `${one.ruled ? "" : "cut"} ${one.id === answer.next ? "next" : ""}` },
      el("button", { type: "button", disabled: answer.ended, onclick: () => { pause(); add(one.id); }, "aria-label": `${visible(one.name)}: ${percent(one.ruled)}` },
        el("span", { class: "name" }, visible(one.name) || "·"),
        el("span", { class: "double", "aria-hidden": "true" },
          el("i", { class: "before", style: { width: `${100 * (answer.is_changed ? one.unchanged : one.probability)}%` } }),
          el("i", { class: "ruled", style: { width: `${100 * one.ruled}%` } })),
        answer.is_changed ? el("span", { class: "number unchanged" }, percent(one.unchanged)) : null,
        el("span", { class: "number" }, percent(one.ruled))))));
    if (isUsed) bars.querySelector("button").focus();
  }

  const sliders = Object.entries(RULES).map(([name, range]) =>
    slider(`write.${name}`, { ...range, value: rules()[name] }, (value) => state.set({ rules: writeRules({ ...rules(), [name]: value }) })));

  const code = (ask, fields, path, number) => () => ({ python: askPython(state, ["next_token", ...ask], fields(), path), number: number() });
  const renewTree = filled(tree, () => api.ask(state, "beam", { beams: state.beams, language: language() }), (found) =>
    [state.changes.length ? el("p", { class: "changed-note" }, t("write.tree.changed")) : null, found.waiting.length ? el("p", { class: "quiet" }, t("write.waiting", { changes: waiting(found) })) : null, drawTree(found)]);
  const beams = slider("write.beams", { low: 1, high: 6, step: 1, value: state.beams }, (value) => state.set({ beams: value }));
  const reference = el("input", { class: "wide", value: state.reference, placeholder: t("write.reference"), "aria-label": t("write.reference") });
  reference.oninput = () => state.set({ reference: reference.value });
  const renewForced = filled(forced, () => state.reference.trim() ? api.ask(state, "forced", { target: state.reference }) : null,
    (both) => both ? drawForced(both) : [el("p", { class: "quiet" }, t("write.forced.empty")), suggestion()]);
  /** A given output to try: what it wrote itself, with the second choice where it was least sure. */
  const suggestion = () => {
    const words = (state.page.answer?.outputs ?? []).filter(({ output, candidates }) => candidates[1] && !/^<.*>$/.test(output.name));
    if (!words.length) return null;
    const weakest = words.reduce((a, b) => (b.output.probability < a.output.probability ? b : a));
    const other = weakest.candidates.find(({ id, name }) => id !== weakest.output.id && !/^<.*>$/.test(name));
    if (!other) return null;
    const text = asText(words.map((word) => (word === weakest ? other : word.output).name));
    return button(text, () => { reference.value = text; state.set({ reference: text }); });
  };

  element.tabIndex = -1;
  element.onkeydown = (event) => {
    if (event.target.matches("input, textarea, select, button")) return;
    const act = { " ": toggle, ArrowRight: step, ArrowLeft: back }[event.key];
    if (act) { event.preventDefault(); act(); }
  };
  element.append(
    panel(state, "write.next", code(["NextAsk", "next_token"], question, '["candidates"][0]["ruled"]', () => answer.candidates[0].ruled), paper,
      el("div", { class: "row" }, button("↺", () => { pause(); state.set({ written: [] }); }, { "aria-label": t("write.again") }),
        button("◀", () => { pause(); back(); }, { "aria-label": t("write.back") }), button(`${t("write.step")} ▸`, step), play),
      el("div", { class: "columns" }, el("div", {}, key, bars, note), el("div", { class: "sliders" }, sliders, button(t("write.greedy"), () => {
        state.set({ rules: "" });
        sliders.forEach((one, n) => one.set(Object.values(RULES)[n].usual));
      })))),
    panel(state, "write.cache", code(["NextAsk", "next_token"], question, '["cache"]["bytes"]', () => answer.cache.bytes), cache),
    panel(state, "write.tree", code(["BeamAsk", "beam"], () => ({ beams: state.beams }), '["outputs"][0]["score"]', () => renewTree.answer.outputs[0].score), beams, tree),
    panel(state, "write.forced", code(["ForcedAsk", "forced"], () => ({ target: state.reference }), '["loss"]', () => renewForced.answer?.loss), reference, forced));

  const all = () => {
    if (state.section !== "write") return;
    const able = WRITES.includes(state.action);
    for (const part of element.querySelectorAll(".panel")) part.hidden = !able;
    element.querySelector(".empty")?.remove();
    if (!able) return element.prepend(el("p", { class: "empty" }, t("write.cannot")));
    if (state.page.answer) { renew(); renewTree(); renewForced(); }
  };
  state.on(["written", "rules"], () => state.section === "write" && soon());
  state.on(["text", "model", "action"], () => { pause(); state.set({ written: [] }); });
  state.on(["beams"], () => state.section === "write" && renewTree());
  state.on(["reference"], paused(200, () => state.section === "write" && renewForced()));
  state.page.on(() => !state.page.busy && all());
  return { show: all, hide: pause };
}

/** The cache as a grid: a row per layer, a column per token; K and V side by side in each cell, the newest bright. */
function drawCache(element, { cache: { layers, slots, source, bytes, bytes_per_slot: each }, source: read, tokens }) {
  const names = [...read, ...tokens].map((token) => visible(token) || "·");
  const size = Math.max(7, Math.min(30, 480 / names.length));
  const tall = Math.max(4, Math.min(18, 180 / layers));
  const named = size >= 13; // room for names
  const top = named ? 12 + 0.71 * Math.min(60, Math.max(...names.map((name) => textWidth(name, 12)))) : 0;
  const left = 28;
  const at = (n) => left + n * size + (source && n >= source ? size / 2 : 0);
  const cells = [];
  for (let layer = 0; layer < layers; layer++)
    for (let slot = 0; slot < source + slots; slot++) {
      const fresh = slot === source + slots - 1 ? "fresh" : "";
      const box = { y: top + layer * tall, width: size / 2 - 1, height: tall - 1.5 };
      cells.push(svg("rect", { class: `k ${fresh}`, x: at(slot), ...box }), svg("rect", { class: `v ${fresh}`, x: at(slot) + size / 2 - 0.5, ...box }));
    }
  const labels = named ? names.map((name, n) => svg("text", { transform: `translate(${at(n) + size / 2},${top - 5}) rotate(-45)` }, name.length > 8 ? `${name.slice(0, 7)}…` : name)) : [];
  const rows = [...new Set(layers > 10 ? [0, layers - 1] : Array.from({ length: layers }, (_, n) => n))]
    .map((layer) => svg("text", { class: "soft", x: left - 8, y: top + (layer + 0.5) * tall + 4, "text-anchor": "end" }, String(layer)));
  const [width, height] = [at(names.length) + 40, top + layers * tall + 2];
  const label = t(source ? "write.cache.both" : "write.cache.one", { source, slots, layers, bytes: size_of(bytes), each: size_of(each) });
  show(element, svg("svg", { class: "fits", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, labels, rows, cells),
    el("p", { class: "quiet cache-key" }, el("i", { class: "swatch k" }), "K", el("i", { class: "swatch v" }), "V"), el("p", { class: "quiet" }, label));
}

const size_of = (bytes) => bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;

/** Two ways to the same output: the true tokens read, or its own. */
function drawForced({ given, own, loss, unchanged_loss: before }) {
  const title = loss === before ? t("write.forced.given", { loss: number(loss) }) : t("write.forced.changed", { loss: number(loss), before: number(before) });
  const column = (steps) => el("table", {}, el("thead", {}, el("tr", {}, ["write.reads", "write.label", "write.best"].map((key) => el("th", {}, t(key))))),
    el("tbody", {}, steps.map((step) => el("tr", { class: step.rank === 1 ? "" : "wrong" },
      el("td", {}, visible(step.after)), el("td", {}, `${visible(step.output.name)} ${percent(step.output.probability)}`),
      el("td", {}, `${visible(step.candidates[0].name)} ${percent(step.candidates[0].probability)}`)))));
  return el("div", { class: "columns" },
    el("div", {}, el("h3", {}, title), column(given)),
    el("div", {}, el("h3", {}, t("write.forced.own")), column(own)));
}
