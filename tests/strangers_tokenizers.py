"""Small tokenizers of the kinds that published models come with, and a model folder for them to lie in."""

import base64
import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from clearhead.config import ModelConfig
from clearhead.data import Tokenizer
from clearhead.interop import SpecialTokens, save
from clearhead.models import build_model

Json = dict[str, Any]

TEXT = "The cat's on the 4 mats, the dogs are not; été was warm.\nA king goes home and says: hello, world! " * 8
VOCAB_SIZE = 340
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CONFIG = ModelConfig(
    vocab_size=VOCAB_SIZE, block_size=32, n_layers=1, n_heads=2, d_model=16,
    norm="rmsnorm", feedforward="swiglu", positions="rope",
)  # fmt: skip


def charsmap(table: dict[str, str]) -> str:
    """SentencePiece's compiled rules of normalization: a double array of bytes, then the texts that it leads to."""
    units, texts = [0] * 256, b""
    for source, target in table.items():
        at, base = 0, 0
        for n, byte in enumerate(source.encode(), start=1):
            at = base + byte
            if not units[at]:
                units[at] = (at ^ len(units)) << 10 | byte
                units += [0] * 256
            base = at ^ units[at] >> 10
            if n == len(source.encode()):
                units[at] |= 1 << 8
                units[base] = len(texts)
        texts += target.encode() + b"\0"
    trie = struct.pack(f"<{len(units)}I", *units)
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + texts).decode()


RULES = charsmap({"\t": " ", "\n": " ", "\u00a0": " ", "ﬁ": "fi", "\uff21": "A", "…": "...", "\u200b": ""})


def _trained(library: tokenizers.Tokenizer, trainer: Any) -> tokenizers.Tokenizer:
    library.train_from_iterator([TEXT], trainer)
    return library


def gpt2() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return _trained(
        library,
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
        ),
    )


def roberta() -> tokenizers.Tokenizer:
    library = gpt2()
    library.add_special_tokens(["<s>", "</s>", "<pad>"])
    ids = library.get_vocab()
    library.post_processor = processors.RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]))
    return library


def llama3() -> tokenizers.Tokenizer:
    library = gpt2()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.add_special_tokens(["<|begin_of_text|>"])
    begin = ("<|begin_of_text|>", library.token_to_id("<|begin_of_text|>"))
    frame = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1", special_tokens=[begin]
    )
    library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), frame])
    return library


def _with_bytes(trained: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """SentencePiece's BPE in Hugging Face's words: 256 tokens of bytes beside the pieces."""
    state = json.loads(trained.to_str())
    bytes_ = [f"<0x{n:02X}>" for n in range(256)]
    pieces = list(state["model"]["vocab"])
    vocab = {token: n for n, token in enumerate(["<unk>", "<s>", "</s>", *bytes_, *pieces])}
    state["model"] |= {"vocab": vocab, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    library = tokenizers.Tokenizer.from_str(json.dumps(state))
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return library


def llama2() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library = _with_bytes(_trained(library, trainers.BpeTrainer(vocab_size=70, show_progress=False)))
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return library


def gemma() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.normalizer = normalizers.Replace(" ", "▁")
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    library = _with_bytes(_trained(library, trainers.BpeTrainer(vocab_size=70, show_progress=False)))
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    library.add_tokens(["\n\n", "<blank>"])
    return library


def t5() -> tokenizers.Tokenizer:
    state = json.loads(
        tokenizers.Tokenizer(models.Unigram([("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)], 2)).to_str()
    )
    letters = sorted(set(TEXT) - {" ", "\n"})
    pieces = [*letters, "▁", "▁the", "▁cat", "s", "▁king"]
    state["model"]["vocab"] += [[piece, -2.0 - n / 10] for n, piece in enumerate(dict.fromkeys(pieces))]
    state["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": RULES}
    library = tokenizers.Tokenizer.from_str(json.dumps(state))
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    library.decoder = decoders.Metaspace()
    library.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_id_0>"])
    library.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return library


def pegasus() -> tokenizers.Tokenizer:
    state = json.loads(t5().to_str())
    state["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            state["normalizer"],
            {"type": "Replace", "pattern": {"Regex": "\n"}, "content": " "},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ],
    }
    state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def bert() -> tokenizers.Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = sorted(set(TEXT.lower().replace("é", "e")) - {" ", "\n"})
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), "the", "cat", "##ing", "##s"]
    library = tokenizers.Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    library.add_special_tokens(special)
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return library


def own_characters() -> tokenizers.Tokenizer:
    return Tokenizer.characters(TEXT, end=True, pad=True)._library


def own_bpe() -> tokenizers.Tokenizer:
    return Tokenizer.train_bpe(iter([TEXT]), 300, end=True, sentences=True)._library


KINDS = {
    make.__name__: make for make in (gpt2, roberta, llama3, llama2, gemma, t5, pegasus, bert, own_characters, own_bpe)
}


@cache
def _text_of(kind: str) -> str:
    return KINDS[kind]().to_str()


def state_of(kind: str) -> Json:
    """The kind's tokenizer.json."""
    state: Json = json.loads(_text_of(kind))
    return state


def model_folder(folder: Path) -> Path:
    """A small Llama, without a tokenizer."""
    save(folder, build_model(CONFIG, seed=3), SpecialTokens(end=2))
    return folder
