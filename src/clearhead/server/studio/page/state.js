// What is shown, as the address says it: everything behind # is the view, so that it can be sent to somebody.

import { token } from "/page/api.js";

const listeners = [];

// Takes the token out of the address before anything else sees it.
export function takeToken() {
  const fields = new URLSearchParams(location.hash.slice(1));
  if (!fields.has("token")) return;
  token.set(fields.get("token"));
  fields.delete("token");
  history.replaceState(null, "", `#${fields}`);
}

export function state() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

// Changes some fields, takes those out that are null or empty, and tells everybody.
export function change(fields, { silent = false } = {}) {
  const next = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of Object.entries(fields)) {
    if (value === null || value === undefined || value === "") next.delete(name);
    else next.set(name, value);
  }
  history.replaceState(null, "", `#${next}`);
  if (!silent) tell();
}

const OF_RUN = ["text", "target", "path", "of", "layer", "head", "query", "key", "position", "without", "row", "column", "activation", "matrix", "start", "hypothesis"];

// Another run: what the address holds of the one before is of no use to it.
export function chooseRun(name) {
  change({ ...Object.fromEntries(OF_RUN.map((field) => [field, null])), run: name, runs: null });
}

export function onChange(listener) {
  listeners.push(listener);
}

export function tell() {
  for (const listener of listeners) listener(state());
}

window.addEventListener("hashchange", () => {
  takeToken();
  tell();
});

// The whole number that a field of the address holds, or a default.
export function numberOf(value, fallback) {
  return /^-?\d{1,9}$/.test(value ?? "") ? Number(value) : fallback;
}

// A text of the address, where it is one of the names of a table: not `constructor`, which every object has.
export function nameIn(table, value, fallback) {
  return value !== undefined && Object.hasOwn(table, value) ? value : fallback;
}

// The texts that a path holds; none where somebody wrote it by hand.
export function pathOf(value) {
  try {
    return JSON.parse(value ?? "[]").filter((text) => typeof text === "string");
  } catch {
    return [];
  }
}

// Heads that write nothing: "self.0.1,cross.2.0" as [["self", 0, 1], ["cross", 2, 0]].
export function headsOf(value) {
  return (value ?? "")
    .split(",")
    .map((head) => head.split("."))
    .filter(([kind, layer, head]) => ["self", "cross", "encoder"].includes(kind) && /^\d{1,4}$/.test(layer) && /^\d{1,4}$/.test(head))
    .map(([kind, layer, head]) => [kind, Number(layer), Number(head)]);
}

export function toggledHead(value, head) {
  const name = head.join(".");
  const heads = headsOf(value).map((other) => other.join("."));
  return (heads.includes(name) ? heads.filter((other) => other !== name) : [...heads, name]).join(",");
}
