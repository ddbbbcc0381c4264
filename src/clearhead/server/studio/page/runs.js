// All runs, their curves over each other, and the training of new ones.

import { element, get, post, printable, ServerError, stream } from "/page/api.js";
import { chart, COLORS } from "/studio/page/chart.js";
import { setUpTraining } from "/studio/page/training.js";
import { change, nameIn, state } from "/studio/page/state.js";

const STATES = { training: "in training", ready: "ready", empty: "no model yet", damaged: "damaged" };
const MEASURES = {
  loss: ["Loss", "nats per token"],
  learning_rate: ["Learning rate", "learning rate"],
  gradient_norm: ["Gradient norm", "norm before clipping"],
  speed: ["Speed", "tokens per second"],
};

const shown = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits));

export function timeLeft(run) {
  if (!run.step || !run.seconds || run.state !== "training") return "";
  const seconds = Math.round(((run.steps - run.step) * run.seconds) / run.step);
  return seconds >= 90 ? `about ${Math.round(seconds / 60)} minutes left` : `about ${seconds} s left`;
}

export function setUpRuns(section, studio) {
  const curves = new Map(); // by name: what /studio/runs/NAME answered, with what came since
  const watched = new Map(); // by name: the controller of the stream
  const body = element("tbody");
  const head = ["Show", "Run", "State", "Steps", "Validation", "Training", "Tokens per second"];
  const table = element(
    "table",
    { class: "runs" },
    element("caption", {}, "Runs, the newest first. Losses are in nats per token."),
    element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
    body,
  );
  const measure = element("select", {}, ...Object.entries(MEASURES).map(([name, [label]]) => element("option", { value: name }, label)));
  const figure = element("figure");
  const legend = element("figcaption", { class: "legend" });
  const live = element("div", { class: "live" });
  const list = element("div", { class: "wide-table", tabindex: "0", role: "group", "aria-label": "Runs" }, table);
  const curveBox = element("div", {}, element("label", {}, "Curve ", measure), figure, legend, live);
  const isOld = () => document.hidden || section.hidden;
  const all = element("div", {}, curveBox, element("h2", {}, "All runs"), list);
  section.append(all);
  const suggestName = setUpTraining(section, studio);

  measure.addEventListener("change", () => change({ measure: measure.value }));

  function chosen(now, run) {
    const names = (now.runs ?? run?.name ?? "").split("|").filter((name) => studio.runs().has(name));
    return names.length || !run ? names : [run.name];
  }

  function row(run, names) {
    const box = element("input", { type: "checkbox", "aria-label": `Show the curve of ${printable(run.name)}` });
    box.checked = names.includes(run.name);
    box.addEventListener("change", () => {
      const others = names.filter((name) => name !== run.name);
      change({ runs: (box.checked ? [...others, run.name] : others).join("|") });
    });
    const link = element("button", { type: "button", class: "link" }, printable(run.name));
    link.addEventListener("click", () => change({ run: run.name, runs: null, text: null, target: null, without: null }));
    const steps = run.steps ? `${(run.step ?? 0).toLocaleString("en")} of ${run.steps.toLocaleString("en")}` : "–";
    const cells = [box, link, STATES[run.state], steps, shown(run.best_val_loss, 3), shown(run.train_loss, 3)];
    const speed = run.tokens_per_second ? Math.round(run.tokens_per_second).toLocaleString("en") : "–";
    return element("tr", {}, ...[...cells, speed].map((cell) => element("td", {}, cell)));
  }

  function draw(now, run) {
    const names = chosen(now, run);
    const kind = nameIn(MEASURES, now.measure, "loss");
    measure.value = kind;
    const lines = names.flatMap((name, index) => {
      const curve = curves.get(name);
      if (!curve) return [];
      if (kind !== "loss") return [{ points: curve[kind], index }];
      return [
        { points: curve.train, index, faint: true },
        { points: curve.validation, index, floor: curve.floor },
      ];
    });
    const [label, unit] = MEASURES[kind];
    figure.replaceChildren(chart(lines, { label: `${label} of ${names.map(printable).join(", ")}`, unit }));
    const extra = kind === "loss" ? "Faint: training. Strong: validation. Dotted: the least that the corpus allows, where it is known. " : "";
    legend.replaceChildren(
      extra,
      ...names.map((name, index) => element("span", { class: `key key-${index % COLORS}` }, printable(name))),
    );
    drawLive(run);
  }

  function drawLive(run) {
    const curve = run && curves.get(run.name);
    if (!curve) return live.replaceChildren();
    const isTraining = curve.state === "training";
    const facts = [
      `step ${curve.step.toLocaleString("en")} of ${curve.steps.toLocaleString("en")}`,
      curve.val_loss === null ? "" : `validation loss ${curve.val_loss.toFixed(4)}`,
      curve.floor === null ? "" : `the floor is ${curve.floor.toFixed(4)}`,
      timeLeft(curve),
    ].filter(Boolean);
    const button = element("button", { type: "button" }, isTraining ? "Stop and save" : "Go on training");
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        await post(`/studio/runs/${encodeURIComponent(run.name)}/${isTraining ? "stop" : "resume"}`, {});
        studio.report(isTraining ? "It saves and ends after this step." : "It goes on in a moment.");
      } catch (error) {
        studio.report(error.message);
      }
    });
    const sample = curve.samples.at(-1);
    const text = sample ? [element("h2", {}, `Written after step ${sample.step}`), element("pre", { tabindex: "0" }, printable(sample.text))] : [];
    const canGoOn = isTraining || curve.step < curve.steps;
    live.replaceChildren(
      element("p", { role: "status" }, `${printable(run.name)}: ${facts.join(", ")}. `, ...(canGoOn && curve.steps && curve.state !== "damaged" ? [button] : [])),
      ...text,
    );
  }

  // Adds what a training wrote since; it is the same that the whole log would give.
  function extend(curve, { records, offset, state: now }) {
    curve.offset = offset;
    curve.state = now;
    for (const record of records) {
      if (record.kind === "step") {
        curve.step = Math.max(curve.step, record.step);
        curve.seconds += record.seconds;
        for (const [line, value] of [
          [curve.train, record.loss],
          [curve.learning_rate, record.learning_rate],
          [curve.gradient_norm, record.gradient_norm],
          [curve.speed, record.seconds ? record.tokens / record.seconds : null],
        ]) {
          if (typeof value === "number") line.push([record.step, value]);
        }
      } else if (record.kind === "evaluation" && record.loss !== null) {
        curve.validation.push([record.step, record.loss]);
        curve.val_loss = record.loss;
      } else if (record.kind === "sample") {
        curve.samples.push({ step: record.step, text: record.text });
      } else if (record.kind === "start") {
        curve.steps = record.steps;
        curve.floor = record.floor ?? null;
      }
    }
  }

  async function watch(name) {
    const controller = new AbortController();
    watched.set(name, controller);
    try {
      const path = `/studio/runs/${encodeURIComponent(name)}`;
      const curve = await get(path);
      curves.set(name, curve);
      draw(state(), studio.run());
      if (curve.state !== "training") return;
      let due = 0;
      for await (const event of stream(`${path}/events`, { offset: curve.offset }, controller.signal)) {
        extend(curve, event);
        if (performance.now() < due && event.state === "training") continue;
        due = performance.now() + 900;
        if (!isOld()) draw(state(), studio.run());
      }
      studio.refresh();
    } catch (error) {
      // What is no answer of the server (it is gone for now) is said in the line on top, and goes when it is back.
      if (error instanceof ServerError) studio.report(error.message);
    } finally {
      watched.delete(name);
    }
  }

  setInterval(() => {
    if (!isOld()) studio.refresh(); // a run that was started in a terminal appears by itself
  }, 4000);

  return function show(now, run) {
    const names = chosen(now, run);
    all.hidden = !studio.runs().size;
    suggestName();
    body.replaceChildren(...[...studio.runs().values()].map((entry) => row(entry, names)));
    for (const name of new Set([...names, ...(run ? [run.name] : [])])) {
      const curve = curves.get(name);
      const entry = studio.runs().get(name);
      const isStale = !curve || entry.state !== curve.state || entry.step > curve.step;
      if (isStale && !watched.has(name) && entry.state !== "damaged") watch(name);
    }
    draw(now, run);
  };
}
