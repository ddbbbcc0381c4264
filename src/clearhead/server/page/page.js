// The page of `clearhead serve`: choose a run, and write, chat or translate with it.

import { curl, element, get, printable, token } from "/page/api.js";
import { setUpChat } from "/page/chat.js";
import { setUpTranslation } from "/page/translate.js";
import { setUpWriting } from "/page/write.js";

const LABELS = { write: "Write", chat: "Chat", translate: "Translate" };
const summary = document.getElementById("summary");
const select = document.getElementById("run");
const modes = document.getElementById("modes");
const message = document.getElementById("message");
const request = document.getElementById("request");
let runs = new Map();

const page = {
  run: () => select.value,
  report(text) {
    message.hidden = !text;
    message.textContent = printable(text);
  },
  show(path, body) {
    request.hidden = false;
    request.querySelector("pre").textContent = curl(path, body);
  },
};

const state = () => new URLSearchParams(location.hash.slice(1)); // what the address says: #run=NAME&mode=write

function remember(mode) {
  const address = new URLSearchParams({ run: select.value, ...(mode && { mode }) });
  history.replaceState(null, "", `#${address}`);
}

function modesOf({ kind, chat }) {
  if (kind === "seq2seq") return ["translate"];
  return kind === "causal" ? [...(chat ? ["chat"] : []), "write"] : [];
}

function open(mode) {
  for (const name of Object.keys(LABELS)) document.getElementById(name).hidden = name !== mode;
  for (const tab of modes.children) {
    const isOpen = tab.id === `tab-${mode}`;
    tab.setAttribute("aria-selected", isOpen);
    tab.tabIndex = isOpen ? 0 : -1;
  }
  remember(mode);
}

function description({ id, kind, context }) {
  if (kind === null) return `${printable(id)} cannot be read: its folder is damaged.`;
  if (kind === "masked") return `${printable(id)} fills in masked words: \`clearhead fill\` shows them.`;
  return `${printable(id)} reads up to ${context.toLocaleString("en")} tokens at once.`;
}

function choose() {
  const run = runs.get(select.value);
  const possible = modesOf(run);
  modes.hidden = possible.length === 0;
  modes.replaceChildren(
    ...possible.map((name) => {
      const attributes = { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": name };
      const tab = element("button", attributes, LABELS[name]);
      tab.addEventListener("click", () => open(name));
      return tab;
    }),
  );
  page.report("");
  summary.textContent = description(run);
  open(possible.includes(state().get("mode")) ? state().get("mode") : possible[0]);
}

modes.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const tabs = [...modes.children];
  if (!step || tabs.length < 2) return;
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  next.click();
  next.focus();
});

async function connect() {
  try {
    const { data } = await get("/v1/models");
    runs = new Map(data.map((run) => [run.id, run]));
    select.replaceChildren(...data.map((run) => element("option", { value: run.id }, printable(run.id))));
    document.getElementById("token-field").hidden = document.getElementById("unlock").hidden = true;
    if (!data.length) {
      summary.textContent = "There is no run yet: train one with `clearhead train my.txt`.";
      return;
    }
    if (runs.has(state().get("run"))) select.value = state().get("run");
    choose();
  } catch (error) {
    if (error.status === 401) {
      document.getElementById("token-field").hidden = document.getElementById("unlock").hidden = false;
      summary.textContent = "This server asks for its token, which was printed when it started.";
    } else {
      summary.textContent = "The server cannot be reached.";
      page.report(error.message);
    }
  }
}

document.getElementById("connect").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(document.getElementById("token").value);
  connect();
});
select.addEventListener("change", choose);
setUpWriting(document.getElementById("write"), page);
setUpChat(document.getElementById("chat"), page);
setUpTranslation(document.getElementById("translate"), page);
connect();
