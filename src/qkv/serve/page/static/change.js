/** The list of changes, each removable, and Reset. */
import { el } from "./dom.js";
import { t } from "./i18n.js";

/** Draw the list of changes; it hides when there are none. */
export function mountChanges(element, state) {
  const draw = () => {
    element.hidden = !state.changes.length;
    element.replaceChildren(
      el("span", { class: "title" }, t("changes")),
      ...state.changes.map((change) => el("button", {
        type: "button", class: "chip change", onclick: () => removeChange(state, change),
        "aria-label": `${t("change.remove")}: ${describe(change)}`,
      }, describe(change), el("span", { class: "close", "aria-hidden": "true" }, "×"))),
      el("button", { type: "button", class: "plain", onclick: () => state.set({ changes: [] }, { push: true }) }, t("change.reset")),
    );
  };
  state.on(["changes"], draw);
  draw();
}

/** Add a change, or take it back where it is there. */
export function toggleChange(state, change) {
  const without = state.changes.filter((other) => other !== change);
  const changes = without.length < state.changes.length ? without : [...state.changes, change];
  state.set({ changes }, { push: true });
}

const removeChange = (state, change) =>
  state.set({ changes: state.changes.filter((other) => other !== change) }, { push: true });

/** A change in words. */
export function describe(change) {
  const [verb, key, ...options] = change.split(":");
  return `${t(`change.${verb}`)} ${key} ${options.join(" ")}`.trim();
}
