/** Values as colours on a canvas: strips, rows and maps. */

const NAMES = { q: "--q", k: "--k", v: "--v", attention: "--attention", stream: "--ink", change: "--change", paper: "--cell", mask: "--mask", negative: "--below" };
const known = new Map();

/** The colours of the present theme, as numbers. */
export function palette() {
  const theme = document.documentElement.dataset.theme;
  if (!known.has(theme)) {
    const style = getComputedStyle(document.documentElement);
    const parse = (name) => style.getPropertyValue(name).trim().match(/\w\w/g).map((hex) => parseInt(hex, 16));
    const colours = Object.fromEntries(Object.entries(NAMES).map(([key, name]) => [key, parse(name)]));
    known.set(theme, colours);
  }
  return known.get(theme);
}

const mix = (from, to, share) => from.map((value, n) => Math.round(value + (to[n] - value) * share));
const STEPS = 96; // shades between paper and full strength

/** The shades of a colour as CSS, from paper at 0 to its own hue above and brown below. */
function shades(colour) {
  const colours = palette();
  const of = (to) => Array.from({ length: STEPS + 1 }, (_, n) => `rgb(${mix(colours.paper, to, (n / STEPS) ** 0.8)})`);
  colours.shades ??= {};
  return colours.shades[colour] ??= { above: of(colours[colour]), below: of(colour === "change" ? colours.change : colours.negative), mask: `rgb(${colours.mask})` };
}

/** A canvas' context, sized in CSS pixels. */
export function prepare(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 8192 / Math.max(width, height, 1));
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

/** Paint one row of values as a strip of cells; `scale` is full strength. */
export function paintStrip(context, values, scale, colour, { x, y, width, height }) {
  const { above, below, mask } = shades(colour);
  const cell = width / values.length;
  const most = STEPS / (scale || 1);
  for (let n = 0; n < values.length; n++) {
    const value = values[n];
    const from = Math.round(x + n * cell);
    const finite = Number.isFinite(value);
    context.fillStyle = finite ? (value < 0 ? below : above)[Math.min(STEPS, Math.round(Math.abs(value) * most))] : mask;
    context.fillRect(from, y, Math.max(1, Math.round(x + (n + 1) * cell) - from), height);
    if (!finite && height > 10) hatch(context, from, y, cell, height);
  }
}

/** Hatch a masked cell. */
function hatch(context, x, y, width, height) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--soft");
  context.globalAlpha = 0.5;
  context.lineWidth = 1;
  context.beginPath();
  for (let sum = Math.ceil((x + y) / 4) * 4; sum < x + width + y + height; sum += 4) { // lines go on from cell to cell
    context.moveTo(sum - y - height, y + height);
    context.lineTo(sum - y, y);
  }
  context.stroke();
  context.restore();
}

/** Paint a matrix as a map of cells; what a `mask` hides (−∞) is hatched. */
export function paintMap(context, data, rows, columns, scale, colour, { x, y, width, height }, mask) {
  const tall = height / rows;
  if (mask?.length === data.length) data = data.map((value, n) => (mask[n] === -Infinity ? mask[n] : value));
  for (let row = 0; row < rows; row++) {
    const top = Math.round(y + row * tall);
    const values = data.subarray(row * columns, (row + 1) * columns);
    paintStrip(context, values, scale, colour, { x, y: top, width, height: Math.round(y + (row + 1) * tall) - top });
  }
}

/** The size that colours at full strength: most values are below it, a few outliers above. */
export function strength(data, share = 0.98) {
  const sizes = Float32Array.from(data, Math.abs).filter(Number.isFinite).sort();
  return sizes.length ? sizes[Math.min(sizes.length - 1, Math.floor(sizes.length * share))] : 0;
}
