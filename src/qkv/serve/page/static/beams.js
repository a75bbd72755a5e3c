/** The tree of a beam search, which grows step by step: kept, ended and pruned candidates. */
import { button } from "./controls.js";
import { el, number, show, svg, visible } from "./dom.js";
import { t } from "./i18n.js";

const WIDE = 104; // pixels of a step
const TALL = 19; // pixels of a leaf
const MOST = 44; // leaves; the least likely pruned ones are left out
const GROW = 450; // milliseconds between steps

/** Choose what to draw: all ways that go on, and the likeliest of the pruned candidates. */
function shown(nodes) {
  const parents = new Set(nodes.map((node) => node.parent));
  const ways = nodes.filter((node) => node.best || parents.has(node.id) || node.fate === "ended");
  const others = nodes.filter((node) => !ways.includes(node)).sort((a, b) => b.log_probability - a.log_probability);
  return [...ways, ...others.slice(0, Math.max(0, MOST - ways.length / 2))].sort((a, b) => a.id - b.id);
}

/** Heights: a leaf takes a line, a parent stands in the middle of its children. */
function heights(nodes) {
  const children = new Map();
  for (const node of nodes) children.set(node.parent, [...(children.get(node.parent) ?? []), node]);
  const lines = new Map();
  let line = 0;
  const place = (node) => {
    const own = children.get(node.id) ?? [];
    own.forEach(place);
    lines.set(node.id, own.length ? (lines.get(own[0].id) + lines.get(own.at(-1).id)) / 2 : line++);
  };
  (children.get(null) ?? []).forEach(place);
  return { lines, count: line };
}

/** Draw a search: an SVG, and buttons that go through its steps. */
export function drawTree({ nodes: every, outputs }) {
  const nodes = shown(every);
  const { lines, count } = heights(nodes);
  const steps = Math.max(0, ...nodes.map((node) => node.step)) + 1;
  const why = el("p", { class: "quiet why", "aria-live": "polite" }, t("write.tree.hint"));
  const at = (node) => [10 + node.step * WIDE, 14 + lines.get(node.id) * TALL];
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const drawn = nodes.map((node) => {
    const [x, y] = at(node);
    const from = byId.has(node.parent) ? at(byId.get(node.parent)) : null;
    const told = () => { why.textContent = `${visible(node.name)}  P ${number(Math.exp(node.log_probability))} · log P ${number(node.score, 2)} · ${node.why}`; };
    return svg("g", { class: `node ${node.best ? "best" : node.fate}`, "data-step": node.step, onmouseenter: told, onfocus: told, tabindex: -1 },
      from ? svg("path", { d: `M${from[0] + 62},${from[1]} C${from[0] + 84},${from[1]} ${x - 22},${y} ${x - 4},${y}` }) : null,
      svg("text", { x, y: y + 4 }, `${visible(node.name)}`, svg("tspan", { class: "number", dx: 4 }, Math.exp(node.log_probability).toFixed(2)),
        node.fate === "ended" ? " ■" : ""));
  });
  const picture = svg("svg", { width: steps * WIDE + 40, height: count * TALL + 14, role: "img", "aria-label": t("write.tree") }, drawn);
  const reveal = (last) => drawn.forEach((group) => group.classList.toggle("later", Number(group.dataset.step) > last));
  const grow = () => {
    let step = 0;
    reveal(0);
    const timer = setInterval(() => { reveal(++step); if (step >= steps) clearInterval(timer); }, GROW);
  };
  const best = el("ol", { class: "quiet" });
  show(best, outputs.map((output) => el("li", {}, `${output.tokens}  ${number(output.score)}`)));
  return [el("div", { class: "row" }, button(`▶ ${t("write.tree.grow")}`, grow), why), picture, best];
}
