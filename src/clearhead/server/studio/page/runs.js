// All runs, their curves over each other, and the training of new ones.

import { element, get, post, printable, ServerError, stream } from "/page/api.js";
import { chart, COLORS } from "/studio/page/chart.js";
import { keep, say } from "/studio/page/keep.js";
import { setUpTraining } from "/studio/page/training.js";
import { change, chooseRun, nameIn, state } from "/studio/page/state.js";

const STATES = { training: "in training", ready: "ready", empty: "no model yet", damaged: "damaged" };
const MEASURES = {
  loss: ["Loss", "nats per token"],
  learning_rate: ["Learning rate", "learning rate"],
  gradient_norm: ["Gradient norm", "norm before clipping"],
  speed: ["Speed", "tokens per second"],
};

const POINTS = 4000; // of a line: what is longer keeps every second one
const LISTED_EVERY = 8000; // ms

const shown = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits));

export function timeLeft(run) {
  if (!run.step || !run.seconds || run.state !== "training" || run.step >= run.steps) return "";
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
  const [heard, facts] = [element("span", { role: "status" }), element("span", {})]; // what is read out, and what is not
  const button = element("button", { type: "button" });
  const [writtenAt, written] = [element("h2", {}), element("pre", { tabindex: "0" })];
  const live = element("div", { class: "live", hidden: "" }, element("p", {}, heard, facts, button), writtenAt, written);
  const list = element("div", { class: "wide-table", tabindex: "0", role: "group", "aria-label": "Runs" }, table);
  const curveBox = element("div", {}, element("label", {}, "Curve ", measure), figure, legend, live);
  const isOld = () => document.hidden || section.hidden;
  const all = element("div", {}, curveBox, element("h2", {}, "All runs"), list);
  section.append(all);
  const suggestName = setUpTraining(section, studio);
  let drawn = ""; // what the picture shows

  measure.addEventListener("change", () => change({ measure: measure.value }));

  function chosen(now, run) {
    const names = (now.runs ?? run?.name ?? "").split("|").filter((name) => studio.runs().has(name));
    return names.length || !run ? names : [run.name];
  }

  function row(run) {
    const box = element("input", { type: "checkbox", "aria-label": `Show the curve of ${printable(run.name)}` });
    box.addEventListener("change", () => {
      const others = chosen(state(), studio.run()).filter((name) => name !== run.name);
      change({ runs: (box.checked ? [...others, run.name] : others).join("|") });
    });
    const link = element("button", { type: "button", class: "link" }, printable(run.name));
    link.addEventListener("click", () => chooseRun(run.name));
    return element("tr", {}, ...[box, link, "", "", "", "", ""].map((cell) => element("td", {}, cell)));
  }

  function fillRow(line, run, names) {
    line.querySelector("input").checked = names.includes(run.name);
    const steps = run.steps ? `${(run.step ?? 0).toLocaleString("en")} of ${run.steps.toLocaleString("en")}` : "–";
    const speed = run.tokens_per_second ? Math.round(run.tokens_per_second).toLocaleString("en") : "–";
    const texts = [STATES[run.state], steps, shown(run.best_val_loss, 3), shown(run.train_loss, 3), speed];
    texts.forEach((text, index) => say(line.children[index + 2], text));
  }

  function draw(now, run) {
    const names = chosen(now, run);
    const kind = nameIn(MEASURES, now.measure, "loss");
    measure.value = kind;
    const drawing = JSON.stringify([kind, names.map((name) => [name, curves.get(name)?.offset])]);
    drawLive(run);
    if (drawn === drawing) return; // painting costs time that a training on the same cores needs
    drawn = drawing;
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
  }

  function drawLive(run) {
    const curve = run && curves.get(run.name);
    live.hidden = !curve;
    if (!curve) return;
    const isTraining = curve.state === "training";
    const entry = studio.runs().get(run.name);
    // A training may plan anew how many steps fit into its time, and writes it down when it saves; the list reads that.
    const steps = Math.max(entry?.steps ?? curve.steps, isTraining ? curve.step : 0);
    const sentences = [
      `step ${curve.step.toLocaleString("en")} of ${steps.toLocaleString("en")}`,
      curve.val_loss === null ? "" : `validation loss ${curve.val_loss.toFixed(4)}`,
      curve.floor === null ? "" : `the floor is ${curve.floor.toFixed(4)}`,
      timeLeft({ ...curve, steps }),
    ].filter(Boolean);
    say(heard, `${printable(run.name)}, ${STATES[curve.state]}: `);
    say(facts, `${sentences.join(", ")}. `);
    const canGoOn = isTraining || (entry?.state !== "training" && curve.step < steps);
    button.hidden = !canGoOn || !steps || curve.state === "damaged";
    const action = isTraining ? "stop" : "resume";
    if (button.dataset.action !== action || button.dataset.run !== run.name) button.disabled = false;
    Object.assign(button.dataset, { action, run: run.name });
    say(button, isTraining ? "Stop and save" : "Go on training");
    const sample = curve.samples.at(-1);
    writtenAt.hidden = written.hidden = !sample;
    if (!sample) return;
    say(writtenAt, `Written after step ${sample.step}`);
    say(written, printable(sample.text));
  }

  button.addEventListener("click", async () => {
    const { action, run } = button.dataset;
    button.disabled = true;
    try {
      await post(`/studio/runs/${encodeURIComponent(run)}/${action}`, {});
      studio.report(action === "stop" ? "It saves and ends after this step." : "It goes on in a moment.");
    } catch (error) {
      button.disabled = false;
      studio.report(error.message);
    }
  });

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
          if (line.length > POINTS) line.splice(0, Infinity, ...line.filter((_, index) => index % 2 !== line.length % 2));
        }
      } else if (record.kind === "evaluation" && record.loss !== null) {
        curve.validation.push([record.step, record.loss]);
        curve.val_loss = record.loss;
      } else if (record.kind === "sample") {
        curve.samples = [{ step: record.step, text: record.text }];
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
      let curve = await get(path);
      curves.set(name, curve);
      draw(state(), studio.run());
      if (curve.state !== "training" || controller.signal.aborted) return;
      for await (const event of stream(`${path}/events`, { offset: curve.offset }, controller.signal)) {
        // What a mean of checkpoints changes, the server works out.
        if (event.records.some((record) => record.kind === "mean")) curves.set(name, (curve = await get(path)));
        else if (event.offset >= curve.offset) extend(curve, event);
        if (!isOld()) draw(state(), studio.run());
      }
      studio.refresh();
    } catch (error) {
      // What is no answer of the server (it is gone for now) is said in the line on top, and goes when it is back.
      if (error instanceof ServerError) studio.report(error.message);
    } finally {
      if (watched.get(name) === controller) watched.delete(name);
    }
  }

  // Ends the streams of all runs but these: there are only so many, of all pages together.
  function watchOnly(names) {
    for (const [name, controller] of [...watched]) {
      if (names.includes(name)) continue;
      watched.delete(name);
      controller.abort();
    }
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) watchOnly([]);
    else studio.refresh();
  });

  const toWatch = (now, run) => [...new Set([...chosen(now, run), ...(run ? [run.name] : [])])];

  setInterval(() => {
    watchOnly(document.hidden ? [] : toWatch(state(), studio.run()));
    if (!isOld()) studio.refresh(); // a run that was started in a terminal appears by itself
  }, LISTED_EVERY);

  return function show(now, run) {
    const names = chosen(now, run);
    all.hidden = !studio.runs().size;
    suggestName();
    keep(body, [...studio.runs().values()], { name: (entry) => entry.name, create: row, update: (line, entry) => fillRow(line, entry, names) });
    watchOnly(toWatch(now, run));
    for (const name of document.hidden ? [] : toWatch(now, run)) {
      const curve = curves.get(name);
      const entry = studio.runs().get(name);
      const isStale = !curve || curve.state === "training" || entry.state !== curve.state || entry.step > curve.step;
      if (isStale && !watched.has(name) && entry.state !== "damaged") watch(name);
    }
    draw(now, run);
  };
}
