/** The river: tokens are lanes, stations are columns, numbers are strips; drawn from the structure. */
import { el, fitted, newest, percent, svg, visible } from "./dom.js";
import { t, tOr } from "./i18n.js";
import { layoutStack, pillWidth } from "./layout.js";
import { goIn, select } from "./navigate.js";
import { paintStrip, prepare, strength } from "./paint.js";

const CELLS = 48; // of a strip
const NARROW = 560; // pixels; below, the river flows down
const LABELS = 22; // room for the names of layers
const ARCS = 56; // room for the arcs of cross-attention, behind the words

/** Mount the river into its section. */
export function mount(element, state, api) {
  const stage = el("div", { class: "stage", tabindex: 0, role: "application", "aria-label": t("river.label") });
  const scroller = el("div", { class: "scroller" }, stage);
  const key = el("p", { class: "river-key quiet", hidden: true });
  element.append(scroller, key);
  const river = { state, stage, values: {}, difference: false, hovered: null, shown: false, n_changes: 0 };

  const keys = () => keysOf(state.page.structure, state.open, flowOf(scroller.clientWidth));
  const load = newest(
    async (signal, first) => ({ first, ...(await fetchStrips(state, api, keys(), signal)) }),
    ({ first, values, difference }) => {
      Object.assign(river, { values, difference });
      if (first) drawn(); // layout and numbers of a new text together
      else { paint(river); drawRibbons(river); drawKey(key, river); }
    },
    (error) => state.page.failed(error.message),
  );
  const drawn = () => {
    build(river, scroller.clientWidth);
    paint(river);
    drawRibbons(river);
    const isStation = /\.\d+\.\w+\./.test(state.at);
    if (state.changes.length > river.n_changes && !(isStation && !river.shown)) reveal(river, ".node.changed");
    else if (!river.shown) reveal(river);
    Object.assign(river, { shown: true, n_changes: state.changes.length });
    drawKey(key, river);
    follow(river, scroller);
  };
  state.page.wanted = () => (state.section === "river" && state.page.structure ? keys() : []);
  const draw = (answered) => {
    if (state.section !== "river") return;
    const { structure, answer } = state.page;
    if (!structure || !answer) return;
    const first = answered === true && river.structure === structure && answer !== river.answer;
    if (!first) drawn();
    load(first);
  };
  document.addEventListener("qkv:hover", ({ detail }) => { river.hovered = detail; if (state.section === "river" && river.svg) light(river); });
  stage.addEventListener("keydown", (event) => onKey(event, river));
  state.page.on(() => state.page.busy || draw(true));
  state.on(["open", "head", "difference"], () => draw());
  state.on(["at", "row", "column"], (changed) => { refresh(river); if (changed.includes("at")) reveal(river); });
  scroller.addEventListener("scroll", () => requestAnimationFrame(() => follow(river, scroller)));
  new ResizeObserver(() => scroller.clientWidth && scroller.clientWidth !== river.width && draw()).observe(scroller);
  return { show: () => draw() };
}

/** What the colours mean. */
function drawKey(element, { difference, stacks, state: { head } }) {
  element.hidden = false;
  const hasRibbons = stacks.some(({ columns }) => columns.some(isAttention));
  const colours = difference ? ["moved"] : hasRibbons ? ["strip", "ribbon"] : ["strip"];
  const of = head === null ? t("river.key.mean") : t("head", { head });
  element.replaceChildren(...colours.map((name) => el("span", {}, el("i", { class: `swatch ${name}`, "aria-hidden": "true" }), t(`river.key.${name}`, { of }))));
}

/** Keep the shorter river in view while the longer one scrolls; fade the edge that hides more. */
function follow(river, scroller) {
  scroller.classList.toggle("more", scroller.scrollLeft + scroller.clientWidth < scroller.scrollWidth - 16);
  if (river.flow !== "right" || river.stacks.length < 2 || river.scrolled === scroller.scrollLeft) return;
  river.scrolled = scroller.scrollLeft;
  shiftStacks(river);
  light(river);
}

/** Move stacks along with the scrolling, and their bridges. */
function shiftStacks(river) {
  const length = Math.max(...river.stacks.map((stack) => stack.length));
  for (const stack of river.stacks) {
    stack.shift = river.flow === "right" ? Math.max(0, Math.min(river.scrolled ?? 0, length - stack.length)) : 0;
    for (const group of [stack.group, stack.under]) group.setAttribute("transform", `translate(${stack.shift},0)`);
    stack.canvas.style.transform = `translateX(${stack.shift}px)`;
  }
  if (river.stacks.length > 1) river.bridges.replaceChildren(...drawBridges(river));
  drawArcs(river);
}

