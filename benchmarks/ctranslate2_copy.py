"""The same translator in CTranslate2, an engine for finished models; no dependency, so it has a folder of its own."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch

from clearhead import exchange
from clearhead.config import TranslationConfig
from clearhead.data import Tokenizer
from clearhead.models import EncoderDecoder

PACKAGE = "ctranslate2==4.8.5"
FOLDER = Path("build") / "ctranslate2"
Translate = Callable[[Sequence[str]], list[str]]


def install(folder: Path) -> None:
    """Put it alone into a folder; what it needs is here already."""
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), PACKAGE]
    subprocess.run(words, check=True)


def translator(model: EncoderDecoder, tokenizer: Tokenizer, how: TranslationConfig, precision: str) -> Translate:
    """Lines to lines, by CTranslate2 with the model's weights.

    Its converter reads the folder that transformers reads. Three words are put in by hand: where norms stand, which
    newer configurations do not say, the token that a translation begins with, and the one for unknown words.

    Raises:
        ImportError: it is not installed.
    """
    import ctranslate2  # type: ignore[import-not-found, unused-ignore]
    from ctranslate2.converters import TransformersConverter  # type: ignore[import-not-found, unused-ignore]

    end, start = tokenizer.end_of_document, model.config.first_token(tokenizer.end_of_document or 0)
    assert end is not None
    with tempfile.TemporaryDirectory() as name:
        folder, made = Path(name) / "transformers", Path(name) / "ctranslate2"
        exchange.save(folder, model, exchange.SpecialTokens(end=end, pad=tokenizer.pad))
        tokenizer.save(folder, append_end=True)
        _put(folder / "config.json", {"normalize_before": True, "normalize_embedding": False})
        library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        vocabulary = library.get_vocab()
        TransformersConverter(str(folder)).convert(str(made))
        ends = {"decoder_start_token": library.id_to_token(start), "unk_token": library.id_to_token(end)}
        _put(made / "config.json", ends)
        threads = torch.get_num_threads()
        engine = ctranslate2.Translator(
            str(made), device="cpu", compute_type=precision, inter_threads=1, intra_threads=threads
        )

    def translate(sentences: Sequence[str]) -> list[str]:
        sources = [encoding.tokens for encoding in library.encode_batch(list(sentences))]  # with their ends
        found = engine.translate_batch(
            sources,
            beam_size=how.beam,
            max_batch_size=how.batch_size,
            length_penalty=how.length_penalty,  # of length^alpha, where ours is of (5 + length)^alpha
        )
        ids = [[vocabulary[token] for token in result.hypotheses[0]] for result in found]
        texts: list[str] = library.decode_batch(ids)
        return texts

    return translate


def _put(path: Path, more: dict[str, Any]) -> None:
    known = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**known, **more}), encoding="utf-8")
