"""What can be wrong with the files of a model folder: each function changes one of them."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile_values import VALUES, as_bytes, nodes


def damaged(draw: random.Random, content: bytes) -> bytes:
    """The bytes of a JSON file, cut, flipped, repeated, or no text at all."""
    change = draw.randrange(9)
    if change == 0:
        return content[: draw.randrange(len(content) + 1)]
    if change == 1:
        flipped = bytearray(content or b"{")
        for _ in range(draw.choice((1, 3, 30))):
            flipped[draw.randrange(len(flipped))] = draw.randrange(256)
        return bytes(flipped)
    if change == 2:
        index = draw.randrange(len(content) + 1)
        return (
            content[:index] + draw.choice([b"\xff", b"\xed\xa0\x80", b"\0", b"\xc0\x80", b"\\ud800"]) + content[index:]
        )
    if change == 3:
        return draw.choice([b"\xef\xbb\xbf", b"\xff\xfe", b" " * 100_000]) + content
    if change == 4:
        return b"[" * draw.choice((100, 100_000, 1_000_000))
    if change == 5:
        return b'{"a":' * draw.choice((100, 100_000))
    if change == 6:
        return b"{" + content.strip()[1:-1] + b"," + content.strip()[1:]  # every key twice
    if change == 7:
        return draw.choice(
            [b"", b"null", b"[]", b"{}", b"5", b'"a"', b"NaN", b"9" * 5000, b'{"a":' + b"9" * 5000 + b"}"]
        )
    return b'{"a":[' + b"{}," * draw.choice((1_000, 300_000, 10_000_000)) + b"{}]}"


BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")


def damaged_beside(draw: random.Random, files: dict[str, bytes | Path]) -> None:
    name = draw.choice(BESIDE)
    content = files.get(name, b'{"eos_token": "a", "pad_token": {"content": "b"}}')
    assert isinstance(content, bytes)
    files[name] = damaged(draw, content)


def odd_names_of_tokens(draw: random.Random, files: dict[str, bytes | Path]) -> None:
    settings = {
        key: draw.choice([*VALUES, {"content": draw.choice(VALUES)}])
        for key in ("eos_token", "pad_token", "mask_token")
    }
    files[draw.choice(BESIDE[:2])] = as_bytes(settings)


def odd_ids(draw: random.Random, files: dict[str, bytes | Path]) -> None:
    keys = ("eos_token_id", "pad_token_id", "bos_token_id")
    odd = [*VALUES, [], [1, 2], [[1]], 339, 340, [2**70], "1", {"a": 1}]
    files["generation_config.json"] = as_bytes({key: draw.choice(odd) for key in keys})


def odd_config(draw: random.Random, files: dict[str, bytes | Path]) -> None:
    content = files["config.json"]
    assert isinstance(content, bytes)
    settings = json.loads(content)
    for _ in range(draw.choice((1, 1, 2))):
        container, key = draw.choice(nodes(settings))
        if draw.random() < 0.15:
            del container[key]
        else:
            container[key] = draw.choice(
                [*VALUES, 3, 7, 16, 4096, 2**20, 10**4200, float("inf"), float("nan"), "gpt2", "llama", "t5"]
            )
    files["config.json"] = as_bytes(settings)


def odd_header(draw: random.Random, files: dict[str, bytes | Path]) -> None:
    content = files["model.safetensors"]
    assert isinstance(content, bytes)
    size = int.from_bytes(content[:8], "little")
    header, rest = json.loads(content[8 : 8 + size]), content[8 + size :]
    if draw.random() < 0.5:
        container, key = draw.choice(nodes(header))
        container[key] = draw.choice([*VALUES, "F16", "BF16", "I8", [340], [340, 16], [0], [0, 0], [2**40], 10**4200])
        new = as_bytes(header)
    else:
        new = damaged(draw, content[8 : 8 + size])[: 1 << 23]
    files["model.safetensors"] = len(new).to_bytes(8, "little") + new + rest


def damaged_weights(draw: random.Random, files: dict[str, bytes | Path]) -> None:
    content = files["model.safetensors"]
    assert isinstance(content, bytes)
    flipped = bytearray(content[: draw.choice((len(content), len(content), draw.randrange(len(content))))])
    for _ in range(draw.choice((1, 20))):
        if flipped:
            flipped[draw.randrange(len(flipped))] = draw.randrange(256)
    files["model.safetensors"] = bytes(flipped)


def odd_index(draw: random.Random, files: dict[str, bytes | Path]) -> None:
    weights = files.pop("model.safetensors")
    names = [
        "a.safetensors",
        "b" * 5_000 + ".safetensors",
        "../a.safetensors",
        "\0.safetensors",
        "a.bin",
        "",
        "é\ud800.safetensors",
        "tokenizer.json",
    ]
    files["a.safetensors"] = weights
    assert isinstance(weights, bytes)
    size = int.from_bytes(weights[:8], "little")
    tensors = [name for name in json.loads(weights[8 : 8 + size]) if name != "__metadata__"]
    weight_map: Any = dict.fromkeys(tensors, "a.safetensors")
    for name in draw.sample(tensors, draw.choice((0, 1, 3))):
        weight_map[name] = draw.choice([*names, *VALUES])
    weight_map = draw.choice(
        [{"weight_map": weight_map}, {"weight_map": weight_map}, weight_map, {"weight_map": draw.choice(VALUES)}]
    )
    content = json.dumps(weight_map).encode()
    files["model.safetensors.index.json"] = damaged(draw, content) if draw.random() < 0.3 else content


def odd_links(draw: random.Random, files: dict[str, bytes | Path]) -> None:
    name = draw.choice([*BESIDE, "tokenizer.json", "model.safetensors", "model.safetensors.index.json"])
    files[name] = Path(
        draw.choice([name, "/dev/zero", "/etc/passwd", "nowhere", ".", "../base/config.json", "/dev/tty"])
    )


OF_FILES: list[Callable[[random.Random, dict[str, bytes | Path]], None]] = [
    damaged_beside,
    damaged_beside,
    odd_names_of_tokens,
    odd_ids,
    odd_config,
    odd_config,
    odd_header,
    odd_header,
    damaged_weights,
    odd_index,
    odd_links,
]
