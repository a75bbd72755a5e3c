/** Training, live: curves of a run, its samples improving, attention forming, gradients by layer. */
import { button, chart, choice, panel, roomIn } from "./controls.js";
import { el, indexed, number, show } from "./dom.js";
import { t, tOr } from "./i18n.js";
import { drawMap } from "./map.js";
import { runPython } from "./python.js";

const PAUSE = 1500; // milliseconds between looks at a run
const SHOWN = 300; // points of a curve, each the mean of the steps between

export function mount(element, state, api) {
  let records = [];
  let next = 0;
  let timer = null;
  let looking = false;
  let newestSample = 0;
  let folder = ""; // of the run on the server
  let newestFound = null;
  const samples = [];
  const head = el("div", { class: "row" });
  const curves = el("div", { class: "scroll", tabindex: 0 });
  const said = el("ol", { class: "samples" });
  const forming = el("div", { class: "scroll", tabindex: 0 });
  const gradients = el("div", { class: "scroll", tabindex: 0 });
  const text = el("input", { class: "wide", "aria-label": t("training.text") });
  text.onchange = () => { samples.length = 0; newestSample = 0; sample(); };

  const choose = async () => {
    const { data, running } = await api.fetch("/v1/runs");
    const run = data.includes(state.run) ? state.run : running === "runs/demo" ? "demo" : data[0];
    if (run !== state.run) state.set({ run });
    show(head, choice(t("training.run"), data, run, (to) => state.set({ run: to }, { push: true })),
      start, stop,
      el("span", { class: "quiet status" }));
  };
  const stop = button(t("training.stop"), () => api.fetch("/v1/runs/stop", {}), { disabled: true });
  const status = (words) => { const place = head.querySelector(".status"); if (place) place.textContent = words; };
  const start = button(`▶ ${t("training.start")}`, async () => {
    try {
      await api.fetch("/v1/runs/demo/start", {});
      forget();
      state.set({ run: "demo" });
      look();
    } catch (error) {
      status(error.message);
    }
  }, { class: "chip strong" });
  const forget = () => { records = []; next = 0; samples.length = 0; newestSample = 0; show(said); show(forming); show(gradients); fold(true); };
  /** Hide the panels of samples until the run has weights. */
  const fold = (isEmpty) => element.querySelectorAll(".panel:not([data-panel='training.curves'])").forEach((part) => { part.hidden = isEmpty; });

  const look = async () => {
    clearTimeout(timer);
    if (state.section !== "training" || !state.run || looking) return;
    looking = true;
    try {
      const run = state.run;
      const answer = await api.fetch(`/v1/runs/${encodeURIComponent(run)}/log?after=${next}`);
      if (run !== state.run) return;
      records.push(...answer.records);
      folder = answer.folder;
      next = answer.next;
      stop.disabled = !answer.running;
      start.disabled = answer.running;
      drawCurves(curves, records, answer.running);
      const last = records.at(-1);
      status(answer.failure || (answer.running ? t("training.running") : "") + (last ? ` ${t("training.at", { step: last.step, loss: number(last.loss ?? NaN), rate: Math.round(last.tokens_per_second ?? 0).toLocaleString() })}` : t("training.none")));
      if (records.length) await sample();
      if (answer.running || answer.records.length) timer = setTimeout(look, PAUSE);
    } catch (error) {
      status(error.message);
    } finally {
      looking = false;
    }
  };
  const sample = async () => {
    const found = await api.fetch(`/v1/runs/${encodeURIComponent(state.run)}/sample`, { text: text.value }).catch(() => null);
    if (!found?.time || found.time === newestSample) return;
    newestSample = found.time;
    newestFound = found;
    fold(false);
    if (!text.value) text.value = found.asked;
    const step = records.findLast((record) => "valid_loss" in record)?.step ?? "";
    samples.push({ step, text: found.text });
    show(said, samples.map((one) => el("li", {}, el("span", { class: "number quiet" }, one.step), ` ${one.text}`)));
    drawAttention(forming, found);
    drawGradients(gradients, found.gradients);
  };

  const curveCode = () => ({
    python: ["import json", "from pathlib import Path", "", `log = Path(${JSON.stringify(folder)}) / "log.jsonl"`, "records = [json.loads(line) for line in log.read_text().splitlines()]",
      'print([record["loss"] for record in records if "loss" in record][-1:])'].join("\n"),
    number: records.findLast((record) => "loss" in record)?.loss,
  });
  const sampleCode = (path, number) => () => ({
    python: `from qkv.serve.page.jobs import sample_of\n${runPython(folder, `print(sample_of(model, ${JSON.stringify(text.value)})${path})`)}`, number: newestFound ? number(newestFound) : undefined,
  });
  element.append(panel(state, "training.curves", curveCode, head, curves), panel(state, "training.samples", sampleCode('["text"]', () => undefined), text, said),
    panel(state, "training.attention", sampleCode('["attention"][0][0]', ({ attention }) => attention[0][0]), forming),
    panel(state, "training.gradients", sampleCode('["gradients"][0]["norm"]', ({ gradients: [first] }) => first?.norm), gradients));
  state.on(["run"], () => { forget(); look(); });
  const all = () => choose().then(look, ({ message }) => show(head, el("p", { class: "error" }, message)));
  fold(true);
  return { show: all, hide: () => clearTimeout(timer) };
}

