/** One state for the whole page, mirrored in the address bar: a copied link shows the same view. */

const FIELDS = {
  model: "", action: "", text: "", second: "", section: "river",
  at: "", // what is looked at: "" the model, "decoder.1" a layer, a key of the trace a station
  head: null, // head that is looked at; null: all together
  row: null, // selected token: the query of a map, the lane of a strip
  column: null, // selected key token, or dimension
  open: [], // layers that show their graph, as "decoder.1"
  changes: [], // changes of the pass, as the server reads them
  difference: true, // with changes: strips show what moved
  language: "", theme: "",
  written: [], // ids of the tokens written so far, in the section Write
  rules: "", // sampling rules, as "temperature=0.8 top_k=40"
  beams: 3, reference: "", // the beam search; a given output to predict
  other: "", word: "", sentences: [], // the second model, and one word in several sentences
  width: 64, length: 48, // of the table of positions
  run: "", stop: 0, // the run that is watched; the stop of the tour
};
const LONGEST = 5000; // characters of a text in the address; a larger image is not part of it
const NUMBERS = ["head", "row", "column", "beams", "width", "length", "stop"];
const LISTS = ["open", "changes", "written", "sentences"];

/** Make the state from the address; `set` changes it, `on` hears of changes. */
export function createState() {
  const listeners = [];
  const state = { ...structuredClone(FIELDS), ...read(location.search) };

  /** Call `listener(changed)` when one of the fields (all, if none is named) has changed. */
  state.on = (fields, listener) => listeners.push({ fields, listener });

  let later;
  const replace = () => history.replaceState(null, "", location.pathname + write(state));
  /** Change fields; `push` makes a step that the back button undoes, `soon` lets the address wait for an answer. */
  state.set = (fields, { push = false, soon = false } = {}) => {
    const changed = Object.keys(fields).filter((name) => !same(state[name], fields[name]));
    if (!changed.length) return;
    Object.assign(state, fields);
    clearTimeout(later);
    if (soon) later = setTimeout(replace, 300);
    else push ? history.pushState(null, "", location.pathname + write(state)) : replace();
    tell(changed);
  };

  /** The address of the present view. */
  state.link = () => location.origin + location.pathname + write(state);

  const tell = (changed) => {
    for (const { fields, listener } of listeners)
      if (!fields || fields.some((name) => changed.includes(name))) listener(changed);
  };
  window.addEventListener("popstate", () => {
    const fields = { ...structuredClone(FIELDS), ...read(location.search) };
    const changed = Object.keys(FIELDS).filter((name) => !same(state[name], fields[name]));
    Object.assign(state, fields);
    tell(changed);
  });
  return state;
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

function read(search) {
  const given = new URLSearchParams(search);
  const fields = {};
  for (const [name, usual] of Object.entries(FIELDS)) {
    if (!given.has(name)) continue;
    if (LISTS.includes(name)) fields[name] = given.getAll(name);
    else if (NUMBERS.includes(name)) fields[name] = Number.parseInt(given.get(name), 10);
    else fields[name] = typeof usual === "boolean" ? given.get(name) === "true" : given.get(name);
    if (Number.isNaN(fields[name])) fields[name] = usual;
  }
  return fields;
}

function write(state) {
  const given = new URLSearchParams();
  for (const [name, usual] of Object.entries(FIELDS)) {
    if (same(state[name], usual) || (name === "text" && state.text.length > LONGEST)) continue;
    for (const value of [state[name]].flat()) given.append(name, value);
  }
  const search = given.toString();
  return search && `?${search}`;
}
