/** The present view as Python that gives the same numbers. */

const quoted = (text) => JSON.stringify(text);

/** A value as Python writes it. */
const written = (value) => (typeof value === "boolean" ? (value ? "True" : "False") : Array.isArray(value) ? `[${value.map(written).join(", ")}]` : JSON.stringify(value));
const loaded = (model, ...settings) => ["import qkv", "", `model = qkv.load(${[quoted(model), ...settings].join(", ")})`];

/** Python that asks what the page asks of the server: a function, its question, and the number in its answer. */
export function askPython(state, [module, kind, name], fields, path) {
  const asked = ["NextAsk", "BeamAsk", "ForcedAsk"].includes(kind) ? { action: state.action, text: state.text, changes: state.changes, ...fields } : fields;
  const given = Object.entries(asked).filter(([, value]) => value !== "" && !(Array.isArray(value) && !value.length));
  const call = `${kind}(${given.map(([field, value]) => `${field}=${written(value)}`).join(", ")})`;
  return [`from qkv.serve.page.${module} import ${kind}, ${name}`, ...loaded(state.model), `answer = ${name}(model, ${call})`, `print(answer${path})`].join("\n");
}

/** Lines after a model is loaded. */
export const modelPython = (model, ...lines) => [...loaded(model), ...lines].join("\n");
/** A line after a run's weights are loaded in a precision that has gradients. */
export const runPython = (folder, line) => [...loaded(folder, 'dtype="fp32"'), line].join("\n");

/** The pass with all changes, in the variable `trace`. */
function passLines(state) {
  const lines = [...loaded(state.model), `trace = model.trace(${inputs(state)})`];
  const patches = state.changes.filter((change) => change.startsWith("from:"));
  lines.push(...patches.map((change, n) => `other_${n} = model.trace(${quoted(change.split(":text=")[1])})`));
  let others = 0;
  for (const change of state.changes) lines.push(`trace = ${changed(change, () => `other_${others++}`)}`);
  return lines;
}

/** Python for the outputs of the pass: the probability of the first one. */
export function stepsPython(state) {
  const { answer } = state.page;
  const [first] = answer?.changed ?? answer?.outputs ?? [];
  const lines = passLines(state);
  if (!first) return { python: [...lines, "print(trace.names())"].join("\n") };
  return { python: [...lines, `print(trace.steps()[${first.position}].candidates[0].probability)`].join("\n"), number: first.candidates[0].probability };
}

/** Python for what the state looks at. */
export function asPython(state) {
  const lines = passLines(state);
  const station = state.at.includes(".") && !/^(encoder|decoder)\.\d+(\.\w+)?$/.test(state.at) || ["logits", "probabilities", "pooled"].includes(state.at);
  if (!station) return stepsPython(state).python;
  if (state.head === null) lines.push(`print(trace[${quoted(state.at)}])`);
  else lines.push(`print(trace.get(${quoted(state.at)}, head=${state.head})${cell(state)})`);
  return lines.join("\n");
}

const cell = ({ row, column }) => (row === null ? "" : column === null ? `[0, 0, ${row}]` : `[0, 0, ${row}, ${column}].item()`);

function inputs({ action, text, second, page }) {
  if (action === "continue" && page.answer?.text) return `${quoted(text)}, ${quoted(page.answer.text)}`;
  if (action === "answer") return `(${quoted(second)}, ${quoted(text)})`;
  return action === "classify" && second ? `(${quoted(text)}, ${quoted(second)})` : quoted(text);
}

function changed(written, other) {
  const [head] = written.split(":text=");
  const [verb, key, ...rest] = head.split(":");
  const options = Object.fromEntries(rest.map((option) => option.split("=")));
  const given = (name) => (name in options ? `, ${name}=${options[name]}` : "");
  if (verb === "hide") return `trace.hide(${options.position}, ${quoted(key)})`;
  if (verb === "set")
    return `trace.change(${quoted(key)}, ${options.to}, head=${options.head}, positions=[${options.row}], keys=[${options.column}], renormalise=True)`;
  if (verb === "from") return `trace.patch(${other()}, ${quoted(key)}${given("head")}${"position" in options ? `, positions=[${options.position}]` : ""})`;
  return /\.scale$/.test(key) ? `trace.change(${quoted(key)}, 1.0)` : `trace.silence(${quoted(key)}${given("head")})`;
}
