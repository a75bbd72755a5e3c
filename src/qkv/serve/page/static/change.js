/** Changes of the pass: switches, a dragged weight, a patch, their list, and Reset. */
import { el, indexed, paused, show, visible } from "./dom.js";
import { exportButtons } from "./export.js";
import { t, tOr } from "./i18n.js";
import { stepsPython } from "./python.js";

/** Draw the list of changes; it hides when there are none. */
export function mountChanges(element, state) {
  const draw = () => {
    element.hidden = !state.changes.length;
    show(element,
      el("span", { class: "title" }, t("changes")),
      ...state.changes.map((change) => el("button", {
        type: "button", class: "chip change", title: change, onclick: () => toggleChange(state, change),
        "aria-label": `${t("change.remove")}: ${describe(change)}`,
      }, describe(change), el("span", { class: "close", "aria-hidden": "true" }, "×"))),
      el("label", { class: "toggle" }, el("input", { type: "checkbox", checked: state.difference, onchange: (event) => state.set({ difference: event.target.checked }) }), t("change.difference")),
      el("button", { type: "button", class: "plain", id: "reset", onclick: () => state.set({ changes: [] }, { push: true }) }, t("change.reset")),
      exportButtons(state, () => document.querySelector("#output"), () => stepsPython(state)),
    );
  };
  state.on(["changes", "difference"], draw);
  draw();
}

/** Add a change, or take it back where it is there. */
export function toggleChange(state, change) {
  const without = state.changes.filter((other) => other !== change);
  const changes = without.length < state.changes.length ? without : [...state.changes, change];
  state.set({ changes }, { push: true });
}

/** A switch that is on until the part is switched off. */
export function switchFor(state, change, label) {
  const off = state.changes.includes(change);
  const button = el("button", {
    type: "button", role: "switch", class: "switch", "data-change": change, "aria-checked": String(!off),
    onclick: () => {
      toggleChange(state, change);
      button.setAttribute("aria-checked", String(!state.changes.includes(change)));
    },
  }, el("i", { "aria-hidden": "true" }), el("span", {}, indexed(label)));
  return button;
}

/** A slider that sets one attention weight; the others of its row share the rest. */
export function weightSlider(state, key) {
  const prefix = `set:${key}:head=${state.head}:row=${state.row}:column=${state.column}:to=`;
  const present = state.changes.find((change) => change.startsWith(prefix));
  const set = paused(120, (value) =>
    state.set({ changes: [...state.changes.filter((change) => !change.startsWith(prefix)), `${prefix}${value}`] }));
  const shown = el("output", { class: "number" }, present ? present.slice(prefix.length) : "");
  return el("label", { class: "slider" }, t("change.weight"),
    el("input", { type: "range", min: 0, max: 1, step: 0.01, value: present ? present.slice(prefix.length) : 0.5,
      oninput: (event) => { shown.textContent = event.target.value; set(event.target.value); } }), shown);
}

/** Take a quantity, or one token of it, from the pass of another text. */
export function patchForm(state, station, rowNames) {
  const field = el("input", { type: "text", class: "line", placeholder: t("patch.hint"), "aria-label": t("patch.hint") });
  const token = state.row !== null && rowNames ? visible(rowNames[state.row] ?? "") : "";
  return el("form", {
    class: "patch", onsubmit: (event) => {
      event.preventDefault();
      if (!field.value.trim()) return;
      const head = station.has_heads && state.head !== null ? `:head=${state.head}` : "";
      const position = token ? `:position=${state.row}` : "";
      state.set({ changes: [...state.changes, `from:${station.key}${head}${position}:text=${field.value}`] }, { push: true });
    },
  }, el("span", {}, t(token ? "patch.token" : "patch.all", { token })), field, el("button", { type: "submit", class: "chip" }, t("patch.do")));
}

/** A change in words. */
export function describe(change) {
  const [head, text] = change.split(":text=");
  const [verb, key, ...rest] = head.split(":");
  const options = Object.fromEntries(rest.map((option) => option.split("=")));
  const where = [placeOf(key), "head" in options ? t("head", { head: options.head }) : ""].filter(Boolean).join(" · ");
  if (verb === "set") return t("change.set", { where, row: options.row, column: options.column, to: options.to });
  if (verb === "from") return t("change.from", { where, text });
  if (verb === "hide") return t("change.hide", { side: t(`side.${key}`), position: options.position });
  return t("change.off", { where });
}

/** A key in words. */
function placeOf(key) {
  const [first, layer, sublayer, part] = key.split(".");
  if (!/^\d+$/.test(layer ?? "")) return `${tOr(`side.${first}`, tOr(`stack.${first}`, first))} ${tOr(`part.${layer}`, layer ?? "")}`.trim();
  return [`${t(`stack.${first}`)} ${layer}`, sublayer && t(`sublayer.${sublayer}`), part && tOr(`part.${part}`, part)].filter(Boolean).join(" · ");
}
