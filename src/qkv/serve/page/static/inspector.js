/** The inspector: name, formula, map and numbers of whatever is selected, and switches to change it. */
import { switchFor, weightSlider, patchForm } from "./change.js";
import { segments } from "./controls.js";
import { el, indexed, newest, number, show, visible } from "./dom.js";
import { exportButtons } from "./export.js";
import { formula } from "./formula.js";
import { t, tOr } from "./i18n.js";
import { ACTIVATIONS } from "./layout.js";
import { asTable, drawMap } from "./map.js";
import { goOut } from "./navigate.js";
import { asPython, stepsPython } from "./python.js";
import { candidates } from "./top.js";

const COLOURS = { query: "q", key: "k", value: "v", products: "attention", bias: "attention", mask: "attention", scores: "attention", weights: "attention", heads: "attention" };
const COARSE = { logits: 256, probabilities: 256 }; // pooled columns of what is too wide for a map

/** Draw the inspector; it follows the state. */
export function mountInspector(element, state, api) {
  const load = newest(
    () => content(state, api),
    (parts) => {
      element.removeAttribute("aria-busy");
      renew(element, parts);
      element.classList.toggle("open", Boolean(state.at));
    },
    (error) => show(element, el("p", { class: "error" }, error.message)),
  );
  const draw = () => {
    if (state.section !== "river") return;
    if (!element.childElementCount) show(element, el("p", { class: "quiet" }, t("loading")));
    element.setAttribute("aria-busy", "true");
    load();
  };
  state.on(["at", "head", "row", "column", "section"], draw);
  state.page.on(() => state.page.busy || draw());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.target.closest("#text, #second")) return;
    const open = document.querySelector("details.word[open]");
    if (open) open.open = false;
    else goOut(state);
  });
}

/** Put new content in place of the old; a part that somebody is using, the focus of a map, and what was folded stay. */
function renew(element, given) {
  const parts = given.flat().filter(Boolean);
  const active = document.activeElement.closest("#inspector *");
  const used = active?.closest("#inspector > [data-keep]");
  const kept = parts.findIndex((part) => used && part.dataset.keep === used.dataset.keep);
  const again = element.dataset.focus ?? (active?.matches("canvas") ? ".map canvas" : active?.dataset.change ? `[data-change="${CSS.escape(active.dataset.change)}"]` : null);
  const folds = Object.fromEntries([...element.querySelectorAll("details")].map(({ className, open }) => [className, open]));
  if (kept < 0) show(element, parts);
  else {
    for (const part of [...element.children]) if (part !== used) part.remove();
    used.before(...parts.slice(0, kept));
    used.after(...parts.slice(kept + 1));
  }
  for (const details of element.querySelectorAll("details")) details.open = folds[details.className] ?? details.open;
  if (again) element.querySelector(again)?.focus();
  delete element.dataset.focus;
}

/** What stands in the inspector for the present selection. */
async function content(state, api) {
  const { structure, answer } = state.page;
  if (!structure) return [el("p", { class: "quiet" }, t("loading"))];
  const place = locate(structure, state.at);
  const head = [breadcrumbs(state, place), closeButton(state)];
  if (!place) return [...head, ...modelCard(state, structure)];
  if (place.kind !== "station") return [...head, ...layerCard(state, place)];
  if (!answer) return [...head, el("h2", {}, indexed(partName(place.station)))];
  return [...head, ...(await stationCard(state, api, place))];
}

const closeButton = (state) => state.at
  ? el("button", { type: "button", class: "plain sheet-close", "aria-label": t("close"), onclick: () => state.set({ at: "", row: null, column: null }, { push: true }) }, "×") : null;

/** Find the layer, sublayer or station that a key names. */
function locate(structure, at) {
  if (!at) return null;
  const flat = [...structure.outputs, ...structure.stacks.flatMap((stack) => [...stack.inputs, stack.output])];
  const station = flat.find(({ key }) => key === at);
  if (station) return { kind: "station", station, stack: structure.stacks.find(({ side, name }) => at.startsWith(side) || at.startsWith(name)) };
  const [name, layer, sublayerName, ...part] = at.split(".");
  const stack = structure.stacks.find((one) => one.name === name);
  if (!stack || !(Number(layer) < stack.n_layers)) return null;
  const sublayer = stack.sublayers.find((one) => one.name === sublayerName);
  if (!sublayer) return { kind: "layer", stack, layer };
  const found = sublayer.stations.find((one) => one.part === part.join("."));
  if (!found) return { kind: "sublayer", stack, layer, sublayer };
  return { kind: "station", station: { ...found, key: at }, stack, layer, sublayer };
}

