// The alignment of a translation: its source above, what was written below, and a ribbon for each weight.

import { element } from "/page/api.js";
import { svg } from "/studio/page/chart.js";
import { visible } from "/studio/page/maps.js";
import { change } from "/studio/page/state.js";

const [HEIGHT, TOP, BOTTOM, GAP, LETTER] = [210, 26, 184, 18, 8.5]; // pixels
const LEAST = 0.02; // of a weight that is drawn

// The weights (T, T_src) of a head, or with head null the mean of its layer's.
export function alignmentOf(weights, heads, rows, columns, head) {
  const size = rows * columns;
  if (head !== null) return Array.from(weights.subarray(head * size, (head + 1) * size));
  const total = Array.from({ length: size }, () => 0);
  for (let index = 0; index < heads * size; index++) total[index % size] += weights[index] / heads;
  return total;
}

// Where each token stands: its middle, one after the other.
function places(labels) {
  let x = 0;
  const middles = labels.map((label) => {
    const width = visible(label).length * LETTER + GAP;
    x += width;
    return x - width / 2;
  });
  return { middles, width: x };
}

export function setUpRibbons() {
  const buttons = element("div", { class: "fields", role: "group", "aria-label": "Which weights the ribbons show" });
  const frame = element("div", { class: "wide-table", tabindex: "0", role: "region", "aria-label": "The alignment" });
  const sentence = element("p", { class: "soft", "aria-live": "polite" });
  const node = element("div", { class: "ribbons" }, element("h2", {}, "Alignment"), buttons, frame, sentence);
  node.hidden = true;

  function drawButtons(isMean, number, head) {
    const names = [[null, `Layer ${number}, head ${head}`], ["mean", `Mean of layer ${number}`]];
    buttons.replaceChildren(
      ...names.map(([value, name]) => {
        const button = element("button", { type: "button", "aria-pressed": isMean === (value === "mean") }, name);
        button.addEventListener("click", () => change({ ribbons: value }));
        return button;
      }),
    );
  }

  function draw(now, view, layer, head) {
    node.hidden = view.of !== "cross";
    if (node.hidden) return;
    const isMean = now.ribbons === "mean";
    const [rows, columns] = [view.queries.length, view.keys.length];
    const weights = alignmentOf(layer.weights, view.heads, rows, columns, isMean ? null : head);
    drawButtons(isMean, layer.number, head);
    const written = [...view.queries.slice(1), "⟨end⟩"]; // from what a row reads, the next token is written
    const [source, target] = [places(view.keys), places(written)];
    const width = Math.max(source.width, target.width, 120);
    const shift = { source: (width - source.width) / 2, target: (width - target.width) / 2 };
    const curves = [];
    weights.forEach((weight, index) => {
      if (!(weight >= LEAST)) return;
      const [query, key] = [Math.floor(index / columns), index % columns];
      const [from, to] = [source.middles[key] + shift.source, target.middles[query] + shift.target];
      const middle = (TOP + BOTTOM) / 2;
      const d = `M${from},${TOP}C${from},${middle} ${to},${middle} ${to},${BOTTOM}`;
      const curve = { d, class: "ribbon", "stroke-width": 1 + 9 * weight, "data-query": query, "data-key": key, "data-weight": weight.toFixed(4) };
      const path = svg("path", curve, svg("title", {}, `${visible(view.keys[key])} to ${visible(written[query])}: ${weight.toFixed(4)}`));
      path.style.setProperty("--w", 0.12 + 0.78 * weight);
      curves.push(path);
    });
    const texts = [
      ...view.keys.map((label, key) => word("key", key, label, source.middles[key] + shift.source, TOP - 8)),
      ...written.map((label, query) => word("query", query, label, target.middles[query] + shift.target, BOTTOM + 17)),
    ];
    const name = `Alignment of ${rows} written tokens with ${columns} of the source`;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": name }, ...curves, ...texts);
    frame.replaceChildren(picture);
    const best = written.map((label, query) => {
      const row = weights.slice(query * columns, (query + 1) * columns);
      const key = row.indexOf(Math.max(...row));
      return `${visible(label)} from ${visible(view.keys[key])} ${row[key].toFixed(2)}`;
    });
    sentence.textContent = `What each token was mostly written from: ${best.join("; ")}.`;
  }

  // A token; pointing at it keeps its ribbons alone.
  function word(side, index, label, x, y) {
    const text = svg("text", { x, y, class: "word", "text-anchor": "middle" }, visible(label));
    const mark = (on) => {
      frame.firstChild.classList.toggle("some", on);
      for (const path of frame.querySelectorAll(`[data-${side}="${index}"]`)) path.classList.toggle("on", on);
    };
    text.addEventListener("mouseenter", () => mark(true));
    text.addEventListener("mouseleave", () => mark(false));
    return text;
  }

  return { node, draw };
}
