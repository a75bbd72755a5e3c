/** The present view as Python that gives the same numbers. */

const quoted = (text) => JSON.stringify(text);

/** Python for what the state looks at. */
export function asPython(state) {
  const lines = ["import qkv", "", `model = qkv.load(${quoted(state.model)})`, `trace = model.trace(${inputs(state)})`];
  if (state.changes.some((change) => change.startsWith("from:")))
    lines.push(...state.changes.filter((change) => change.startsWith("from:")).map((change, n) => `other_${n} = model.trace(${quoted(change.split(":text=")[1])})`));
  let others = 0;
  for (const change of state.changes) lines.push(`trace = ${changed(change, () => `other_${others++}`)}`);
  const station = state.at.includes(".") && !/^(encoder|decoder)\.\d+(\.\w+)?$/.test(state.at) || ["logits", "probabilities", "pooled"].includes(state.at);
  if (!station) lines.push("print(trace.steps())");
  else if (state.head === null) lines.push(`print(trace[${quoted(state.at)}])`);
  else lines.push(`print(trace.get(${quoted(state.at)}, head=${state.head})${cell(state)})`);
  return lines.join("\n");
}

const cell = ({ row, column }) => (row === null ? "" : column === null ? `[0, 0, ${row}]` : `[0, 0, ${row}, ${column}]`);

function inputs({ action, text, second }) {
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