/** Model › decoder › layer 1 › cross-attention › weights › head 2, each a way back. */
function breadcrumbs(state, place) {
  const to = (label, fields) => el("button", { type: "button", class: "plain", onclick: () => state.set(fields, { push: true }) }, label);
  const none = { row: null, column: null };
  const crumbs = [to(state.model, { at: "", head: null, ...none })];
  if (place?.layer !== undefined) {
    const at = `${place.stack.name}.${place.layer}`;
    crumbs.push(to(`${t(`stack.${place.stack.name}`)} ${place.layer}`, { at, head: null, ...none }));
    if (place.sublayer) crumbs.push(to(t(`sublayer.${place.sublayer.name}`), { at: `${at}.${place.sublayer.name}`, head: null, ...none }));
  }
  if (place?.kind === "station") crumbs.push(to(partName(place.station), { head: null, ...none }));
  if (place?.station?.has_heads && state.head !== null) crumbs.push(to(t("head", { head: state.head }), none));
  return el("nav", { class: "crumbs", "aria-label": t("path") }, ...crumbs.flatMap((crumb, n) => (n ? [el("span", {}, "›"), crumb] : [crumb])));
}

const partName = ({ key, part, name }) => tOr(`part.${key}`, tOr(`part.${part ?? key.split(".").at(-1)}`, name));

function modelCard(state, structure) {
  const { facts } = structure;
  const rows = [
    ["fact.parameters", structure.parameters.toLocaleString("en")],
    ["fact.layers", structure.stacks.map((stack) => `${t(`stack.${stack.name}`)} ${stack.n_layers}`).join(" · ")],
    ["fact.heads", facts.kv_heads === facts.n_heads ? facts.n_heads : `${facts.n_heads} (K, V: ${facts.kv_heads})`],
    ["fact.d_model", `${facts.d_model} · d_k ${facts.d_head} · d_ff ${facts.d_ff}`],
    ["fact.norm", t(`norm.${facts.norm_position}`, { norm: facts.norm === "layer" ? "LayerNorm" : "RMSNorm" })],
    ["fact.positions", tOr(`positions.${facts.positions}`, facts.positions)],
    ["fact.feed_forward", [ACTIVATIONS[facts.activation] ?? facts.activation, facts.gated && t("gated"), facts.n_experts && t("experts", { count: facts.n_experts })].filter(Boolean).join(" · ")],
    ["fact.vocabulary", facts.vocab_size.toLocaleString("en")],
    ["fact.tied", tOr(`tie.${facts.tie}${structure.stacks.length > 1 ? "" : ".one"}`, tOr(`tie.${facts.tie}`, String(facts.tie)))],
  ];
  return [
    el("h2", {}, structure.model),
    el("p", {}, t(`family.${facts.family}`)),
    el("dl", { class: "facts" }, ...rows.flatMap(([name, value]) => [el("dt", {}, indexed(t(name))), el("dd", {}, indexed(String(value)))])),
    el("p", { class: "hint" }, t("river.hint")),
    switches(state, positionSwitches(structure)),
    exportButtons(state, () => document.querySelector(".stage"), () => stepsPython(state)),
  ];
}

/** Switches of positions that are added to the input. */
const positionSwitches = ({ stacks }) => stacks
  .filter(({ inputs }) => inputs.some(({ key }) => key.endsWith(".positions")))
  .map(({ side }) => [`off:${side}.positions`, stacks.length > 1 ? t("switch.positions", { side: t(`side.${side}`) }) : t("part.positions")]);

function layerCard(state, { kind, stack, layer, sublayer }) {
  const at = `${stack.name}.${layer}`;
  const shown = kind === "layer" ? stack.sublayers.filter(({ layers }) => layers.includes(Number(layer))) : [sublayer];
  const list = shown.flatMap((one) => [
    el("h3", {}, t(`sublayer.${one.name}`)),
    switches(state, sublayerSwitches(`${at}.${one.name}`, one)),
    el("ul", { class: "stations" }, ...one.stations.filter(({ detail }) => !detail).map((station) => el("li", {},
      el("button", { type: "button", class: "plain", onclick: () => state.set({ at: `${at}.${one.name}.${station.part}`, open: [...new Set([...state.open, at])] }, { push: true }) },
        el("span", { class: "part" }, indexed(partName(station))), formula(station.formula))))),
  ]);
  return [
    el("h2", {}, `${t(`stack.${stack.name}`)}: ${t("river.layer", { layer })}`),
    kind === "layer" ? switches(state, [[`off:${at}`, t("switch.layer")]]) : null,
    ...list,
  ];
}

