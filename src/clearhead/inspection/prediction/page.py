"""Probabilities as a page: the text colored by surprisal, what was likely instead, and the lens."""

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from clearhead.inspection.attention.page import TOKEN_STYLE
from clearhead.inspection.labels import visible
from clearhead.pages import text
from clearhead.wording import counted

if TYPE_CHECKING:
    from clearhead.inspection.prediction.prediction import Lens, LensCell, PositionPrediction, Prediction

MOST_BITS = 12  # of surprisal: the darkest shade
MAX_POSITIONS = 512  # on a page
MAX_CELLS = 8_000  # of the lens
LABEL = 16  # characters of a token in a table
TICKS = (0, 2, 4, 8, MOST_BITS)  # bits, in the legend

STYLE = (
    TOKEN_STYLE
    + """
body { max-width: 76rem; }
.wide { overflow-x: auto; }
.panel { display: grid; grid-template-columns: minmax(18rem, 1fr); border: 1px solid var(--line); border-radius: 10px;
  padding: .9rem 1.2rem 1.1rem; margin-top: 1rem; background: var(--card); }
.panel h3 { margin: 0; } .panel p { margin: .3rem 0 .7rem; }
.candidates { list-style: none; margin: 0; padding: 0; display: grid; gap: .25rem; max-width: 44rem; }
.candidates li { display: grid; grid-template-columns: 9rem 1fr 4rem; gap: .7rem; align-items: center; }
.candidates .token { justify-self: end; margin: 0; max-width: 9rem; overflow: hidden; white-space: nowrap;
  text-overflow: ellipsis; }
.candidates .bar { height: .8rem; background: color-mix(in srgb, var(--accent) 14%, transparent); border-radius: 3px; }
.candidates .bar i { display: block; height: 100%; width: calc(var(--p) * 100%); min-width: 1px;
  background: var(--accent); border-radius: 3px; }
.candidates b { font-weight: 600; font-variant-numeric: tabular-nums; text-align: right; }
.candidates .true .token { outline: 2px solid var(--accent); }
.legend { color: var(--soft); font-size: .85rem; }
.grid { line-height: 1.5; }
.legend .token { color: var(--ink, inherit); }
.name { text-align: left; white-space: nowrap; }
.lens { width: auto; font-size: .85rem; }
.lens th, .lens td { padding: .2rem .35rem; border: 1px solid var(--line); white-space: nowrap; text-align: left; }
.lens thead th { font-weight: 500; }
.lens th[scope=row] { position: sticky; left: 0; background: var(--paper); }
.lens td { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.lens td { background: color-mix(in srgb, var(--shade) calc(var(--w) * var(--most)), transparent); }
.lens td.hit { box-shadow: inset 0 -3px 0 var(--accent); }
.lens small { display: block; color: inherit; font-family: system-ui, sans-serif; font-size: .72rem; }
"""
)


@cache
def scripts() -> tuple[str, ...]:
    """The JavaScript of the page."""
    return (resources.files("clearhead.inspection.prediction").joinpath("predict.js").read_text(encoding="utf-8"),)


def data(view: "Prediction") -> dict[str, object]:
    """What the script reads."""
    return {
        "positions": [
            {
                "heading": heading(view, position),
                "sentence": sentence(position),
                "top": [[visible(candidate.token), candidate.probability] for candidate in position.top],
                "following": None if position.following is None else visible(position.following),
            }
            for position in view.positions[:MAX_POSITIONS]
        ]
    }


def heading(view: "Prediction", position: "PositionPrediction") -> str:
    """Which position it is."""
    token = visible(position.token, 24)
    return f"In place of “{token}”" if view.objective == "masked" else f"After “{token}”"


def sentence(position: "PositionPrediction") -> str:
    """What the model makes of the token that follows."""
    entropy = f"Entropy {position.entropy:.2f} bits."
    if position.following is None or position.probability is None:
        return entropy
    token = visible(position.following, 24)
    return (
        f"The text has “{token}”: {percent(position.probability)}, rank {position.rank:,}, "
        f"{position.bits:.2f} bits ({position.nats:.2f} nats) of surprisal. {entropy}"
    )


def main(view: "Prediction") -> str:
    """The body of the page."""
    return f"{_strip(view)}{_panel(view)}{_lens(view)}{_table(view)}"


def _strip(view: "Prediction") -> str:
    tokens = []
    number = {id(position): index for index, position in enumerate(view.positions)}
    shown = shown_position(view)
    for token, position in view.colored[: MAX_POSITIONS + 1]:
        label = text(visible(token))
        if position is None:
            tokens.append(f'<span class="token">{label}</span>')
            continue
        index = number[id(position)]
        if index >= MAX_POSITIONS:
            break
        tokens.append(_button(label, index, index == shown, position.bits))
    index = len(view.positions) - 1
    if view.positions[-1].following is None and view.objective != "masked" and index < MAX_POSITIONS:
        tokens.append(_button("?", index, index == shown, None))
    key = "".join(
        f'<span class="token" style="--w:{shade(bits):.3f}">{bits}{"+" * (bits == MOST_BITS)}</span>' for bits in TICKS
    )
    cut = "" if len(view.positions) <= MAX_POSITIONS else f"The first {MAX_POSITIONS} positions are shown. "
    return (
        f'<h2>The text</h2><div class="strip" id="tokens">{"".join(tokens)}</div>'
        f'<p class="legend strip">{cut}Shaded by surprisal in bits: {key}</p>'
    )


