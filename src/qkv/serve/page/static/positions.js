/** The section positions. */
import { el } from "./dom.js";
import { t } from "./i18n.js";

export function mount(element) {
  element.append(el("p", { class: "empty" }, t("section.missing")));
}
