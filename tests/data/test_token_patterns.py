"""Regular expressions of tokenizers: those of the published ones pass, and those that take forever do not."""

import pytest

from clearhead.data.tokenizers.patterns import TooAmbiguousError, refuse_ambiguous

LETTERS = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
PUBLISHED = {
    "GPT-2, and BLOOM's byte level": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "CLIP": r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "Llama 3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "Qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
    r"|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?[{LETTERS}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{LETTERS}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "Kimi": rf"[\p{{Han}}]+|[{LETTERS}&&[^\p{{Han}}]]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]+(?i:'s|'t|'d)?",
    "DeepSeek LLM": r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳ]+",
    "DeepSeek LLM, ends of lines": r"\s+$",
    "DeepSeek V3": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "Falcon": r"[0-9][0-9][0-9]",
    "StarCoder": r"\d",
    "BLOOM": " ?[^(\\s|[.,!?…\u3002\uff0c、।\u06d4،])]+",
    "SuperBPE": r"(?=(\d{3})+(?!\d))",
    "Galactica": r"[\(\)\[\]\{\}]|([!\"\#\$%\&'\*\+,\-\./:;<=>\?\\\^_`\|\~])\1*",
    "Chameleon": r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    "Pegasus": " {2,}",
    "Clearhead's own": r"[\s\S]",
}
HOSTILE = [
    r"(\p{Cyrillic}|\p{Cyrillic}\p{Cyrillic})+$",
    "(a|aa)+$",
    "(a|a)*$",
    "(a+)+$",
    "(a*)*b",
    "(.*)*x",
    "(aa?)+$",
    "(x+x+)+y",
    "(a|aa)+?$",
    "(a|aa){2,}$",
    "(?:(a|aa){1,30})$",
    "(a{1,3}){1,40}$",
    r"(\w?){60}$",
    r"(\w|\w\w){30}!",
    r"(?=(\w|\w\w)+$)x",
    r"(?>(\w|\w\w)+$)",
    "((a|aa)+b)*",
    r"\w*\w*\w*\w*\w*\w*$",
    "(?i)(a|A)+$",
    "(?i:(ß|ss)+$)",  # each is the other one, where case does not count
    "(?:[ab]|a)+$",
    r"(\x61|a)+$",
    r"(\141|aa)+$",
    r"(x(?i)b|xb)+$",
    "(?x)(a| a)+$",
    r"(?<x>a\g<x>?)+$",
    "(" * 1_000 + ")" * 1_000,
    "[" * 1_000 + "]" * 1_000,
    "(a",
    "a" * 100_000,
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_pattern_passes(name: str) -> None:
    refuse_ambiguous(PUBLISHED[name])


@pytest.mark.parametrize("pattern", HOSTILE, ids=lambda pattern: pattern[:40])
def test_a_pattern_that_takes_forever_is_refused(pattern: str) -> None:
    with pytest.raises(TooAmbiguousError):
        refuse_ambiguous(pattern)


@pytest.mark.parametrize(
    "pattern", [r"(?:\r?\n)+$", "(?:ab|ba)+$", "(?:a+b)+c", "(a|aa)++$", "(?#a comment)a", "[]a]+b"]
)
def test_a_pattern_whose_next_character_decides_passes(pattern: str) -> None:
    refuse_ambiguous(pattern)
