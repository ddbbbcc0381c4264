"use strict";
// The keyboard: the picture is one stop of Tab, and the arrow keys follow the flow within it.

/** The place of an element on the screen. */
function centerOf(element) {
  const box = element.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
}

/** The arrows of the shown variant that begin or end at a node, the flow through sublayers before the bypass. */
function arrowsOf(name, end) {
  const arrows = edges.filter((edge) => isShown(edge) && endsOf(edge)[end] === name);
  const isBypass = (edge) => edge.classList.contains("residual");
  return arrows.sort((first, second) => isBypass(first) - isBypass(second) || centerOf(first).x - centerOf(second).x);
}

/** One step along the flow: from a node to an arrow, from an arrow to a node. */
function along(element, forward) {
  if (element.classList.contains("edge")) {
    return nodes.get(endsOf(element)[forward ? "target" : "source"]);
  }
  if (element.classList.contains("block")) return inBlock(element, forward);
  return arrowsOf(element.dataset.name, forward ? "source" : "target")[0];
}

/** From a block's badge to its first or last node. */
function inBlock(badge, forward) {
  const inside = [...nodes.values()].filter(
    (node) => node !== badge && isShown(node) && node.dataset.name.startsWith(`${badge.dataset.name}.`),
  );
  const sorted = inside.sort((first, second) => centerOf(first).y - centerOf(second).y);
  return sorted.at(forward ? 0 : -1);
}

/** The nearest neighbor at the left or at the right: an arrow of a node's arrows, or a node in the same row. */
function beside(element, direction) {
  const here = centerOf(element);
  const isEdge = element.classList.contains("edge");
  let candidates = [...nodes.values()].filter((node) => Math.abs(centerOf(node).y - here.y) < 24);
  if (isEdge) {
    const { source, target } = endsOf(element);
    candidates = [...arrowsOf(source, "source"), ...arrowsOf(target, "target")];
  }
  const ahead = candidates
    .filter((other) => other !== element && isShown(other))
    .map((other) => ({ other, distance: (centerOf(other).x - here.x) * direction }))
    .filter(({ distance }) => distance > 1);
  return ahead.sort((first, second) => first.distance - second.distance)[0]?.other;
}

/** Move the focus, and with it the picture's one stop of Tab. */
function focusOn(element) {
  if (!element) return;
  for (const other of [...nodes.values(), ...edges]) other.setAttribute("tabindex", "-1");
  element.setAttribute("tabindex", "0");
  element.focus();
}

const first = [...nodes.values()].find((node) => node.classList.contains("input"));
const last = [...nodes.values()].find((node) => node.classList.contains("logits"));
const KEYS = {
  ArrowDown: (element) => along(element, true),
  ArrowUp: (element) => along(element, false),
  ArrowRight: (element) => beside(element, 1),
  ArrowLeft: (element) => beside(element, -1),
  Home: () => first,
  End: () => last,
};

picture.addEventListener("keydown", (event) => {
  const element = event.target.closest(".node, .edge");
  if (!element || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key in KEYS) {
    event.preventDefault();
    focusOn(KEYS[event.key](element));
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  } else if (event.key === "Escape") {
    hidePill();
    deselect();
  }
});
picture.addEventListener("click", (event) => {
  const element = event.target.closest(".node, .edge");
  if (element) focusOn(element);
});
first?.setAttribute("tabindex", "0");
