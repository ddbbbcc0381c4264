// Matrices as pictures: a pixel for each number, on the paper's color, in both color schemes.

import { printable, refuse, token } from "/page/api.js";

// A token where it must be seen, even if it is a space or an end of line.
export const visible = (label) => printable(label).replaceAll("\n", "⏎").replaceAll(" ", "␣") || "·";

// What an answer says of a text that was too long, as sentences before others.
export const noticed = ({ notices }) => notices.map((notice) => `${notice[0].toUpperCase()}${notice.slice(1)}. `).join("");

// The numbers of a binary answer.
export async function floats(path, body) {
  const headers = { "content-type": "application/json" };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!response.ok) await refuse(response);
  return new Float32Array(await response.arrayBuffer());
}

// The ink of a weight, from the paper's color to the accent's; hatching, not a color, says that the mask forbids.
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const parse = (name) => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    canvas.fillStyle = style.getPropertyValue(name).trim();
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const [paper, ink, soft, above, below] = ["--paper", "--accent", "--line", "--above", "--below"].map(parse);
  const mix = (color, share) => [0, 1, 2].map((index) => Math.round(paper[index] + (color[index] - paper[index]) * share));
  return {
    of: (weight) => mix(ink, Math.sqrt(weight)),
    signed: (share) => mix(share < 0 ? below : above, Math.sqrt(Math.abs(share))),
    forbidden: [soft[0], soft[1], soft[2]],
    paper,
  };
}

export function paint(canvas, rows, columns, value, colors) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let index = 0; index < rows * columns; index++) {
    const weight = value(index);
    const isHatched = Number.isNaN(weight) && (Math.floor(index / columns) + (index % columns)) % 2;
    const color = Number.isNaN(weight) ? (isHatched ? colors.forbidden : colors.paper) : colors.of(weight);
    image.data.set([color[0], color[1], color[2], 255], 4 * index);
  }
  context.putImageData(image, 0, 0);
}
