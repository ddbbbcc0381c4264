// The children of a node, kept by name, so that the focus stays on the one that has it.

// Children for `entries`: `create(entry, index)` makes one of a new name, `update(child, entry, index)` fills each.
export function keep(parent, entries, { name = (entry, index) => index, create, update }) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const children = entries.map((entry, index) => {
    const key = String(name(entry, index));
    const child = old.get(key) ?? create(entry, index);
    child.dataset.key = key;
    update(child, entry, index);
    return child;
  });
  children.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  while (parent.children.length > children.length) parent.lastChild.remove();
  if (focused && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

// Changes a text only where it is another: a status line is read out at every change.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
