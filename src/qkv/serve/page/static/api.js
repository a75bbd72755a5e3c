/** Requests to the server: JSON answers, and quantities as binary blocks; each is asked once. */

import { language, t, told } from "./i18n.js";

const KEPT = 200; // responses that are remembered
const STORED = "qkv-api-key"; // where a key that somebody typed is kept, until the tab closes
const cache = new Map();
let refused = false;

/** Whether the server wants a key. */
export const needsKey = () => refused;
/** Keep the key that was typed. */
export const keepKey = (key) => sessionStorage.setItem(STORED, key);

/** An error whose message is a sentence for the reader. */
export class ApiError extends Error {}

async function fetched(path, body, signal) {
  const key = sessionStorage.getItem(STORED);
  const headers = { ...(key ? { Authorization: `Bearer ${key}` } : {}), ...(body ? { "Content-Type": "application/json" } : {}) };
  const options = { headers, signal, ...(body ? { method: "POST", body: JSON.stringify(body) } : {}) };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    throw signal?.aborted ? error : new ApiError(t("error.server"));
  }
  refused = response.status === 401;
  if (!response.ok) throw new ApiError(told(await sentence(response)));
  return response;
}

async function sentence(response) {
  try {
    const { error, detail } = await response.json();
    if (Array.isArray(detail)) return detail[0].msg;
    return error?.message ?? error ?? detail;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

/** Ask once: the same path and body share one response. `signal` gives a question up, here and on the server. */
function once(path, body, readResponse, signal) {
  const asked = path + JSON.stringify(body ?? "");
  if (!cache.has(asked)) {
    const promise = fetched(path, body, signal).then(readResponse);
    const forget = () => cache.get(asked) === promise && cache.delete(asked);
    signal?.addEventListener("abort", forget); // at once, so that who asks again gets a new response
    promise.then(() => signal?.removeEventListener("abort", forget), forget);
    cache.set(asked, promise);
    if (cache.size > KEPT) cache.delete(cache.keys().next().value);
  }
  return cache.get(asked);
}

const json = (response) => response.json();
const at = (model, what) => `/v1/models/${model.split("/").map(encodeURIComponent).join("/")}/${what}`;

/** The part of the state that names a pass: action, texts and changes. */
export function pass(state, changes = state.changes) {
  return { action: state.action, text: state.text, second: state.second, changes };
}

export const api = {
  /** Models that the server offers: [{id}]. */
  models: async () => (await json(await fetched("/v1/models"))).data,
  /** Stacks, stations and formulas of a model. */
  structure: (model) => once(at(model, `structure?language=${language()}`), null, json),
  /** Text, tokens, and candidates of each output; under changes also the changed ones. The `keys` are computed along. */
  answer: (state, keys, signal) => once(at(state.model, "answer"), { ...pass(state), keys }, json, signal),
  /** Quantities by key: {shape, low, high, data}, and `tokens`; see TraceAsk for the options. */
  trace: (state, keys, options = {}, signal) =>
    once(at(state.model, "trace"), { ...pass(state), keys, ...options }, blocks, signal),
  /** Any other question about the present pass, such as "cell"; `options` go into its body. */
  ask: (state, what, options = {}) => once(at(state.model, what), { ...pass(state), ...options }, json),
  /** GET or POST JSON anywhere else on this server. */
  fetch: async (path, body) => json(await fetched(path, body)),
};

/** Decode a header and its little-endian blocks. */
async function blocks(response) {
  const buffer = await response.arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const quantities = {};
  for (const block of header.blocks) {
    const count = block.shape.reduce((a, b) => a * b, 1);
    const start = 4 + length + block.offset;
    const data = header.precision === "float32"
      ? new Float32Array(buffer, start, count)
      : halves(new Uint16Array(buffer, start, count));
    quantities[block.key] = { ...block, data, axes: header.axes[block.key] };
  }
  return { tokens: header.tokens, quantities };
}

/** float16 to float32. */
function halves(bits) {
  return Float32Array.from(bits, (half) => {
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >> 10) & 0x1f;
    const fraction = half & 0x3ff;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  });
}
