/** The guided tour: stops that set the page's state, and a bar that leads from one to the next. */
import { button } from "./controls.js";
import { el, indexed, show } from "./dom.js";
import { t } from "./i18n.js";

const PLAIN = { at: "", head: null, row: null, column: null, open: [], changes: [] };
/** Where each stop leads; the words of stop N are tour.N.title and tour.N.text. LAYER is the first layer that reads. */
const STOPS = [
  {}, { at: "IN.embedding" }, { section: "positions" }, { at: "LAYER.self_attention.query", open: ["LAYER"] },
  { at: "LAYER.self_attention.scores", open: ["LAYER"], head: 0, row: 1, column: 0 }, { at: "LAYER.self_attention.weights", open: ["LAYER"], head: 0, row: 1 },
  { section: "heads" }, { at: "LAYER.self_attention.residual", open: ["LAYER"] }, { at: "LAYER.feed_forward.hidden", open: ["LAYER"] },
  { at: "WRITER.self_attention.scores", open: ["WRITER"], head: 0, writes: true }, { at: "WRITER.cross_attention.weights", open: ["WRITER"], head: 0, both: true },
  { at: "logits", writes: true }, { section: "write", writes: true }, { section: "compare" }, { section: "training" },
];

/** The stops that the loaded model has, numbered from 1. */
export function stopsOf(structure) {
  return STOPS.map((stop, n) => ({ fields: fieldsOf(stop, structure), title: t(`tour.${n}.title`), text: t(`tour.${n}.text`) }))
    .filter(({ fields }) => fields).map((stop, n) => ({ ...stop, number: n + 1 }));
}

/** Show a stop. */
export const goToStop = (state, { fields, number }) => state.set({ section: "river", ...PLAIN, ...fields, stop: number }, { push: true });

/** The fields of a stop for the loaded model; null where it has no such thing. */
function fieldsOf({ writes, both, ...stop }, structure) {
  if (!structure) return null;
  const stacks = structure.stacks.map((stack) => stack.name);
  if ((writes && !stacks.includes("decoder")) || (both && stacks.length < 2)) return null;
  const [reader] = stacks;
  const into = (text) => text.replace("LAYER", `${reader}.0`).replace("WRITER", "decoder.0").replace("IN", reader === "encoder" ? "source" : "target");
  return { ...stop, ...(stop.at ? { at: into(stop.at) } : {}), ...(stop.open ? { open: stop.open.map(into) } : {}) };
}

/** The bar below the page while somebody is on the tour. */
export function mountPath(element, state) {
  const draw = () => {
    const stops = stopsOf(state.page.structure);
    const here = stops[state.stop - 1];
    element.hidden = !here || state.section === "tour";
    if (element.hidden) return;
    const [before, after] = [stops[state.stop - 2], stops[state.stop]];
    show(element, el("p", {}, el("b", {}, `${state.stop}/${stops.length} ${here.title}. `), indexed(here.text)),
      el("div", { class: "row" },
        button(`◀ ${t("tour.before")}`, () => goToStop(state, before), { disabled: !before }),
        button(`${t("tour.after")} ▸`, () => goToStop(state, after), { disabled: !after, class: "chip strong" }),
        button(t("tour.end"), () => state.set({ stop: 0 }, { push: true }))));
  };
  state.on(["stop", "section"], draw);
  state.page.on(draw);
  draw();
}