/** Everything of one stack that SVG draws, and the canvas of its strips. */
function drawStack(river, stack) {
  stack.canvas = el("canvas", { "aria-hidden": "true", style: { top: `${stack.offset}px` } });
  stack.under = svg("g", {}, drawBands(river, stack), drawLanes(river, stack));
  stack.ribbons = svg("g", { class: "ribbons" });
  stack.group = svg("g", { class: "stack" }, drawLayers(river, stack), drawWords(river, stack), stack.ribbons, drawGraph(river, stack), drawHits(river, stack));
  return stack.group;
}

const flowOf = (width) => (width < NARROW ? "down" : "right");
/** Keys of everything that the river shows as strips or ribbons. */
const keysOf = (structure, open, flow) => [...new Set(structure.stacks.flatMap((stack) => [
  ...layoutStack(structure, stack, open, flow, stack === structure.stacks.at(-1)).columns.flatMap(({ kind, keys }) => (["word", "op", "token"].includes(kind) ? [] : keys)),
  ...crossKeys(stack)]))];
/** Keys of the weights with which a stack looks at the encoder's output. */
const crossKeys = ({ name, sublayers }) => sublayers.filter((sublayer) => sublayer.name === "cross_attention")
  .flatMap(({ layers }) => layers.map((layer) => `${name}.${layer}.cross_attention.weights`));

/** Ask for the strips of all visible stations, in one request. */
async function fetchStrips(state, api, keys, signal) {
  const head = state.head === null ? {} : { head: state.head };
  const difference = state.changes.length > 0 && state.difference;
  const { quantities } = await api.trace(state, keys, { lanes: true, cells: CELLS, difference, ...head }, signal);
  return { values: quantities, difference };
}

/** Lay out and draw everything that does not depend on numbers. */
function build(river, width) {
  const { state, stage } = river;
  const { structure, answer } = state.page;
  const flow = flowOf(width);
  Object.assign(river, { width, flow, structure, answer, stacks: [] });
  const crosses = flow === "right" && structure.stacks.length > 1 && !state.open.length;
  const stretch = stretchOf(structure, state.open, flow, width - 20 - (crosses ? ARCS : 0));
  const n_lanes = structure.stacks.reduce((sum, { side }) => sum + (answer.tokens[side]?.length ?? 0), 0);
  let offset = 0;
  for (const stack of structure.stacks) {
    const layout = layoutStack(structure, stack, state.open, flow, stack === structure.stacks.at(-1), stretch);
    const tokens = answer.tokens[stack.side] ?? [];
    const lane = laneSize(flow, tokens.length, width, n_lanes);
    const isOpen = layout.layers.some(({ open }) => open);
    const level = flow === "right" ? 25 : 27;
    const head = flow === "right" ? LABELS + (isOpen ? level * 3.4 + 16 : 26) : isOpen ? 132 : 84;
    const across = head + tokens.length * lane;
    const placed = { ...layout, stack, tokens, lane, head, across, offset, level, isOpen, shift: 0 };
    river.stacks.push(placed);
    offset += (flow === "right" ? across : layout.length) + 48;
  }
  const length = Math.max(...river.stacks.map((stack) => stack.length));
  const across = Math.max(...river.stacks.map((stack) => stack.across));
  const [w, h] = flow === "right" ? [Math.max(length + (crosses ? ARCS : 0), 200), offset - 24] : [Math.max(width - 24, across), offset - 24];
  river.size = { width: w, height: h };
  stage.style.width = `${w}px`;
  stage.style.height = `${h}px`;
  river.svg = svg("svg", { width: w, height: h, viewBox: `0 0 ${w} ${h}`, class: `flow-${flow}` });
  const wide = river.stacks[0].columns[0].size;
  river.names = flow === "right" ? svg("svg", { class: "names", width: wide, height: h }) : svg("g", {});
  river.names.append(...river.stacks.flatMap((stack) => [drawStackName(river, stack), drawNames(river, stack)]));
  river.bridges = svg("g", { class: "bridges" });
  river.arcs = svg("g", { class: "arcs" });
  river.crosses = crosses;
  river.svg.append(river.bridges, river.arcs, ...river.stacks.map((stack) => drawStack(river, stack)));
  if (flow === "down") river.svg.append(river.names);
  const under = svg("svg", { class: "under", width: w, height: h, "aria-hidden": "true" }, ...river.stacks.map((stack) => stack.under));
  stage.replaceChildren(under, ...river.stacks.map(({ canvas }) => canvas), river.svg, ...(flow === "right" ? [river.names] : []));
  shiftStacks(river);
  river.marked = [];
  refresh(river);
}

