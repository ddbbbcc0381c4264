// The picture of the architecture beside the X-ray: the step that is shown is selected there, and a box shows its step.

import { element } from "/page/api.js";
import { setUpFrame } from "/studio/page/frames.js";
import { DRAWING, pageOf } from "/studio/page/model.js";
import { change, state } from "/studio/page/state.js";

const BLOCK = /(\.blocks)\.(\d+)/;

export function setUpDiagram(studio, choose) {
  const node = element("details", { class: "diagram" }, element("summary", {}, "On the picture of the architecture"));
  const frame = setUpFrame(node, studio);
  let shown = ""; // the activation that is shown
  let known = []; // activations that can be

  // The picture draws all blocks as the first: what is chosen there is of the block that is shown here.
  const here = (name) => name.replace(BLOCK, `$1.${BLOCK.exec(shown)?.[2] ?? 0}`);

  node.addEventListener("toggle", () => change({ diagram: node.open ? "1" : null }));
  frame.hear(({ activations = [] }) => {
    const chosen = activations.map(here).find((name) => known.includes(name));
    if (chosen && chosen !== shown) choose(chosen);
    else if (!activations.length) frame.tell({ activation: shown }); // the picture has come
  });

  function show(run, activation, names) {
    [shown, known] = [activation, names];
    node.open = state().diagram === "1";
    if (!node.open) return;
    frame.show(pageOf(run, "architecture", "The architecture", DRAWING));
    frame.tell({ activation });
  }

  return { node, show };
}
