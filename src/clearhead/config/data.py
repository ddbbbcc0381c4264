"""Which text, and how it becomes tokens."""

from typing import Literal

from pydantic import Field

from clearhead.options import Options


class DataConfig(Options):
    """Which text, and how it becomes tokens."""

    source: str = Field(
        "stories",
        description="a file, a folder or a pattern such as 'texts/*.jsonl.gz', - for standard input, or a corpus name",
    )
    text_column: str = Field("text", description="the key of a .jsonl or the column of a .parquet that holds the text")
    corpus_characters: int | None = Field(
        None,
        ge=10_000,
        le=1_000_000_000,
        description="stories: how many characters to make (default: as many as the minutes can use, else a million)",
    )
    target: str | None = Field(
        None, description="sentence pairs: the file of translations, aligned line by line with source"
    )
    reverse: bool = Field(False, description="sentence pairs: translate the second column into the first")
    tokenizer: str = Field("auto", description="auto, char, bpe, or the path of a tokenizer.json")
    bpe_vocab_size: int | None = Field(
        None, ge=257, description="vocabulary size of a newly trained BPE (default: by the length of the text)"
    )
    vocabulary: Literal["joint", "separate"] = Field(
        "joint", description="sentence pairs: share one vocabulary, or train one per language"
    )
    bad_pairs: Literal["skip", "refuse"] = Field(
        "skip",
        description="sentence pairs with an empty side or wildly different lengths: skip and count them, or stop",
    )
    mask_probability: float = Field(0.15, gt=0, lt=1, description="objective masked: fraction of tokens to predict")
    val_fraction: float = Field(0.1, gt=0, lt=1, description="fraction held out for validation; of a text, its end")
    document_mask: bool = Field(False, description="block attention between documents that share a window")
