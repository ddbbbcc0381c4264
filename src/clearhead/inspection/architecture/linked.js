"use strict";
// In a frame of the studio: the box of an activation is shown, and the activations of a chosen box are told.

const shell = window.parent === window || location.origin === "null" ? null : window.parent;

/** The box that gives an activation, or the innermost one that holds it. Blocks are drawn as the first. */
function boxOf(activation) {
  const name = activation.replace(/(\.blocks)\.\d+/g, "$1.0");
  const names = [...nodes.keys()];
  const giving = names.find((box) => data.tensors[box] === name);
  const holding = names.filter((box) => name === box || name.startsWith(`${box}.`));
  return giving ?? holding.sort((first, second) => second.length - first.length)[0];
}

if (shell) {
  window.addEventListener("message", (event) => {
    if (event.source !== shell || event.origin !== location.origin || typeof event.data?.activation !== "string") return;
    const node = nodes.get(boxOf(event.data.activation));
    if (!node) return;
    select(node);
    node.scrollIntoView({ block: "center" });
  });
  const tell = (message) => shell.postMessage(message, location.origin);
  picture.addEventListener("click", (event) => {
    const box = event.target.closest(".node")?.dataset.name;
    if (box) tell({ activations: [data.tensors[box], box].filter(Boolean) });
  });
  tell({ activations: [] }); // the picture stands
}
