// Where the heads look: all of them on a wall, one enlarged, one weight written out. A head can be switched off.

import { element, post, printable } from "/page/api.js";
import { keep } from "/studio/page/keep.js";
import { floats, noticed, paint, palette, visible } from "/studio/page/maps.js";
import { setUpRibbons } from "/studio/page/ribbons.js";
import { change, headsOf, numberOf, state, toggledHead } from "/studio/page/state.js";

const FORBIDDEN = 255; // on the wall; weights are 0 to 254
const NAMES = { self: "Self-attention", cross: "Cross-attention", encoder: "Encoder" };
const MOST_PIXELS = 720; // along a side of the large map

export function setUpAttention(section, studio) {
  const kinds = element("div", { class: "fields", role: "group", "aria-label": "Which attention" });
  const verdict = element("p", { role: "status" });
  const wall = element("div", { class: "wall", role: "group", "aria-label": "All heads, a row for each layer" });
  const large = element("canvas", { class: "map", tabindex: "0", role: "img" });
  const heading = element("h2", {});
  const off = element("button", { type: "button" });
  const pointed = element("p", { class: "soft" }, "Rows are the tokens that look, columns what they look at.");
  const [looking, looked] = [element("span", { class: "soft" }), element("span", {})];
  const strip = element("p", { class: "strip" }, looking, looked);
  const sums = element("div", { class: "cell", "aria-live": "polite" });
  const detail = element("div", { class: "detail", hidden: "" }, element("div", {}, heading, element("p", { class: "buttons" }, off), large, pointed, strip), sums);
  const ribbons = setUpRibbons();
  const content = element("div", { hidden: "" }, wall, ribbons.node, detail);
  section.append(kinds, verdict, content);

  let read = ""; // what the wall shows
  let subject = ""; // the run and the text that it is of
  let view = null;
  let layer = { number: -1, weights: null };
  let generation = 0;
  let chosen = null; // the head that is enlarged

  const body = (now) => {
    const fields = now.of ? { ...studio.read(), of: now.of } : studio.read();
    const without = headsOf(now.without);
    return without.length ? { ...fields, without } : fields;
  };

  function drawWall(now) {
    const bytes = Uint8Array.from(atob(view.wall.weights), (sign) => sign.charCodeAt(0));
    const { rows, columns } = view.wall;
    const colors = palette();
    const off = new Set(headsOf(now.without).map((head) => head.join(".")));
    wall.style.setProperty("--heads", view.heads);
    wall.replaceChildren(
      ...view.focus.map((focus, index) => {
        const canvas = element("canvas", {});
        const start = index * rows * columns;
        paint(canvas, rows, columns, (cell) => (bytes[start + cell] === FORBIDDEN ? NaN : bytes[start + cell] / 254), colors);
        const name = `Layer ${focus.layer}, head ${focus.head}`;
        const label = `${name}: ${printable(focus.sentence ?? "")}`;
        const button = element("button", { type: "button", class: "head", "aria-label": label, title: label }, canvas);
        if (off.has(`${view.of}.${focus.layer}.${focus.head}`)) button.classList.add("off");
        button.addEventListener("click", () => change({ layer: focus.layer, head: focus.head, query: null, key: null }));
        return button;
      }),
    );
  }

  const chosenHead = (now) => {
    const sharpest = view.focus.reduce((best, focus) => (focus.entropy < best.entropy ? focus : best));
    const [number, head] = [numberOf(now.layer, sharpest.layer), numberOf(now.head, sharpest.head)];
    return number < view.layers && head < view.heads && number >= 0 && head >= 0 ? [number, head] : [0, 0];
  };

  // Nothing of another run or text stays on the screen, under the name of this.
  function clear(next = "") {
    generation++;
    view = chosen = null;
    layer = { number: -1, weights: null };
    if (subject === next && next) return;
    subject = next;
    content.hidden = kinds.hidden = detail.hidden = true; // the enlarged head waits for its weights
  }

  async function drawHead(now) {
    const mine = ++generation;
    const [number, head] = chosenHead(now);
    for (const [index, button] of [...wall.children].entries()) {
      button.setAttribute("aria-pressed", index === number * view.heads + head);
    }
    if (layer.number !== number) {
      const weights = await floats("/studio/attention/weights", { ...body(now), layer: number });
      if (mine !== generation) return;
      layer = { number, weights };
    }
    const [rows, columns] = [view.queries.length, view.keys.length];
    const start = head * rows * columns;
    ribbons.draw(now, view, layer, head);
    paint(large, rows, columns, (cell) => layer.weights[start + cell], palette());
    const pixels = Math.max(2, Math.min(48, Math.floor(MOST_PIXELS / Math.max(rows, columns))));
    large.style.width = `${columns * pixels}px`;
    large.style.height = `${rows * pixels}px`;
    const focus = view.focus[number * view.heads + head];
    heading.textContent = `Layer ${number}, head ${head}`;
    large.setAttribute("aria-label", `${heading.textContent}: ${printable(focus.sentence ?? "")} Arrow keys move over the weights.`);
    const isOff = headsOf(now.without).some((other) => other.join(".") === `${view.of}.${number}.${head}`);
    off.textContent = isOff ? "Let it write again" : "Switch this head off";
    chosen = [view.of, number, head];
    const [query, key] = [Math.max(0, numberOf(now.query, rows - 1)), numberOf(now.key, -1)];
    drawRow(start, Math.min(query, rows - 1), key);
    detail.hidden = false;
    if (key >= 0 && key < columns && query < rows) await drawCell(now, number, head, query, key, mine);
    else sums.replaceChildren(element("p", { class: "hint" }, "Point at a cell, click it, or move over the map with the arrow keys: its numbers are written out here."));
  }

  // The tokens that one token looks at, shaded by the weights.
  function drawRow(start, query, key) {
    const columns = view.keys.length;
    strip.dataset.query = query;
    looking.textContent = `“${visible(view.queries[query])}” (${query}) looks at: `;
    keep(looked, view.keys, {
      create(label, index) {
        const mark = element("button", { type: "button", class: "token" });
        mark.addEventListener("click", () => change({ query: strip.dataset.query, key: index }));
        return mark;
      },
      update(mark, label, index) {
        const weight = layer.weights[start + query * columns + index];
        const isForbidden = Number.isNaN(weight);
        mark.textContent = visible(label);
        mark.title = isForbidden ? "the mask forbids it" : weight.toFixed(4);
        mark.style.setProperty("--w", isForbidden ? 0 : weight.toFixed(4));
        mark.classList.toggle("forbidden", isForbidden);
        if (index === key) mark.setAttribute("aria-pressed", "true");
        else mark.removeAttribute("aria-pressed");
      },
    });
  }

  async function drawCell(now, number, head, query, key, mine) {
    const cell = await post("/studio/attention/cell", { ...body(now), layer: number, head, query, key });
    if (mine !== generation) return;
    const line = (...children) => element("p", { class: "sum" }, ...children);
    const products = cell.q.map((value, index) => value * cell.k[index]);
    const rows = cell.q.map((value, index) =>
      element("tr", {}, ...[index, value.toFixed(4), cell.k[index].toFixed(4), products[index].toFixed(4)].map((text) => element("td", {}, String(text)))),
    );
    const head_ = element("tr", {}, ...["dimension", "q", "k", "q · k"].map((name) => element("th", { scope: "col" }, name)));
    const scaled = cell.product * cell.scale;
    const steps = [
      line("q · k = ", element("b", {}, cell.product.toFixed(6))),
      line(`× scale ${cell.scale.toFixed(6)} = `, element("b", {}, scaled.toFixed(6))),
    ];
    if (cell.softcap !== null) steps.push(line(`soft cap ${cell.softcap}: `, element("b", {}, (cell.softcap * Math.tanh(scaled / cell.softcap)).toFixed(6))));
    if (Math.abs(cell.bias) > 1e-5) steps.push(line(`+ bias of the positions ${cell.bias.toFixed(6)}`));
    if (cell.score === null) steps.push(line("The mask forbids it: its weight is 0."));
    else steps.push(line(`softmax: exp(${cell.score.toFixed(6)} − ${cell.log_total.toFixed(6)}) = `, element("b", { id: "weight" }, cell.weight.toFixed(6))));
    sums.replaceChildren(
      element("h3", {}, `“${visible(view.queries[query])}” (${query}) to “${visible(view.keys[key])}” (${key})`),
      ...steps,
      element("details", {}, element("summary", {}, `The dot product, all ${cell.q.length} dimensions`), element("table", {}, element("thead", {}, head_), element("tbody", {}, ...rows))),
    );
  }

  off.addEventListener("click", () => chosen && change({ without: toggledHead(state().without, chosen) }));

  function cellAt(event) {
    const box = large.getBoundingClientRect();
    const [rows, columns] = [view.queries.length, view.keys.length];
    const query = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const key = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return [Math.max(0, Math.min(rows - 1, query)), Math.max(0, Math.min(columns - 1, key))];
  }

  large.addEventListener("mousemove", (event) => {
    if (!view || !layer.weights) return;
    const [query, key] = cellAt(event);
    const [, head] = chosenHead(state());
    const start = head * view.queries.length * view.keys.length;
    drawRow(start, query, key);
    const weight = layer.weights[start + query * view.keys.length + key];
    const shown = Number.isNaN(weight) ? "the mask forbids it" : weight.toFixed(4);
    pointed.textContent = `“${visible(view.queries[query])}” to “${visible(view.keys[key])}”: ${shown}`;
  });
  large.addEventListener("click", (event) => {
    if (!view) return;
    const [query, key] = cellAt(event);
    change({ query, key });
  });
  large.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !view) return;
    event.preventDefault();
    const now = state();
    const query = numberOf(now.query, view.queries.length - 1) + step[0];
    const key = numberOf(now.key, 0) + step[1];
    const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
    change({ query: clamp(query, view.queries.length), key: clamp(key, view.keys.length) });
  });

  function drawKinds() {
    kinds.hidden = view.kinds.length < 2;
    kinds.replaceChildren(
      ...view.kinds.map((kind) => {
        const button = element("button", { type: "button", "aria-pressed": kind === view.of }, NAMES[kind]);
        button.addEventListener("click", () => change({ of: kind, layer: null, head: null, query: null, key: null }));
        return button;
      }),
    );
  }

  return async function show(now, run) {
    if (!studio.canRead()) {
      read = verdict.textContent = "";
      return clear();
    }
    const fields = JSON.stringify([body(now), run.step]);
    try {
      if (read !== fields) {
        read = fields;
        verdict.textContent = "Reading…";
        clear(JSON.stringify(studio.read()));
        const answer = await post("/studio/attention", body(now));
        if (read !== fields) return;
        view = answer;
        verdict.textContent = printable(noticed(view) + view.verdict);
        studio.report("");
        drawKinds();
        drawWall(state());
        content.hidden = false;
      }
      if (view) await drawHead(state()); // a head may have been chosen meanwhile
    } catch (error) {
      if (read !== fields) return;
      clear();
      read = "";
      verdict.textContent = "";
      studio.report(error.message);
    }
  };
}