/** How much wider strips can be, so that closed layers fill the room. */
function stretchOf(structure, open, flow, room) {
  if (flow === "down") return 1;
  const fits = (by) => structure.stacks.every((stack) => layoutStack(structure, stack, open, flow, stack === structure.stacks.at(-1), by).length <= room);
  const isLong = structure.stacks.some(({ n_layers }) => n_layers > 12);
  let [low, high] = [open.length ? 1 : isLong ? 0.44 : 0.34, 2.4]; // their names do not overlap
  for (let n = 0; n < 6; n++) {
    const middle = (low + high) / 2;
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return low;
}

/** Room for a lane: across the width of a phone, or down what is left of the window. */
function laneSize(flow, count, width, n_lanes) {
  if (flow === "down") return Math.max(46, Math.min(84, (width - 150) / Math.max(1, count)));
  return count > 40 ? 16 : Math.max(20, Math.min(60, Math.floor((window.innerHeight - 470) / n_lanes)));
}

/** Coordinates of a point: along the flow, and across it, in a stack. */
const place = (river, stack, along, across) =>
  river.flow === "right" ? [along, stack.offset + across] : [across, stack.offset + along];
const levelAt = (river, stack, level) =>
  river.flow === "right" ? LABELS + 13 + level * stack.level : 34 + level * stack.level;
/** The rectangle of a column's cell in a lane. */
function cellAt(river, stack, column, lane) {
  const across = stack.head + lane * stack.lane;
  const [x, y] = place(river, stack, column.start, across + 3);
  return river.flow === "right"
    ? { x, y, width: column.size, height: stack.lane - 6 }
    : { x, y, width: stack.lane - 6, height: column.size };
}

/** Names and bands of layers; a click opens or closes one. */
function drawLayers(river, stack) {
  const { state } = river;
  const group = svg("g", { class: "layers" });
  for (const { layer, start, open } of stack.layers) {
    const at = `${stack.stack.name}.${layer}`;
    if (!open) continue;
    const [x, y] = place(river, stack, start - 4, 0);
    const [tx, ty] = river.flow === "right" ? [x + 8, y + 15] : [river.size.width - 8, y + 15];
    group.append(svg("text", {
      class: "layer-name", x: tx, y: ty, "text-anchor": river.flow === "right" ? "start" : "end", role: "button", tabindex: -1, "data-at": at,
      onclick: () => goIn(state, at),
    }, `${t("river.layer", { layer })} −`));
  }
  return group;
}

function drawStackName(river, stack) {
  const [, y] = place(river, stack, 0, 0);
  return svg("text", { class: "stack-name", x: river.flow === "down" && river.stacks.length > 1 ? 20 : 2, y: y + 15 }, t(`stack.${stack.stack.name}`),
    river.state.page.structure.facts.shared_layers ? svg("tspan", { dx: 8, "font-weight": 400 }, t("shared")) : null);
}

/** The names of the tokens; where the river flows right they stay in view. */
function drawNames(river, stack) {
  const right = river.flow === "right";
  stack.names = stack.tokens.map((token, lane) => {
    const [, y] = place(river, stack, 16, stack.head + (lane + 0.5) * stack.lane);
    const x = right ? stack.columns[0].size - 8 : stack.head + (lane + 0.5) * stack.lane;
    return svg("text", { class: "token", x, y: y + (right ? 4 : 0), "text-anchor": right ? "end" : "middle", "data-lane": `${stack.stack.side}:${lane}` },
      fitted(visible(token), right ? stack.columns[0].size - 10 : stack.lane + 2, 13), svg("title", {}, visible(token)));
  });
  stack.heats = stack.tokens.map((_, lane) => {
    const [, y] = place(river, stack, 16, stack.head + (lane + 0.5) * stack.lane);
    const across = stack.head + (lane + 0.5) * stack.lane;
    const box = right ? { x: 0, y: y - 11, width: stack.columns[0].size - 2, height: 22 } : { x: across - stack.lane / 2 + 2, y: y - 15, width: stack.lane - 4, height: 22 };
    return svg("rect", { class: "heat", rx: 4, opacity: 0, ...box });
  });
  return svg("g", { class: "lanes" }, ...stack.heats, ...stack.names);
}

/** The words that come out, at the end of their lanes. */
function drawWords(river, stack) {
  const column = stack.columns.at(-1);
  const group = svg("g", { class: "words-out" });
  if (column.kind !== "word" || river.state.action === "answer") return group; // whose outputs are no lanes
  const right = river.flow === "right";
  const { answer } = river.state.page;
  for (const word of answer.changed ?? answer.outputs) {
    if (word.position >= stack.tokens.length) continue;
    const best = answer.changed ? word.candidates[0] : word.output;
    const before = answer.outputs.find(({ position }) => position === word.position);
    const [x, y] = place(river, stack, right ? column.start : column.start + 12, stack.head + (word.position + 0.5) * stack.lane);
    group.append(svg("text", { class: `word-out ${best.id === before.output.id ? "" : "moved"}`, x, y: y + (right ? 4 : 0), "text-anchor": right ? "start" : "middle" },
      svg("tspan", { class: "name" }, fitted(visible(best.name), right ? 60 : stack.lane - 2, 13)),
      svg("tspan", right ? { class: "number", dx: 6 } : { class: "number", x, dy: 14 }, percent(best.probability))));
  }
  return group;
}

/** Nodes and edges: the graph of each open layer, and the stream through all. */
function drawGraph(river, stack) {
  const group = svg("g", { class: "graph" });
  const point = (node) => place(river, stack, node.position, levelAt(river, stack, stack.isOpen || node.level === 0 ? node.level : 0));
  for (const { from, to, colour } of stack.edges)
    group.append(svg("path", { class: `edge ${colour}`, d: curve(point(from), point(to), river.flow) }));
  for (const node of stack.nodes) group.append(drawNode(river, stack, node, point(node)));
  return group;
}

function curve([x1, y1], [x2, y2], flow) {
  if (flow === "right") {
    const middle = Math.min((x1 + x2) / 2, x1 + 40);
    return y1 === y2 ? `M${x1},${y1}H${x2}` : `M${x1},${y1}C${middle},${y1} ${middle},${y2} ${Math.min(x2, middle + 20)},${y2}H${x2}`;
  }
  const middle = Math.min((y1 + y2) / 2, y1 + 24);
  return x1 === x2 ? `M${x1},${y1}V${y2}` : `M${x1},${y1}C${x1},${middle} ${x2},${middle} ${x2},${Math.min(y2, middle + 12)}V${y2}`;
}

/** A station's pill: a button with its name. */
function drawNode(river, stack, node, [x, y]) {
  const width = pillWidth(node.label);
  const at = node.at ?? node.key ?? node.sublayer ?? "";
  const name = node.closed ? t("river.layer", { layer: node.layer }) : tOr(`part.${at.split(".").at(-1)}`, node.label);
  const [label, index] = node.label.split("_");
  const change = changeOf(node, river.state.changes);
  return svg("g", {
    class: `node ${node.colour ?? "stream"} ${node.closed ? "closed" : ""} ${change ? "changed" : ""} ${invites(river, node) ? "pulse" : ""}`, role: "button", tabindex: -1,
    "data-at": node.at ?? node.key ?? "", "aria-label": node.closed ? name : `${name} ${at}`,
    transform: `translate(${x},${y})`, onclick: () => goIn(river.state, at),
  },
  svg("rect", { x: -width / 2, y: -9, width, height: 18, rx: 9 }),
  svg("text", { y: 4, "text-anchor": "middle" }, label, index ? svg("tspan", { class: "index", dy: 3 }, index) : null),
  svg("title", {}, at ? `${name} · ${at}` : name));
}

/** Whether a newcomer should click here: the last layer, until something is open. */
const invites = ({ state, stacks }, node) =>
  !state.at && !state.open.length && !state.changes.length && node.at === `${stacks.at(-1).stack.name}.${stacks.at(-1).stack.n_layers - 1}`;

/** Whether a change is made at a station, or somewhere in a closed layer. */
const changeOf = (node, changes) => changes.some((change) => {
  const key = change.split(":")[1];
  if (node.closed) return key === node.at || key.startsWith(`${node.at}.`);
  return node.key && (changedStation(key, node.key) || /^\w+\.\d+$/.test(key) && node.key.startsWith(`${key}.`) && node.label === "+");
});

/** Where a change shows: an attention at its heads, a mask at the scores, a skip at the sum. */
function changedStation(changed, key) {
  const shown = { mask: ["scores"], skip: ["residual", "sum"], attention: ["heads"], forward: ["output"] };
  const [, at, last] = changed.match(/^(.*?)\.?([a-z]+)$/i) ?? [];
  if (/(attention|feed_forward)$/.test(changed)) return shown[/attention$/.test(changed) ? "attention" : "forward"].some((part) => key === `${changed}.${part}`);
  return changed === key || (shown[last] ?? []).some((part) => key === `${at}.${part}`);
}

/** Transparent rectangles that hear the mouse. */
function drawHits(river, stack) {
  const group = svg("g", { class: "hits" });
  const laneOf = (event) => {
    const box = river.svg.getBoundingClientRect();
    const across = river.flow === "right" ? event.clientY - box.top - stack.offset : event.clientX - box.left;
    return Math.max(0, Math.min(stack.tokens.length - 1, Math.floor((across - stack.head) / stack.lane)));
  };
  for (const column of stack.columns) {
    const first = cellAt(river, stack, column, 0);
    const last = cellAt(river, stack, column, stack.tokens.length - 1);
    const at = column.at ?? column.keys[0] ?? "";
    group.append(svg("rect", {
      x: first.x - 2, y: first.y - 2, width: last.x + last.width - first.x + 4, height: last.y + last.height - first.y + 4,
      "data-column": at,
      onclick: (event) => at ? column.closed ? goIn(river.state, at) : select(river.state, { at, row: laneOf(event) }) : select(river.state, { row: laneOf(event) }),
      onmousemove: (event) => hover(river, stack, laneOf(event)),
      onmouseleave: () => hover(river, null, null),
    }));
  }
  return group;
}

function hover(river, stack, lane) {
  const name = stack && `${stack.stack.side}:${lane}`;
  if (name === river.hovered) return;
  river.hovered = name;
  light(river);
}

/** Show again what depends on the selection. */
function refresh(river) {
  if (!river.svg) return;
  mark(river);
  light(river);
}

/** The bridges: K and V go from the encoder's output into every decoder layer. */
function drawBridges(river) {
  const [encoder, decoder] = river.stacks;
  const drawn = [];
  const end = encoder.nodes.at(-1);
  const right = river.flow === "right";
  const [ex, ey] = right ? [end.position + encoder.shift, encoder.offset + encoder.across] : [8, encoder.offset + end.position];
  const bus = right ? encoder.offset + encoder.across + 18 : 8;
  const ends = { K: [], V: [] };
  for (const node of decoder.nodes) {
    const [x, y] = place(river, decoder, node.position, levelAt(river, decoder, decoder.isOpen || node.level === 0 ? node.level : 0));
    const shifted = x + decoder.shift;
    if (node.closed) { ends.K.push([shifted - 4, y]); ends.V.push([shifted + 4, y]); }
    if (node.bridge) ends[node.letter].push([shifted, y, true]);
  }
  for (const [name, points] of Object.entries(ends)) {
    const at = bus + (name === "K" ? 0 : 6);
    const shift = name === "K" ? -4 : 4; // keeps the two lines apart
    for (const [x, y, isOpen] of points) {
      const drop = isOpen ? x - 18 + 1.5 * shift : x; // beside the queries
      const d = right ? `M${ex + shift},${ey}V${at}H${drop}V${y}H${x}` : `M${ex + 12},${ey + shift}H${at}V${y + shift}H${x - 10}`;
      drawn.push(svg("path", { class: `edge ${name.toLowerCase()}`, d }));
    }
  }
  if (right) drawn.push(svg("text", { class: "bridge-name", x: ex - 14, y: bus - 5, "text-anchor": "end" }, t("river.memory")));
  return drawn;
}

/** Cross-attention as arcs from the encoder's output to the words that come out, mean of its layers; an open layer shows its own. */
function drawArcs(river) {
  const [encoder, decoder] = river.stacks;
  const words = decoder?.columns.at(-1);
  const layers = river.crosses ? crossValues(river) : [];
  river.crossing = []; // {query, key, weight, path, isMain}
  river.arcs.replaceChildren();
  if (!layers.length || words.kind !== "word") return;
  const from = encoder.length - 4 + encoder.shift;
  const to = words.start + words.size - 6 + decoder.shift;
  const [rows] = layers[0].shape;
  const bend = Math.max(from, to) + ARCS - 4;
  const middle = (stack, lane) => stack.offset + stack.head + (lane + 0.5) * stack.lane;
  for (let query = 0; query < Math.min(rows, decoder.tokens.length); query++) {
    const weights = encoder.tokens.map((_, key) => meanWeight(layers, query, key));
    weights.forEach((weight, key) => {
      if (!(weight > 0.04)) return;
      const path = svg("path", { class: `ribbon ${river.difference ? "moved" : ""}`, d: `M${from},${middle(encoder, key)}C${bend},${middle(encoder, key)} ${bend},${middle(decoder, query)} ${to},${middle(decoder, query)}`, "stroke-width": 0.5 + 5 * weight });
      river.crossing.push({ query, key, weight, path, isMain: weight > 0.7 * Math.max(...weights) && weight > 1.2 / weights.length });
      river.arcs.append(path);
    });
  }
  river.arcs.append(svg("text", { class: "bridge-name", x: to + 8, y: decoder.offset + decoder.across + 12, "text-anchor": "middle" }, t("sublayer.cross_attention")));
}

const crossValues = (river) => crossKeys(river.stacks.at(-1).stack).map((key) => river.values[key]).filter(Boolean);
/** The weight of a cross-attention, mean of the layers. */
const meanWeight = (layers, query, key) => layers.reduce((sum, { data, shape }) => sum + Math.abs(data[query * shape[1] + key] ?? 0), 0) / (layers.length || 1);

/** Paint the strips of everything that has come. */
function paint(river) {
  for (const stack of river.stacks) {
    const [width, height] = river.flow === "right" ? [stack.length, stack.across] : [river.size.width, stack.length];
    const context = prepare(stack.canvas, width, height);
    context.translate(0, -stack.offset);
    const inputs = stack.columns.flatMap(({ keys }) => keys).filter((key) => isPart(stack, key));
    const shared = Math.max(0, ...inputs.map((key) => strengthOf(river.values[key])));
    for (const column of stack.columns) {
      if (["token", "word", "ribbon", "flow", "op"].includes(column.kind)) continue;
      paintColumn(context, river, stack, column, river.difference, shared);
    }
  }
}

/** A band behind each open layer. */
const drawBands = (river, stack) => stack.layers.filter(({ open }) => open).map(({ start, end }) => {
  const [x, y] = place(river, stack, start - 4, 0);
  const long = end - start + 8;
  return svg("rect", { class: "band", ...(river.flow === "right" ? { x, y, width: long, height: stack.across } : { x: 0, y, width: river.size.width, height: long }) });
});

/** The residual stream of each token: a faint line, stronger for the one that is looked at. */
function drawLanes(river, stack) {
  const [first, last] = [stack.columns[0], stack.columns.at(-1)];
  stack.lines = stack.tokens.map((_, lane) => {
    const across = stack.head + (lane + 0.5) * stack.lane;
    const [from, to] = [first.start + first.size, stack.length - 10 - (last.kind === "word" ? last.size : 0)].map((along) => place(river, stack, along, across));
    return svg("path", { class: "lane", d: `M${from}L${to}` });
  });
  return stack.lines;
}

/** The lane of a stack that is hovered or selected. */
function litLane(river, stack) {
  const [side, lane] = river.hovered?.split(":") ?? [];
  if (side) return side === stack.stack.side ? Number(lane) : null;
  const { at, row } = river.state;
  const isLast = stack === river.stacks.at(-1);
  const mine = at.startsWith(stack.stack.name) || at.startsWith(stack.stack.side) || (isLast && !at.includes("."));
  return mine && row !== null ? row : null;
}

const COLOURS = ["q", "k", "v"];
/** The strength of a quantity's colours, found once. */
const strengthOf = (quantity) => (quantity ? (quantity.strength ??= strength(quantity.data)) : 0);

/** The strength of most lanes, so that one with huge values (often the first) leaves the others their colours. */
function usualStrength(quantity) {
  if (quantity.usual !== undefined) return quantity.usual;
  const [rows, cells] = quantity.shape;
  const lanes = Array.from({ length: rows }, (_, lane) => strength(quantity.data.subarray(lane * cells, (lane + 1) * cells))).filter(Boolean).sort((a, b) => a - b);
  return quantity.usual = Math.min(strengthOf(quantity), 1.5 * (lanes[Math.floor(lanes.length / 2)] ?? Infinity));
}

/** Embeddings and positions, which are shown at one scale, so that they can be compared. */
const isPart = ({ stack: { side } }, key) => key === `${side}.embedding` || key === `${side}.positions`;

function paintColumn(context, river, stack, column, changed, shared) {
  column.keys.forEach((key, n) => {
    const quantity = river.values[key];
    if (!quantity) return;
    const [rows, cells] = quantity.shape;
    const scale = isPart(stack, key) && !changed ? shared : key.endsWith(".weights") && !changed ? 1 : changed ? strengthOf(quantity) : usualStrength(quantity);
    const own = column.kind === "qkv" ? COLOURS[n] : column.colour;
    for (let lane = 0; lane < Math.min(rows, stack.tokens.length); lane++) {
      const box = cellAt(river, stack, column, lane);
      const height = box.height / column.keys.length;
      paintStrip(context, quantity.data.subarray(lane * cells, (lane + 1) * cells), scale, changed ? "change" : own,
        { ...box, y: box.y + n * height, height: column.keys.length > 1 ? height - 1 : height });
    }
  });
}

const isAttention = ({ kind }) => kind === "ribbon" || kind === "flow";

/** Attention weights as ribbons from key tokens to query lanes. */
function drawRibbons(river) {
  for (const stack of river.stacks ?? []) {
    stack.shown = []; // {column, query, key, weight, path}
    stack.ribbons.replaceChildren(...stack.columns.filter(isAttention).map((column) => ribbonsOf(river, stack, column)));
  }
  drawArcs(river);
  light(river);
}

/** Light the lanes and ribbons of the word that is looked at. */
function light(river) {
  for (const stack of river.stacks) {
    const lit = litLane(river, stack);
    stack.lines.forEach((line, lane) => line.classList.toggle("lit", lane === lit));
    stack.names.forEach((name, lane) => name.classList.toggle("lit", lane === lit));
    const heat = heatOf(river, stack);
    stack.heats.forEach((box, lane) => box.setAttribute("opacity", heat ? 0.9 * heat[lane] : 0));
    const focus = new Map(stack.columns.filter(isAttention).map((column) => [column, focusOf(river, stack, column)]));
    for (const { column, query, key, weight, path } of stack.shown ?? []) glow(path, weight, focus.get(column), query, key);
  }
  const [source, target] = river.stacks.map((stack) => litLane(river, stack));
  const focus = source === null && (target ?? null) === null ? null : { query: target, key: source };
  for (const { query, key, weight, path, isMain } of river.crossing) glow(path, weight, focus ?? (isMain ? null : {}), query, key);
}

/** Show a ribbon as strongly as its weight, or faintly beside those of the word that is looked at. */
function glow(path, weight, focus, query, key) {
  const opacity = !focus || focus.query === query || focus.key === key ? 0.25 + 0.65 * weight : 0.06;
  if (path.opacity !== opacity) path.setAttribute("stroke-opacity", path.opacity = opacity);
}

/** How much the cross-attentions connect each token of a stack with the lit one of the other, mean of layers and heads. */
function heatOf(river, stack) {
  const other = river.stacks.find((one) => one !== stack);
  const lit = other && litLane(river, other);
  if (lit === null || lit === undefined) return null;
  const reads = stack === river.stacks[0]; // the encoder's tokens are the keys
  return stack.tokens.map((_, lane) => meanWeight(crossValues(river), reads ? lit : lane, reads ? lane : lit));
}

function ribbonsOf(river, stack, column) {
  const group = svg("g", {});
  const quantity = river.values[column.keys[0]];
  const keyTokens = column.cross ? river.stacks[0].tokens : stack.tokens;
  const extent = stack.tokens.length * stack.lane;
  const right = river.flow === "right";
  const flows = column.kind === "flow"; // from the strip before to the strip after
  const inset = column.cross && right ? 40 : flows ? -8 : 0;
  const keyAt = (n) => stack.head + ((n + 0.5) * extent) / keyTokens.length;
  const laneAt = (n) => stack.head + (n + 0.5) * stack.lane;
  if (column.cross) keyTokens.forEach((token, n) => {
    const [x, y] = place(river, stack, column.start + (right ? inset - 4 : 8), keyAt(n));
    group.append(svg("text", { class: "key-token", x, y: y + (right ? 4 : 0), "text-anchor": right ? "end" : "middle" }, fitted(visible(token), 42, 11)));
  });
  if (!quantity) return group;
  const [rows, cells] = quantity.shape;
  const faintest = flows ? 0.1 : cells > 12 ? 0.06 : 0.02; // many lines would hide the strong ones
  for (let query = 0; query < rows; query++)
    for (let key = 0; key < cells; key++) {
      const weight = Math.min(1, Math.abs(quantity.data[query * cells + key]));
      if (!(weight > faintest)) continue;
      const [x1, y1] = place(river, stack, column.start + (right || flows ? inset : 12), keyAt(key));
      const [x2, y2] = place(river, stack, column.start + column.size + (flows ? 8 : 0), laneAt(query));
      const path = svg("path", { class: `ribbon ${river.difference ? "moved" : ""}`, d: ribbon(x1, y1, x2, y2, right), "stroke-width": 0.5 + (flows ? 3 : 5) * weight });
      stack.shown.push({ column, query, key, weight, path });
      group.append(path);
    }
  return group;
}

const ribbon = (x1, y1, x2, y2, right) => right
  ? `M${x1},${y1}C${(x1 + x2) / 2},${y1} ${(x1 + x2) / 2},${y2} ${x2},${y2}`
  : `M${x1},${y1}C${x1},${(y1 + y2) / 2} ${x2},${(y1 + y2) / 2} ${x2},${y2}`;

/** The word that is hovered or selected, as query, key or both of an attention. */
function focusOf(river, stack, column) {
  const [side, lane] = river.hovered?.split(":") ?? [];
  if (side) {
    const keySide = column.cross ? river.stacks[0].stack.side : stack.stack.side;
    return { query: side === stack.stack.side ? Number(lane) : -1, key: side === keySide ? Number(lane) : -1 };
  }
  const selected = river.state.at.startsWith(`${stack.stack.name}.`) && river.state.row !== null;
  return selected ? { query: river.state.row, key: -1 } : null;
}

/** Mark the station that is selected. */
function mark(river) {
  const { at } = river.state;
  for (const element of river.marked ?? []) element.classList.remove("selected");
  river.marked = at ? [...river.svg.querySelectorAll(`[data-at="${CSS.escape(at)}"], [data-column="${CSS.escape(at)}"]`)] : [];
  for (const element of river.marked) element.classList.add("selected");
}

/** Scroll to what is selected, or to the first element of a kind; an open layer comes to the left. */
function reveal(river, selector = `[data-at="${CSS.escape(river.state.at)}"]`) {
  const element = (river.state.at || river.state.changes.length) && river.svg?.querySelector(selector);
  const scroller = river.stage.parentElement;
  if (!element) return;
  if (river.flow === "down") return window.scrollBy(0, element.getBoundingClientRect().top - 120);
  const [box, view] = [element.getBoundingClientRect(), scroller.getBoundingClientRect()];
  if (element.matches(".layer-name")) scroller.scrollLeft += box.left - view.left - 2 * river.stacks[0].columns[0].size;
  else if (box.left < view.left + 40 || box.right > view.right - 120) scroller.scrollLeft += box.left - view.left - view.width / 2;
}

/** Enter opens a layer, or the first cell of a station, where arrows go on. */
function enter(state) {
  if (!state.at.split(".").some((part) => part.endsWith("_attention") || part === "feed_forward") && /\.\d+$/.test(state.at)) return goIn(state, state.at);
  state.set({ row: state.row ?? 0, column: state.column ?? 0, head: state.head ?? (/(query|key|value|products|scores|weights|heads)$/.test(state.at) ? 0 : null) }, { push: true });
  document.querySelector("#inspector").dataset.focus = ".map canvas";
}

/** Arrows move through stations and tokens, Enter goes in. */
function onKey(event, river) {
  const { state, flow } = river;
  const along = flow === "right" ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
  const across = flow === "right" ? ["ArrowUp", "ArrowDown"] : ["ArrowLeft", "ArrowRight"];
  const stations = [...new Set(river.stacks.flatMap(({ columns }) => columns.flatMap((column) => column.at ?? column.keys)))];
  if (along.includes(event.key)) {
    const step = event.key === along[1] ? 1 : -1;
    const next = stations[Math.max(0, Math.min(stations.length - 1, stations.indexOf(state.at) + step))];
    select(state, { at: next });
  } else if (across.includes(event.key)) {
    const stack = river.stacks.find(({ stack: { name, side } }) => state.at.startsWith(name) || state.at.startsWith(side)) ?? river.stacks.at(-1);
    const step = event.key === across[1] ? 1 : -1;
    select(state, { row: Math.max(0, Math.min(stack.tokens.length - 1, (state.row ?? -1) + step)) });
  } else if (event.key === "Enter") enter(state);
  else return;
  event.preventDefault();
}
