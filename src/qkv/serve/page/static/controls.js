/** Controls that the sections share: sliders, choices, headings, a section that renews itself. */
import { el, indexed, newest } from "./dom.js";
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

/** A part of a section: heading, one sentence about it, content, and buttons that save it; `code` is of export.js. */
export function panel(state, key, code, ...content) {
  const body = el("div", { class: "body" }, ...content);
  return el("section", { class: "panel", "data-panel": key, "aria-label": t(key) }, el("h2", {}, t(key)), el("p", { class: "quiet about" }, t(`${key}.about`)), body,
    exportButtons(state, () => body, code));
}

/** Fill an element with the newest answer of a question, or with the sentence of its error. */
export const filled = (element, ask, draw) =>
  newest(ask, (answer) => element.replaceChildren(...[draw(answer)].flat(3).filter(Boolean)),
    (error) => element.replaceChildren(el("p", { class: "error" }, error.message)));
