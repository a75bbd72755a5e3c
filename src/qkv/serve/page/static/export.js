/** Buttons of a panel: save as SVG or PNG, as Python, copy the link. */
import { el } from "./dom.js";
import { t } from "./i18n.js";

const STYLES = ["fill", "stroke", "stroke-width", "stroke-opacity", "opacity", "font-size", "font-weight", "font-family", "text-anchor"];
const LEFT_OUT = ".exports, .hidden, input, textarea, select, button.chip, [hidden], .later"; // of a saved panel

/**
 * The row of buttons; `picture` gives the element that is saved, `code` {python, number}: lines that print the
 * number which is shown.
 */
export function exportButtons(state, picture, code) {
  const shown = el("pre", { class: "python", hidden: true, tabindex: 0 });
  const button = (name, click) => el("button", { type: "button", class: "plain small", "data-export": name.split(".")[1], onclick: click }, t(name));
  const toggle = () => {
    const { python, number } = code();
    shown.hidden = !shown.hidden;
    shown.textContent = python;
    shown.dataset.number = number ?? "";
  };
  return el("div", { class: "exports" },
    button("export.svg", () => saveSvg(picture())), button("export.png", () => savePng(picture())),
    button("export.python", toggle), button("export.link", (event) => copy(state.link(), event.currentTarget)), shown);
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "hidden" }, text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const label = button.textContent;
  button.textContent = t("export.copied");
  setTimeout(() => { button.textContent = label; }, 1200);
}

/** A picture of an element as one SVG: canvases become images, boxes and lines of text are written out. */
function toSvg(element) {
  const box = element.getBoundingClientRect();
  const parts = [];
  const walk = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return parts.push(...textLines(node, box));
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches(LEFT_OUT)) return undefined;
    const { left, top, width, height } = node.getBoundingClientRect();
    const at = `x="${left - box.left}" y="${top - box.top}" width="${width}" height="${height}"`;
    if (node.matches("canvas")) return parts.push(`<image ${at} preserveAspectRatio="none" href="${node.toDataURL()}"/>`);
    if (node.matches("svg")) return parts.push(drawing(node, { x: left - box.left, y: top - box.top, width, height }));
    const { backgroundColor, borderRadius, display } = getComputedStyle(node);
    if (display === "none") return undefined;
    if (!/, 0\)$|transparent/.test(backgroundColor)) parts.push(`<rect ${at} rx="${parseFloat(borderRadius) || 0}" fill="${backgroundColor}"/>`);
    return node.childNodes.forEach(walk);
  };
  walk(element);
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper");
  const head = `<svg xmlns="http://www.w3.org/2000/svg" width="${box.width}" height="${box.height}"><rect width="100%" height="100%" fill="${paper}"/>`;
  return { width: box.width, height: box.height, text: `${head}${parts.join("")}</svg>` };
}

/** A drawing with its styles written out. */
function drawing(node, box) {
  const copied = node.cloneNode(true);
  inline(node, copied);
  for (const [name, value] of Object.entries(box)) copied.setAttribute(name, value);
  return new XMLSerializer().serializeToString(copied);
}

/** The lines of a text as they are broken on the page. */
function textLines(node, box) {
  const style = getComputedStyle(node.parentElement);
  const range = document.createRange();
  const lines = [];
  for (let n = 0; n < node.length; n++) {
    range.setStart(node, n);
    range.setEnd(node, n + 1);
    const { left, bottom, top, width } = range.getBoundingClientRect();
    if (!width) continue;
    if (!lines.length || Math.abs(lines.at(-1).top - top) > 2) lines.push({ left, top, bottom, text: "" });
    lines.at(-1).text += node.data[n];
  }
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  return lines.map(({ left, top, bottom, text }) => `<text x="${left - box.left}" y="${bottom - box.top - 0.26 * (bottom - top)}" fill="${style.color}" `
    + `font-size="${style.fontSize}" font-weight="${style.fontWeight}" font-family="${style.fontFamily.replace(/"/g, "'")}" text-decoration="${style.textDecorationLine}">${escaped(text)}</text>`);
}

function inline(from, to) {
  const style = getComputedStyle(from);
  for (const name of STYLES) to.setAttribute(name, style.getPropertyValue(name));
  to.removeAttribute("class");
  [...from.children].forEach((child, n) => inline(child, to.children[n]));
}

function save(blob, ending) {
  const link = el("a", { href: URL.createObjectURL(blob), download: `qkv.${ending}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const saveSvg = (element) => element && save(new Blob([toSvg(element).text], { type: "image/svg+xml" }), "svg");

function savePng(element) {
  if (!element) return;
  const { width, height, text } = toSvg(element);
  const picture = new Image();
  picture.onload = () => {
    const canvas = el("canvas", { width: 2 * width, height: 2 * height });
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    context.drawImage(picture, 0, 0);
    canvas.toBlob((blob) => save(blob, "png"));
    URL.revokeObjectURL(picture.src);
  };
  picture.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
}
