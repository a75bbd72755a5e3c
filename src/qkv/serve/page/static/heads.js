/** All heads at once, layers × heads as small maps; one enlarged as a map or as lines between words. */
import { switchFor } from "./change.js";
import { segments } from "./controls.js";
import { el, newest, percent, show, svg, visible } from "./dom.js";
import { exportButtons } from "./export.js";
import { t } from "./i18n.js";
import { drawMap } from "./map.js";
import { paintMap, prepare } from "./paint.js";
import { asPython } from "./python.js";

const FEW_LAYERS = 16; // attentions whose heads are named unasked; it takes a pass for each layer
const FADED = 0.06; // opacity of lines of other words

/** Mount the section. */
export function mount(element, state, api) {
  const grid = el("div", { class: "head-grid" });
  const controls = el("div", { class: "head-controls" });
  const large = el("div", { class: "head-large" });
  element.append(controls, el("div", { class: "head-panes" }, grid, large));
  const view = { state, api, grid, controls, large, kind: null, about: null, roles: [], lines: false, threshold: 0.05, hideSinks: false };

  const load = newest(() => api.ask(state, "heads"), (about) => {
    view.about = about;
    view.roles = [];
    drawAll(view);
    if (isSmall(view)) setTimeout(view.nameHeads, 300); // after the maps
  }, (error) => show(grid, el("p", { class: "error" }, error.message)));
  view.nameHeads = newest(() => api.ask(state, "roles"), ({ heads }) => {
    view.roles = heads;
    controls.querySelector(".chip")?.remove(); // the rest stays: a slider may be in the hand
    for (const cell of cellsOf(view)) cell.querySelector(".role").textContent = roleOf(view, cell.dataset.key, Number(cell.dataset.head));
    view.tellRole?.(); // drawn anew, a hovered word would lose its lines
  });
  const refresh = () => state.section === "heads" && state.page.answer && !state.page.busy && load();
  state.page.on(refresh);
  state.on(["at", "head"], () => state.section === "heads" && view.about && drawLarge(view));
  return { show: refresh };
}

const isSmall = ({ about }) => about.kinds.flatMap(({ keys }) => keys).length <= FEW_LAYERS;
const cellsOf = ({ grid }) => [...grid.querySelectorAll(".head-cell")];

/** The kind of attention that is shown: the selected one, or the last. */
function currentKind({ state, about, kind }) {
  const selected = about.kinds.find(({ keys }) => keys.includes(state.at));
  return about.kinds.find(({ name }) => name === kind) ?? selected ?? about.kinds.at(-1);
}

function drawAll(view) {
  drawControls(view);
  drawGrid(view);
  drawLarge(view);
}

const kindName = (name) => `${t(`stack.${name.split(".")[0]}`)} · ${t(`sublayer.${name.split(".")[1]}`)}`;

function drawControls(view) {
  const { about, controls, state } = view;
  const kind = currentKind(view);
  const sinks = kind.sinks.map((position) => visible(state.page.answer?.tokens[kind.looked_at][position] ?? "")).join(" ");
  const again = (fields) => { Object.assign(view, fields); cellsOf(view).forEach((cell) => paintCell(view, cell)); drawLarge(view); };
  const shown = el("output", { class: "number" }, view.threshold.toFixed(2));
  show(controls,
    segments(t("heads.kind"), about.kinds.map(({ name }) => [name, kindName(name)]), kind.name,
      (name) => { state.set({ at: "", head: null }); view.kind = name; drawAll(view); }),
    el("label", { class: "toggle" }, t("heads.threshold"),
      el("input", { type: "range", min: 0, max: 0.5, step: 0.01, value: view.threshold, oninput: (event) => { again({ threshold: Number(event.target.value) }); shown.textContent = view.threshold.toFixed(2); } }), shown),
    kind.sinks.length ? el("label", { class: "toggle" },
      el("input", { type: "checkbox", checked: view.hideSinks, onchange: (event) => again({ hideSinks: event.target.checked }) }), t("heads.sinks", { sinks })) : null,
    isSmall(view) || view.roles.length ? null
      : el("button", { type: "button", class: "chip", onclick: (event) => { event.target.disabled = true; event.target.textContent = t("loading"); view.nameHeads(); } }, t("heads.name")));
}

/** A row of small maps for each layer, fetched when it comes into view. */
function drawGrid(view) {
  const { grid, state } = view;
  const kind = currentKind(view);
  view.watcher?.disconnect();
  view.watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { view.watcher.unobserve(entry.target); entry.target.load(); }
  }, { rootMargin: "200px" });
  const heads = Array.from({ length: kind.n_heads }, (_, head) => head);
  grid.style.setProperty("--heads", kind.n_heads);
  grid.style.setProperty("--widest", kind.keys.length > 12 ? "52px" : "136px");
  show(grid, el("span", { class: "quiet corner" }, t("heads.corner")), ...heads.map((head) => el("span", { class: "quiet head-number" }, String(head))),
    ...kind.keys.flatMap((key) => {
      const layer = key.split(".")[1];
      const cells = heads.map((head) => el("button", {
        type: "button", class: "head-cell", "data-key": key, "data-head": head, "aria-label": `${t("river.layer", { layer })}, ${t("head", { head })}`,
        onclick: () => state.set({ at: key, head, row: null, column: null }, { push: true }),
      }, el("canvas", {}), el("span", { class: "role" }, roleOf(view, key, head))));
      cells[0].load = async () => {
        const found = await view.api.trace(state, [key, maskOf(key)]).catch(() => null);
        if (found) cells.forEach((cell) => { cell.found = found.quantities; paintCell(view, cell); });
      };
      view.watcher.observe(cells[0]);
      return [el("span", { class: "quiet layer-number" }, layer), ...cells];
    }));
}