/** Loss and validation loss over the steps, and the last score. */
function drawCurves(element, records, isRunning) {
  if (!records.length) return show(element, el("p", { class: "empty start" }, t(isRunning ? "training.preparing" : "training.empty")));
  const [width, height] = [roomIn(element, 1200), 260];
  const every = Math.ceil(records.length / SHOWN);
  const losses = records.filter((record) => Number.isFinite(record.loss));
  const train = losses.filter((_, n) => n % every === 0).map((record, n) => [record.step, mean(losses.slice(n * every, (n + 1) * every))]);
  const valid = records.filter((record) => Number.isFinite(record.valid_loss)).map((record) => [record.step, record.valid_loss]);
  const values = [...train, ...valid].map((point) => point[1]);
  const [low, high, last] = [Math.min(...values), Math.max(...values), records.at(-1).step];
  const scores = Object.entries(records.findLast((record) => "valid_loss" in record) ?? {})
    .filter(([name, value]) => typeof value === "number" && !["step", "loss", "lr", "tokens_per_second"].includes(name));
  show(element, chart(t("training.curves"), width, height, {
    lines: [{ colour: "k", name: t("training.loss"), points: train }, { colour: "q", name: t("training.valid"), points: valid, dots: valid }],
    ticks: [high, (high + low) / 2, low], format: (value) => number(value, 1), across: [[records[0].step, t("training.step")], [last, last]],
  }), el("p", { class: "quiet" }, scores.map(([name, value]) => `${tOr(`metric.${name}`, name)} ${number(value, 2)}`).join(" · ")));
}

const mean = (records) => records.reduce((sum, record) => sum + record.loss, 0) / records.length;

/** The mean of the heads of the last attention. */
const drawAttention = (element, { columns, rows, attention }) => show(element, drawMap({ shape: [rows.length, columns.length], data: Float32Array.from(attention.flat()) },
  { colour: "attention", rowNames: rows, columnNames: columns, scale: 1, label: t("training.attention"), width: roomIn(element, 400) }));

/** A bar per layer: the norm of the gradient in its weights. */
function drawGradients(element, norms) {
  element.closest(".panel").hidden = !norms.length;
  const most = Math.max(...norms.map((one) => one.norm), 1e-12);
  show(element, el("ol", { class: "choices still" }, norms.map((one) => el("li", {}, el("span", { class: "name" }, layerName(one.name)),
    el("span", { class: "double" }, el("i", { class: "ruled", style: { width: `${(100 * one.norm) / most}%` } })), el("span", { class: "number" }, number(one.norm))))));
}

/** "encoder.0" and "source" in words. */
function layerName(name) {
  const [first, layer] = name.split(".");
  return layer ? `${t(`stack.${first}`)} ${layer}` : indexed(tOr(`training.weights.${first}`, name));
}
