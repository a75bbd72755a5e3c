/** What is known of the present pass: the model's structure and its answer, renewed as one types. */
import { newest, paused } from "./dom.js";

const PAUSE = 50; // milliseconds without typing before a text is read

/** Keep structure and answer in step with the state; listeners hear of each change. */
export function createPage(state, api) {
  const listeners = [];
  const page = {
    models: [], structure: null, answer: null, error: "", busy: false,
    on: (listener) => listeners.push(listener),
    tell: () => listeners.forEach((listener) => listener()),
    failed: () => {},
  };

  const settle = (fields) => {
    Object.assign(page, { busy: false, error: "" }, fields);
    page.failed(""); // an error is shown in place of the output
    page.tell();
  };
  const renew = newest(
    async () => {
      const structure = await api.structure(state.model);
      page.structure = structure;
      choose(structure);
      if (!state.text.trim()) return { structure, answer: null };
      return { structure, answer: await api.answer(state) };
    },
    settle,
    (error) => settle({ error: error.message, answer: null }),
  );
  const now = () => {
    page.busy = true;
    page.tell();
    return renew();
  };

  /** Take an action and an example where the address names none. */
  const choose = ({ actions, examples }) => {
    if (!actions.includes(state.action)) state.set({ action: actions[0] ?? "" });
    if (state.text || page.began === state.model) return;
    page.began = state.model;
    const [text = "", second = ""] = examples[state.action]?.[0] ?? [];
    state.set({ text, second });
  };

  page.start = async () => {
    page.models = await api.models().catch((error) => { page.failed(error.message); return []; });
    const ids = page.models.map((model) => model.id);
    if (!ids.includes(state.model)) state.set({ model: ids[0] ?? "" });
    if (state.model) await now();
    state.on(["model", "action"], (changed) => changed.includes("model") || page.structure ? now() : null);
    state.on(["text", "second", "changes"], paused(PAUSE, now));
  };
  return page;
}
