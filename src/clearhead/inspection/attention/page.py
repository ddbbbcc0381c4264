"""Attention as a page: the wall of heads, one of them large, and the text shaded by where a token looks."""

from base64 import b64encode
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from clearhead.inspection.attention.focus import HeadFocus
from clearhead.inspection.attention.svg import cut, large, pictured
from clearhead.inspection.heat import SVG_STYLE, paths, shrunk
from clearhead.inspection.labels import visible
from clearhead.pages import text

if TYPE_CHECKING:
    from clearhead.inspection.attention.view import AttentionView

TOP = 5  # of the tokens that a token looks at, in the table
SCALE = 65535  # the square roots of shares are sent as 16 bits
FINE, COARSE = (24, 10), (12, 5)  # of the wall, of few heads and of many: cells along a side, and shades
MANY = 48

TOKEN_STYLE = """
.strip { --shade: #08457e; --most: 52%; margin: .4rem 0 0; line-height: 2.1; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { .strip { --shade: #8fd0ff; --most: 40%; } }
.clearhead .strip { --shade: #0072b2; --most: 40%; }
.token { font: inherit; font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .92rem;
  line-height: 1.4; color: inherit; border: 1px solid var(--line); border-radius: 5px; padding: .12rem .3rem;
  margin: 0 .14rem .14rem 0; display: inline-block; max-width: 100%; white-space: pre-wrap; overflow-wrap: anywhere;
  background: color-mix(in srgb, var(--shade) calc(var(--w, 0) * var(--most)), transparent); }
button.token { cursor: pointer; }
.token[aria-pressed=true] { outline: 2px solid var(--accent); outline-offset: 1px; }
button:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
"""
STYLE = (
    """
body { max-width: 76rem; }
.wide, .map { overflow-x: auto; }
.wall { display: grid; grid-template-columns: auto repeat(var(--heads), minmax(2.2rem, 5.2rem)); gap: .45rem;
  align-items: center; justify-content: start; margin-top: 1rem; overflow-x: auto; padding: .3rem; }
.wall span { color: var(--soft); font-size: .8rem; text-align: center; white-space: nowrap; }
.wall button { padding: 0; border: 1px solid var(--line); border-radius: 5px; background: var(--paper); cursor: pointer;
  aspect-ratio: 1; overflow: hidden; }
.wall button:hover { border-color: var(--accent); }
.wall button[aria-pressed=true] { outline: 3px solid var(--accent); outline-offset: 1px; }
.wall svg { display: block; width: 100%; height: 100%; }
.head { display: flex; flex-wrap: wrap; gap: 0 2.5rem; }
.head figure { flex: 0 1 auto; min-width: 0; max-width: 100%; }
.head .side { flex: 1 1 20rem; min-width: 0; }
.map svg { display: block; margin: .6rem 0 0; max-width: none; height: auto; }
.readout { min-height: 1.6em; margin: .4rem 0; color: var(--soft); font-variant-numeric: tabular-nums; }
.large .off { opacity: .12; } .large .on { font-weight: 700; } .large .plane { cursor: crosshair; }
.name { text-align: left; overflow-wrap: anywhere; }
.script-only { display: none; } .scripted .script-only { display: block; }
"""
    + SVG_STYLE
    + TOKEN_STYLE
)


@cache
def scripts() -> tuple[str, ...]:
    """The JavaScript of the page."""
    return (resources.files("clearhead.inspection.attention").joinpath("attention.js").read_text(encoding="utf-8"),)


def data(view: "AttentionView") -> dict[str, object]:
    """What the script reads; texts it takes from the page."""
    rows, columns = pictured(view)
    roots = np.sqrt(np.clip(view.weights[:, :, :rows, :columns], 0, 1))
    shown = view.shown
    return {
        "heads": view.weights.shape[1],
        "rows": rows,
        "columns": columns,
        "shown": [shown.layer, shown.head],
        "sentences": [_sentence(focus) for focus in view.heads],
        "weights": b64encode(np.rint(roots * SCALE).astype("<u2").tobytes()).decode(),
    }


def main(view: "AttentionView") -> str:
    """The body of the page; without its script it shows the chosen head alone, and the tables."""
    shown = view.shown
    wall = _wall(view) if view.weights.shape[0] * view.weights.shape[1] > 1 else ""
    hint = (
        "Choose a head in the wall. Point at a token, or choose it below, to see where it alone looks."
        if wall
        else "Point at a token, or choose it below, to see where it alone looks."
    )
    return f"""{wall}
<h2 id="shown">Layer {shown.layer}, head {shown.head}</h2>
<p id="sentence">{text(_sentence(shown))}</p>
<p class="script-only">{hint}</p>
<div class="head">
<figure><div class="map" tabindex="0" role="group" aria-label="Map of the head">{large(view)}</div>
<p class="readout script-only" id="readout" aria-live="polite"></p>
<figcaption style="max-width: 40rem">{text(_caption(view))}</figcaption></figure>
<div class="side">
{_strips(view)}
</div>
</div>
{_links(view)}
{_heads(view)}"""


