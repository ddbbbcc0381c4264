// Write, chat or translate: the forms of `clearhead serve`, with the run that the studio shows.

import { curl, element, get } from "/page/api.js";
import { setUpChat } from "/page/chat.js";
import { setUpTranslation } from "/page/translate.js";
import { setUpWriting as setUpTexts } from "/page/write.js";
import { setUpBeams } from "/studio/page/beams.js";
import { change } from "/studio/page/state.js";

const LABELS = { write: "Write", chat: "Chat", translate: "Translate" };

export function setUpWriting(section, studio) {
  const modes = section.querySelector("#modes");
  const note = element("p");
  section.prepend(note);
  const request = section.querySelector("#request");
  const page = {
    run: () => studio.run().name,
    report: studio.report,
    show(path, body) {
      request.hidden = false;
      request.querySelector("pre").textContent = curl(path, body);
    },
  };
  setUpTexts(section.querySelector("#write"), page);
  setUpChat(section.querySelector("#chat"), page);
  setUpTranslation(section.querySelector("#translate"), page);
  const beams = setUpBeams(studio);
  section.querySelector("#translate").after(beams.node);
  let models = new Map();

  async function modesOf(run) {
    if (run.objective === "seq2seq") return ["translate"];
    if (run.objective !== "causal") return [];
    if (!models.has(run.name)) {
      const { data } = await get("/v1/models");
      models = new Map(data.map((model) => [model.id, model.chat]));
    }
    return models.get(run.name) ? ["chat", "write"] : ["write"];
  }

  return async function show(now, run) {
    const possible = await modesOf(run);
    const mode = possible.includes(now.mode) ? now.mode : possible[0];
    for (const name of Object.keys(LABELS)) section.querySelector(`#${name}`).hidden = name !== mode;
    beams.show(now, run, mode === "translate");
    note.textContent = mode || run.state === "damaged" ? "" : "This run fills in masked words: Next token shows them.";
    modes.hidden = possible.length < 2;
    modes.replaceChildren(
      ...possible.map((name) => {
        const attributes = { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": name };
        const tab = element("button", { ...attributes, "aria-selected": name === mode }, LABELS[name]);
        tab.addEventListener("click", () => change({ mode: name }));
        return tab;
      }),
    );
  };
}
