/** The top bar: model, action, the text as one types, and what comes out with its alternatives. */
import { radios } from "./controls.js";
import { beginsWord, el, percent, show, visible } from "./dom.js";
import { t, tOr } from "./i18n.js";
import { dataUrl, isImage } from "./image.js";
import { firstExample } from "./page.js";

const LABELLED = ["classify", "see", "answer", "tag", "fill"]; // actions whose outputs are not a running text
/** Actions that write a text token by token. */
export const WRITES = ["translate", "continue", "chat"];
const TWO_TEXTS = ["answer", "embed", "classify"]; // actions that read a second text

/** Connect the top bar with the state. */
export function mountTop(state) {
  const find = (id) => document.querySelector(`#${id}`);
  const [model, actions, text, second, output, examples] =
    ["model", "actions", "text", "second", "output", "examples"].map(find);

  model.onchange = () =>
    state.set({ model: model.value, action: "", text: "", second: "", at: "", open: [], changes: [], head: null, row: null, column: null }, { push: true });
  let composing = false; // letters of an input method are no text yet
  const typed = () => { fit(text); if (!composing) state.set({ text: text.value, row: null, column: null }, { soon: true }); };
  text.oninput = typed;
  text.oncompositionstart = () => { composing = true; };
  text.oncompositionend = () => { composing = false; typed(); };
  second.oninput = () => state.set({ second: second.value });
  mountUpload(state);

  const draw = () => {
    const { structure, models } = state.page;
    model.replaceChildren(...models.map(({ id }) => el("option", { value: id, selected: id === state.model }, id)));
    drawActions(actions, state, structure?.actions ?? []);
    if (!composing && text.value !== state.text) text.value = state.text;
    if (second.value !== state.second) second.value = state.second;
    const sees = state.action === "see";
    text.hidden = sees;
    find("upload").hidden = !sees;
    find("picture").hidden = !isImage(state.text);
    if (isImage(state.text)) find("picture").src = state.text;
    second.hidden = !TWO_TEXTS.includes(state.action);
    second.placeholder = tOr(`second.${state.action}`, "");
    second.setAttribute("aria-label", second.placeholder);
    text.placeholder = tOr(`hint.${state.action}`, t("hint"));
    fit(text);
    drawExamples(examples, state, structure?.examples[state.action] ?? []);
    drawOutput(output, state);
  };
  state.page.atOnce(() => (state.page.busy ? output.classList.add("busy") : draw()));
  state.on(["model", "action", "text"], (changed) => (changed.some((field) => field !== "text" && field !== "row" && field !== "column") || state.text !== text.value) && draw());
  draw();
}

/** Take images that are chosen, dropped or pasted. */
function mountUpload(state) {
  const [upload, file] = ["upload", "file"].map((id) => document.querySelector(`#${id}`));
  const take = async (given) => {
    if (!given || state.action !== "see") return;
    const text = await dataUrl(given).catch(() => "");
    text ? state.set({ text, row: null, column: null }, { push: true }) : state.page.failed(t("image.failed", { file: given.name }));
  };
  file.onchange = () => { take(file.files[0]); file.value = ""; };
  upload.ondragover = (event) => event.preventDefault();
  upload.ondrop = (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); };
  document.addEventListener("paste", (event) => take(event.clipboardData.files[0]));
}

