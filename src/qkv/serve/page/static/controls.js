/** Controls that the sections share: sliders, choices, headings, a section that renews itself. */
import { el, indexed, newest, show, svg } from "./dom.js";
import { exportButtons } from "./export.js";
import { t } from "./i18n.js";

/** A slider with its name and its value. */
export function slider(name, { low, high, step, value, format = String }, changed) {
  const shown = el("output", { class: "number" }, format(value));
  const input = el("input", { type: "range", min: low, max: high, step, value, "aria-label": t(name) });
  input.oninput = () => {
    shown.textContent = format(Number(input.value));
    changed(Number(input.value));
  };
  const label = el("label", { class: "slider" }, el("span", {}, indexed(t(name))), input, shown);
  label.set = (to) => { input.value = to; shown.textContent = format(to); };
  return label;
}

/** A choice of values, which may be shown by other names. */
export function choice(label, values, value, changed, names = {}) {
  const select = el("select", { "aria-label": label }, values.map((one) => el("option", { value: one, selected: one === value }, names[one] ?? one)));
  select.onchange = () => changed(select.value);
  return select;
}

/** Width of a drawing in an element: all of it, within limits. */
export const roomIn = (element, most, least = 300) => Math.max(least, Math.min(most, element.clientWidth || most));

/** A button. */
export const button = (text, onclick, attributes = {}) => el("button", { type: "button", class: "chip", onclick, ...attributes }, text);

/** Buttons of which one is chosen; each option is [value, text, class]. */
export const radios = (options, chosen, choose) => options.map(([value, text, kind]) => el("button", {
  type: "button", role: "radio", class: kind, "aria-checked": String(value === chosen), onclick: () => choose(value),
}, text));
/** A row of such buttons with a name. */
export const segments = (label, ...given) => el("div", { class: "segments", role: "radiogroup", "aria-label": label }, radios(...given));

/** A part of a section: heading, one sentence about it, content, and buttons that save it; `code` is of export.js. */
export function panel(state, key, code, ...content) {
  const body = el("div", { class: "body" }, ...content);
  return el("section", { class: "panel", "data-panel": key, "aria-label": t(key) }, el("h2", {}, t(key)), el("p", { class: "quiet about" }, t(`${key}.about`)), body,
    exportButtons(state, () => body, code));
}

/** A function that fills an element with the newest answer of a question, its `answer`, or with the sentence of an error. */
export function filled(element, ask, draw) {
  const renew = newest(ask, (answer) => { renew.answer = answer; show(element, draw(answer)); }, (error) => show(element, el("p", { class: "error" }, error.message)));
  return renew;
}

const [LEFT, RIGHT, NAME] = [44, 56, 15]; // pixels beside a chart, and between the names of its lines

/** Lines over an axis: {colour, points: [[x, y]], dots, name}; `ticks` are values at the left, `across` [x, text, colour] below. */
export function chart(label, width, height, { lines, ticks, across, marked, format = String }) {
  const [xs, ys] = [0, 1].map((n) => lines.flatMap(({ points }) => points.map((point) => point[n])));
  const [first, last, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys, ...ticks), Math.max(...ys, ...ticks)];
  const x = (value) => LEFT + ((value - first) / (last - first || 1)) * (width - LEFT - RIGHT);
  const y = (value) => 12 + ((high - value) / (high - low || 1)) * (height - 40);
  let above = -NAME; // the name before, so that none covers another
  const named = lines.filter(({ name, points }) => name && points.length).sort((a, b) => b.points.at(-1)[1] - a.points.at(-1)[1])
    .map(({ colour, name, points }) => svg("text", { class: colour, x: x(last) + 8, y: (above = Math.max(above + NAME, y(points.at(-1)[1]) + 4)) }, name));
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "curve", role: "img", "aria-label": label },
    ticks.map((value) => [svg("line", { class: "axis", x1: LEFT, x2: x(last), y1: y(value), y2: y(value) }), svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, format(value))]),
    marked === undefined ? null : svg("line", { class: "chosen", x1: x(marked), x2: x(marked), y1: y(high), y2: y(low) }),
    lines.map(({ colour, points, dots = [] }) => [svg("polyline", { class: colour, points: points.map(([at, value]) => `${x(at)},${y(value)}`).join(" ") }),
      dots.map(([at, value]) => svg("circle", { class: colour, cx: x(at), cy: y(value), r: 3.5 }))]),
    named, across.map(([at, text, colour = ""]) => svg("text", { class: colour, x: x(at), y: height - 6, "text-anchor": "middle" }, text)));
}
