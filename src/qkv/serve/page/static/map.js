/** A matrix as a map: a canvas with token names, hover and a selected cell. */
import { el, fitted, number, textWidth, visible } from "./dom.js";
import { paintMap, prepare, strength } from "./paint.js";

const MOST_LABELS = 40;
const TYPE = 12; // pixels

/** Draw a map of `quantity` (rows × columns); `choose(row, column)` is called on a click. */
export function drawMap(quantity, { colour, rowNames, columnNames, selected, choose, width = 336, scale, label: about, most = 34, mask }) {
  const [rows, columns] = quantity.shape;
  const square = Boolean(columnNames);
  const left = rowNames ? 8 + widest(rowNames) : 0;
  const wide = Math.max(40, width - left - (square ? 24 : 2));
  const cell = square ? Math.max(2, Math.min(most, wide / columns)) : wide / columns;
  const tall = square ? cell : Math.max(3, Math.min(22, 260 / rows));
  const [mapWidth, mapHeight] = [cell * columns, tall * rows];
  const top = square && columns <= MOST_LABELS && cell >= 10 ? 14 + 0.71 * widest(columnNames) : 0;
  const canvas = el("canvas", { role: "img", tabindex: 0, "aria-label": about });
  const context = prepare(canvas, left + Math.max(mapWidth, 10) + (top ? Math.max(24, 0.71 * widest(columnNames.slice(-1)) - cell / 2 + 6) : 2), top + mapHeight + 2);
  const box = { x: left, y: top, width: mapWidth, height: mapHeight };
  paintMap(context, quantity.data, rows, columns, scale ?? strength(quantity.data), colour, box, mask);
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
    tip.textContent = at ? `${name(rowNames, at.row)} · ${name(columnNames, at.column)}: ${number(quantity.data[at.row * columns + at.column])}` : " ";
  };
  canvas.onmouseleave = () => { tip.textContent = " "; };
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
/** A token as it is written beside the map. */
const label = (token) => fitted(visible(token), 68, TYPE);
/** Pixels of the longest name. */
const widest = (names) => Math.max(...names.map((token) => textWidth(label(token), TYPE)));

function names(context, rowNames, columnNames, { left, top, cell, tall }) {
  context.fillStyle = getComputedStyle(document.body).color;
  context.font = `${TYPE}px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  if (rowNames && tall >= 10) rowNames.forEach((text, n) => context.fillText(label(text), left - 6, top + (n + 0.5) * tall));
  if (!top) return;
  context.textAlign = "left";
  columnNames.forEach((text, n) => {
    context.save();
    context.translate(left + (n + 0.5) * cell, top - 4);
    context.rotate(-Math.PI / 4);
    context.fillText(label(text), 0, 0);
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