/** Every switch of a sublayer that the trace can throw. */
function sublayerSwitches(at, { name, stations }) {
  const has = (part) => stations.some((station) => station.part === part);
  return [
    [`off:${at}`, t(name === "feed_forward" ? "switch.feed_forward" : "switch.attention")],
    has("skip") && [`off:${at}.skip`, t("switch.skip")],
    has("mask") && [`off:${at}.mask`, t("switch.mask")],
    has("scale") && [`off:${at}.scale`, t("switch.scale")],
    has("rotation") && [`off:${at}.rotation`, t("switch.rotation")],
    has("bias") && [`off:${at}.bias`, t("switch.bias")],
  ].filter(Boolean);
}

const switches = (state, list) => list.length ? el("div", { class: "switches" }, ...list.map(([change, label]) => switchFor(state, change, label))) : null;

/** A station: formula, heads, map, the chosen cell in numbers, changes. */
async function stationCard(state, api, place) {
  const { station } = place;
  const part = station.part ?? station.key.split(".").at(-1);
  const head = ownHead(state, station);
  const options = { ...(head === null ? { lanes: true } : { head }), cells: COARSE[part] ?? 0 };
  const scalar = station.axes.filter((axis) => axis !== "B").length === 0;
  const mask = part === "weights" ? [station.key.replace(/weights$/, "mask")] : [];
  const { quantities, tokens } = await api.trace(state, [station.key, ...mask], options);
  const quantity = flat(quantities[station.key]);
  const rowNames = namesOf(station.axes, -2, tokens, quantity.shape[0]);
  const columnNames = namesOf(station.axes, -1, tokens, quantity.shape[1]);
  const selected = { row: state.row, column: state.column };
  const map = scalar ? el("p", { class: "big number" }, number(quantity.data[0])) : drawMap(quantity, {
    colour: COLOURS[part] ?? "stream", rowNames, columnNames, selected, label: `${partName(station)}: ${station.formula}`,
    scale: part === "weights" ? 1 : undefined, mask: quantities[mask[0]]?.data, width: Math.min(336, document.querySelector("#inspector").clientWidth - 40),
    choose: (row, column) => chooseCell(state, station, part, row, column),
  });
  return [
    el("h2", {}, indexed(partName(station)), el("small", { class: "quiet" }, ` ${letters(station)}`)),
    el("div", { class: "formula", tabindex: 0, role: "group", "aria-label": t("formula") }, formula(station.formula)),
    station.has_heads ? headChooser(state, place) : null,
    map,
    ...(scalar ? [] : await cellCard(state, api, place, part, { rowNames, columnNames })),
    changesOf(state, place, part, rowNames, quantity.data[state.row * quantity.shape[1] + state.column]),
    exportButtons(state, () => document.querySelector("#inspector .map canvas"),
      () => ({ python: asPython(state), number: document.querySelector("#inspector [data-value]")?.dataset.value })),
    el("details", { class: "as-table" }, el("summary", {}, t("as.table")), el("div", {}, asTable(quantity, rowNames, columnNames, partName(station)))),
  ];
}

/** How many heads a station has: fewer where keys and values are grouped. */
const headsOf = ({ page: { structure: { facts } } }, { axes }) => (axes[1] === "G" ? facts.kv_heads : facts.n_heads);
/** The chosen head of a station, where it has so many. */
const ownHead = (state, station) => (station.has_heads && state.head !== null && state.head < headsOf(state, station) ? state.head : null);

/** Rows × columns, whatever leading dimensions there are. */
function flat(quantity) {
  const columns = quantity.shape.at(-1) ?? 1;
  return { ...quantity, shape: [quantity.data.length / columns, columns] };
}

const letters = ({ axes }) => `(${axes.filter((axis) => axis !== "B").map((axis) => (axis === "K" ? "D/H" : axis)).join(", ")})`;

function namesOf(axes, index, tokens, count) {
  const names = { S: tokens.source, T: tokens.target }[axes.at(index)];
  return names?.length === count ? names : null;
}

/** A click on a map: a cell of a head; where heads stand side by side, of the head that was hit. */
function chooseCell(state, station, part, row, column) {
  if (part in COARSE) return state.set({ row, column: null }, { push: true });
  if (!station.has_heads || ownHead(state, station) !== null) return state.set({ row, column }, { push: true });
  const width = state.page.structure.facts.d_head;
  const betweenTokens = ["S", "T"].includes(station.axes.at(-1));
  if (betweenTokens) return state.set({ head: 0, row, column }, { push: true });
  return state.set({ head: Math.floor(column / width), row, column: column % width }, { push: true });
}

function headChooser(state, { station, sublayer, stack, layer }) {
  const count = headsOf(state, station);
  const kind = (head) => (state.changes.includes(`off:${stack.name}.${layer}.${sublayer.name}:head=${head}`) ? "changed" : "");
  const heads = Array.from({ length: count }, (_, head) => [head, String(head), kind(head)]);
  const row = segments(t("heads"), [[null, t("head.all")], ...heads], ownHead(state, station), (head) => state.set({ head, column: null }, { push: true }));
  row.classList.add("heads-row");
  return row;
}

