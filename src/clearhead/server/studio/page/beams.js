// How a translation was searched for: the tree of hypotheses, and the translations under any length penalty.

import { element, post, printable } from "/page/api.js";
import { svg } from "/studio/page/chart.js";
import { visible } from "/studio/page/maps.js";
import { change, numberOf } from "/studio/page/state.js";

const [STEP, LINE, TOP] = [118, 38, 22]; // pixels

// The translations, the best first, as a search with this penalty orders them: those that were cut off come last.
export function ranked(tree, alpha) {
  const scored = tree.translations.map((translation) => {
    const { log_prob, state } = tree.nodes[translation.node];
    return { ...translation, state, log_prob, score: log_prob / ((5 + translation.length) / 6) ** alpha };
  });
  const of = (state) => scored.filter((translation) => translation.state === state);
  return [...of("finished").sort((first, second) => second.score - first.score), ...of("cut off")].slice(0, tree.beam_size);
}

function pathTo(tree, index) {
  const path = new Set();
  for (let at = index; at !== null && at !== undefined; at = tree.nodes[at].parent) path.add(at);
  return path;
}

export function setUpBeams(studio) {
  const form = element("form", { class: "fields", autocomplete: "off" });
  const text = element("input", { name: "sentence", spellcheck: "false" });
  const width = element("input", { name: "beams", type: "number", min: "1", max: "16", value: "5" });
  form.append(
    element("label", { class: "wide" }, "A sentence ", text),
    element("label", {}, "Beam size ", width),
    element("button", { type: "submit" }, "Show the search"),
  );
  const slider = element("input", { type: "range", min: "0", max: "3", step: "0.05", name: "alpha" });
  const penalty = element("output", {});
  const list = element("ol", { class: "n-best" });
  const frame = element("div", { class: "wide-table", tabindex: "0", role: "region", "aria-label": "The tree of the search" });
  const hint = "Each column is a step: the hypotheses that were kept, the likeliest above, with their log-probabilities in nats. A frame marks an end, which counts for the length.";
  const result = element("div", {}, element("label", {}, "Length penalty ", slider, " ", penalty), list, frame, element("p", { class: "soft" }, hint));
  const node = element("section", { class: "beams" }, element("h2", {}, "The search"), form, result);
  let read = "";
  let tree = null;

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    change({ text: text.value, beams: width.value, hypothesis: null });
  });
  slider.addEventListener("input", () => change({ alpha: slider.value }));

  function drawList(alpha, chosen) {
    const best = ranked(tree, alpha);
    const shown = best.find((translation) => translation.node === chosen) ?? best[0];
    list.replaceChildren(
      ...best.map((translation) => {
        const button = element("button", { type: "button", class: "link", "aria-pressed": translation === shown }, printable(translation.text) || "(empty)");
        button.addEventListener("click", () => change({ hypothesis: translation.node }));
        const sum = `log-probability ${translation.log_prob.toFixed(4)}, length ${translation.length}${translation.state === "cut off" ? ", cut off" : ""}: `;
        return element("li", {}, button, " ", element("span", { class: "soft" }, sum), element("b", {}, translation.score.toFixed(6)));
      }),
    );
    return shown?.node;
  }

  // A token as its node shows it.
  const short = (label) => (label.length > 11 ? `${label.slice(0, 10)}…` : label);

  function drawTree(chosen) {
    const path = pathTo(tree, chosen);
    const steps = [];
    tree.nodes.forEach((entry, index) => (steps[entry.step] ??= []).push(index));
    const corners = new Map(steps.flatMap((column, step) => column.map((index, row) => [index, [step * STEP + 8, TOP + row * LINE]])));
    const edges = [];
    const marks = [];
    tree.nodes.forEach((entry, index) => {
      const [x, y] = corners.get(index);
      const on = path.has(index) ? " on" : "";
      const label = visible(entry.text);
      if (entry.parent !== null) {
        const [fromX, fromY] = corners.get(entry.parent);
        const middle = x - 14;
        const begin = fromX + 8 + Math.max(5, short(visible(tree.nodes[entry.parent].text)).length) * 7.9;
        edges.push(svg("path", { class: `edge${on}`, d: `M${begin},${fromY}C${middle},${fromY} ${middle - 12},${y} ${x - 3},${y}` }));
      }
      if (entry.state !== "kept") marks.push(svg("rect", { class: `end${on}`, x: x - 2, y: y - 15, width: STEP - 30, height: 31, rx: 4 }));
      marks.push(svg("text", { class: `node${on}`, x: x + 2, y: y - 1, "data-node": index }, svg("title", {}, `${label}: ${entry.log_prob}`), short(label)));
      marks.push(svg("text", { class: "score", x: x + 2, y: y + 12 }, entry.log_prob.toFixed(2)));
    });
    const [wide, high] = [steps.length * STEP + 8, TOP + Math.max(...steps.map((column) => column.length)) * LINE];
    const name = `${tree.nodes.length} nodes in ${steps.length} steps; the translation that is marked: ${[...path].reverse().map((index) => tree.nodes[index].text).join("")}`;
    frame.replaceChildren(svg("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img", "aria-label": printable(name) }, ...edges, ...marks));
  }

  async function show(now, run, isTranslator) {
    node.hidden = !isTranslator;
    if (node.hidden) return;
    const alpha = Math.min(3, Math.max(0, Number(now.alpha ?? 0.6) || 0));
    const beams = Math.min(16, Math.max(1, numberOf(now.beams, 5)));
    slider.value = alpha;
    penalty.textContent = alpha.toFixed(2);
    if (document.activeElement !== text) text.value = now.text ?? "";
    if (document.activeElement !== width) width.value = beams;
    if (!now.text) read = "";
    const fields = JSON.stringify([run.name, run.step, now.text, beams]);
    if (read !== fields) tree = null;
    result.hidden = !tree; // no tree of another text stays under this one
    if (!now.text || (run.state !== "ready" && run.state !== "training")) return;
    try {
      if (read !== fields) {
        read = fields;
        const answer = await post("/studio/beams", { model: run.name, text: now.text, beam_size: beams });
        if (read !== fields) return;
        tree = answer;
        studio.report("");
      }
      if (!tree) return;
      drawTree(drawList(alpha, numberOf(now.hypothesis, -1)));
      result.hidden = false;
    } catch (error) {
      if (read !== fields) return;
      read = "";
      tree = null;
      result.hidden = true;
      studio.report(error.message);
    }
  }

  return { node, show };
}
