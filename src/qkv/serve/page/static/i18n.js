/** Words of the page in the reader's language. */

export const LANGUAGES = { en: "English", zh: "中文" };
let words = {};
let english = {};

/** Load a language; without one, the browser's, or English. */
export async function useLanguage(language) {
  const known = language in LANGUAGES ? language : preferred();
  const load = async (name) => (await fetch(`/page/i18n/${name}.json`)).json();
  [english, words] = await Promise.all([load("en"), load(known)]);
  document.documentElement.lang = known === "zh" ? "zh-Hans" : known;
  return known;
}

const preferred = () =>
  navigator.languages.map((tag) => tag.split("-")[0]).find((tag) => tag in LANGUAGES) ?? "en";

/** The text of a key; {name} is replaced by a value. */
export function t(key, values = {}) {
  const text = words[key] ?? english[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

/** The text of a key, or another one where there is none. */
export const tOr = (key, other) => words[key] ?? english[key] ?? other;

/** Fill in `data-i18n` (text), `data-i18n-label` (aria-label) and `data-i18n-hint` (placeholder). */
export function translatePage(root = document) {
  for (const element of root.querySelectorAll("[data-i18n]")) element.textContent = t(element.dataset.i18n);
  for (const element of root.querySelectorAll("[data-i18n-label]"))
    element.setAttribute("aria-label", t(element.dataset.i18nLabel));
  for (const element of root.querySelectorAll("[data-i18n-hint]"))
    element.setAttribute("placeholder", t(element.dataset.i18nHint));
}
