/** Words of the page in the reader's language; words.json has each in all of them. */

const LANGUAGES = ["en", "zh"];
let words = {};
let nth = 0; // of the languages

/** The reader's language. */
export const language = () => LANGUAGES[nth];

/** Load the words; without a language, in the browser's, or in English. */
export async function useLanguage(given) {
  const preferred = navigator.languages.map((tag) => tag.split("-")[0]);
  nth = LANGUAGES.indexOf([given, ...preferred, "en"].find((name) => LANGUAGES.includes(name)));
  words = await (await fetch("/page/words.json")).json();
  document.documentElement.lang = language() === "zh" ? "zh-Hans" : language();
}

/** The text of a key, or another one where there is none. */
export const tOr = (key, other) => words[key]?.[nth] ?? other;
/** The text of a key; {name} is replaced by a value. */
export const t = (key, values = {}) => tOr(key, key).replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);

/** A sentence of the server in the reader's language, where it is a known one. */
export function told(sentence) {
  const [pattern, texts] = Object.entries(words.errors).find(([known]) => new RegExp(known).test(sentence)) ?? [];
  return texts?.[nth] ? sentence.replace(new RegExp(pattern), texts[nth]) : sentence;
}

/** Fill in `data-i18n` (text) and `data-i18n-label` (aria-label). */
export function translatePage() {
  for (const element of document.querySelectorAll("[data-i18n]")) element.textContent = t(element.dataset.i18n);
  for (const element of document.querySelectorAll("[data-i18n-label]")) element.setAttribute("aria-label", t(element.dataset.i18nLabel));
}
