// Lines over the steps of a training, as SVG. Values and steps are the run's own; nothing is smoothed here.

const NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 640;
const HEIGHT = 260;
const MARGIN = { left: 56, right: 12, top: 12, bottom: 34 };
export const COLORS = 6; // of the style sheet: --line-0 to --line-5, told apart by their dashes as well

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Round numbers that divide a range into about `count` parts.
export function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, index) => (first + index) * step);
}

const number = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });

// lines: [{ label, points: [[step, value]], index, faint, floor }]
export function chart(lines, { label, unit }) {
  const drawn = lines.filter((line) => line.points.length);
  const steps = drawn.flatMap((line) => line.points.map(([step]) => step));
  const values = drawn.flatMap((line) => line.points.map(([, value]) => value));
  for (const { floor } of drawn) if (floor !== undefined && floor !== null) values.push(floor);
  if (!steps.length) return document.createElement("p");
  let [left, right] = [Infinity, -Infinity];
  for (const step of steps) [left, right] = [Math.min(left, step), Math.max(right, step)];
  const sorted = [...values].sort((a, b) => a - b);
  const low = sorted[0];
  const high = Math.max(sorted[Math.floor(0.99 * (sorted.length - 1))], low + 1e-9); // a few first losses may be far above
  const x = (step) => MARGIN.left + ((step - left) / (right - left || 1)) * (WIDTH - MARGIN.left - MARGIN.right);
  const y = (value) =>
    MARGIN.top + (1 - (Math.min(value, high) - low) / (high - low)) * (HEIGHT - MARGIN.top - MARGIN.bottom);

  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": label });
  for (const value of ticks(low, high, 5)) {
    picture.append(
      svg("line", { x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(value), y2: y(value), class: "grid" }),
      svg("text", { x: MARGIN.left - 6, y: y(value) + 4, class: "end" }, number(value)),
    );
  }
  for (const step of ticks(left, right, 6)) {
    picture.append(svg("text", { x: x(step), y: HEIGHT - 16, class: "middle" }, number(step)));
  }
  picture.append(svg("text", { x: WIDTH - MARGIN.right, y: HEIGHT - 2, class: "end" }, `step; ${unit}`));
  for (const { points, index, faint, floor } of drawn) {
    const path = points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    picture.append(svg("polyline", { points: path, class: `line line-${index % COLORS}${faint ? " faint" : ""}` }));
    if (floor !== undefined && floor !== null) {
      picture.append(svg("line", { x1: x(left), x2: x(right), y1: y(floor), y2: y(floor), class: `floor line-${index % COLORS}` }));
    }
  }
  return picture;
}
