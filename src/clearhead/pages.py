"""What people read: any text made safe for a terminal, and pages that are complete in themselves and load nothing."""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from typing import Protocol

# The page may not load anything from anywhere; browsers hold it to that.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
# What would end a script's element, or what a browser changes before it computes a script's hash.
NOT_IN_A_SCRIPT = re.compile(r"</script|<!--|[\0\r\ud800-\udfff]", re.IGNORECASE)

# What a terminal obeys, or what changes where the characters beside it stand.
CONTROLS = (*range(0x20), 0x7F, *range(0x80, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
PICTURES = (
    dict.fromkeys(CONTROLS, 0xFFFD)
    | {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
    | {ord(sign): sign for sign in "\t\n"}
    | {0x7F: 0x2421}
)
ESCAPES = {code: ascii(chr(code))[1:-1] for code in CONTROLS}

STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #5a6372; --paper: #ffffff; --card: #f5f6f8; --line: #e0e3e8;
  --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b2; --paper: #15181d; --card: #1d2127;
  --line: #2f353e; --accent: #62b5ea; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 52rem; padding: 3rem 1.5rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { margin: 2.8rem 0 .9rem; font-size: 1.2rem; }
h3 { margin: 1.4rem 0 .5rem; font-size: .95rem; color: var(--soft); font-weight: 600; }
.verdict { margin: .9rem 0 0; padding: .1rem 0 .1rem 1rem; border-left: 3px solid var(--accent); font-size: 1.1rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: 1px; margin: 2rem 0 0;
  padding: 0; border: 1px solid var(--line); border-radius: 10px; overflow: hidden; background: var(--card); }
dl div { padding: .75rem 1rem; box-shadow: 0 0 0 1px var(--line); }
dt { color: var(--soft); font-size: .82rem; }
dt::first-letter { text-transform: uppercase; }
dd { margin: .1rem 0 0; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
figure { margin: 0; }
figcaption { margin-top: .5rem; color: var(--soft); font-size: .9rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .5rem; }
th, td { padding: .35rem .75rem; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
summary { cursor: pointer; color: var(--accent); padding: .5rem 0; }
summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
pre { margin: 0; padding: 1rem 1.2rem; border: 1px solid var(--line); border-radius: 10px; background: var(--card);
  font: 14px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
footer { margin-top: 3.5rem; color: var(--soft); font-size: .85rem; }
"""
# A notebook's page has colors of its own, light or dark, so these are made of its ink.
FRAGMENT_STYLE = """
--ink: currentColor; --soft: color-mix(in srgb, currentColor 70%, transparent); --paper: transparent;
--card: color-mix(in srgb, currentColor 5%, transparent); --line: color-mix(in srgb, currentColor 18%, transparent);
--accent: #0072b2;
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
figure { margin: 0; }
"""


def document(
    title: str,
    verdict: str,
    main: str,
    *,
    style: str = "",
    mood: str = "",
    scripts: Sequence[str] = (),
    data: Mapping[str, object] | None = None,
) -> str:
    """The whole document.

    A script reads `data` by `JSON.parse(document.getElementById("data").textContent)`, and writes what comes from
    outside by `textContent` alone. The policy allows each script by its SHA-256 and nothing else, so neither a text
    that became an element nor an attribute like `onerror` runs.

    Args:
        title: text, also the browser's.
        verdict: text, in a sentence.
        main: what follows, as HTML in which every text went through `text`.
        style: rules of its own, behind those that all pages share.
        mood: a class of the verdict that `style` colors.
        scripts: JavaScript of ours, run in this order after `main` is read; they share their top-level names.
        data: JSON values (no NaN, no infinity) for the scripts. Every text in it goes through `printable`.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">
<link rel="icon" href="data:,">
<title>{text(title)} · Clearhead</title>
<style>{STYLE}{style}</style>
</head>
<body>
<header>
<h1>{text(title)}</h1>
<p class="{text(f"verdict {mood}".strip())}">{text(verdict)}</p>
</header>
<main>
{main}
</main>
<footer>Written by Clearhead. This page is complete in itself and loads nothing.</footer>
{_data_element(data)}{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def fragment(title: str, verdict: str, main: str, *, style: str = "") -> str:
    """The same for the page of a notebook: its rules hold for this part alone. Arguments as for `document`."""
    return (
        f'<div class="clearhead"><style>.clearhead {{ {FRAGMENT_STYLE}{style} }}</style>'
        f"<p><strong>{text(title)}</strong>. {text(verdict)}</p>{main}</div>"
    )


def _policy(scripts: Sequence[str]) -> str:
    for script in scripts:
        assert NOT_IN_A_SCRIPT.search(script) is None, "a script with a character sequence that HTML would change"
    digests = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    return f"{POLICY}; script-src {digests}" if scripts else POLICY


def _data_element(data: Mapping[str, object] | None) -> str:
    if data is None:
        return ""
    # JSON's own escapes, so no text can end the element; everything beyond ASCII is escaped as well.
    encoded = json.dumps(_printable_values(data), allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        encoded = encoded.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" id="data">{encoded}</script>\n'


def _printable_values(value: object) -> object:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): _printable_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable_values(item) for item in value]
    return value


def text(value: str) -> str:
    """Any text as HTML that shows it."""
    return escape(printable(value))


def printable(value: str) -> str:
    """A text as it may stand on a terminal or a page: its own lines and tabs, and nothing that acts instead of showing.

    Control characters become their pictures (C0, DEL) or U+FFFD (C1, overrides and isolates of direction, line and
    paragraph separators), lone surrogates `?`. The result encodes as UTF-8, and applying this twice changes nothing.
    """
    return value.replace("\r\n", "\n").translate(PICTURES).encode("utf-8", "replace").decode("utf-8")


class Printer(Protocol):
    """What shows values in a notebook, IPython's RepresentationPrinter: `stack` holds what is being shown."""

    stack: list[int]

    def text(self, text: str) -> None:
        """Show a text."""


def pretty(self: object, printer: Printer, cycle: bool) -> None:
    """The `_repr_pretty_` of a result that a notebook shows as it prints; one in a list is shown by its parts."""
    printer.text(printable(str(self)) if len(printer.stack) == 1 else repr(self))


def one_line(value: str) -> str:
    """A name or a sentence as it may stand on a terminal: one line, with each hidden character as its escape."""
    return value.translate(ESCAPES).encode("utf-8", "backslashreplace").decode("utf-8")
