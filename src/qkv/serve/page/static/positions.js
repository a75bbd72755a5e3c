/** Positions and embeddings: the sinusoid table, products of positions, turning arrows, a map of words. */
import { filled, panel, slider } from "./controls.js";
import { el, number, paused, show, svg, visible } from "./dom.js";
import { t } from "./i18n.js";
import { paintMap, prepare } from "./paint.js";
import { askPython, modelPython } from "./python.js";

const PAIRS = 12; // arrows that are drawn
const ROTARY = 64; // positions of the arrows

export function mount(element, state, api) {
  const table = el("div", { class: "scroll", tabindex: 0 });
  const curve = el("div", { class: "scroll", tabindex: 0 });
  const arrows = el("div", { class: "scroll", tabindex: 0 });
  const map = el("div", { class: "scroll", tabindex: 0 });
  let chosen = 8;
  const found = {}; // answers behind the panels
  const keep = (name, draw) => (answer) => { found[name] = answer; return draw(answer); };
  const sines = (line) => ["from qkv.model import sinusoids", "", `table = sinusoids(${state.length}, ${state.width})`, `print(${line}.item())`].join("\n");
  const codes = {
    table: () => ({ python: sines("table[1, 0]"), number: found.table.table[1][0] }),
    products: () => ({ python: sines(`(table[${at()}] @ table[0] / ${state.width / 2})`), number: found.table.products[at()][0] }),
    rotary: () => ({ python: `from qkv.serve.page.comparing import rotary_angles\n${modelPython(state.model, `answer = rotary_angles(model, ${ROTARY})`, `print(answer["decay"]${found.rotary.decay.length ? "[1]" : ""})`)}`, number: found.rotary.decay[1] }),
    words: () => ({ python: askPython(state, ["comparing", "NeighboursAsk", "neighbours"], { word: word.value.trim() }, '["words"][1]["cosine"]'), number: found.words.words[1].cosine }),
  };
  const at = () => Math.min(chosen, state.length - 1);

  const renew = filled(table, () => api.fetch(`/v1/positions?length=${state.length}&width=${state.width}`), (answer) => {
    found.table = answer;
    drawCurve(curve, answer.products, at(), (to) => { chosen = to; });
    return drawTable(answer.table);
  });
  const renewArrows = filled(arrows, () => api.fetch(`/v1/models/${encodeURIComponent(state.model)}/rotary?length=${ROTARY}`), keep("rotary", drawArrows));
  const word = el("input", { "aria-label": t("positions.word"), value: state.word || (state.action === "translate" ? "今天" : "good") });
  const renewMap = filled(map, () => api.ask(state, "neighbours", { word: word.value.trim() || " " }), keep("words", drawMap));
  word.oninput = paused(250, () => { state.set({ word: word.value }); renewMap(); });

  element.append(
    panel(state, "positions.table", codes.table, el("div", { class: "row" },
      slider("positions.width", { low: 8, high: 256, step: 8, value: state.width }, (value) => state.set({ width: value })),
      slider("positions.length", { low: 8, high: 128, step: 4, value: state.length }, (value) => state.set({ length: value }))), table),
    panel(state, "positions.products", codes.products, curve),
    panel(state, "positions.rotary", codes.rotary, arrows),
    panel(state, "positions.words", codes.words, word, map));
  const soon = paused(60, renew);
  const all = () => { if (state.section === "positions") { renew(); renewArrows(); renewMap(); } };
  state.on(["width", "length"], () => state.section === "positions" && soon());
  state.on(["model"], all);
  all();
  return { show: all };
}

/** Positions as rows, dimensions as columns. */
function drawTable(rows) {
  const canvas = el("canvas", { role: "img", "aria-label": t("positions.table") });
  const width = Math.min(860, Math.max(320, rows[0].length * 6));
  const height = Math.min(420, Math.max(160, rows.length * 6));
  paintMap(prepare(canvas, width, height), Float32Array.from(rows.flat()), rows.length, rows[0].length, 1, "stream", { x: 0, y: 0, width, height });
  return [canvas, el("p", { class: "quiet" }, t("positions.axes", { length: rows.length, width: rows[0].length }))];
}

