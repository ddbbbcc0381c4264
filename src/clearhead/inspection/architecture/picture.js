"use strict";
// The picture: what is selected, its details beside it, and the pill that says what an arrow carries.

const root = document.documentElement;
root.classList.add("scripted");
const data = JSON.parse(document.getElementById("data").textContent);
const picture = document.getElementById("picture");
const panel = document.getElementById("panel");
const pill = document.getElementById("pill");

const buttons = (selector) => [...picture.querySelectorAll(selector)];
const nodes = new Map(buttons(".node").map((node) => [node.dataset.name, node]));
const edges = buttons(".edge");
const details = new Map(
  [...document.querySelectorAll(".outline [data-detail]")].map((detail) => [detail.dataset.detail, detail]),
);

/** Whether an element is drawn in the variant that is shown. */
function isShown(element) {
  const variant = picture.dataset.variant;
  const group = element.closest("g[data-variant]");
  return (!group || group.dataset.variant === variant) && element.dataset.missing !== variant;
}

/** The nodes at both ends of an arrow, by name. */
function endsOf(edge) {
  const [source, target] = data.edges[edge.dataset.name];
  return { source, target };
}

/** Copies of the source code that a detail links to, behind it. */
function sourcesOf(detail) {
  const copies = document.createDocumentFragment();
  for (const link of detail.querySelectorAll(".code a")) {
    const source = document.querySelector(link.getAttribute("href"));
    const where = document.createElement("p");
    where.className = "where";
    where.textContent = source.querySelector("summary").textContent;
    copies.append(where, source.querySelector("pre").cloneNode(true));
  }
  return copies;
}

const hint = [...panel.childNodes];

/** The panel as it was before anything was selected. */
function deselect() {
  for (const node of nodes.values()) node.setAttribute("aria-pressed", "false");
  panel.replaceChildren(...hint);
}

/** The button that does this. */
function makeCloser() {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "closer";
  button.textContent = "Close";
  button.addEventListener("click", () => {
    deselect();
    picture.querySelector("[tabindex='0']")?.focus();
  });
  return button;
}

/** Equations wider than their room can be scrolled by the keyboard, too. */
function letScroll(container) {
  for (const equations of container.querySelectorAll(".equations")) {
    if (equations.scrollWidth > equations.clientWidth) {
      equations.setAttribute("tabindex", "0");
      equations.setAttribute("role", "group");
      equations.setAttribute("aria-label", "Equation");
    }
  }
}

/** Show what is known of a node beside the picture. */
function select(node) {
  for (const other of nodes.values()) other.setAttribute("aria-pressed", String(other === node));
  const detail = details.get(node.dataset.name);
  if (!detail) return;
  const copy = detail.cloneNode(true);
  copy.removeAttribute("data-detail");
  panel.replaceChildren(makeCloser(), copy, sourcesOf(detail));
  panel.scrollTop = 0;
  letScroll(panel);
}

/** Say what an arrow carries, beside it. */
function showPill(edge) {
  pill.textContent = edge.getAttribute("aria-label");
  pill.hidden = false;
  const line = edge.querySelector(".line");
  const middle = line.getPointAtLength(line.getTotalLength() / 2);
  const at = middle.matrixTransform(line.getScreenCTM());
  const { width, height } = pill.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.x + 14, window.innerWidth - width - 8));
  const top = at.y - height - 10 < 8 ? at.y + 14 : at.y - height - 10;
  pill.style.left = `${left}px`;
  pill.style.top = `${Math.min(top, window.innerHeight - height - 8)}px`;
}

function hidePill() {
  pill.hidden = true;
}

const SVG = "http://www.w3.org/2000/svg";

/** An element of the picture as a button with its name. */
function makeButton(element) {
  element.setAttribute("role", "button");
  element.setAttribute("tabindex", "-1");
  element.setAttribute("aria-label", data.names[element.dataset.name]);
}

/** Room for an overlay in a box: a bar and a number. */
function addOverlay(node) {
  const rect = node.querySelector("rect");
  if (!rect || node.matches(".block, .dropout")) return;
  const { width, height } = rect.getBBox();
  const card = node.parentElement.querySelector(".body")?.getBBox().width;
  const isHeader = node.classList.contains("header");
  const bar = document.createElementNS(SVG, "rect");
  const value = document.createElementNS(SVG, "text");
  const places = isHeader ? [10, 28, card - 12, 17] : [5, height - 6, width / 2, height - 13];
  const [left, low, x, y] = places.map(String);
  node.dataset.width = String(width - 10);
  for (const [name, setting] of Object.entries({ class: "bar", x: left, y: low, height: 3, width: 0, rx: 1.5 })) {
    bar.setAttribute(name, String(setting));
  }
  for (const [name, setting] of Object.entries({ class: "number", x, y })) value.setAttribute(name, setting);
  node.append(bar, value);
}

picture.setAttribute("role", "group");
picture.setAttribute("aria-label", "Picture of the model; arrow keys follow the flow");
const list = document.getElementById("list");
list.removeAttribute("open");
list.addEventListener("toggle", () => letScroll(list));
for (const node of nodes.values()) {
  makeButton(node);
  addOverlay(node);
  node.setAttribute("aria-pressed", "false");
  node.setAttribute("aria-controls", "panel");
  node.addEventListener("click", () => select(node));
  if (node.classList.contains("header")) {
    node.parentElement.querySelector(".body").addEventListener("click", () => select(node)); // the card around it, too
  }
}
for (const edge of edges) {
  makeButton(edge);
  const line = edge.querySelector(".line");
  const hit = line.cloneNode();
  hit.setAttribute("class", "hit");
  line.before(hit); // wider, so that it is easy to point at
  edge.addEventListener("pointerenter", () => showPill(edge));
  edge.addEventListener("pointerleave", hidePill);
  edge.addEventListener("click", () => showPill(edge));
  edge.addEventListener("focus", () => showPill(edge));
  edge.addEventListener("blur", hidePill);
}
/** A pill goes with the arrow that has the focus, which may have scrolled the page to itself. */
function followScroll() {
  const edge = document.activeElement?.closest(".edge");
  if (edge) showPill(edge);
  else hidePill();
}
window.addEventListener("scroll", followScroll, { passive: true, capture: true });
if (picture.viewBox.baseVal.width > 500) picture.classList.add("wide");