const maskOf = (key) => key.replace(/weights$/, "mask");

/** Paint a small map that has come; weights below the threshold and sinks are left out. */
function paintCell(view, cell) {
  const { key, head } = cell.dataset;
  if (!cell.found) return;
  const { data, shape: [, rows, columns] } = cell.found[key];
  const canvas = cell.querySelector("canvas");
  const width = cell.clientWidth - 8;
  const height = Math.min(width, Math.max(8, (width * rows) / columns));
  const own = shownWeights(view, data.subarray(head * rows * columns, (Number(head) + 1) * rows * columns), columns);
  canvas.style.aspectRatio = "auto";
  paintMap(prepare(canvas, width, height), own, rows, columns, 1, "attention", { x: 0, y: 0, width, height }, cell.found[maskOf(key)].data);
  cell.classList.toggle("changed", view.state.changes.includes(`off:${key.replace(/\.weights$/, "")}:head=${head}`));
}

function shownWeights(view, data, columns) {
  const { sinks } = currentKind(view);
  return data.map((weight, n) => (weight < view.threshold || view.hideSinks && sinks.includes(n % columns) ? 0 : weight));
}

const roleAt = ({ roles }, key, head) => roles.find((one) => one.key === key && one.head === head);

/** What a head does, where the server can tell. */
function roleOf(view, key, head) {
  const found = roleAt(view, key, head);
  return found ? t(`role.${found.role}`) : "";
}

/** The chosen head, large. */
async function drawLarge(view) {
  const { state, large, api } = view;
  const kind = currentKind(view);
  const key = kind.keys.includes(state.at) ? state.at : kind.keys.at(-1);
  const head = kind.keys.includes(state.at) && state.head !== null ? state.head : 0;
  for (const cell of cellsOf(view))
    cell.setAttribute("aria-pressed", String(cell.dataset.key === key && Number(cell.dataset.head) === head));
  const turn = view.turn = {};
  const answer = await api.trace(state, [key, maskOf(key)], { head }).catch(() => null);
  if (!answer || view.turn !== turn) return; // a newer one follows
  const found = answer.quantities[key];
  const quantity = { shape: found.shape.slice(-2), data: shownWeights(view, found.data, found.shape.at(-1)) };
  const [queries, keys] = [answer.tokens[kind.queries], answer.tokens[kind.looked_at]];
  const [stack, layer, sublayer] = key.split(".");
  const picture = view.lines ? drawLines(quantity, queries, keys)
    : drawMap(quantity, { colour: "attention", rowNames: queries, columnNames: keys, scale: 1, width: Math.min(560, large.clientWidth), most: 64, mask: answer.quantities[maskOf(key)].data, label: `${kindName(kind.name)} ${layer} ${head}`,
      selected: { row: state.row, column: state.column }, choose: (row, column) => state.set({ section: "river", at: key, head, row, column, open: [...new Set([...state.open, `${stack}.${layer}`])] }, { push: true }) });
  const role = el("p");
  view.tellRole = () => {
    const known = roleAt(view, key, head);
    role.hidden = !known;
    role.textContent = known ? t(`role.about.${known.role}`, { share: percent(known.score) }) : "";
  };
  view.tellRole();
  show(large,
    el("h2", {}, `${t(`stack.${stack}`)} ${layer} · ${t("head", { head })}`),
    role,
    el("p", { class: "quiet" }, t(`heads.about.${sublayer}`)),
    segments(t("heads.as"), [[false, t("heads.map")], [true, t("heads.lines")]], view.lines, (lines) => { view.lines = lines; drawLarge(view); }),
    picture,
    el("div", { class: "switches" }, switchFor(state, `off:${stack}.${layer}.${sublayer}:head=${head}`, t("switch.head", { head }))),
    exportButtons(state, () => large.querySelector(".map canvas") ?? large.querySelector(".lines"),
      () => ({ python: asPython({ ...state, at: key, head, row: 0, column: 0 }), number: found.data[0] })));
}

/** Lines from each word to those that it looks at; a hovered word keeps its own. */
function drawLines({ shape: [rows, columns], data }, queries, keys) {
  const step = 32;
  const height = Math.max(rows, columns) * step + 8;
  const [left, right, width] = [110, 330, 440];
  const at = (count, n) => (n + 0.5) * ((height - 8) / count) + 4;
  const paths = [];
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const weight = data[row * columns + column];
      if (weight > 0) paths.push({ row, column, weight, path: svg("path", {
        class: "ribbon", d: `M${left},${at(rows, row)}C${(left + right) / 2},${at(rows, row)} ${(left + right) / 2},${at(columns, column)} ${right},${at(columns, column)}`,
        "stroke-width": 0.5 + 6 * weight, "stroke-opacity": 0.15 + 0.75 * weight,
      }, svg("title", {}, `${visible(queries[row])} → ${visible(keys[column])} ${percent(weight)}`)) });
    }
  const light = (test) => { for (const one of paths) one.path.setAttribute("stroke-opacity", test(one) ? 0.15 + 0.75 * one.weight : FADED); };
  const word = (text, x, y, anchor, test) => svg("text", { x, y: y + 4, "text-anchor": anchor, tabindex: 0, class: "line-word",
    onmouseenter: () => light(test), onfocus: () => light(test), onmouseleave: () => light(() => true), onblur: () => light(() => true) }, visible(text));
  return el("div", { class: "lines" }, svg("svg", { class: "fits", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("heads.lines") },
    ...paths.map(({ path }) => path),
    ...queries.map((text, row) => word(text, left - 8, at(rows, row), "end", (one) => one.row === row)),
    ...keys.map((text, column) => word(text, right + 8, at(columns, column), "start", (one) => one.column === column))));
}
