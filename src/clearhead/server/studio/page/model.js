// Two screens of a whole model: its architecture, and what the doctor says of it; each leads to the other.

import { element, get, printable } from "/page/api.js";
import { setUpFrame } from "/studio/page/frames.js";
import { change } from "/studio/page/state.js";

const DAMAGED = "This run is damaged.";
export const DRAWING = "Drawing the model…";
const EXAMINING = "Examining the model, which takes some seconds…";

async function addressOf(run, kind) {
  return (await get(`/studio/runs/${encodeURIComponent(run.name)}`))[kind];
}

// The page of a run, which is another one after every change of the run.
export function pageOf(run, kind, title, waiting) {
  return {
    key: `${kind} ${run.name} ${run.step} ${run.state}`,
    title,
    waiting,
    address: () => addressOf(run, kind),
    mayCome: run.state !== "ready",
  };
}

export function setUpArchitecture(section, studio) {
  const judge = element("input", { type: "checkbox" });
  section.append(element("label", { class: "check" }, judge, " what the doctor says, in its places"));
  judge.addEventListener("change", () => change({ verdicts: judge.checked ? "1" : null }));
  const frame = setUpFrame(section, studio);

  return function show(now, run) {
    judge.checked = now.verdicts === "1";
    if (run.state === "damaged") frame.close(DAMAGED);
    else if (judge.checked) frame.show(pageOf(run, "judged", "The architecture, with what the doctor says", EXAMINING));
    else frame.show(pageOf(run, "architecture", "The architecture", DRAWING));
  };
}

export function setUpDoctor(section, studio) {
  const ofRun = element("button", { type: "button" });
  const ofCode = element("button", { type: "button" });
  const inPlace = element("button", { type: "button" }, "Show it on the architecture");
  ofRun.addEventListener("click", () => change({ code: null }));
  ofCode.addEventListener("click", () => change({ code: "1" }));
  inPlace.addEventListener("click", () => change({ screen: "architecture", verdicts: "1" }));
  const choice = element("p", { class: "choice" }, ofRun, " ", ofCode, " ", inPlace);
  section.append(choice);
  const frame = setUpFrame(section, studio);

  return function show(now, run) {
    const code = studio.code();
    const isCode = code !== null && (now.code === "1" || !run);
    ofRun.hidden = ofCode.hidden = code === null || !run;
    inPlace.hidden = isCode || run.state === "damaged";
    choice.hidden = inPlace.hidden && ofRun.hidden;
    ofRun.textContent = printable(run?.name ?? "");
    ofCode.textContent = code?.name ?? "";
    ofRun.setAttribute("aria-pressed", String(!isCode));
    ofCode.setAttribute("aria-pressed", String(isCode));
    if (isCode) {
      const title = `What the doctor says of ${code.name}`;
      frame.show({ key: "code", title, waiting: EXAMINING, address: async () => code.doctor });
    } else if (run.state === "damaged") frame.close(DAMAGED);
    else frame.show(pageOf(run, "doctor", "What the doctor says", EXAMINING));
  };
}
