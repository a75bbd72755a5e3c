/** The tour as a list of stops, and the labs with a button that runs each. */
import { button, panel } from "./controls.js";
import { el, indexed, show } from "./dom.js";
import { language, t } from "./i18n.js";
import { goToStop, stopsOf } from "./path.js";
import { stepsPython } from "./python.js";

export function mount(element, state, api) {
  const path = el("ol", { class: "stops" });
  const gallery = el("div", { class: "gallery" });
  let timer = null;

  const draw = () => show(path, stopsOf(state.page.structure).map((stop) =>
    el("li", { class: stop.number === state.stop ? "here" : "" }, el("h3", {}, stop.title), el("p", {}, indexed(stop.text)),
      button(t("tour.go"), () => goToStop(state, stop), { "aria-label": `${t("tour.go")}: ${stop.title}` }))));

  const labs = async () => {
    clearTimeout(timer);
    if (!gallery.childElementCount) show(gallery, el("p", { class: "quiet" }, t("loading")));
    const { data, failure } = await api.fetch(`/v1/labs?language=${language()}`).catch(({ message }) => ({ data: [], failure: message }));
    show(gallery, failure ? el("p", { class: "error" }, failure) : null, data.map((lab) => el("article", { class: "lab" }, el("h3", {}, indexed(lab.title)), el("p", {}, indexed(lab.claim)),
      lab.figure ? el("img", { src: `/v1/labs/${lab.name}/figure?language=${language()}`, alt: lab.title, loading: "lazy" }) : null,
      lab.failure ? el("p", { class: "error" }, lab.failure) : null,
      lab.printed && !lab.running ? el("details", {}, el("summary", {}, t("tour.found")), el("pre", {}, lab.printed)) : null,
      lab.running ? el("p", { class: "quiet" }, t("tour.running")) : button(t("tour.run"), () => run(lab.name), { "aria-label": `${t("tour.run")}: ${lab.title}` }))));
    if (data.some((lab) => lab.running) && state.section === "tour") timer = setTimeout(labs, 3000);
  };
  const run = async (name) => {
    await api.fetch(`/v1/labs/${name}/start?language=${language()}`, {}).catch((error) => state.page.failed(error.message));
    labs();
  };

  const labCode = () => ({ python: ["from qkv_labs import all_labs, run_lab", "", "labs = all_labs()", "print(len(labs))", "# run_lab(labs[0])"].join("\n"), number: gallery.querySelectorAll(".lab").length });
  element.append(panel(state, "tour.path", () => stepsPython(state), path), panel(state, "tour.labs", labCode, gallery));
  const all = () => { if (state.section === "tour") { draw(); labs(); } };
  state.page.on(() => state.section === "tour" && draw());
  return { show: all, hide: () => clearTimeout(timer) };
}
