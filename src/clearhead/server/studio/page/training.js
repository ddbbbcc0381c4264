// A new run from a pasted text, a file or a built-in corpus: what it will take, and what it says while it begins.

import { element, get, post, printable } from "/page/api.js";
import { change } from "/studio/page/state.js";

const OBJECTIVES = {
  causal: "Write: predict the next token",
  seq2seq: "Translate: pairs, one to a line, with a tab between the two sentences",
  masked: "Fill in: predict masked tokens",
};
const GIB = 2 ** 30;

const size = (bytes) => (bytes >= GIB ? `${(bytes / GIB).toFixed(1)} GiB` : `${Math.max(1, Math.round(bytes / 2 ** 20))} MiB`);

export function setUpTraining(section, studio) {
  const name = element("input", { name: "name", required: "", pattern: "[A-Za-z0-9][A-Za-z0-9_\\-]{0,63}", value: "my-run" });
  const text = element("textarea", { name: "text", rows: "6", spellcheck: "false" });
  const file = element("input", { type: "file", accept: ".txt,.md,.tsv,text/*" });
  const corpus = element("select", { name: "corpus" });
  const objective = element("select", { name: "objective" }, ...Object.entries(OBJECTIVES).map(([value, label]) => element("option", { value }, label)));
  const minutes = element("input", { name: "minutes", type: "number", min: "0.5", max: "1440", step: "0.5", value: "2" });
  const preset = element("input", { type: "range", min: "0", max: "0", value: "0", "aria-label": "Size of the model" });
  const estimate = element("p", { class: "soft", id: "estimate" });
  const log = element("pre", { tabindex: "0", "aria-label": "What the training says", hidden: "" });
  const button = element("button", { type: "submit" }, "Train");
  const form = element(
    "form",
    { class: "train", autocomplete: "off" },
    element("div", { class: "fields" }, element("label", {}, "Name ", name), element("label", {}, "Train on ", corpus), element("label", {}, "File ", file), element("label", {}, "Minutes ", minutes)),
    element("label", { class: "wide" }, "Text ", text),
    element("label", {}, "To learn ", objective),
    element("label", { class: "wide" }, "Size ", preset),
    estimate,
    element("p", { class: "buttons" }, button),
    log,
  );
  section.append(element("h2", {}, "Train a new model"), form);
  let choices = null;
  let latest = ""; // of those that were started here

  const sizes = () => [{ name: null }, ...choices.presets.filter((entry) => entry.objective === objective.value).sort((a, b) => a.parameters - b.parameters)];

  function describe() {
    if (!choices) return;
    preset.max = sizes().length - 1;
    const entry = sizes()[Number(preset.value)] ?? sizes()[0];
    text.closest("label").hidden = file.closest("label").hidden = corpus.value !== "";
    if (entry.name === null) {
      estimate.textContent = "Size: as Clearhead picks it from the text and the minutes, and says why below.";
      return;
    }
    const fits = choices.memory && entry.bytes > choices.memory / 2 ? " That may be more than this machine has." : "";
    estimate.textContent = `Size: ${entry.name}, ${entry.about}. About ${entry.parameters.toLocaleString("en")} parameters; training takes about ${size(entry.bytes)} of memory.${fits}`;
  }

  // A free name, as long as nobody has typed one.
  let suggested = name.value;
  function suggest() {
    if (name.value !== suggested || document.activeElement === name) return;
    name.value = suggested = freeName(suggested);
  }

  // The name, or the first of NAME-2, NAME-3... that no run has.
  function freeName(base) {
    const taken = studio.runs();
    const stem = base.replace(/-\d+$/, "").slice(0, 58);
    for (let number = 1; number < 1000; number++) {
      const free = number === 1 ? stem : `${stem}-${number}`;
      if (!taken.has(free)) return free;
    }
    return base;
  }

  async function load() {
    if (choices) return;
    choices = await get("/studio/choices");
    const options = (entries, label) =>
      element("optgroup", { label }, ...Object.entries(entries).map(([value, about]) => element("option", { value, title: about }, value)));
    corpus.replaceChildren(element("option", { value: "" }, "a text of mine"), options(choices.corpora, "Texts"), options(choices.pairs, "Sentence pairs"));
    describe();
  }

  async function follow(run) {
    latest = run;
    let isListed = false;
    log.hidden = false;
    log.textContent = "Starting, which takes some seconds…";
    log.scrollIntoView({ block: "nearest" });
    const enable = () => latest === run && (button.disabled = false);
    const look = async () => {
      try {
        const { trainings } = await get("/studio/trainings");
        const training = trainings.find((other) => other.name === run);
        if (!training) {
          // Another studio runs now than began it; the training goes on, and the list of runs shows it.
          clearInterval(timer);
          enable();
          return;
        }
        if (training.lines.length && latest === run) log.textContent = training.lines.map(printable).join("\n");
        if (!isListed && studio.runs().has(run)) {
          // Once: whoever then looks at another run is not pulled back, and may train a second one.
          isListed = true;
          enable();
          change({ run, runs: null });
        }
        if (!isListed) studio.refresh();
        if (training.is_running) return;
        clearInterval(timer);
        enable();
        if (training.exit_code) studio.report(training.lines.at(-1) ?? "the training failed");
        studio.refresh();
      } catch {
        // The server is gone for now: the line on top says so, and the next look may reach it.
      }
    };
    const timer = setInterval(look, 1500);
    await look();
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    studio.report("");
    const body = { name: name.value, objective: objective.value, minutes: Number(minutes.value) };
    const entry = sizes()[Number(preset.value)];
    if (entry?.name) body.preset = entry.name;
    if (corpus.value) body.corpus = corpus.value;
    else if (!text.value.trim()) return studio.report("Paste a text to train on, choose a file, or choose a built-in corpus.");
    else body.text = text.value;
    button.disabled = true;
    try {
      await post("/studio/trainings", body);
      await follow(body.name);
    } catch (error) {
      button.disabled = false;
      studio.report(error.message);
    }
  });
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    if (!chosen) return;
    text.value = await chosen.text();
    if (chosen.name.endsWith(".tsv")) objective.value = "seq2seq";
    describe();
  });
  for (const field of [corpus, objective, preset]) field.addEventListener("input", describe);
  load().catch((error) => {
    if (error.status !== 401) studio.report(error.message);
  });
  document.getElementById("connect").addEventListener("submit", () => setTimeout(() => load().catch(() => {}), 500));
  return suggest;
}