def _button(label: str, index: int, is_shown: bool, bits: float | None) -> str:
    shaded = "" if bits is None else f' style="--w:{shade(bits):.3f}" title="{bits:.2f} bits"'
    pressed = str(is_shown).lower()
    return (
        f'<button type="button" class="token" data-position="{index}" aria-pressed="{pressed}"{shaded}>{label}</button>'
    )


def percent(probability: float) -> str:
    """In percent, or as a power of ten where that would be 0.00%."""
    return f"{probability:.2%}" if probability >= 5e-5 else f"{probability:.0e}"


def shade(bits: float) -> float:
    """From 0 to 1."""
    return min(1.0, max(0.0, bits) / MOST_BITS)


def shown_position(view: "Prediction") -> int:
    """The position whose candidates are shown first: the one that nothing follows yet, or the first of the masked."""
    opened = [index for index, position in enumerate(view.positions[:MAX_POSITIONS]) if position.following is None]
    if opened:
        return opened[0]
    bits = [position.bits or 0 for position in view.positions[:MAX_POSITIONS]]
    return bits.index(max(bits))


def _panel(view: "Prediction") -> str:
    position = view.positions[shown_position(view)]
    entries = "".join(
        f"<li{' class=true' * (candidate.token == position.following)}>"
        f'<span class="token">{text(visible(candidate.token))}</span>'
        f'<span class="bar"><i style="--p:{candidate.probability:.4f}"></i></span>'
        f"<b>{candidate.probability:.1%}</b></li>"
        for candidate in position.top
    )
    return (
        f'<section class="panel strip" aria-live="polite"><h3 id="heading">{text(heading(view, position))}</h3>'
        f'<p id="sentence">{text(sentence(position))}</p>'
        f'<ol class="candidates" id="candidates">{entries}</ol></section>'
    )


def _table(view: "Prediction") -> str:
    names = ("position", "token", "in the text", "probability", "bits", "nats", "rank", "entropy", "likeliest")
    head = "".join(f'<th scope="col"{" class=name" * (name in names[1:3] + names[8:])}>{name}</th>' for name in names)
    body = []
    for index, position in enumerate(view.positions[:MAX_POSITIONS]):
        top = ", ".join(
            f"{visible(candidate.token, LABEL)} {candidate.probability:.1%}" for candidate in position.top[:4]
        )
        numbers: tuple[str, ...] = ("", "", "", "")
        if position.probability is not None:
            numbers = (
                percent(position.probability),
                f"{position.bits:.2f}",
                f"{position.nats:.2f}",
                f"{position.rank:,}",
            )
        cells = "".join(f"<td>{number}</td>" for number in (*numbers, f"{position.entropy:.2f}"))
        following = "" if position.following is None else visible(position.following, LABEL)
        body.append(
            f'<tr><th scope="row">{index}</th><td class="name">{text(visible(position.token, LABEL))}</td>'
            f'<td class="name">{text(following)}</td>{cells}<td class="name">{text(top)}</td></tr>'
        )
    return (
        f'<h2>Every position</h2><div class="wide" tabindex="0" role="group" aria-label="Every position"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def caption(lens: "Lens") -> str:
    """What the lens is, and what it is not."""
    norm = (
        "through the model's own final norm and head"
        if lens.has_norm
        else "through the model's head (a post-norm model has no final norm)"
    )
    ngrams = " Vectors of n-grams, which the model adds before its head, are added in each row." * lens.has_ngrams
    return (
        f"The logit lens: the residual stream after each block, read {norm}. No lens was trained for the layers "
        f"between, so early rows may know more than they can say here.{ngrams} The row of the last block is what the "
        f"model itself says."
    )


def _lens(view: "Prediction") -> str:
    if view.lens is None:
        return ""
    count = min(len(view.positions), max(1, MAX_CELLS // len(view.lens.rows)))
    cut = f"The first {counted(count, 'position')} of {len(view.positions)}. " if count < len(view.positions) else ""
    head = "".join(f'<th scope="col">{text(visible(p.token, LABEL))}</th>' for p in view.positions[:count])
    rows = []
    for layer, cells in reversed(list(enumerate(view.lens.rows))):
        name = f"after block {layer - 1}" if layer else "input"
        drawn = "".join(map(_cell, cells[:count]))
        rows.append(f'<tr><th scope="row">{name}</th>{drawn}</tr>')
    return (
        f'<h2>Layer by layer</h2><figure class="strip grid"><div class="wide" tabindex="0" role="group" '
        f'aria-label="The logit lens"><table class="lens"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div><figcaption>{text(cut + caption(view.lens))} Shaded by "
        f"probability; #1 and so on is the rank of the token in the text, underlined where it is the first."
        f"</figcaption></figure>"
    )


def _cell(cell: "LensCell") -> str:
    rank = "" if cell.rank is None else f"#{cell.rank:,}"
    hit = ' class="hit"' * (cell.rank == 1)
    return (
        f'<td{hit} style="--w:{cell.probability:.3f}" title="{cell.probability:.1%}">{text(visible(cell.token, LABEL))}'
        f"<small>{rank}</small></td>"
    )
