/** Changes of the pass: switches, a dragged weight, a patch, their list, and Reset. */
import { slider } from "./controls.js";
import { el, indexed, paused, show, visible } from "./dom.js";
import { exportButtons } from "./export.js";
import { t, tOr } from "./i18n.js";
import { stepsPython } from "./python.js";

/** Draw the list of changes; it hides when there are none. */
export function mountChanges(element, state) {
  const outcome = el("p", { class: "outcome quiet", "aria-hidden": "true" }); // where the output is out of sight
  const difference = el("input", { type: "checkbox", onchange: (event) => state.set({ difference: event.target.checked }) });
  const draw = () => {
    element.hidden = !state.changes.length;
    difference.checked = state.difference;
    show(outcome, outcomeOf(state.page.answer));
    show(element,
      el("span", { class: "title" }, t("changes")),
      ...state.changes.map((change) => el("button", {
        type: "button", class: "chip change", title: change, onclick: () => toggleChange(state, change),
        "aria-label": `${t("change.remove")}: ${describe(change, state)}`,
      }, describe(change, state), el("span", { class: "close", "aria-hidden": "true" }, "×"))),
      el("label", { class: "toggle" }, difference, t("change.difference")),
      el("button", { type: "button", class: "plain", id: "reset", onclick: () => state.set({ changes: [] }, { push: true }) }, t("change.reset")),
      exportButtons(state, () => document.querySelector("#output"), () => stepsPython(state)), outcome);
  };
  state.on(["changes"], draw);
  state.on(["difference"], () => { difference.checked = state.difference; });
  state.page.on(() => state.page.busy || draw());
  draw();
}

/** The outputs before and after the changes, in one line. */
const outcomeOf = (answer) => answer?.changed?.map(({ candidates: [now] }, n) => {
  const [before] = answer.outputs[n].candidates;
  return now.id === before.id ? `${visible(now.name)} ` : [el("s", {}, visible(before.name)), " ", el("b", {}, visible(now.name)), " "];
}) ?? [];

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

/** A slider that sets one attention weight, which is `weight` now; the others of its row share the rest. */
export function weightSlider(state, key, weight) {
  const prefix = `set:${key}:head=${state.head}:row=${state.row}:column=${state.column}:to=`;
  const set = paused(60, (value) =>
    state.set({ changes: [...state.changes.filter((change) => !change.startsWith(prefix)), `${prefix}${value}`] }));
  return [slider("change.weight", { low: 0, high: 1, step: 0.01, value: weight, format: (value) => value.toFixed(2) }, set), el("p", { class: "hint" }, t("change.weight.about"))];
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

/** A change in words, with the names of tokens. */
export function describe(change, { page: { answer } }) {
  const [head, text] = change.split(":text=");
  const [verb, key = "", ...rest] = head.split(":");
  const { head: of, position, row, column, to } = Object.fromEntries(rest.map((option) => option.split("=")));
  const [stack, , sublayer] = key.split(".");
  const side = stack in (answer?.tokens ?? {}) ? stack : stack === "encoder" ? "source" : "target";
  const token = (n, from = side) => visible(answer?.tokens[from]?.[n] ?? n);
  const where = [placeOf(key), of && t("head", { head: of }), verb === "from" && position && token(position)].filter(Boolean).join(" · ");
  if (verb === "set") return t("change.set", { where, row: token(row), column: token(column, sublayer === "cross_attention" ? "source" : side), to });
  if (verb === "from") return t("change.from", { where, text });
  if (verb === "hide") return t("change.hide", { side: tOr(`side.${key}`, key), token: token(position) });
  return t("change.off", { where });
}

/** A key in words. */
function placeOf(key) {
  const [first, layer, sublayer, part] = key.split(".");
  if (!/^\d+$/.test(layer ?? "")) return tOr(`part.${key}`, "") || t("change.place", { of: tOr(`side.${first}`, tOr(`stack.${first}`, first)), part: tOr(`part.${layer}`, layer ?? "") }).trim();
  return [`${tOr(`stack.${first}`, first)} ${layer}`, sublayer && tOr(`sublayer.${sublayer}`, sublayer), part && tOr(`part.${part}`, part)].filter(Boolean).join(" · ");
}
