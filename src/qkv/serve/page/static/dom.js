/** Small helpers for elements, tokens and numbers. */

const SVG = "http://www.w3.org/2000/svg";
const MATH = "http://www.w3.org/1998/Math/MathML";

/** The children that are there, however deep they are listed. */
const present = (children) => children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [property, to] of Object.entries(value)) element.style.setProperty(property, to);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...present(children));
  return element;
}

/** An HTML element; attributes that begin with "on" are listeners. */
export const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
/** An SVG element. */
export const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
/** A MathML element. */
export const math = (name, attributes, ...children) => fill(document.createElementNS(MATH, name), attributes, children);

/** A text with its indices set low: d_k, W_O, p_i. */
export const indexed = (text) => text.split(/(?<=[A-Za-z√])_(\w+)/).map((part, n) => (n % 2 ? el("sub", {}, part) : part));

/** A token as a reader sees it: spaces and line breaks visible. */
export const visible = (token) => token.replace(/^▁(?=.)/, "").replace(/▁/g, "␣").replace(/\n/g, "↵").replace(/^Ġ(?=.)/, "").replace(/Ġ/g, "␣");
const ruler = document.createElement("canvas").getContext("2d");
let family; // of the page's type
/** Pixels of a text in the page's type. */
export function textWidth(text, size) {
  family ??= getComputedStyle(document.body).fontFamily;
  ruler.font = `${size}px ${family}`;
  return Math.ceil(ruler.measureText(text).width);
}
/** A text, cut off where it would be wider than so many pixels. */
export function fitted(text, width, size) {
  let [shown, length] = [text, text.length];
  while (length > 1 && textWidth(shown, size) > width) shown = `${text.slice(0, --length)}…`;
  return shown;
}
/** Tokens as running text. */
export const asText = (tokens) => tokens.join("").replace(/[▁Ġ]/g, " ").trim();
/** Whether a token begins a new word. */
export const beginsWord = (token) => /^[▁Ġ ]/.test(token);

/** A number with a sensible count of digits. */
export function number(value, digits = 3) {
  if (value === Infinity) return "∞";
  if (value === -Infinity) return "−∞";
  if (Number.isNaN(value)) return "—";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 0.0005 || size >= 1e5) ? value.toExponential(1) : value.toFixed(size >= 100 ? 1 : digits);
  return text.replace("-", "−");
}
export const percent = (value) => (value > 0 && value < 0.0005 ? "<0.1 %" : `${(100 * value).toFixed(value && (value > 0.995 || value < 0.0995) ? 1 : 0)} %`);

/** Call a function once calls have paused for `delay` milliseconds. */
export function paused(delay, call) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...given), delay);
  };
}

/** Call a function at once, and again only once calls have paused for `delay()` milliseconds. */
export function eager(delay, call) {
  let timer, last = -Infinity;
  return () => {
    clearTimeout(timer);
    const now = performance.now();
    timer = setTimeout(call, now - last > 2 * delay() ? 0 : delay());
    last = now;
  };
}

/** Call a function after the next frame is on the screen. */
export const afterFrame = (call) => (document.hidden ? setTimeout(call) : requestAnimationFrame(() => setTimeout(call)));

/** Run asynchronous work of which only the newest result counts; the signal that it gets gives up the older. */
export function newest(work, done, failed = () => {}) {
  let present = null;
  return async (...given) => {
    present?.abort();
    const mine = present = new AbortController();
    try {
      const result = await work(mine.signal, ...given);
      if (mine === present) done(result);
    } catch (error) {
      if (mine === present) failed(error);
    }
  };
}

/** Put children, those that are there, into an element in place of its own. */
export const show = (element, ...children) => element.replaceChildren(...present(children));
