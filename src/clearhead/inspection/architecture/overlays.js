"use strict";
// What lies over the picture: the other norm position, the overlays, the shapes of all arrows.

/** Move the norms across the sums. */
function showVariant(variant) {
  picture.dataset.variant = variant;
  hidePill();
  document.querySelector(".notes").dataset.variant = variant;
  const stop = picture.querySelector("[tabindex='0']");
  if (stop && !isShown(stop)) {
    stop.setAttribute("tabindex", "-1");
    first?.setAttribute("tabindex", "0");
  }
}

/** Lay the numbers of one kind over the boxes: a bar for the share of the largest, and the number itself. */
function showOverlay(name) {
  const values = data.overlays[name];
  picture.classList.toggle("overlaid", Boolean(values));
  for (const [node, element] of nodes) {
    const entry = values?.[node];
    const bar = element.querySelector(".bar");
    element.classList.toggle("weighed", Boolean(entry && bar));
    if (!bar) continue;
    bar.setAttribute("width", entry ? String(Math.max(1.5, entry[0] * Number(element.dataset.width))) : "0");
    element.querySelector(".number").textContent = entry ? entry[1] : "";
  }
}

for (const button of document.querySelectorAll("[data-goto]")) {
  button.addEventListener("click", () => {
    const node = nodes.get(button.dataset.goto);
    select(node);
    focusOn(node);
  });
}
for (const input of document.querySelectorAll("[name=variant]")) {
  input.addEventListener("change", () => showVariant(input.value));
}
for (const input of document.querySelectorAll("[name=overlay]")) {
  input.addEventListener("change", () => showOverlay(input.value));
}
document.getElementById("shapes").addEventListener("change", (event) => {
  picture.classList.toggle("shapes", event.target.checked);
});
document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
document.querySelector(".controls").reset();
