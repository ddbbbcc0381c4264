// A page that is complete in itself, in a frame: the architecture, or what the doctor says.

import { element, get, printable, refuse } from "/page/api.js";

const WAITING = {
  architecture: "Drawing the model…",
  doctor: "Examining the model, which takes some seconds…",
};
const TITLES = { architecture: "The architecture", doctor: "What the doctor says" };
const RETRY = 5000; // milliseconds

export function setUpFrame(section, studio, kind) {
  const status = element("p", { role: "status" });
  let frame = null;
  let loaded = "";
  section.append(status);

  // Whether a page that could not be had now may be had later: another is being made, or the model is still to come.
  const mayCome = (error, run) => error.status === undefined || error.status === 429 || run.state !== "ready";

  return async function show(now, run) {
    const key = `${run.name} ${run.step} ${run.state}`;
    if (loaded === key) return;
    loaded = key;
    frame?.remove(); // it is of another run, or of what this one was
    frame = null;
    status.textContent = run.state === "damaged" ? "This run is damaged." : WAITING[kind];
    if (run.state === "damaged") return;
    try {
      const detail = await get(`/studio/runs/${encodeURIComponent(run.name)}`);
      // A frame does not say why it stays empty, so the page is asked for first; the server keeps it for the frame.
      const response = await fetch(detail[kind]);
      if (!response.ok) await refuse(response);
      await response.text();
      if (loaded !== key) return;
      frame = element("iframe", { title: TITLES[kind], class: "page" });
      frame.addEventListener("load", () => loaded === key && (status.textContent = ""));
      frame.setAttribute("src", detail[kind]);
      section.append(frame);
    } catch (error) {
      if (loaded !== key) return;
      loaded = "";
      status.textContent = printable(error.message);
      if (mayCome(error, run)) setTimeout(() => section.hidden || loaded || studio.refresh(), RETRY);
    }
  };
}
