// A matrix of any numbers as a map: blue above 0, orange below, hatched where the mask forbids. Pointing tells a number.

import { element } from "/page/api.js";
import { paint, palette, visible } from "/studio/page/maps.js";

const MOST_HEIGHT = 520; // pixels

const shown = (value) => (value === -Infinity ? "−∞, the mask forbids it" : Number.isNaN(value) ? "no number" : String(Number(value.toPrecision(6))));

// `name` is what a screen reader says; `choose(row, column)` is called when a cell is chosen.
export function setUpHeat(name, { choose = () => {}, width = 700, hint = "" } = {}) {
  const canvas = element("canvas", { class: "map", tabindex: "0", role: "img", "aria-label": name });
  const range = element("p", { class: "soft" });
  const number = element("p", { class: "number" });
  const node = element("div", { class: "heat-map" }, range, canvas, number);
  let matrix = null;

  const valueAt = (row, column) => matrix.values[row * matrix.columns + column];
  const rowName = (row) => (matrix.rowLabels ? `“${visible(matrix.rowLabels[row])}” (${row})` : `row ${row}`);
  const columnName = (column) =>
    matrix.columnLabels ? `“${visible(matrix.columnLabels[column])}” (${column})` : `column ${column + matrix.start}`;

  function tell(row, column) {
    number.replaceChildren(`${rowName(row)}, ${columnName(column)}: `, element("b", {}, shown(valueAt(row, column))));
  }

  function cellAt(event) {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * matrix.rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * matrix.columns);
    return [Math.max(0, Math.min(matrix.rows - 1, row)), Math.max(0, Math.min(matrix.columns - 1, column))];
  }

  function pick(row, column) {
    matrix.chosen = [Math.max(0, Math.min(matrix.rows - 1, row)), Math.max(0, Math.min(matrix.columns - 1, column))];
    tell(...matrix.chosen);
    choose(...matrix.chosen);
  }

  canvas.addEventListener("mousemove", (event) => matrix && tell(...cellAt(event)));
  canvas.addEventListener("mouseleave", () => matrix?.chosen && tell(...matrix.chosen));
  canvas.addEventListener("click", (event) => matrix && pick(...cellAt(event)));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !matrix) return;
    event.preventDefault();
    const [row, column] = matrix.chosen ?? [0, 0];
    pick(row + step[0], column + step[1]);
  });

  // {values, rows, columns, start, rowLabels, columnLabels, chosen, title}
  function draw(next) {
    matrix = next;
    const finite = matrix.values.filter(Number.isFinite);
    const bounds = finite.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
    const scale = Math.max(...bounds.map(Math.abs)) || 1;
    const colors = palette();
    const share = (index) => (Number.isFinite(matrix.values[index]) ? matrix.values[index] / scale : NaN);
    paint(canvas, matrix.rows, matrix.columns, share, { ...colors, of: colors.signed });
    const fit = (count, most, size) => Math.max(1, Math.min(size, Math.floor(most / count)));
    canvas.style.width = `${matrix.columns * fit(matrix.columns, width, 40)}px`;
    canvas.style.height = `${matrix.rows * fit(matrix.rows, MOST_HEIGHT, matrix.columns > 40 ? 12 : 40)}px`;
    const title = matrix.title ?? name;
    canvas.setAttribute("aria-label", `${title}, ${matrix.rows} rows, ${matrix.columns} columns. Arrow keys move over the numbers.`);
    range.textContent = finite.length ? `from ${shown(bounds[0])} to ${shown(bounds[1])}` : "no numbers";
    if (matrix.chosen && matrix.chosen[0] < matrix.rows && matrix.chosen[1] < matrix.columns) tell(...matrix.chosen);
    else {
      matrix.chosen = undefined;
      number.textContent = hint;
    }
  }

  return { node, draw };
}
