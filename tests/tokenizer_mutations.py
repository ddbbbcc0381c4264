"""What can be wrong with a tokenizer.json: each function changes one part of it, or returns another file."""

import base64
import random
from collections.abc import Callable, Sequence
from typing import Any

from hostile_tokenizers import NAMED, replace, several
from hostile_values import BEHAVIORS, REGEXES, TEXTS, VALUES, Json, nodes, without_vocabulary
from strangers_tokenizers import KINDS, state_of


def component(draw: random.Random, name: str) -> Any:
    """Any component, of any sort, with odd options."""
    pattern = draw.choice([{"Regex": draw.choice(REGEXES)}, {"String": draw.choice([*TEXTS, "a", "the", "\n"])}])
    behavior, flag, sign = draw.choice(BEHAVIORS), draw.random() < 0.5, draw.choice(["▁", "a", "", "▁▁"])
    pool: list[Any] = [
        {"type": "Replace", "pattern": pattern, "content": draw.choice([*TEXTS, "aa", "\\0\\1", "$0$0"])},
        {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": flag},
        {"type": "Prepend", "prepend": draw.choice(TEXTS)},
        {"type": "FixedLength", "length": draw.choice([0, 1, 2**63, 5])},
        {"type": "Precompiled", "precompiled_charsmap": draw.choice(["", "AA==", "////", "AAAAAAA="])},
        {
            "type": "BertNormalizer",
            "clean_text": flag,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": flag,
        },
        {"type": "Strip", "strip_left": flag, "strip_right": True},
        {
            "type": "Strip",
            "content": draw.choice([" ", "a", "é"]),
            "start": draw.choice([0, 1, 2**40]),
            "stop": draw.choice([0, 3, 2**63]),
        },
        {"type": "ByteLevel", "add_prefix_space": flag, "trim_offsets": flag, "use_regex": not flag},
        {
            "type": "Metaspace",
            "replacement": sign,
            "prepend_scheme": draw.choice(["always", "never", "first"]),
            "split": flag,
        },
        {"type": "Punctuation", "behavior": behavior},
        {"type": "Digits", "individual_digits": flag},
        {"type": "CharDelimiterSplit", "delimiter": draw.choice(["a", " ", "é"])},
        {"type": "WordPiece", "prefix": draw.choice(TEXTS), "cleanup": flag},
        {"type": "BPEDecoder", "suffix": draw.choice(["", "</w>", "a"])},
        {"type": "CTC", "pad_token": draw.choice(TEXTS), "word_delimiter_token": draw.choice(TEXTS), "cleanup": flag},
        *(
            {"type": kind}
            for kind in ("NFC", "NFKC", "NFD", "NFKD", "StripAccents", "Nmt", "Lowercase", "ByteFallback", "Fuse")
        ),
        *(
            {"type": kind}
            for kind in ("Whitespace", "WhitespaceSplit", "UnicodeScripts", "BertPreTokenizer", "NoSuchThing")
        ),
        {
            "type": "RobertaProcessing",
            "sep": ["</s>", 2],
            "cls": ["<s>", 2**20],
            "trim_offsets": flag,
            "add_prefix_space": flag,
        },
        {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", -1 if flag else 2]},
        state_of(draw.choice(sorted(KINDS)))[name],
    ]
    return draw.choice(pool)


PARTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "decoder": "decoders",
    "post_processor": "processors",
}


def another_component(draw: random.Random, state: Json) -> None:
    name = draw.choice(sorted(PARTS))
    state[name] = component(draw, name)


def several_components(draw: random.Random, state: Json) -> None:
    name = draw.choice(sorted(PARTS))
    own = [state[name]] if state[name] and draw.random() < 0.5 else []
    parts = [component(draw, name) for _ in range(draw.choice((1, 2, 3, 10)))]
    state[name] = several(PARTS[name], own + parts * draw.choice((1, 1, 1, 5, 500)))


def growing_component(draw: random.Random, state: Json) -> None:
    name = draw.choice(("normalizer", "decoder"))
    sign = draw.choice(["a", " ", "e", "▁", "é"])
    state[name] = several(PARTS[name], [replace(sign, sign * draw.choice((2, 3, 50)))] * draw.choice((1, 3, 9, 30)))


def nested_component(draw: random.Random, state: Json) -> None:
    name = draw.choice(sorted(PARTS))
    for _ in range(draw.choice((1, 3, 30, 200))):
        state[name] = several(PARTS[name], [state[name]])


def odd_value(draw: random.Random, state: Json) -> None:
    container, key = draw.choice(nodes(without_vocabulary(state)))
    value = draw.choice(VALUES)
    if container.keys() <= state["model"].keys() if isinstance(container, dict) else False:
        state["model"][key] = value
    elif isinstance(container, dict) and key in state and container.get(key) is state[key]:
        state[key] = value
    else:
        container[key] = value


def odd_regex(draw: random.Random, state: Json) -> None:
    patterns = [container for container, key in nodes(without_vocabulary(state)) if key == "pattern"]
    draw.choice(patterns)["pattern"] = {draw.choice(("Regex", "Regex", "String")): draw.choice(REGEXES)}


def lost_key(draw: random.Random, state: Json) -> None:
    container, key = draw.choice(nodes(without_vocabulary(state)))
    target = state if key in state and container.get(key) is state[key] else container
    if isinstance(container, dict) and container.keys() <= state["model"].keys():
        target = state["model"]
    del target[key]


def odd_vocabulary(draw: random.Random, state: Json) -> None:
    vocab = state["model"]["vocab"]
    if isinstance(vocab, list):
        index = draw.randrange(len(vocab))
        vocab[index] = draw.choice(
            [["", 0.0], [vocab[0][0], -1.0], ["a" * 100_000, -1.0], ["x", 1e308], ["x", -1e308], ["x"], None]
        )
        if draw.random() < 0.3:
            state["model"]["vocab"] = vocab[: draw.choice((0, 1, index))]
        return
    token = draw.choice(sorted(vocab))
    change = draw.randrange(6)
    if change == 0:
        del vocab[token]
    elif change == 1:
        vocab[token] = draw.choice([0, -1, 2**31, 2**32 - 1, 2**32, 339, 5_000, 1.5, "1", None])
    elif change == 2:
        vocab[""] = draw.choice([5, 338])
    elif change == 3:
        vocab[draw.choice(["a" * 50_000, "\0", "##", "▁" * 40, "\n\x1b[31m"])] = 337
    elif change == 4:
        state["model"]["vocab"] = dict(list(vocab.items())[: draw.choice((0, 1, 20))])
    else:
        for other in draw.sample(sorted(vocab), min(len(vocab), 40)):
            vocab[other] = vocab[token]


def odd_merges(draw: random.Random, state: Json) -> None:
    merges = state["model"]["merges"]
    change = draw.randrange(5)
    if change == 0:
        draw.shuffle(merges)
    elif change == 1:
        merges[draw.randrange(len(merges))] = draw.choice(
            ["a", ["a"], ["", ""], "no such", ["zz", "zz"], 5, None, "a b c"]
        )
    elif change == 2:
        state["model"]["merges"] = merges * draw.choice((2, 50))
    elif change == 3:
        merges += [["a", "a"], ["aa", "aa"]]
        state["model"]["vocab"] |= {"aa": 330, "aaaa": 331}
    else:
        state["model"]["merges"] = []


def odd_model(draw: random.Random, state: Json) -> None:
    model, other = state["model"], state_of(draw.choice(sorted(KINDS)))["model"]
    change = draw.randrange(5)
    if change == 0:
        state["model"] = other
    elif change == 1:
        model["type"] = other["type"]
    elif change == 2:
        model["unk_token"] = draw.choice([None, "", "no such", "a", "<unk>", "<s>", 5])
    elif change == 3:
        model["unk_id"] = draw.choice([None, 0, 5, 10**6, -1])
    else:
        odd: dict[str, Sequence[Any]] = {
            "dropout": [0.0, 0.5, 1.0, -1.0, 2.0],
            "byte_fallback": [True, False],
            "fuse_unk": [True, False],
            "ignore_merges": [True],
            "continuing_subword_prefix": TEXTS,
            "end_of_word_suffix": TEXTS,
            "max_input_chars_per_word": [0, 1, 10**9, 2**64],
        }
        key = draw.choice(sorted(odd))
        model[key] = draw.choice(odd[key])


def odd_added_tokens(draw: random.Random, state: Json) -> None:
    added = []
    for n in range(draw.choice((1, 1, 5, 30, 1000))):
        content = draw.choice(
            [*TEXTS, "a", "the", "猫", " a ", f"<{n}>", "A" * 300, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"]
        )
        flags = {key: draw.random() < 0.5 for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        number = draw.choice([n, 300 + n % 40, 0, 2**31, 339, 10**6])
        added.append({"id": number, "content": content, **flags})
    state["added_tokens"] = draw.choice([added, state["added_tokens"] + added])


def odd_template(draw: random.Random, state: Json) -> None:
    pieces = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": draw.choice([0, 1, 2**32])}}]
    pieces += [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("<s>", "</s>", "no such")]
    ids = draw.choice([[], [0], [1, 2], [339], [2**31], [-1], [1] * 50_000])
    special = {
        name: {"id": name, "ids": ids, "tokens": [name] * draw.choice([0, 1, len(ids)])} for name in ("<s>", "</s>")
    }
    single = [draw.choice(pieces) for _ in range(draw.choice((0, 1, 2, 3, 5_000)))]
    if draw.random() < 0.6:
        single.insert(draw.randrange(len(single) + 1), pieces[0])
    pair = draw.choice([[], [*single, *pieces[:2]], pieces[:2]])
    state["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def odd_cutting(draw: random.Random, state: Json) -> None:
    state["truncation"] = {
        "direction": "Right",
        "max_length": draw.choice([0, 1, 5, 2**63]),
        "strategy": "LongestFirst",
        "stride": draw.choice([0, 1, 9, 2**40]),
    }
    state["padding"] = draw.choice(
        [
            None,
            {
                "strategy": {"Fixed": draw.choice([1, 512, 2**24, 2**40])},
                "direction": "Right",
                "pad_to_multiple_of": draw.choice([None, 0, 3]),
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "[PAD]",
            },
        ]
    )


def flipped_charsmap(draw: random.Random, state: Json) -> None:
    parts = [c for c, key in nodes(without_vocabulary(state)) if key == "precompiled_charsmap"]
    part = draw.choice(parts)
    content = bytearray(base64.b64decode(part["precompiled_charsmap"]))
    for _ in range(draw.choice((1, 5, 50))):
        content[draw.randrange(min(len(content), draw.choice((8, 600, 10**6))))] = draw.randrange(256)
    part["precompiled_charsmap"] = base64.b64encode(
        content[: draw.choice((None, None, draw.randrange(len(content))))]
    ).decode()


def named(draw: random.Random, state: Json) -> Json:
    return NAMED[draw.choice(sorted(NAMED))]()


OF_TOKENIZERS: list[Callable[[random.Random, Json], Json | None]] = [
    another_component,
    several_components,
    growing_component,
    nested_component,
    odd_value,
    odd_value,
    odd_regex,
    lost_key,
    odd_vocabulary,
    odd_merges,
    odd_model,
    odd_added_tokens,
    odd_template,
    odd_cutting,
    flipped_charsmap,
    named,
]
