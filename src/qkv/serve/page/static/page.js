/** What is known of the present pass: the model's structure and its answer, renewed as one types. */
import { afterFrame, eager, newest } from "./dom.js";
import { language } from "./i18n.js";

const SHORTEST = 30; // milliseconds between letters that are answered one by one
const LONGEST = 200;

/** The example to begin with: in the reader's language, where there is one. */
export const firstExample = (examples) =>
  examples.find(([text]) => /[\u4e00-\u9fff]/.test(text) === (language() === "zh")) ?? examples[0] ?? [];

/** Keep structure and answer in step with the state; listeners hear of each change. */
export function createPage(state, api) {
  const [listeners, first] = [[], []];
  let told = false;
  let took = 2 * SHORTEST; // milliseconds of the last answer
  const page = {
    models: [], structure: null, answer: null, error: "", busy: false,
    wanted: () => [], // keys that are shown next
    on: (listener) => listeners.push(listener),
    atOnce: (listener) => first.push(listener), // before the frame that the others wait for
    tell: () => {
      first.forEach((listener) => listener());
      if (!told) afterFrame(() => { told = false; listeners.forEach((listener) => listener()); });
      told = true;
    },
    failed: () => {},
  };

  const settle = (fields) => {
    Object.assign(page, { busy: false, error: "" }, fields);
    page.failed(""); // an error is shown in place of the output
    page.tell();
  };
  const renew = newest(
    async (signal) => {
      const start = performance.now();
      const structure = await api.structure(state.model);
      if (signal.aborted) return null; // another model was chosen meanwhile
      page.structure = structure;
      choose(structure);
      if (!state.text.trim()) return { structure, answer: null };
      const answer = await api.answer(state, page.wanted(), signal);
      took = performance.now() - start;
      if (state.row >= Math.max(...Object.values(answer.tokens).map(({ length }) => length))) state.set({ row: null, column: null });
      return { structure, answer };
    },
    settle,
    (error) => settle({ error: error.message, answer: null }),
  );
  const now = () => {
    page.busy = true;
    page.tell();
    return renew();
  };

  /** Take an action and an example where the address names none, and no head that the model has not. */
  const choose = ({ actions, examples, facts }) => {
    if (state.head >= facts.n_heads) state.set({ head: null });
    if (!actions.includes(state.action)) state.set({ action: actions[0] ?? "" });
    if (state.text || page.began === state.model) return;
    page.began = state.model;
    const [text = "", second = ""] = firstExample(examples[state.action] ?? []);
    state.set({ text, second });
  };

  page.start = async () => {
    page.models = await api.models().catch((error) => { page.failed(error.message); return []; });
    const ids = page.models.map((model) => model.id);
    if (!ids.includes(state.model)) state.set({ model: ids[0] ?? "" });
    if (state.model) await now();
    state.on(["model", "action"], (changed) => changed.includes("model") || page.structure ? now() : null);
    const pace = () => Math.max(SHORTEST, Math.min(LONGEST, took / 2)); // a slow model is not asked at each letter
    state.on(["text", "second", "changes"], eager(pace, now));
  };
  return page;
}
