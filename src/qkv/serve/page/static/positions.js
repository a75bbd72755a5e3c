/** Positions and embeddings: the sinusoid table, products of positions, turning arrows, a map of words. */
import { filled, panel, roomIn, slider } from "./controls.js";
import { el, number, paused, show, spread, svg, visible } from "./dom.js";
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
    return drawTable(table, answer.table);
  });
  const renewArrows = filled(arrows, () => api.fetch(`/v1/models/${encodeURIComponent(state.model)}/rotary?length=${ROTARY}`), keep("rotary", (answer) => drawArrows(arrows, answer)));
  const word = el("input", { "aria-label": t("positions.word"), value: state.word || (state.action === "translate" ? "今天" : "good") });
  const renewMap = filled(map, () => api.ask(state, "neighbours", { word: word.value.trim() || " " }), keep("words", (answer) => drawMap(map, answer)));
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
function drawTable(element, rows) {
  const canvas = el("canvas", { role: "img", "aria-label": t("positions.table") });
  const width = Math.min(roomIn(element, 860), Math.max(320, rows[0].length * 8));
  const height = Math.min(420, Math.max(160, rows.length * 6));
  paintMap(prepare(canvas, width, height), Float32Array.from(rows.flat()), rows.length, rows[0].length, 1, "stream", { x: 0, y: 0, width, height });
  return [canvas, el("p", { class: "quiet" }, t("positions.axes", { length: rows.length, width: rows[0].length }))];
}

/** The product of one position with each other one. */
function drawCurve(element, products, start, chosen) {
  const picture = el("div");
  const low = Math.min(0, ...products.flat());
  const draw = (position) => show(picture, drawLine(roomIn(element, 640), products[position], position, low, t("positions.products")));
  show(element, slider("positions.position", { low: 0, high: products.length - 1, step: 1, value: start }, (value) => { chosen(value); draw(value); }), picture);
  draw(start);
}

/** Values from left to right as a line; one of them is marked. */
function drawLine(width, values, marked, low, label) {
  const height = 160;
  const x = (n) => 30 + (n / (values.length - 1)) * (width - 44);
  const y = (value) => 12 + ((1 - value) / (1 - low)) * (height - 40);
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "curve", role: "img", "aria-label": label },
    [0, 1].map((value) => [svg("line", { class: "axis", x1: 30, x2: width - 14, y1: y(value), y2: y(value) }), svg("text", { x: 22, y: y(value) + 4, "text-anchor": "end" }, String(value))]),
    [0, marked, values.length - 1].map((n) => svg("text", { x: x(n), y: height - 4, "text-anchor": "middle", class: n === marked ? "q" : "" }, n === marked || Math.abs(x(n) - x(marked)) > 24 ? String(n) : "")),
    svg("polyline", { class: "q", points: values.map((value, n) => `${x(n)},${y(value)}`).join(" ") }),
    svg("circle", { class: "q", cx: x(marked), cy: y(values[marked]), r: 4 }));
}

/** Each pair of dimensions of a query and a key as two arrows that turn with their positions; fast pairs first. */
function drawArrows(element, { angles, decay }) {
  if (!angles.length) return el("p", { class: "empty start" }, t("positions.none"));
  const last = angles[0].length - 1;
  const pairs = Array.from({ length: Math.min(PAIRS, angles[0].length) }, (_, n) => Math.round((n * last) / (Math.min(PAIRS, angles[0].length) - 1)));
  const picture = el("div");
  const at = { query: 6, key: 2 };
  const draw = () => {
    const distance = Math.abs(at.query - at.key);
    show(picture, el("div", { class: "arrows", role: "img", "aria-label": t("positions.rotary") }, pairs.map((pair) => drawPair(pair, angles[at.query][pair], angles[at.key][pair]))),
      el("p", { class: "quiet" }, t("positions.decay", { distance, value: number(decay[distance], 2) })), drawLine(roomIn(element, 560), decay, distance, Math.min(0, ...decay), t("positions.decay.line")));
  };
  const move = (name) => (value) => { at[name] = value; draw(); };
  draw();
  return [el("div", { class: "row" }, ["query", "key"].map((name) => slider(`positions.${name}`, { low: 0, high: angles.length - 1, step: 1, value: at[name] }, move(name)))), picture];
}

/** One pair: the arrows of query and key, and the angle between them, which only their distance decides. */
function drawPair(pair, query, key) {
  const [x, y, radius] = [32, 32, 26];
  const tip = (angle, size = radius) => [x + size * Math.cos(angle), y - size * Math.sin(angle)];
  const between = ((query - key) % (2 * Math.PI) + 2 * Math.PI) % (2 * Math.PI);
  const arrow = (colour, angle) => svg("g", { class: colour }, svg("path", { d: `M${x},${y}L${tip(angle)}` }), svg("circle", { cx: tip(angle)[0], cy: tip(angle)[1], r: 3 }));
  return svg("svg", { width: 64, height: 84, viewBox: "0 0 64 84", "aria-hidden": "true" },
    svg("circle", { class: "axis", cx: x, cy: y, r: radius }),
    svg("path", { class: "wedge", d: `M${x},${y}L${tip(key, 16)}A16,16 0 ${between > Math.PI ? 1 : 0} 0 ${tip(query, 16)}Z` }),
    arrow("k", key), arrow("q", query), svg("text", { x, y: 78, "text-anchor": "middle" }, String(pair)));
}

const LINE = 18; // pixels of a label's height

/** Where each label stands: beside its point, or at the nearest free line below or above. */
function labelBoxes(points) {
  const taken = [];
  const hits = (box) => taken.some((other) => box.x < other.x + other.width && other.x < box.x + box.width && Math.abs(box.y - other.y) < LINE);
  for (const { x, y, width } of points) {
    const tries = [0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5].flatMap((line) => [{ x: x + 8, y: y + line * LINE, width }, { x: x - 8 - width, y: y + line * LINE, width, isLeft: true }]);
    taken.push(tries.find((box) => box.x >= 0 && !hits(box)) ?? tries[0]);
  }
  return taken;
}

/** Words around a word, on the plane where their vectors vary most. */
function drawMap(element, { words }) {
  const [width, height] = [roomIn(element, 680), 360];
  const scale = (values, size, margin, end) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return values.map((value) => margin + ((value - low) / (high - low || 1)) * (size - margin - end));
  };
  const [xs, ys] = [scale(words.map((word) => word.x), width, 24, 130), scale(words.map((word) => word.y), height, 24, 24)];
  const points = words.map((word, n) => ({ x: xs[n], y: ys[n], width: 8 * spread(visible(word.name)) + (n ? 30 : 0) }));
  const boxes = labelBoxes(points);
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "words-map", role: "img", "aria-label": t("positions.words") },
    words.slice(1).map((_, n) => svg("line", { class: "axis", x1: xs[0], y1: ys[0], x2: xs[n + 1], y2: ys[n + 1] })),
    words.map((word, n) => svg("g", { class: n ? "" : "centre" },
      svg("path", { class: "axis", d: `M${xs[n]},${ys[n]}L${boxes[n].isLeft ? boxes[n].x + boxes[n].width : boxes[n].x},${boxes[n].y}` }),
      svg("circle", { cx: xs[n], cy: ys[n], r: n ? 3 : 5 }),
      svg("text", { x: boxes[n].x, y: boxes[n].y + 4 }, visible(word.name), svg("tspan", { class: "number", dx: 5 }, n ? number(word.cosine, 2) : "")))));
}