/** The formula with this sentence's numbers, for the selected cell. */
async function cellCard(state, api, { station }, part, { rowNames, columnNames }) {
  if (part === "logits" || part === "probabilities") return outputCard(state, api, station);
  if (state.row === null || state.column === null || station.has_heads && ownHead(state, station) === null)
    return [el("p", { class: "hint" }, t("cell.hint"))];
  const options = { key: station.key, row: state.row, column: state.column, ...(station.has_heads ? { head: state.head } : {}) };
  const { value, lines } = await api.ask(state, "cell", options);
  const where = [rowNames ? visible(rowNames[state.row]) : state.row, columnNames ? visible(columnNames[state.column]) : `#${state.column}`];
  return [
    el("h3", {}, t("cell.title", { row: where[0], column: where[1] })),
    lines.length ? el("ol", { class: "worked" }, ...lines.map((line, n) => workedLine(line, lines[n - 1]))) : null,
    el("p", { class: "value" }, `${partName(station)} = `, el("b", { class: "number", "data-value": value }, number(Number(value), 4))),
  ];
}

/** One step of the calculation: symbol, the numbers that go in (the value of the step before among them), value. */
function workedLine({ symbol, value, terms, rest, n_rest, operand }, before) {
  const parts = terms.map(([a, b]) => `${bracket(a)}·${bracket(b)}`);
  if (n_rest) parts.push(t("cell.rest", { count: n_rest, sum: number(rest, 2) }));
  if (terms.length && operand !== null) parts.push(`${t("cell.bias")} ${bracket(operand)}`);
  const inner = terms.length ? parts.flatMap((part, n) => [n ? " + " : "", el("span", {}, part)]) : operand === null ? tOr(`cell.${symbol}`, "") : withBefore(symbol, Number(before?.value), Number(operand));
  return el("li", {}, el("span", { class: "symbol" }, indexed(symbol)),
    el("span", { class: terms.length ? "terms long" : "terms" }, inner), el("span", { class: "number" }, `= ${number(Number(value), 4)}`));
}

/** A step that goes on with the value before it: "4.02 ÷ 8", "exp(0.5 − 6.5)". */
function withBefore(symbol, before, operand) {
  const [left, right] = [number(before, 3), number(operand, 3)];
  if (Number.isNaN(before)) return right;
  if (symbol.startsWith("exp")) return `exp(${left} − ${operand < 0 ? `(${right})` : right})`;
  return `${left} ${symbol[0]} ${operand < 0 ? `(${right})` : right}`;
}

const bracket = (value) => (value < 0 ? `(${number(value, 2)})` : number(value, 2));

/** Logits and probabilities: the candidates of the chosen output, and the sum behind the best one. */
async function outputCard(state, api, station) {
  const { answer } = state.page;
  const outputs = answer.changed ?? answer.outputs;
  const step = outputs.find(({ position }) => position === state.row) ?? outputs[0];
  if (!step) return [];
  const { value, lines } = await api.ask(state, "cell", { key: station.key, row: step.position, column: step.candidates[0].id });
  return [
    el("h3", {}, t("alternatives", { after: visible(step.after) })), candidates(step),
    el("h3", {}, visible(step.candidates[0].name)),
    el("ol", { class: "worked" }, ...lines.map((line, n) => workedLine(line, lines[n - 1]))),
    el("p", { class: "value" }, `${partName(station)} = `, el("b", { class: "number", "data-value": value }, number(Number(value), 4))),
  ];
}

/** What can be changed at a station. */
function changesOf(state, { station, stack, layer, sublayer }, part, rowNames, weight) {
  const list = [];
  const at = sublayer && `${stack.name}.${layer}.${sublayer.name}`;
  if (sublayer && station.has_heads && state.head !== null && part !== "key" && part !== "value")
    list.push([`off:${at}:head=${state.head}`, t("switch.head", { head: state.head })]);
  if (sublayer) list.push(...sublayerSwitches(at, sublayer));
  const side = station.axes.includes("S") && !(stack?.name === "decoder" && part !== "key" && part !== "value") ? "source" : stack?.side;
  if (state.row !== null && rowNames && ["source", "target"].includes(side))
    list.push([`hide:${side}:position=${state.row}`, t("switch.token", { token: visible(rowNames[state.row] ?? "") })]);
  return el("details", { class: "change-panel", open: true, "data-keep": `${station.key} ${state.head} ${state.row} ${state.column}` },
    el("summary", {}, t("change.title")),
    switches(state, list),
    part === "weights" && state.head !== null && state.row !== null && state.column !== null ? weightSlider(state, station.key, weight) : null,
    station.computed ? null : patchForm(state, station, rowNames),
  );
}

