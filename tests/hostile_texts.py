"""Texts that nobody should trust: what ends an element, runs as a script, turns a line around or breaks an encoding."""

import random

SEEDS = (
    "</script>",
    "</script><script>window.hostile = 1</script>",
    "</SCRIPT\t><script>window.hostile = 1</script>",
    "<!--<script>",
    "--><script>window.hostile = 1</script>",
    "]]><script>window.hostile = 1</script>",
    "</title><script>window.hostile = 1</script>",
    "</style><script>window.hostile = 1</script>",
    "</textarea></pre></svg></math><script>window.hostile = 1</script>",
    '<img src=x onerror="window.hostile = 1">',
    "<svg onload=window.hostile=1>",
    "<math><mtext></mtext><script>window.hostile = 1</script></math>",
    "<iframe srcdoc='<script>parent.hostile = 1</script>'>",
    "<a href='javascript:window.hostile = 1'>click</a>",
    "<base href='https://example.com/'><link rel=stylesheet href=x.css>",
    '<meta http-equiv="refresh" content="0; url=https://example.com/">',
    "<form action=https://example.com/><button>send</button></form>",
    "javascript:window.hostile = 1",
    '"onfocus="window.hostile = 1" autofocus x="',
    "'onmouseover='window.hostile = 1",
    "\" ' ` \\ / < > & = \\\" \\'",
    "\\u003c/script\\u003e",
    "&lt;script&gt; &amp;lt; &#60;script&#62; &nbsp;",
    "{{ constructor.constructor('window.hostile = 1')() }}",
    "${window.hostile = 1} #{1} <%= 1 %> {% raw %} [[1]]",
    "url(https://example.com/x.png) expression(1) @import 'x'; } * { display: none",
    "__proto__",
    "constructor",
    "toString",
    "../../../etc/passwd",
    "C:\\con\\aux",
    "\u202egnp.exe\u202c",
    "\u2066\u2067\u2068 isolates \u2069",
    "\u2028line\u2029paragraph",
    "\0",
    "before\0after",
    "\x1b[31mred\x1b]0;title\x07",
    "\x7f\x80\x85\x9b31m",
    "\r\n\t\v\f",
    "\ud800",
    "\udfff\ud800 exchanged",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f1e9\U0001f1ea \u2764\ufe0f",
    "z\u0335\u0322\u0347" * 40,
    "\ufeff\ufffe\uffff",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea",
    "\u4e2d\u6587\u3000\u6f22\u5b57",
    "\ufdfa\u1f82",
    "x" * 10_240,
    "\u4e2d" * 10_240,
    "<b>" * 2_000,
    "(" * 3_000,
    "",
    " ",
    "\n" * 50,
    "NaN",
    "-1e999",
    "null",
    "=cmd|' /C calc'!A0",
    "%s %d %n %00 %0a",
    "'; DROP TABLE runs; --",
)


def hostile_texts(count: int = 500, seed: int = 0) -> list[str]:
    """The same texts each time: all the seeds, then mixtures of them."""
    chance = random.Random(seed)
    texts = list(SEEDS[:count])
    while len(texts) < count:
        pieces = chance.choices(SEEDS, k=chance.randint(2, 4))
        mixture = "".join(piece[: chance.choice((20, 200, 2_000))] for piece in pieces)
        cut = chance.randrange(len(mixture) + 1)
        texts.append(chance.choice((mixture, mixture[cut:] + mixture[:cut], mixture.swapcase())))
    return texts
