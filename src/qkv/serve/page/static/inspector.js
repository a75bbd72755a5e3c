/** What is selected: its name, formula, numbers. */
import { el } from "./dom.js";
import { t } from "./i18n.js";

/** Draw the inspector of whatever the state looks at. */
export function mountInspector(element, state) {
  const draw = () => element.replaceChildren(el("h2", {}, state.at || t("model")));
  state.on(["at", "head", "row", "column"], draw);
  state.page.on(draw);
}
