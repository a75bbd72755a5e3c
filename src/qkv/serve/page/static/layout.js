/**
 * Columns, nodes and edges of a river, generated from a model's structure.
 *
 * A column is one station of all lanes (tokens): a strip per token, a row of a score matrix, or the
 * ribbons of an attention (`flow`: those of a closed layer). A node stands in a column at a level: 0 is
 * the residual stream, 1 to 3 the branch (Q, K, V). An edge connects two nodes. Sizes are along the flow,
 * in pixels.
 */
import { textWidth } from "./dom.js";
import { t } from "./i18n.js";

const SIZES = {
  right: { token: 76, strip: 60, thin: 40, row: 44, op: 44, ribbon: 88, flow: 34, qkv: 60, word: 96, gap: 10 },
  down: { token: 26, strip: 16, thin: 14, row: 14, op: 22, ribbon: 64, flow: 22, qkv: 34, word: 30, gap: 12 },
};
const MOST_FLOWS = 12; // layers whose ribbons are shown while they are closed
/** Names of activations. */
export const ACTIVATIONS = { relu: "ReLU", silu: "SiLU", gelu: "GELU", gelu_tanh: "GELU" };
/** Pixels of a station's pill, around its name. */
export const pillWidth = (label) => (label === "+" ? 18 : Math.max(20, 12 + textWidth(label.replace("_", ""), 11)));

/** All columns, nodes and edges of one stack. */
export function layoutStack(structure, stack, open, flow, isLast, stretch = 1) {
  const build = builder(structure.facts, stack, stretched(SIZES[flow], stretch), flow);
  const thin = stack.n_layers > 8 || open.length > 0;
  build.inputs(thin);
  for (let layer = 0; layer < stack.n_layers; layer++) {
    if (open.includes(`${stack.name}.${layer}`)) build.open(layer);
    else build.closed(layer, thin);
  }
  build.end(structure, isLast, open.length > 0);
  return build.done();
}

/** Sizes with strips that are wider where there is room. */
const stretched = (sizes, by) => ({ ...sizes, strip: sizes.strip * by, thin: sizes.thin * by, qkv: sizes.qkv * by, gap: sizes.gap * Math.min(by, 1.3) });

