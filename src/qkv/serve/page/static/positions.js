/** Positions and embeddings: the sinusoid table, products of positions, turning arrows, a map of words. */
import { chart, filled, panel, roomIn, slider } from "./controls.js";
import { el, number, paused, show, svg, textWidth, visible } from "./dom.js";
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
  const sines = (line) => ["from qkv.model import sinusoids", "", `table = sinusoids(${state.length}, ${state.width})`, `print(${line}.item())`].join("\n");
  const codes = {
    table: () => ({ python: sines("table[1, 0]"), number: renew.answer.table[1][0] }),
    products: () => ({ python: sines(`(table[${at()}] @ table[0] / ${state.width / 2})`), number: renew.answer.products[at()][0] }),
    rotary: () => ({ python: `from qkv.serve.page.comparing import rotary_angles\n${modelPython(state.model, `answer = rotary_angles(model, ${ROTARY})`, 'print(answer["decay"][1])')}`, number: renewArrows.answer.decay[1] }),
    words: () => ({ python: askPython(state, ["comparing", "NeighboursAsk", "neighbours"], { word: word.value.trim() }, '["words"][1]["cosine"]'), number: renewMap.answer.words[1].cosine }),
  };
  const at = () => Math.min(chosen, state.length - 1);

  const renew = filled(table, () => api.fetch(`/v1/positions?length=${state.length}&width=${state.width}`), (answer) => {
    drawCurve(curve, answer.products, at(), (to) => { chosen = to; });
    return drawTable(table, answer.table);
  });
  const renewArrows = filled(arrows, () => api.fetch(`/v1/models/${encodeURIComponent(state.model)}/rotary?length=${ROTARY}`), (answer) => drawArrows(arrows, answer));
  const word = el("input", { "aria-label": t("positions.word"), value: state.word || (state.action === "translate" ? "今天" : "good") });
  const renewMap = filled(map, () => api.ask(state, "neighbours", { word: word.value.trim() || " " }), (answer) => drawMap(map, answer));
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
  const draw = (position) => show(picture, drawLine(roomIn(element, 640), products[position], position, t("positions.products")));
  show(element, slider("positions.position", { low: 0, high: products.length - 1, step: 1, value: start }, (value) => { chosen(value); draw(value); }), picture);
  draw(start);
}

/** Values from left to right as a line; one of them is marked. */
function drawLine(width, values, marked, label) {
  const points = values.map((value, n) => [n, value]);
  const ends = [0, values.length - 1].filter((n) => Math.abs(n - marked) > values.length / 16);
  return chart(label, width, 160, { lines: [{ colour: "q", points, dots: [points[marked]] }], ticks: [0, 1], across: [...ends.map((n) => [n, n]), [marked, marked, "q"]] });
}

/** Each pair of dimensions of a query and a key as two arrows that turn with their positions; fast pairs first. */
function drawArrows(element, { angles, decay, is_own: isOwn }) {
  const last = angles[0].length - 1;
  const count = Math.min(PAIRS, last + 1);
  const pairs = Array.from({ length: count }, (_, n) => Math.round((n * last) / (count - 1 || 1)));
  const picture = el("div");
  const at = { query: 6, key: 2 };
  const draw = () => {
    const distance = Math.abs(at.query - at.key);
    show(picture, el("div", { class: "arrows", role: "img", "aria-label": t("positions.rotary") }, pairs.map((pair) => drawPair(pair, angles[at.query][pair], angles[at.key][pair]))),
      el("p", { class: "quiet" }, t("positions.decay", { distance, value: number(decay[distance], 2) })), drawLine(roomIn(element, 560), decay, distance, t("positions.decay.line")));
  };
  const move = (name) => (value) => { at[name] = value; draw(); };
  draw();
  return [isOwn ? null : el("p", { class: "note" }, t("positions.none")), el("div", { class: "row" }, ["query", "key"].map((name) => slider(`positions.${name}`, { low: 0, high: angles.length - 1, step: 1, value: at[name] }, move(name)))), picture];
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

/** Where each label stands: beside its point, or at the nearest free line below or above, clear of other points. */
function labelBoxes(points, room) {
  const taken = points.map(({ x, y }) => ({ x: x - 6, y, width: 12 }));
  const hits = (box) => taken.some((other) => box.x < other.x + other.width && other.x < box.x + box.width && Math.abs(box.y - other.y) < LINE);
  for (const { x, y, width } of points) {
    const tries = [0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5].flatMap((line) => [{ x: x + 8, y: y + line * LINE, width }, { x: x - 8 - width, y: y + line * LINE, width, isLeft: true }]);
    taken.push(tries.find((box) => box.x >= 0 && box.x + width <= room && !hits(box)) ?? tries[0]);
  }
  return taken.slice(points.length);
}

/** Words around a word, on the plane where their vectors vary most. */
function drawMap(element, { words }) {
  const [width, height] = [roomIn(element, 680), 360];
  const scale = (values, size, margin, end) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return values.map((value) => margin + ((value - low) / (high - low || 1)) * (size - margin - end));
  };
  const [xs, ys] = [scale(words.map((word) => word.x), width, 24, 130), scale(words.map((word) => word.y), height, 24, 24)];
  const points = words.map((word, n) => ({ x: xs[n], y: ys[n], width: textWidth(visible(word.name), 14) + (n ? 32 : 4) }));
  const boxes = labelBoxes(points, width);
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "words-map", role: "img", "aria-label": t("positions.words") },
    words.slice(1).map((_, n) => svg("line", { class: "axis", x1: xs[0], y1: ys[0], x2: xs[n + 1], y2: ys[n + 1] })),
    words.map((word, n) => svg("g", { class: n ? "" : "centre" },
      svg("path", { class: "axis", d: `M${xs[n]},${ys[n]}L${boxes[n].isLeft ? boxes[n].x + boxes[n].width : boxes[n].x},${boxes[n].y}` }),
      svg("circle", { cx: xs[n], cy: ys[n], r: n ? 3 : 5 }),
      svg("text", { x: boxes[n].x, y: boxes[n].y + 4 }, visible(word.name), svg("tspan", { class: "number", dx: 5 }, n ? number(word.cosine, 2) : "")))));
}