/** The product of one position with each other one. */
function drawCurve(element, products, start, chosen) {
  const [width, height] = [640, 150];
  const picture = el("div");
  const draw = (position) => {
    const values = products[position];
    const x = (n) => 30 + (n / (values.length - 1)) * (width - 40);
    const low = Math.min(0, ...products.flat());
    const y = (value) => height - 12 - ((value - low) / (1 - low)) * (height - 26);
    show(picture, svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "curve", role: "img", "aria-label": t("positions.products") },
      svg("line", { class: "axis", x1: 30, x2: width - 10, y1: y(0), y2: y(0) }),
      svg("polyline", { class: "q", points: values.map((value, n) => `${x(n)},${y(value)}`).join(" ") }),
      svg("circle", { class: "q", cx: x(position), cy: y(values[position]), r: 4 }),
      svg("text", { x: 2, y: y(1) + 4 }, "1"), svg("text", { x: 2, y: y(0) + 4 }, "0")));
  };
  draw(start);
  show(element, slider("positions.position", { low: 0, high: products.length - 1, step: 1, value: start }, (value) => { chosen(value); draw(value); }), picture);
}

/** Each pair of dimensions as an arrow that turns with the position; fast pairs first. */
function drawArrows({ angles, decay }) {
  if (!angles.length) return el("p", { class: "quiet" }, t("positions.none"));
  const pairs = Array.from({ length: Math.min(PAIRS, angles[0].length) }, (_, n) => Math.round((n * (angles[0].length - 1)) / (Math.min(PAIRS, angles[0].length) - 1)));
  const picture = el("div");
  const draw = (position) => show(picture, svg("svg", { viewBox: `0 0 ${pairs.length * 64} 84`, class: "arrows", role: "img", "aria-label": t("positions.rotary") },
    pairs.map((pair, n) => {
      const angle = angles[position][pair];
      const [x, y] = [n * 64 + 32, 34];
      return svg("g", {}, svg("circle", { class: "axis", cx: x, cy: y, r: 26 }),
        svg("line", { class: "arrow", x1: x, y1: y, x2: x + 26 * Math.cos(angle), y2: y - 26 * Math.sin(angle) }),
        svg("circle", { class: "tip", cx: x + 26 * Math.cos(angle), cy: y - 26 * Math.sin(angle), r: 3 }),
        svg("text", { x, y: 78, "text-anchor": "middle" }, String(pair)));
    })), el("p", { class: "quiet" }, t("positions.decay", { position, value: number(decay[position], 2) })));
  draw(1);
  return [slider("positions.position", { low: 0, high: angles.length - 1, step: 1, value: 1 }, draw), picture];
}

/** Words around a word, on the plane where their vectors vary most. */
function drawMap({ words }) {
  const [width, height] = [680, 360];
  const span = (values) => [Math.min(...values), Math.max(...values)];
  const scale = ([low, high], size) => (value) => 50 + ((value - low) / (high - low || 1)) * (size - 150);
  const [x, y] = [scale(span(words.map((word) => word.x)), width), scale(span(words.map((word) => word.y)), height)];
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "words-map", role: "img", "aria-label": t("positions.words") },
    words.slice(1).map((word) => svg("line", { class: "axis", x1: x(words[0].x), y1: y(words[0].y), x2: x(word.x), y2: y(word.y) })),
    words.map((word, n) => svg("g", { class: n ? "" : "centre" },
      svg("circle", { cx: x(word.x), cy: y(word.y), r: n ? 3 : 5 }),
      svg("text", { x: x(word.x) + 7, y: y(word.y) + 4 }, visible(word.name), svg("tspan", { class: "number", dx: 5 }, n ? number(word.cosine, 2) : "")))));
}
