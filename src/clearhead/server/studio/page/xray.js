// Through the model: the tokens of a text, the vectors that they begin with, every step, and the numbers of each.

import { element, post, printable } from "/page/api.js";
import { setUpDiagram } from "/studio/page/diagram.js";
import { setUpHeat } from "/studio/page/heat.js";
import { floats, noticed, visible } from "/studio/page/maps.js";
import { change, headsOf, numberOf, state } from "/studio/page/state.js";

const BY_HEADS = /\.(q|k|v|scores|attention|mixed|query_norm|key_norm)$/;
const OF_SOURCE = /^(encoder|source)|cross_attention\.part\.(key|value|k|v|key_norm)$/;
const HOW = { rope: "they rotate queries and keys", alibi: "they are added to the scores", relative: "they are added to the scores", none: "the model has none" };
const UNITS = ["bytes", "kB", "MB", "GB"];

const size = (bytes) => {
  const power = Math.min(UNITS.length - 1, bytes ? Math.floor(Math.log(bytes) / Math.log(1024)) : 0);
  return power ? `${(bytes / 1024 ** power).toFixed(1)} ${UNITS[power]}` : `${bytes} bytes`;
};

export function setUpXray(section, studio) {
  const verdict = element("p", { role: "status" });
  const sides = element("div", {});
  const vectors = element("div", { class: "vectors" });
  const every = element("input", { type: "checkbox" });
  const table = element("table", { class: "steps" });
  const choice = element("select", {});
  const matrix = element("select", { "aria-label": "Which of its matrices" });
  const [before, after] = ["◀ columns", "columns ▶"].map((name) => element("button", { type: "button", class: "small" }, name));
  const columns = element("span", { class: "soft" });
  const heading = element("h2", {});
  const large = setUpHeat("An activation", {
    choose: (row, column) => change({ row, column: column + start }, { silent: true }),
    hint: "Point at a number, click it, or move over the map with the arrow keys.",
  });
  const activation = element(
    "div",
    { class: "activation", hidden: "" },
    heading,
    element("div", { class: "fields" }, element("label", {}, "Activation ", choice), matrix),
    large.node,
    element("p", { class: "buttons" }, before, " ", after, " ", columns),
  );
  const choose = (name) => change({ activation: name, matrix: null, start: null, row: null, column: null });
  const diagram = setUpDiagram(studio, choose);
  const frame = element("div", { class: "wide-table steps-frame", tabindex: "0", role: "region", "aria-label": "The steps" }, table);
  const content = element(
    "div",
    { hidden: "" },
    sides,
    vectors,
    diagram.node,
    element(
      "div",
      { class: "xray" },
      element("div", {}, element("h2", {}, "Every step"), element("label", { class: "check" }, every, " also blocks that do the same as the one before"), frame),
      activation,
    ),
  );
  section.append(verdict, content);

  let read = ""; // what is on the screen
  let subject = ""; // the run and the text that it is of
  let drawnVectors = ""; // of which text
  let drawn = ""; // which activation is on the large map
  let view = null;
  let start = 0;
  let generation = 0;

  const body = (now) => {
    const without = headsOf(now.without);
    return without.length ? { ...studio.read(), without } : studio.read();
  };

  // Nothing of another run or text stays on the screen, under the name of this.
  function clear(next = "") {
    if (subject === next && next) return;
    subject = next;
    read = drawn = drawnVectors = "";
    view = null;
    content.hidden = activation.hidden = true; // the large map waits for its numbers
    vectors.replaceChildren();
  }

  // The tokens that rows or columns stand for, where there are as many of them.
  function labels(name, count) {
    const ordered = OF_SOURCE.test(name) ? view.sides : [...view.sides].reverse();
    return ordered.find((side) => side.tokens.length === count)?.tokens ?? null;
  }

  function drawSides() {
    const names = { text: "Text", source: "Source", target: "Translation" };
    sides.replaceChildren(
      ...view.sides.map((side) => {
        const marks = side.tokens.map((label, index) =>
          element("span", { class: "token", title: `position ${index}` }, visible(label), element("small", {}, String(side.ids[index]))),
        );
        return element("p", { class: "strip ids" }, element("span", { class: "soft" }, `${names[side.side]}, ${side.tokens.length} ${side.tokens.length === 1 ? "token" : "tokens"}: `), ...marks);
      }),
    );
  }

  async function drawVectors(now, mine) {
    const figures = [];
    for (const entry of view.vectors) {
      const values = await floats("/studio/xray/values", { ...body(now), name: entry.name });
      if (mine !== generation) return;
      const heat = setUpHeat(entry.name, { width: 600 });
      const title = element("h2", { class: "lesser" }, `${entry.name[0].toUpperCase()}${entry.name.slice(1)}`);
      const width = Math.min(view.width, entry.columns);
      heat.draw({ values, rows: values.length / width, columns: width, start: 0, rowLabels: labels(entry.name, entry.rows), title: entry.name });
      const rest = entry.columns > width ? [element("p", { class: "soft" }, `the first ${width} of ${entry.columns} columns`)] : [];
      figures.push(element("div", {}, title, heat.node, ...rest));
    }
    const added = view.vectors.some((entry) => entry.name.endsWith("position vectors"));
    const note = element("p", { class: "hint" }, `Positions (${view.positions}): ${HOW[view.positions] ?? "they are not added to the embedding"}.`);
    vectors.replaceChildren(...figures, ...(added ? [] : [note]));
  }

  function drawTable() {
    const names = ["Module", "Operation", "Axes", "Shape", "Bytes", "Parameters", "Line"];
    const rows = view.rows.map((row) => {
      if (row.sentence) return element("tr", {}, element("td", { colspan: names.length, class: "soft" }, printable(row.sentence)));
      const operation = element("td", {}, row.operation);
      if (row.activation) {
        const button = element("button", { type: "button", class: "link", "data-name": row.activation, title: `Show ${row.activation}` }, row.operation);
        button.addEventListener("click", () => choose(row.activation));
        operation.replaceChildren(button);
      }
      const texts = [`(${row.axes.join(", ")})`, row.shape.join(" × ") || "1", row.bytes ? size(row.bytes) : "view", row.parameters ? row.parameters.toLocaleString("en") : "", row.line];
      return element("tr", {}, element("td", {}, row.module || "(model)"), operation, ...texts.map((text) => element("td", {}, text)));
    });
    const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
    table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
    choice.replaceChildren(...view.activations.map((entry) => element("option", { value: entry.name }, `${entry.name} (${entry.shape.join(" × ")})`)));
  }

  async function drawActivation(now, run, mine) {
    const known = new Map(view.activations.map((entry) => [entry.name, entry]));
    const entry = known.get(now.activation) ?? view.activations.find((other) => other.name.endsWith(".input")) ?? view.activations[0];
    const index = Math.min(numberOf(now.matrix, 0), entry.matrices - 1);
    start = numberOf(now.start, 0) < entry.columns ? Math.floor(numberOf(now.start, 0) / view.width) * view.width : 0;
    for (const button of table.querySelectorAll("[data-name]")) button.setAttribute("aria-pressed", button.dataset.name === entry.name);
    choice.value = entry.name;
    diagram.show(run, entry.name, [...known.keys()]);
    matrix.hidden = entry.matrices < 2;
    const part = BY_HEADS.test(entry.name) ? "head" : "matrix";
    matrix.replaceChildren(...Array.from({ length: entry.matrices }, (_, number) => element("option", { value: number }, `${part} ${number}`)));
    matrix.value = index;
    const width = Math.min(view.width, entry.columns - start);
    const chosen = [numberOf(now.row, -1), numberOf(now.column, -1) - start];
    const key = JSON.stringify([read, entry.name, index, start, headsOf(now.without)]);
    if (drawn === key) return;
    const values = await floats("/studio/xray/values", { ...body(now), name: entry.name, index, start });
    if (mine !== generation) return;
    drawn = key;
    heading.textContent = entry.name;
    before.hidden = after.hidden = columns.hidden = entry.columns <= view.width;
    before.disabled = start === 0;
    after.disabled = start + view.width >= entry.columns;
    columns.textContent = `${start.toLocaleString("en")} to ${(start + width - 1).toLocaleString("en")} of ${entry.columns.toLocaleString("en")}`;
    const keys = /\.(scores|attention)$/.test(entry.name) ? labels(entry.name.includes("cross") ? "source" : entry.name, entry.columns) : null;
    large.draw({
      values,
      rows: values.length / width,
      columns: width,
      start,
      rowLabels: labels(entry.name, entry.rows),
      columnLabels: keys,
      chosen: chosen[0] >= 0 && chosen[1] >= 0 ? chosen : undefined,
      title: entry.name,
    });
    activation.hidden = false;
  }

  choice.addEventListener("change", () => choose(choice.value));
  matrix.addEventListener("change", () => change({ matrix: matrix.value }));
  before.addEventListener("click", () => change({ start: Math.max(0, start - view.width), column: null }));
  after.addEventListener("click", () => change({ start: start + view.width, column: null }));
  every.addEventListener("change", () => change({ every: every.checked ? 1 : null }));

  return async function show(now, run) {
    const mine = ++generation;
    if (!studio.canRead()) {
      verdict.textContent = "";
      return clear();
    }
    clear(JSON.stringify(studio.read()));
    every.checked = now.every === "1";
    const fields = JSON.stringify([body(now), run.step, every.checked]);
    try {
      if (read !== fields) {
        verdict.textContent = "Reading…";
        const answer = await post("/studio/xray", { ...studio.read(), fold: !every.checked });
        if (mine !== generation) return;
        [read, view, drawn] = [fields, answer, ""];
        studio.report("");
        verdict.textContent = printable(noticed(view) + view.verdict);
        drawSides();
        drawTable();
        content.hidden = false;
      }
      if (drawnVectors !== read) {
        await drawVectors(now, mine);
        if (mine !== generation) return;
        drawnVectors = read;
      }
      await drawActivation(now, run, mine);
    } catch (error) {
      if (mine !== generation) return;
      clear();
      verdict.textContent = "";
      studio.report(error.message);
    }
  };
}
