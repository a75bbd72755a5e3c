/** The tree of a beam search, which grows step by step: kept, ended and pruned candidates. */
import { button } from "./controls.js";
import { asText, el, number, percent, svg, textWidth, visible } from "./dom.js";
import { t } from "./i18n.js";

const NUMBER = 46; // pixels of a probability
const BRANCH = 34; // pixels between a label and those after it
const TALL = 22; // pixels of a line
const MOST = 44; // leaves; the least likely pruned ones are left out
const GROW = 450; // milliseconds between steps

/** Choose what to draw: all ways that go on, and the likeliest of the pruned candidates. */
function shown(nodes) {
  const parents = new Set(nodes.map((node) => node.parent));
  const ways = nodes.filter((node) => node.best || parents.has(node.id) || node.fate === "ended");
  const others = nodes.filter((node) => !ways.includes(node)).sort((a, b) => b.log_probability - a.log_probability);
  return [...ways, ...others.slice(0, Math.max(0, MOST - ways.length / 2))].sort((a, b) => a.id - b.id);
}

/** The line of each node: the best way is the first line, others stand below their parents' line, in its order. */
function linesOf(nodes, steps) {
  const parents = new Set(nodes.map((node) => node.parent));
  const rank = (node) => (node.best ? 0 : parents.has(node.id) || node.fate === "ended" ? 1 : 2);
  const lines = new Map();
  const from = (node) => lines.get(node.parent) ?? 0;
  for (let step = 0; step < steps; step++) {
    let free = 0;
    const column = nodes.filter((node) => node.step === step);
    for (const node of column.sort((a, b) => from(a) - from(b) || rank(a) - rank(b) || b.score - a.score)) {
      lines.set(node.id, Math.max(free, from(node)));
      free = lines.get(node.id) + 1;
    }
  }
  return { lines, count: Math.max(0, ...lines.values()) + 1 };
}

const labelWidth = (node) => textWidth(visible(node.name), 14) + NUMBER;

/** Where each step begins: after the widest label of the step before. */
function startsOf(nodes, steps) {
  const starts = [10];
  for (let step = 0; step < steps; step++)
    starts.push(starts[step] + BRANCH + Math.max(0, ...nodes.filter((node) => node.step === step).map(labelWidth)));
  return starts;
}

/** Draw a search: an SVG, buttons that go through its steps, why candidates were pruned, and the outputs. */
export function drawTree({ nodes: every, outputs }) {
  const nodes = shown(every);
  const steps = Math.max(0, ...nodes.map((node) => node.step)) + 1;
  const { lines, count } = linesOf(nodes, steps);
  const starts = startsOf(nodes, steps);
  const why = el("p", { class: "quiet why", "aria-live": "polite" }, t("write.tree.hint"));
  const at = (node) => [starts[node.step], 14 + lines.get(node.id) * TALL];
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const drawn = nodes.map((node) => {
    const [x, y] = at(node);
    const parent = byId.get(node.parent);
    const told = () => { why.textContent = `${visible(node.name)}: P ${percent(Math.exp(node.log_probability))} · log P ${number(node.score, 2)}${node.why ? ` · ${node.why}` : ""}`; };
    return svg("g", { class: `node ${node.best ? "best" : node.fate}`, "data-step": node.step, "data-why": node.why, onmouseenter: told, onfocus: told, tabindex: -1 },
      parent ? svg("path", { d: branch(at(parent), labelWidth(parent), x, y) }) : null,
      svg("text", { x, y: y + 4 }, visible(node.name), svg("tspan", { class: "number", dx: 5 }, percent(Math.exp(node.log_probability))), node.fate === "ended" ? " ■" : ""));
  });
  const picture = svg("svg", { width: starts.at(-1) + 10, height: count * TALL + 14, role: "img", "aria-label": t("write.tree") }, [...drawn].sort((a, b) => a.classList.contains("best") - b.classList.contains("best")));
  const reveal = (last) => drawn.forEach((group) => group.classList.toggle("later", Number(group.dataset.step) > last));
  const grow = () => {
    let step = 0;
    reveal(0);
    const timer = setInterval(() => { reveal(++step); if (step >= steps) clearInterval(timer); }, GROW);
  };
  return [el("div", { class: "row" }, button(`▶ ${t("write.tree.grow")}`, grow), why), el("div", { class: "scroll", tabindex: 0 }, picture), drawReasons(every, drawn), drawOutputs(outputs)];
}

/** The way from a label to one after it. */
function branch([from, above], width, x, y) {
  const turn = x - BRANCH + 2;
  const start = Math.min(from + width, turn);
  return y === above ? `M${start},${y}H${x - 5}` : `M${start},${above}H${turn}C${turn + 14},${above} ${turn + 6},${y} ${x - 5},${y}`;
}

/** How many candidates were pruned for which reason; pointing at one lights them. */
function drawReasons(nodes, drawn) {
  const counts = new Map();
  for (const { fate, why } of nodes) if (fate === "pruned") counts.set(why, (counts.get(why) ?? 0) + 1);
  const light = (why) => drawn.forEach((group) => group.classList.toggle("lit", group.dataset.why === why));
  return el("ul", { class: "reasons quiet" }, [...counts].map(([why, count]) =>
    el("li", { onmouseenter: () => light(why), onmouseleave: () => light(null) }, el("b", { class: "number" }, count), ` ✕ ${why}`)));
}

const drawOutputs = (outputs) => el("table", { class: "outputs" },
  el("thead", {}, el("tr", {}, ["write.tree.output", "write.tree.sum", "write.tree.score"].map((key) => el("th", {}, t(key))))),
  el("tbody", {}, outputs.map((output) => el("tr", {}, el("td", {}, asText(output.tokens.split(" "))),
    el("td", { class: "number" }, number(output.log_probability, 2)), el("td", { class: "number" }, number(output.score))))));