def _sentence(focus: HeadFocus) -> str:
    return f"{focus.sentence[0].upper()}{focus.sentence[1:]}."


def _caption(view: "AttentionView") -> str:
    masked = "" if view.allowed.all() else " Hatched: the mask forbids it."
    return (
        f"{cut(view)}A row for each token that attends, a column for each that it attends to; a row sums to 100%. "
        f"Shades follow the square root of the share.{masked}"
    )


def _wall(view: "AttentionView") -> str:
    heads = view.weights.shape[1]
    rows, columns = pictured(view)
    side, shades = COARSE if len(view.heads) > MANY else FINE
    cells = ["<span></span>", *(f"<span>head {head}</span>" for head in range(heads))]
    for focus in view.heads:
        if focus.head == 0:
            cells.append(f"<span>layer {focus.layer}</span>")
        small = shrunk(view.weights[focus.layer, focus.head, :rows, :columns], side)
        is_shown = focus == view.shown
        name = text(f"layer {focus.layer}, head {focus.head}: {focus.sentence}")
        cells.append(
            f'<button type="button" aria-pressed="{str(is_shown).lower()}" aria-label="{name}">'
            f'<svg class="heat" viewBox="0 0 {small.shape[1]} {small.shape[0]}" preserveAspectRatio="none">'
            f'<g class="cells">{paths(small, shades)}</g></svg></button>'
        )
    title = "<h2>Every head</h2>"
    return f'{title}<div class="wall" id="wall" style="--heads:{heads}">{"".join(cells)}</div>'


def _strips(view: "AttentionView") -> str:
    """The text with its last token's attention; the script changes which token it is."""
    rows, columns = pictured(view)
    weights = view.matrix[rows - 1]
    queries = "".join(
        f'<button type="button" class="token" aria-pressed="{str(row == rows - 1).lower()}"'
        f"{_share(weights[row]) if view.kind != 'cross' else ''}>{text(visible(token))}</button>"
        for row, token in enumerate(view.queries[:rows])
    )
    last = text(visible(view.queries[rows - 1], 24))
    heading = f'<h3>Where <q id="looking">{last}</q> looks</h3>'
    if view.kind != "cross":
        return f'{heading}<div class="strip" id="queries">{queries}</div>'
    keys = "".join(
        f'<span class="token"{_share(weight)}>{text(visible(token))}</span>'
        for token, weight in zip(view.keys[:columns], weights, strict=False)
    )
    return (
        f'{heading}<div class="strip" id="keys">{keys}</div>'
        f'<h3>The target</h3><div class="strip" id="queries">{queries}</div>'
    )


def _share(weight: float) -> str:
    return f' style="--w:{max(0.0, weight) ** 0.5:.4f}" title="{weight:.1%}"'


def _links(view: "AttentionView") -> str:
    """Of each token those that it looks at most, as a table."""
    rows, columns = pictured(view)
    body = []
    for row, token in enumerate(view.queries[:rows]):
        weights = view.matrix[row, :columns]
        best = np.argsort(-weights, kind="stable")[:TOP]
        cells = ", ".join(f"{visible(view.keys[key], 24)} {weights[key]:.1%}" for key in best if weights[key] >= 5e-4)
        body.append(
            f'<tr><th scope="row">{row}</th><td class="name">{text(visible(token, 24))}</td>'
            f'<td class="name">{text(cells)}</td></tr>'
        )
    head = '<th scope="col">position</th><th scope="col">token</th><th scope="col">looks most at</th>'
    return (
        "<details><summary>The same as a table: what each token looks at most</summary>"
        '<div class="wide" tabindex="0" role="group" aria-label="What each token looks at most">'
        f'<table><thead><tr>{head}</tr></thead><tbody id="links">{"".join(body)}</tbody></table></div></details>'
    )


def _heads(view: "AttentionView") -> str:
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("layer", "head", "entropy in bits", "share", "looks most at")
    )
    body = "".join(
        f"<tr><td>{focus.layer}</td><td>{focus.head}</td><td>{focus.entropy:.2f}</td><td>{focus.share:.0%}</td>"
        f'<td class="name">{text(focus.target)}</td></tr>'
        for focus in view.heads
    )
    return (
        "<details><summary>Every head in numbers</summary>"
        '<div class="wide" tabindex="0" role="group" aria-label="Every head in numbers">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )
