"""Equations as MathML, from a short notation: what browsers draw and screen readers read without any script."""

import re
from html import escape

# A symbol -> the class that gives it the color of its arrow.
COLORED = {"Q": "query", "K": "key", "V": "value", "A": "weights", "S": "weights", "M": "memory"}
NO_BREAK = "\u00a0"  # a space that is kept at the end of a text
SIGNS = {  # names that stand for a sign
    "times": "\u00d7",
    "in": "\u2208",
    "top": "\u22a4",
    "odot": "\u2299",
    "le": "\u2264",
    "approx": "\u2248",
    "sim": "\u223c",
    "to": "\u2192",
    "cdot": "\u00b7",
    "dots": "\u2026",
    "sum": "\u2211",
    "-": "\u2212",
}
LETTERS = {  # names that stand for a letter
    "Reals": "\u211d",
    "alpha": "\u03b1",
    "beta": "\u03b2",
    "gamma": "\u03b3",
    "eps": "\u03b5",
    "mu": "\u03bc",
    "sigma": "\u03c3",
    "theta": "\u03b8",
    "omega": "\u03c9",
    "pi": "\u03c0",
}
TOKEN = re.compile(
    r"(?P<name>[A-Za-z]+'?)|(?P<number>\d[\d,]*(?:\.\d+)?)|(?P<text>\"[^\"]*\")|(?P<sign>[^\sA-Za-z0-9])|(?P<space>\s+)"
)
FUNCTIONS = {"softmax", "tanh", "sin", "cos", "max", "LayerNorm", "RMSNorm", "GELU", "SiLU", "ReLU", "mean", "bucket"}
FUNCTIONS |= {"Bernoulli", "erf", "concat", "rotate", "hash", "dropout"}


def equation(source: str) -> str:
    """A `<math>` element in block form.

    The notation: names, numbers, signs as they are; `x_i`, `x^2` and `x_{i,j}`; `sqrt{...}`; `frac{...}{...}`;
    text in double quotes. All of it is the library's own, and escaped all the same.
    """
    parser = _Parser(source)
    return f'<math display="block">{parser.row()}</math>'


class _Parser:
    """Reads the notation from left to right."""

    def __init__(self, source: str) -> None:
        self.tokens = [match for match in TOKEN.finditer(source) if not match["space"]]
        self.index = 0

    def peek(self) -> str:
        """The next token, or nothing."""
        return self.tokens[self.index][0] if self.index < len(self.tokens) else ""

    def row(self, end: str = "") -> str:
        """Everything up to `end`."""
        elements = []
        while self.peek() != end:
            elements.append(self.scripted())
        self.index += bool(end)
        return "".join(elements)

    def scripted(self) -> str:
        """An atom with what hangs below and above it."""
        base, below, above = self.atom(), "", ""
        while self.peek() in ("_", "^"):
            sign = self.peek()
            self.index += 1
            script = self.atom()
            below, above = (script, above) if sign == "_" else (below, script)
        if below and above:
            return f"<msubsup>{base}{below}{above}</msubsup>"
        if below:
            return f"<msub>{base}{below}</msub>"
        return f"<msup>{base}{above}</msup>" if above else base

    def atom(self) -> str:
        """A name, a number, a sign, a group, a root or a fraction."""
        token = self.tokens[self.index]
        self.index += 1
        if token[0] == "{":
            first = self.index
            inner = self.row("}")
            return inner if self.index == first + 2 else f"<mrow>{inner}</mrow>"  # a single sign needs no row
        if token["name"] == "sqrt":
            return f"<msqrt>{self.atom()}</msqrt>"
        if token["name"] == "frac":
            return f"<mfrac>{self.atom()}{self.atom()}</mfrac>"
        if token["name"]:
            return self.name(token[0])
        if token["number"]:
            return f"<mn>{token[0]}</mn>"
        if token["text"]:
            return f"<mtext>{escape(token[0][1:-1]).replace(' ', NO_BREAK)}</mtext>"
        sign = SIGNS.get(token[0], token[0])
        return f"<mo>{escape(sign)}</mo>"

    def name(self, name: str) -> str:
        """A function stands upright, a symbol has the color of its arrow."""
        if name in FUNCTIONS:
            return f"<mi>{name}</mi><mo>\u2061</mo>"  # function application, for those who listen
        if name in SIGNS:
            return f"<mo>{SIGNS[name]}</mo>"
        letter, prime = name.removesuffix("'"), "\u2032" if name.endswith("'") else ""
        color = f' class="{COLORED[letter]}"' if letter in COLORED else ""
        return f"<mi{color}>{LETTERS.get(letter, letter)}{prime}</mi>"
