"use strict";
// The page of `clearhead attend`: choose a head in the wall, point at a token to see where it alone looks.
// Texts come from the page, where they were escaped, and go back by textContent alone.
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const bytes = Uint8Array.from(atob(data.weights), (sign) => sign.charCodeAt(0));
  const roots = new DataView(bytes.buffer);
  const LEVELS = 20, TOP = 5, FULL = 65535;
  const { rows, columns } = data;
  const svg = document.querySelector("svg.large");
  const cells = svg.querySelector(".cells");
  const plane = svg.querySelector(".plane");
  const readout = document.getElementById("readout");
  const buttons = [...document.querySelectorAll("#wall button")];
  const queries = [...document.querySelectorAll("#queries .token")];
  const separate = document.getElementById("keys");
  const keys = separate ? [...separate.children] : queries;
  const rowLabels = [...svg.querySelectorAll("[data-row]")];
  const columnLabels = [...svg.querySelectorAll("[data-column]")];
  let head = data.shown[0] * data.heads + data.shown[1];
  let pinned = rows - 1;

  const root = (row, column) => roots.getUint16(2 * ((head * rows + row) * columns + column), true) / FULL;
  const weight = (row, column) => root(row, column) ** 2;
  const percent = (share) => (100 * share).toFixed(1) + "%";
  const label = (element) => {
    const text = element.textContent;
    return text.length > 24 ? text.slice(0, 23) + "…" : text;
  };

  function drawCells() {
    const runs = Array.from({ length: LEVELS + 1 }, () => []);
    for (let row = 0; row < rows; row++) {
      let start = 0;
      let level = Math.round(root(row, 0) * LEVELS);
      for (let column = 1; column <= columns; column++) {
        const next = column < columns ? Math.round(root(row, column) * LEVELS) : -1;
        if (next !== level) {
          runs[level].push(`M${start},${row}h${column - start}v1h-${column - start}z`);
          start = column;
          level = next;
        }
      }
    }
    cells.replaceChildren(
      ...runs.slice(1).map((run, index) => {
        const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
        path.setAttribute("fill-opacity", (index + 1) / LEVELS);
        path.setAttribute("d", run.join(""));
        return path;
      }),
    );
  }

  // The rest of the map fades behind two shades, above the row and below it.
  const veils = [0, 1].map(() => {
    const veil = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    veil.setAttribute("fill", "var(--paper)");
    veil.setAttribute("fill-opacity", ".82");
    plane.before(veil);
    return veil;
  });
  const width = Number(plane.getAttribute("width"));
  const height = Number(plane.getAttribute("height"));

  function isolate(row) {
    const step = height / rows;
    const [above, below] = row === null ? [0, 0] : [row * step, height - (row + 1) * step];
    for (const [veil, y, size] of [[veils[0], 0, above], [veils[1], height - below, below]]) {
      veil.setAttribute("width", width);
      veil.setAttribute("y", y);
      veil.setAttribute("height", Math.max(0, size));
    }
    rowLabels.forEach((element, index) => {
      element.classList.toggle("on", index === row);
      element.classList.toggle("off", row !== null && index !== row);
    });
    columnLabels.forEach((element, index) => {
      element.classList.toggle("off", row !== null && weight(row, index) < 0.05);
      element.classList.toggle("on", row !== null && weight(row, index) >= 0.2);
    });
    shade(row === null ? pinned : row);
  }

  function shade(row) {
    keys.forEach((element, column) => {
      const share = column < columns ? weight(row, column) : 0;
      element.style.setProperty("--w", Math.sqrt(share).toFixed(4));
      element.title = percent(share);
    });
    document.getElementById("looking").textContent = label(queries[row]);
  }

  function strongest(row) {
    const order = Array.from({ length: columns }, (_, column) => column);
    order.sort((a, b) => weight(row, b) - weight(row, a) || a - b);
    const best = order.slice(0, TOP).filter((column) => weight(row, column) >= 5e-4);
    return best.map((column) => `${label(keys[column])} ${percent(weight(row, column))}`).join(", ");
  }

  function show(index) {
    head = index;
    const place = [Math.floor(head / data.heads), head % data.heads];
    document.getElementById("shown").textContent = `Layer ${place[0]}, head ${place[1]}`;
    document.getElementById("sentence").textContent = data.sentences[head];
    buttons.forEach((button, number) => button.setAttribute("aria-pressed", number === head));
    svg.setAttribute("aria-label", `Attention of layer ${place[0]}, head ${place[1]}`);
    svg.querySelector("desc").textContent = data.sentences[head];
    drawCells();
    [...document.getElementById("links").rows].forEach((row, number) => {
      row.cells[2].textContent = strongest(number);
    });
    shade(pinned);
  }

  function pin(row) {
    pinned = row;
    queries.forEach((element, index) => element.setAttribute("aria-pressed", index === row));
    shade(row);
  }

  function rowAndColumn(event) {
    const box = plane.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return [Math.min(rows - 1, Math.max(0, row)), Math.min(columns - 1, Math.max(0, column))];
  }

  // Arrow keys walk along a list of buttons, by `step` up and down.
  function walk(elements, step) {
    elements.forEach((element, index) => {
      element.addEventListener("keydown", (event) => {
        const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: step, ArrowUp: -step }[event.key];
        const next = move === undefined ? undefined : elements[index + move];
        if (next) {
          event.preventDefault();
          next.focus();
        }
      });
    });
  }

  plane.addEventListener("pointermove", (event) => {
    const [row, column] = rowAndColumn(event);
    isolate(row);
    readout.textContent = `${label(queries[row])} → ${label(keys[column])}: ${percent(weight(row, column))}`;
  });
  plane.addEventListener("pointerleave", () => {
    isolate(null);
    readout.textContent = "";
  });
  plane.addEventListener("click", (event) => pin(rowAndColumn(event)[0]));
  rowLabels.forEach((element, row) => {
    element.addEventListener("pointerenter", () => isolate(row));
    element.addEventListener("pointerleave", () => isolate(null));
  });
  queries.forEach((element, row) => {
    for (const name of ["pointerenter", "focus"]) {
      element.addEventListener(name, () => {
        isolate(row);
        readout.textContent = `${label(element)} → ${strongest(row)}`;
      });
    }
    for (const name of ["pointerleave", "blur"]) {
      element.addEventListener(name, () => isolate(null));
    }
    element.addEventListener("click", () => pin(row));
  });
  buttons.forEach((button, index) => {
    button.title = button.getAttribute("aria-label");
    button.addEventListener("click", () => show(index));
  });
  walk(buttons, data.heads);
  walk(queries, 1);
  document.body.classList.add("scripted");
}
