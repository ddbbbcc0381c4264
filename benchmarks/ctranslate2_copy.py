"""The same translator in CTranslate2 alone, as who has nothing else would call it."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from clearhead.config import TranslationConfig
from clearhead.data import Tokenizer
from clearhead.interop.ctranslate2 import save_ctranslate2, to_ctranslate2
from clearhead.models import EncoderDecoder

PACKAGE = "ctranslate2==4.8.5"
FOLDER = Path("build") / "ctranslate2"
Translate = Callable[[Sequence[str]], list[str]]


def install(folder: Path) -> None:
    """Put it alone into a folder; what it needs is here already."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), PACKAGE]
    subprocess.run(command, check=True)


def translator(model: EncoderDecoder, tokenizer: Tokenizer, how: TranslationConfig, precision: str) -> Translate:
    """Lines to lines; it sorts and batches by itself, and its length penalty is of length^alpha.

    Raises:
        ImportError: it is not installed.
    """
    import ctranslate2

    end = tokenizer.end_of_document
    assert end is not None
    with tempfile.TemporaryDirectory() as folder:
        save_ctranslate2(Path(folder), model, end=end)
        engine = ctranslate2.Translator(
            folder, device="cpu", compute_type=precision, inter_threads=1, intra_threads=torch.get_num_threads()
        )

    def translate(sentences: Sequence[str]) -> list[str]:
        sources = [to_ctranslate2([*map(int, tokenizer.encode(sentence)), end]) for sentence in sentences]
        results = engine.translate_batch(
            sources, beam_size=how.beam_size, max_batch_size=how.batch_size, length_penalty=how.length_penalty
        )
        return [tokenizer.decode([int(word) for word in result.hypotheses[0]]) for result in results]

    return translate
