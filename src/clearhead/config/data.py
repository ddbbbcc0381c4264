"""Which text, and how it becomes tokens."""

from typing import Literal

from pydantic import Field

from clearhead.options import Options


class DataConfig(Options):
    """Which text, and how it becomes tokens."""

    source: str = Field("stories", description="a file, a folder, a .jsonl, '-' for standard input, or a corpus name")
    target: str | None = Field(None, description="the file of translations, line by line, where source holds one side")
    reverse: bool = Field(False, description="pairs: translate from the second language into the first")
    tokenizer: str = Field("auto", description="auto, char, bpe, or the path of a tokenizer.json")
    bpe_vocab_size: int = Field(4096, ge=257, description="number of tokens when a BPE is trained")
    vocabulary: Literal["joint", "separate"] = Field("joint", description="pairs: one vocabulary for both sides or two")
    bad_pairs: Literal["skip", "refuse"] = Field(
        "skip", description="pairs with an empty side or sides absurdly unequal: count and skip them, or stop"
    )
    mask_probability: float = Field(
        0.15, gt=0, lt=1, description="objective masked: share of the tokens to be filled in"
    )
    val_fraction: float = Field(0.1, gt=0, lt=1, description="share of the text, at its end, held out for validation")
    document_mask: bool = Field(False, description="no attention from one document to another in the same window")
