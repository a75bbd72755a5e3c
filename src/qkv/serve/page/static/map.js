/** A matrix as a map: a canvas with token names, hover and a selected cell. */
import { el, number, spread, visible } from "./dom.js";
import { paintMap, prepare, strength } from "./paint.js";

const MOST_LABELS = 40;

/** Draw a map of `quantity` (rows × columns); `choose(row, column)` is called on a click. */
export function drawMap(quantity, { colour, rowNames, columnNames, selected, choose, width = 336, scale, label, onHover, most = 34 }) {
  const [rows, columns] = quantity.shape;
  const square = Boolean(columnNames);
  const left = rowNames ? Math.min(76, 10 + 7 * Math.max(...rowNames.map(letters))) : 0;
  const wide = Math.max(40, width - left - (square ? 24 : 2));
  const cell = square ? Math.max(2, Math.min(most, wide / columns)) : wide / columns;
  const tall = square ? cell : Math.max(3, Math.min(22, 260 / rows));
  const [mapWidth, mapHeight] = [cell * columns, tall * rows];
  const top = square && columns <= MOST_LABELS && cell >= 10 ? 10 + 6.4 * Math.min(9, Math.max(...columnNames.map(letters))) * 0.8 : 0;
  const canvas = el("canvas", { role: "img", tabindex: 0, "aria-label": label });
  const context = prepare(canvas, left + Math.max(mapWidth, 10) + (top ? 24 : 2), top + mapHeight + 2);
  const box = { x: left, y: top, width: mapWidth, height: mapHeight };
  paintMap(context, quantity.data, rows, columns, scale ?? strength(quantity.data), colour, box);
  names(context, rowNames, columnNames, { left, top, cell, tall });
  frame(context, selected, { left, top, cell, tall, rows, columns, mapWidth });
  const tip = el("p", { class: "tip quiet", "aria-hidden": "true" }, " ");
  const find = (event) => {
    const bounds = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - bounds.top - top) / tall);
    const column = Math.floor((event.clientX - bounds.left - left) / cell);
    return row >= 0 && row < rows && column >= 0 && column < columns ? { row, column } : null;
  };
  canvas.onmousemove = (event) => {
    const at = find(event);
    onHover?.(at);
    tip.textContent = at ? `${name(rowNames, at.row)} · ${name(columnNames, at.column)}: ${number(quantity.data[at.row * columns + at.column])}` : " ";
  };
  canvas.onmouseleave = () => { tip.textContent = " "; onHover?.(null); };
  canvas.onclick = (event) => { const at = find(event); if (at) choose?.(at.row, at.column); };
  canvas.onkeydown = (event) => {
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
    if (!down && !right && event.key !== "Enter") return;
    const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
    choose?.(clamp((selected?.row ?? 0) + down, rows), clamp((selected?.column ?? (down ? 0 : -right)) + right, columns));
    event.preventDefault();
    event.stopPropagation();
  };
  return el("div", { class: "map" }, canvas, tip);
}

const name = (names, n) => (names ? visible(names[n]) : n);
/** Width of a name in narrow letters, as far as it is shown. */
const letters = (text) => Math.min(9, spread(visible(text)));
const clip = (text) => (text.length > 9 ? `${text.slice(0, 8)}…` : text);

function names(context, rowNames, columnNames, { left, top, cell, tall }) {
  const style = getComputedStyle(document.body);
  context.fillStyle = style.color;
  context.font = `12px ${style.fontFamily}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  if (rowNames && tall >= 10) rowNames.forEach((text, n) => context.fillText(clip(visible(text)), left - 6, top + (n + 0.5) * tall));
  if (!top) return;
  context.textAlign = "left";
  columnNames.forEach((text, n) => {
    context.save();
    context.translate(left + (n + 0.5) * cell, top - 4);
    context.rotate(-Math.PI / 4);
    context.fillText(clip(visible(text)), 0, 0);
    context.restore();
  });
}

function frame(context, selected, { left, top, cell, tall, rows, columns, mapWidth }) {
  if (!selected || selected.row === null || selected.row >= rows) return;
  context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
  context.lineWidth = 1.5;
  if (selected.column === null) context.strokeRect(left, top + selected.row * tall, mapWidth, tall);
  else if (selected.column < columns) context.strokeRect(left + selected.column * cell, top + selected.row * tall, Math.max(cell, 3), tall);
}

/** The same matrix as a table, for screen readers and for copying. */
export function asTable(quantity, rowNames, columnNames, caption, most = 64) {
  const [rows, columns] = quantity.shape;
  const shown = Math.min(columns, most);
  return el("table", {}, el("caption", {}, caption + (shown < columns ? ` (${shown} / ${columns})` : "")),
    el("thead", {}, el("tr", {}, el("td", {}), ...Array.from({ length: shown }, (_, n) => el("th", { scope: "col" }, String(name(columnNames, n)))))),
    el("tbody", {}, ...Array.from({ length: rows }, (_, row) => el("tr", {}, el("th", { scope: "row" }, String(name(rowNames, row))),
      ...Array.from({ length: shown }, (_, n) => el("td", {}, number(quantity.data[row * columns + n])))))));
}
