// A page that is complete in itself, in a frame: the architecture, or what the doctor says.

import { element, get } from "/page/api.js";

const WAITING = {
  architecture: "Drawing the model…",
  doctor: "Examining the model, which takes some seconds…",
};
const TITLES = { architecture: "The architecture", doctor: "What the doctor says" };

export function setUpFrame(section, studio, kind) {
  const status = element("p", { role: "status" });
  const frame = element("iframe", { title: TITLES[kind], class: "page" });
  let loaded = "";
  section.append(status, frame);
  frame.addEventListener("load", () => (status.textContent = ""));

  return async function show(now, run) {
    const key = `${run.name} ${run.step}`;
    if (loaded === key) return;
    loaded = key;
    if (run.state === "damaged") {
      status.textContent = "This run is damaged.";
      return;
    }
    status.textContent = WAITING[kind];
    frame.removeAttribute("src");
    try {
      const detail = await get(`/studio/runs/${encodeURIComponent(run.name)}`);
      if (loaded === key) frame.setAttribute("src", detail[kind]);
    } catch (error) {
      loaded = "";
      studio.report(error.message);
    }
  };
}