/** Make a text field as high as its text. */
function fit(text) {
  text.classList.toggle("long", text.value.length > 80);
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight}px`;
}

function drawActions(element, state, names) {
  element.hidden = names.length < 2;
  element.replaceChildren(...radios(names.map((name) => [name, t(`action.${name}`)]), state.action, (action) => {
    const [text = "", second = ""] = firstExample(state.page.structure.examples[action] ?? []);
    state.set({ action, text, second, changes: [], row: null, column: null }, { push: true });
  }));
}

function drawExamples(element, state, texts) {
  element.replaceChildren(...texts.map(([text, second = ""]) => el("button", {
    type: "button", class: "chip", onclick: () => {
      document.querySelector("#text").blur();
      state.set({ text, second, row: null, column: null }, { push: true });
    },
  }, text)));
}

/** The outputs as words with their confidence; each opens its alternatives. */
function drawOutput(element, state) {
  const { answer, busy, error, structure } = state.page;
  element.classList.toggle("busy", busy);
  if (error || !answer) {
    const hint = error || (structure && !state.text.trim() ? tOr(`output.empty.${state.action}`, t("output.empty")) : "");
    element.replaceChildren(el("p", { class: error ? "error" : "quiet" }, hint || t("loading")));
    return;
  }
  const labelled = LABELLED.includes(answer.action);
  const after = answer.changed;
  show(element,
    answer.text ? el("p", { class: labelled ? "whole result" : "whole hidden" }, answer.text) : null,
    ...answer.marks.map(drawMark),
    ["classify", "see", "fill"].includes(answer.action) ? drawLists(answer)
      : el("div", { class: `words ${labelled ? "apart" : ""}`, "aria-live": "off" }, ...joined(answer.outputs, labelled).map((group) =>
        el("span", { class: "joined" }, ...group.map(({ word, n }) => drawWord(word, after?.[n], state, labelled, n))))),
    after ? el("p", { class: "quiet moved" }, moved(answer.outputs, after)) : null,
  );
}

/** Outputs in groups that make one word, so that no line breaks within it. */
function joined(outputs, labelled) {
  const groups = [];
  outputs.forEach((word, n) => {
    const isNew = labelled || !groups.length || beginsWord(word.output.name) || groups.at(-1).length > 6;
    if (isNew) groups.push([]);
    groups.at(-1).push({ word, n });
  });
  return groups;
}

/** An entity, or the likeness of two texts. */
const drawMark = ({ name, label, value }) => el("p", { class: "mark" }, tOr(`mark.${name}`, name), label ? el("b", {}, label) : null,
  el("span", { class: "number quiet" }, label ? percent(value) : value.toFixed(3)), label ? null : bar(Math.max(0, value)));

/** Labels, or what may fill each gap, with their probabilities before and after changes. */
const drawLists = (answer) => el("div", { class: "lists", "aria-live": "off" }, ...answer.outputs.map((word, n) => [
  candidates(word), answer.changed ? el("div", { class: "after-changes" }, candidates(answer.changed[n])) : null]));

/** One output: its name, a bar of its probability and, under changes, what it became. */
function drawWord(word, after, state, labelled, n) {
  const name = word.output.name;
  const best = after?.candidates[0];
  const other = best && best.id !== word.candidates[0].id;
  const shown = el("details", {
    class: `word ${beginsWord(name) ? "begins" : ""} ${other ? "changed" : ""} ${/^<.*>$|^\[.*\]$/.test(name) ? "special" : ""}`,
    onmouseenter: () => hoverToken(state, word.position),
    onmouseleave: () => hoverToken(state, null),
    ontoggle: () => stayInside(shown.querySelector(".alternatives")),
  },
  el("summary", { "aria-label": `${visible(name)}, ${percent(word.output.probability)}` },
    labelled ? el("span", { class: "quiet" }, `${tOr(`mark.${word.after}`, visible(word.after))} `) : null,
    el("span", { class: "name" }, visible(name)),
    other ? el("span", { class: "became" }, visible(best.name)) : null,
    bar(word.output.probability, after && probabilityOf(after, word.output.id))),
  el("div", { class: "alternatives" },
    el("p", { class: "quiet" }, t("alternatives", { after: visible(word.after) })),
    candidates(after ?? word, WRITES.includes(state.action) ? (id) => goOnFrom(state, n, id) : null)));
  shown.name = "word";
  return shown;
}

/** Write on from another token in place of an output. */
const goOnFrom = (state, n, id) =>
  state.set({ section: "write", written: [...state.page.answer.outputs.slice(0, n).map((word) => word.output.id), id].map(String) }, { push: true });

/** Shift a pop-up that would leave the window on the right. */
function stayInside(element) {
  element.style.translate = "";
  const beyond = element.getBoundingClientRect().right + 8 - document.documentElement.clientWidth;
  if (beyond > 0) element.style.translate = `${-beyond}px`;
}

/** Light the lane of an output in the river. */
function hoverToken({ page }, position) {
  const side = page.structure.stacks.at(-1).side;
  document.dispatchEvent(new CustomEvent("qkv:hover", { detail: position === null ? null : `${side}:${position}` }));
}

/** The probability of an output after the changes, where it is still among the candidates. */
const probabilityOf = (step, id) =>
  step.output.id === id ? step.output.probability : step.candidates.find((one) => one.id === id)?.probability ?? 0;

function bar(before, after) {
  const width = (value) => ({ style: { width: `${100 * value}%` } });
  return el("span", { class: "confidence", "aria-hidden": "true" },
    el("i", width(before)), after === undefined ? null : el("i", { class: "after", ...width(after) }));
}

/** A list of candidates with bars; where one can be chosen, each is a button. */
export function candidates(step, choose) {
  return el("ol", { class: "candidates" }, ...step.candidates.map((one) => el("li", {},
    el(choose ? "button" : "div", choose ? { type: "button", title: t("alternatives.choose"), onclick: () => choose(one.id) } : {},
      el("span", { class: "name" }, visible(one.name)), bar(one.probability), el("span", { class: "number" }, percent(one.probability))))));
}

/** How many outputs have another best candidate now. */
function moved(before, after) {
  const count = before.filter((word, n) => word.candidates[0].id !== after[n].candidates[0].id).length;
  return t(count ? "output.moved" : "output.same", { count, all: before.length });
}
