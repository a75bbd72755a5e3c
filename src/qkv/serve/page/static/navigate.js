/** Depths of the river: model → layer → station (and head) → cell; click in, Escape out. */

const LAYER = /^(encoder|decoder)\.\d+$/;

/** Go to a layer (open or close it) or to a station. */
export function goIn(state, at) {
  if (!at) return;
  if (!LAYER.test(at)) return state.set({ at, row: state.at === at ? state.row : null, column: null }, { push: true });
  const isOpen = state.open.includes(at);
  const open = isOpen ? state.open.filter((other) => other !== at) : [...state.open, at];
  state.set({ open, at: isOpen ? "" : at, row: null, column: null }, { push: true });
}

/** Select a station, a token, a cell, without opening anything. */
export const select = (state, fields) => state.set(fields);

/** Go one depth out: cell, token, head, station, layer, model. */
export function goOut(state) {
  if (state.column !== null) return state.set({ column: null }, { push: true });
  if (state.row !== null) return state.set({ row: null }, { push: true });
  if (state.head !== null) return state.set({ head: null }, { push: true });
  const layer = state.at.match(/^(encoder|decoder)\.\d+(?=\.)/)?.[0];
  if (layer && state.open.includes(layer)) return state.set({ at: layer }, { push: true });
  if (LAYER.test(state.at)) return state.set({ at: "", open: state.open.filter((other) => other !== state.at) }, { push: true });
  if (state.at) return state.set({ at: "" }, { push: true });
  if (state.open.length) state.set({ open: state.open.slice(0, -1) }, { push: true });
}
