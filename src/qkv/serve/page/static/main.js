/**
 * The page: one state ⇄ address bar, a top bar, tabs, the inspector.
 *
 * A section is a module that exports
 *
 *     mount(element, state, api) → { show?(), hide?() }
 *
 * called once, when its tab is first chosen; `element` is its empty <section>. `show()` is called then and
 * whenever its tab is chosen again. `state` has the fields of state.js (`state.model`, `state.text`,
 * `state.changes` …), `state.set({...}, {push})` and `state.on([fields], listener)`; state.page holds what is
 * known of the present pass: `state.page.structure` (of the model), `state.page.answer` (tokens, outputs), and
 * `state.page.on(listener)` is called when either has changed. `api` is api.js. Work only while shown:
 * `state.section` is the section's name.
 * Words come from i18n (`t(…)`, words.json); a change of language reloads the page.
 * To add a section: its file, its line in SECTIONS, its words.
 */
import { api, keepKey, needsKey } from "./api.js";
import { mountChanges } from "./change.js";
import { el, show } from "./dom.js";
import { language, t, tOr, translatePage, useLanguage } from "./i18n.js";
import { isImage } from "./image.js";
import { mountInspector } from "./inspector.js";
import { createPage } from "./page.js";
import { mountPath } from "./path.js";
import { createState } from "./state.js";
import { mountTop } from "./top.js";

const SECTIONS = {
  river: () => import("./river.js"),
  heads: () => import("./heads.js"),
  write: () => import("./write.js"),
  compare: () => import("./compare.js"),
  positions: () => import("./positions.js"),
  training: () => import("./training.js"),
  tour: () => import("./tour.js"),
};
const INSPECTED = ["river"]; // sections with the inspector beside them

const state = createState();
state.page = createPage(state, api);

function applyTheme() {
  const dark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.querySelector("#theme").setAttribute("aria-pressed", String(dark));
}

const mounted = new Map(); // section → what its mount has returned

/** Show a section, mounting it on its first time. */
async function showSection() {
  const name = state.section;
  if (!(name in SECTIONS)) return state.set({ section: "river" });
  document.body.dataset.section = name;
  document.querySelector("#inspector").hidden = !INSPECTED.includes(name);
  for (const tab of document.querySelectorAll("#tabs [role=tab]")) {
    tab.setAttribute("aria-selected", String(tab.dataset.name === name));
    tab.tabIndex = tab.dataset.name === name ? 0 : -1;
    if (tab.dataset.name === name) tab.parentElement.scrollLeft = tab.offsetLeft - 80;
  }
  if (!mounted.has(name)) {
    document.querySelector(`#section-${name}`)?.remove(); // one that could not be loaded
    const element = el("section", { id: `section-${name}`, class: `section ${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}` });
    document.querySelector("#sections").append(element);
    mounted.set(name, null);
    try {
      const { mount } = await SECTIONS[name]();
      mounted.set(name, mount(element, state, api));
    } catch (error) {
      console.warn(error);
      mounted.delete(name);
      element.append(el("p", { class: "empty" }, t("section.missing")));
    }
  }
  // Another one may have been chosen meanwhile.
  for (const element of document.querySelectorAll("#sections > .section")) element.hidden = element.id !== `section-${state.section}`;
  for (const [other, module] of mounted) other === state.section ? module?.show?.() : module?.hide?.();
}

/** Whether there is a pass to show, none yet, or only the one before a mistake. */
function markPass() {
  const { answer, busy, error } = state.page;
  document.body.dataset.pass = answer ? "shown" : error ? "before" : busy ? "awaited" : "none";
  document.querySelector("#empty").textContent = tOr(`output.empty.${state.action}`, t("output.empty"));
  document.title = [isImage(state.text) ? "" : state.text.slice(0, 40), state.model, "qkv"].filter(Boolean).join(" · ");
}

function drawTabs() {
  const tabs = document.querySelector("#tabs");
  tabs.replaceChildren(...Object.keys(SECTIONS).map((name) =>
    el("button", {
      type: "button", role: "tab", id: `tab-${name}`, "data-name": name, "aria-controls": `section-${name}`,
      onclick: () => state.set({ section: name }, { push: true }),
    }, t(`section.${name}`))));
  tabs.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const names = Object.keys(SECTIONS);
    const next = names[(names.indexOf(state.section) + step + names.length) % names.length];
    state.set({ section: next }, { push: true });
    document.querySelector(`#tab-${next}`).focus();
  };
}

/** The button that changes the language; the page is loaded anew in it. */
function drawLanguage() {
  const [button, other, name] = [document.querySelector("#language"), ...(language() === "zh" ? ["en", "English"] : ["zh", "中文"])];
  button.textContent = other === "en" ? "EN" : name;
  button.setAttribute("aria-label", name);
  button.onclick = () => { state.set({ language: other }); location.reload(); };
}

/** Show a sentence, or ask for the server's key where it needs one. */
function notice(sentence) {
  const element = document.querySelector("#notice");
  element.hidden = !sentence && !needsKey();
  if (!needsKey()) return show(element, sentence);
  const field = el("input", { type: "password", class: "line", "aria-label": t("api.key"), autocomplete: "off" });
  const use = (event) => { event.preventDefault(); keepKey(field.value); location.reload(); };
  return show(element, el("form", { class: "patch", onsubmit: use }, t("api.key"), field, el("button", { type: "submit", class: "chip" }, t("api.use"))));
}

async function start() {
  applyTheme();
  document.querySelector("#theme").onclick = () =>
    state.set({ theme: document.documentElement.dataset.theme === "dark" ? "light" : "dark" });
  state.on(["theme"], () => { applyTheme(); state.page.tell(); });
  state.on(["section"], showSection);
  state.page.failed = notice;
  state.page.atOnce(markPass);
  await useLanguage(state.language);
  translatePage();
  drawLanguage();
  drawTabs();
  mountTop(state, api);
  mountChanges(document.querySelector("#changes"), state, api);
  mountInspector(document.querySelector("#inspector"), state, api);
  mountPath(document.querySelector("#path"), state);
  await state.page.start();
  await showSection();
  document.body.dataset.ready = "true";
  setTimeout(() => Object.values(SECTIONS).forEach((load) => load().catch(() => {})), 1000); // so that tabs open at once
}

start();
