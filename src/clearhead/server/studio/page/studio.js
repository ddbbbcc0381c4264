// The studio: which run, which screen, which text. Each screen draws itself from the state that the address holds.

import { element, get, printable, token } from "/page/api.js";
import { setUpAttention } from "/studio/page/attention.js";
import { setUpArchitecture, setUpDoctor } from "/studio/page/model.js";
import { setUpNext } from "/studio/page/next.js";
import { setUpRuns } from "/studio/page/runs.js";
import { change, chooseRun, headsOf, nameIn, onChange, state, takeToken, tell, toggledHead } from "/studio/page/state.js";
import { setUpWriting } from "/studio/page/writing.js";
import { setUpXray } from "/studio/page/xray.js";

const SCREENS = {
  runs: ["Runs", setUpRuns],
  architecture: ["Architecture", setUpArchitecture],
  xray: ["X-ray", setUpXray],
  attention: ["Attention", setUpAttention],
  next: ["Next token", setUpNext],
  write: ["Write", setUpWriting],
  doctor: ["Doctor", setUpDoctor],
};
const READS = ["xray", "attention", "next"]; // screens that read the text
const WORDS = 6;
const CELL = { row: null, column: null }; // of the X-ray
const RETRY = 2000; // milliseconds

const select = document.getElementById("run");
const nav = document.getElementById("screens");
const summary = document.getElementById("summary");
const message = document.getElementById("message");
const prompt = document.getElementById("prompt");
const { text, target } = prompt.elements;
let runs = new Map();
let code = null;
let shown = "";
takeToken(); // before anything is requested

const studio = {
  runs: () => runs,
  run: () => runs.get(select.value),
  code: () => code, // the model that the studio was started with, which is no run
  report(sentence) {
    message.hidden = !sentence;
    message.textContent = printable(sentence ?? "");
  },
  // What a model is to read: the fields of a request, whatever the address leaves open.
  read() {
    const fields = { model: select.value, text: text.value };
    return studio.run()?.objective === "seq2seq" && target.value ? { ...fields, target: target.value } : fields;
  },
  // Whether there is a text, and a model to read it.
  canRead: () => text.value !== "" && ["ready", "training"].includes(studio.run()?.state),
  refresh: () => load(),
};

const screens = Object.fromEntries(
  Object.entries(SCREENS).map(([name, [label, setUp]]) => {
    const section = document.getElementById(`screen-${name}`);
    const link = element("a", { href: "#", "data-screen": name }, label);
    link.addEventListener("click", (event) => {
      event.preventDefault();
      change({ screen: name });
    });
    nav.append(link);
    section.setAttribute("aria-label", label);
    return [name, { section, link, show: setUp(section, studio) }];
  }),
);

function description(run) {
  if (!run) return "There is no run yet. Paste a text below, and train a model on it.";
  if (run.state === "damaged") return `${printable(run.name)} is damaged: ${printable(run.problem)}`;
  const size = `${run.parameters.toLocaleString("en")} parameters, ${run.layers} layers of ${run.heads} heads`;
  const states = { training: "in training", ready: "ready", empty: "has saved no model yet" };
  return `${printable(run.name)} (${run.objective}): ${size}; ${states[run.state]}.`;
}

// What is read at first: the beginning of what the model wrote last, since it surely knows these characters.
function firstText(run) {
  if (run.objective === "seq2seq") return "";
  const written = (run.sample ?? "Once upon a time").trim().split(/\s+/).slice(0, WORDS).join(" ");
  return run.objective === "masked" ? `${written} [MASK]` : written;
}

function fillPrompt(now, run) {
  const isRead = READS.includes(now.screen) && run && run.state !== "damaged";
  prompt.hidden = !isRead;
  if (!isRead) return;
  document.getElementById("target-field").hidden = run.objective !== "seq2seq";
  if (document.activeElement !== text) text.value = now.text ?? firstText(run);
  if (document.activeElement !== target) target.value = now.target ?? "";
  document.getElementById("without").replaceChildren(
    ...headsOf(now.without).map((head) => {
      const name = `${head[0]} ${head[1]}.${head[2]} off`;
      const chip = element("button", { type: "button", class: "chip", title: "Let this head write again" }, name);
      chip.addEventListener("click", () => change({ without: toggledHead(state().without, head) }));
      return chip;
    }),
  );
}

onChange((now) => {
  if (runs.has(now.run)) select.value = now.run;
  const run = studio.run();
  const chosen = nameIn(screens, now.screen, "runs");
  const name = run || (code && chosen === "doctor") ? chosen : "runs";
  summary.textContent = description(run);
  fillPrompt({ ...now, screen: name }, run);
  if (shown !== name) studio.report("");
  shown = name;
  for (const [other, { section, link }] of Object.entries(screens)) {
    section.hidden = other !== name;
    if (other === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  screens[name].show(now, run);
});

prompt.addEventListener("submit", (event) => {
  event.preventDefault();
  change({ text: text.value, target: target.value, query: null, key: null, position: null, ...CELL });
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    prompt.requestSubmit();
  }
});
select.addEventListener("change", () => chooseRun(select.value));

let newest = 0;
async function load() {
  const number = ++newest;
  try {
    const { runs: list, code: named } = await get("/studio/runs");
    if (number !== newest) return;
    code = named;
    runs = new Map(list.map((run) => [run.name, run]));
    const chosen = select.value;
    select.replaceChildren(...list.map((run) => element("option", { value: run.name }, printable(run.name))));
    if (runs.has(state().run)) select.value = state().run;
    else select.value = runs.has(chosen) ? chosen : (list.find((run) => run.state !== "damaged") ?? list[0])?.name;
    document.getElementById("token-field").hidden = document.getElementById("unlock").hidden = true;
    tell();
  } catch (error) {
    if (error.status === 401) {
      document.getElementById("token-field").hidden = document.getElementById("unlock").hidden = false;
      summary.textContent = "The studio asks for its token: open the address that `clearhead studio` printed.";
    } else {
      summary.textContent = "The studio cannot be reached: is `clearhead studio` still running?";
      setTimeout(() => number === newest && load(), RETRY);
    }
  }
}

document.getElementById("connect").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(document.getElementById("token").value);
  load();
});
load();