function builder(facts, stack, sizes, flow) {
  const columns = [], nodes = [], edges = [], layers = [];
  let position = 0;
  let stream; // the node that the residual stream has come to
  const norm = flow === "down" ? "Norm" : facts.norm === "layer" ? "LayerNorm" : "RMSNorm";
  const heading = flow === "down" ? 20 : 0; // room for the name of an open layer
  const names = ["node.embedding", "node.positions", "node.layer"].map((key) => pillWidth(t(key, { layer: stack.n_layers - 1 })));
  const isRoomy = flow === "right" && Math.max(...names) <= sizes.strip + sizes.gap;

  const column = (kind, fields) => {
    const made = { kind, start: position, size: sizes[kind], keys: [], ...fields };
    position += made.size + sizes.gap;
    columns.push(made);
    return made;
  };
  const node = (at, label, level, fields = {}) => {
    const made = { label, level, position: at.start + at.size / 2, column: at, ...fields };
    nodes.push(made);
    return made;
  };
  const edge = (from, to, colour = "stream") => edges.push({ from, to, colour });
  /** A station on the residual stream. */
  const onStream = (kind, label, key, fields) => { stream = onBranch(kind, label, 0, key, stream ? [stream] : [], fields); };
  /** A station on a branch. */
  const onBranch = (kind, label, level, key, from, fields = {}) => {
    const next = node(column(kind, { keys: key ? [key] : [], colour: "stream", ...fields }), label, level, { key, ...fields });
    for (const before of from) edge(before, next, fields.colour);
    return next;
  };

  /** A station that is only an operation where the trace has not this part of the sublayer. */
  const onPart = (kind, label, level, { at, has }, part, from, fields) =>
    onBranch(has(part) ? kind : "op", label, level, has(part) ? `${at}.${part}` : null, from, fields);

  /** A name in words where the columns are wide enough for all of them. */
  const named = (short, key, thin, values) => (thin || !isRoomy ? short : t(key, values));

  const inputs = (thin) => {
    const kind = thin ? "thin" : "strip";
    column("token", { side: stack.side });
    for (const { key } of stack.inputs) {
      const part = key.split(".")[1];
      if (part === "embedding") onStream(kind, named("E", "node.embedding", thin), key);
      if (part === "positions") onStream(kind, named("PE", "node.positions", thin), key);
      if (part === "input") onStream(kind, facts.adds_positions ? "+" : named("H⁰", "node.input", thin), key);
    }
  };

  const closed = (layer, thin) => {
    const key = `${stack.name}.${layer}.feed_forward.residual`;
    const start = position;
    const attends = stack.sublayers.some(({ name, layers: own }) => name === "self_attention" && own.includes(layer));
    if (attends && stack.n_layers <= MOST_FLOWS) column("flow", { keys: [`${stack.name}.${layer}.self_attention.weights`], at: `${stack.name}.${layer}`, closed: true });
    onStream(thin ? "thin" : "strip", named(String(layer), "node.layer", thin, { layer }), key, { layer, closed: true, at: `${stack.name}.${layer}` });
    layers.push({ layer, start, end: position - sizes.gap, open: false });
  };

  const open = (layer) => {
    const start = position;
    position += heading;
    const entry = stream;
    for (const sublayer of stack.sublayers) {
      if (!sublayer.layers.includes(layer)) continue;
      const at = `${stack.name}.${layer}.${sublayer.name}`;
      const has = (part) => sublayer.stations.some((station) => station.part === part);
      const from = facts.parallel ? entry : stream;
      if (sublayer.name.endsWith("attention")) attention(at, layer, has, from, sublayer.name === "cross_attention");
      else if (sublayer.name === "feed_forward") feedForward(at, layer, has, from);
      else onStream("strip", "Conv", `${at}.residual`, { layer });
    }
    layers.push({ layer, start, end: position - sizes.gap, open: true });
  };

  /** A norm before a sublayer, on its branch. */
  const before = (from, layer, at, has) => {
    if (facts.norm_position === "post") return from;
    return onPart("strip", norm, 2, { at, has }, "norm", [from], { layer, sublayer: at });
  };

  /** How many heads queries, keys or values have, where these differ. */
  const times = (n) => (facts.kv_heads === facts.n_heads || flow === "down" ? "" : ` ×${n ? facts.kv_heads : facts.n_heads}`);

  const attention = (at, layer, has, from, cross) => {
    const fields = (colour, more = {}) => ({ colour, layer, sublayer: at, ...more });
    const read = before(from, layer, at, has);
    const keys = ["query", "key", "value"].map((part) => `${at}.${part}`);
    const qkv = column("qkv", { keys: cross ? keys.slice(0, 1) : keys, colour: "q", cross, sublayer: at });
    const [q, k, v] = ["Q", "K", "V"].map((letter, n) =>
      node(qkv, letter + times(n), n + 1, { key: keys[n], letter, ...fields(letter.toLowerCase()), bridge: cross && n > 0 }));
    edge(read, q, "q");
    if (!cross) { edge(read, k, "k"); edge(read, v, "v"); }
    let [left, right] = [q, k];
    if (facts.turns_positions && !cross) {
      const turn = column("op", { sublayer: at });
      left = node(turn, "↻", 1, fields("q", { key: `${at}.rotation` }));
      right = node(turn, "↻", 2, fields("k", { key: `${at}.rotation` }));
      edge(q, left, "q"); edge(k, right, "k");
    }
    const row = (label, part, from) => onPart("row", label, 1.5, { at, has }, part, from, fields("attention"));
    const product = row("QKᵀ", "products", [left, right]);
    const scaled = facts.score_division ? onBranch("op", "÷√d", 1.5, has("scale") ? `${at}.scale` : null, [product], fields("attention")) : product;
    const biased = facts.biases_scores && !cross ? row("+ b", "bias", [scaled]) : scaled;
    const scores = row("+ M", "scores", [biased]);
    const weights = row("softmax", "weights", [scores]);
    column("ribbon", { keys: [`${at}.weights`], colour: "attention", cross, sublayer: at });
    const sum = onBranch("strip", "Σ a·v", 2, `${at}.heads`, [weights], fields("attention"));
    edge(v, sum, "v");
    const result = onBranch("strip", "W_O", 2, `${at}.output`, [sum], fields("stream"));
    after(at, layer, has, from, result);
  };

  const feedForward = (at, layer, has, from) => {
    const fields = { layer, sublayer: at };
    const strip = (label, level, part, from) => onPart("strip", label, level, { at, has }, part, from, fields);
    const read = before(from, layer, at, has);
    const activation = ACTIVATIONS[facts.activation] ?? facts.activation;
    let hidden;
    if (has("shares")) {
      hidden = strip("Router", 1.5, "shares", [read]);
    } else if (facts.gated) {
      const up = strip("W₁", 1.5, "inner", [read]);
      const gate = node(up.column, "W_gate", 3, { ...fields, key: has("gate") ? `${at}.gate` : null });
      edge(read, gate);
      const bent = node(column("op", {}), activation, 3, fields);
      edge(gate, bent);
      hidden = onBranch("strip", "⊙", 2, `${at}.hidden`, [up, bent], fields);
    } else {
      hidden = onBranch("strip", activation, 2, `${at}.hidden`, [strip("W₁", 2, "inner", [read])], fields);
    }
    const result = onBranch("strip", "W₂", 2, `${at}.output`, [hidden], fields);
    after(at, layer, has, from, result);
  };

  /** The sum with the stream, and the norms after a sublayer. */
  const after = (at, layer, has, from, result) => {
    if (facts.norm_position === "both") result = onPart("strip", norm, 2, { at, has }, "output_norm", [result], { layer, sublayer: at });
    const post = facts.norm_position === "post";
    const sumKey = post ? (has("sum") ? `${at}.sum` : null) : `${at}.residual`;
    onStream(sumKey ? "strip" : "op", "+", sumKey, { layer, sublayer: at });
    edge(result, stream);
    if (post) onStream("strip", norm, `${at}.residual`, { layer, sublayer: at });
  };

  const end = (structure, isLast, thin) => {
    const last = stack.output.key;
    const size = Math.max(sizes.strip, flow === "down" ? 0 : 66); // as wide as its name
    onStream("strip", facts.norm_position === "post" ? "H" : norm, last, { size });
    if (!isLast) return;
    const keys = structure.outputs.map(({ key }) => key);
    if (keys.includes("pooled")) onStream("op", "pool", "pooled");
    if (keys.includes("logits")) onStream("strip", "logits", "logits", { size });
    if (keys.includes("logits")) onStream("word", named("P", stack.name === "decoder" ? "node.probabilities" : structure.actions.includes("fill") ? "river.word" : "river.output", thin), "probabilities");
  };

  return { inputs, closed, open, end, done: () => ({ columns, nodes, edges, layers, length: position }) };
}
