/** Buttons of a panel: save as SVG or PNG, as Python, copy the link. */
import { el } from "./dom.js";
import { t } from "./i18n.js";
import { asPython } from "./python.js";

const STYLES = ["fill", "stroke", "stroke-width", "stroke-opacity", "opacity", "font-size", "font-weight", "font-family", "text-anchor"];

/** The row of buttons; `picture` gives an element with canvases and SVG, or null. */
export function exportButtons(state, picture) {
  const code = el("pre", { class: "python", hidden: true, tabindex: 0 });
  const button = (name, click) => el("button", { type: "button", class: "plain small", onclick: click }, t(name));
  return el("div", { class: "exports" },
    button("export.svg", () => saveSvg(picture())), button("export.png", () => savePng(picture())),
    button("export.python", () => { code.hidden = !code.hidden; code.textContent = asPython(state); }),
    button("export.link", (event) => copy(state.link(), event.currentTarget)), code);
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

/** A picture of an element as one SVG: canvases become images, styles are written out. */
function toSvg(element) {
  const box = element.getBoundingClientRect();
  const drawings = element.matches("canvas, svg") ? [element] : [...element.querySelectorAll("canvas, svg")];
  const parts = drawings.map((drawing) => {
    const { left, top, width, height } = drawing.getBoundingClientRect();
    const [x, y] = [left - box.left, top - box.top];
    if (drawing.matches("canvas")) return `<image x="${x}" y="${y}" width="${width}" height="${height}" preserveAspectRatio="none" href="${drawing.toDataURL()}"/>`;
    const copied = drawing.cloneNode(true);
    inline(drawing, copied);
    for (const [name, value] of Object.entries({ x, y, width, height })) copied.setAttribute(name, value);
    return new XMLSerializer().serializeToString(copied);
  });
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper");
  return { width: box.width, height: box.height, text: `<svg xmlns="http://www.w3.org/2000/svg" width="${box.width}" height="${box.height}"><rect width="100%" height="100%" fill="${paper}"/>${parts.join("")}</svg>` };
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
