"""The table of docs/families.md: every family, both ways, measured against transformers.

    python tests/interop/family_table.py [--keep]

Random tiny models, three of each family and direction, none of their weights as a constructor left it. Out: ours is
saved, plain transformers opens the folder. In: transformers builds the model and saves it, ours reads the folder. Both
then answer the same inputs (a batch, one token, the full window, rows padded on either side), write greedily with their
own caches, and cut the same text into tokens.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from family_models import SEEDS, random_config, random_foreign, random_model, save_as
from safetensors.torch import load_file

from clearhead.config import ModelConfig
from clearhead.data import Tokenizer, stories
from clearhead.interop import (
    FAMILIES,
    Link,
    OwnPeer,
    SpecialTokens,
    links,
    load,
    open_transformers,
    read_config,
    to_foreign,
)
from clearhead.interop.hf.key_map import names_in_file
from clearhead.workflows.certificate import Certificate, PeerComparison

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
TOKENIZER = Tokenizer.characters(stories.text(20_000, 1), end=True, pad=True, mask=True)
END = TOKENIZER.end_of_document or 0

ABOUT = """# Model families

Clearhead reads and writes these families. Each has one table in `src/clearhead/interop/hf/families` that works in both
directions: `clearhead import` turns a folder of that family into a run, and a run whose architecture fits is such a
folder. This command measures the figures below:

    python tests/interop/family_table.py --keep

It uses three random tiny models per line, in float32, with {versions}.

- *Direction*: `out`, transformers opens what Clearhead wrote; `in`, Clearhead opens what transformers wrote.
- *Largest difference*: of any logit, over a batch, a single token, the full window, and rows padded on the side that
  the architecture expects.
- *Largest logit*: for scale.
- *Round trip*: whether the weights come back with the same bits.
- *Greedy*: tokens that both programs generated with their own caches, and whether all are equal.
- *Tokenizer*: characters of text that both programs tokenized, and whether all ids are equal.

| family | direction | largest difference | largest logit | round trip | greedy | tokenizer |
|---|---|---|---|---|---|---|
"""

BELOW = """
With Qwen2's `model_type`, `AutoTokenizer` of transformers 5 splits text by Qwen2's own rules, whatever the folder's
`tokenizer.json` says. `PreTrainedTokenizerFast.from_pretrained(run)` follows the file.

A T5 has no maximum length, so `block_size` is its `n_positions`, or 512. Clearhead cannot read rotary scaling, Phi
(which shares one norm between two parts) or pickles.
"""


class Measured(NamedTuple):
    """One model of one family in one direction."""

    certificate: Certificate
    largest: float
    same_bits: bool


def fitting_config(name: str, seed: int) -> ModelConfig:
    """A random model of the family that speaks the tokenizer's vocabulary."""
    config = random_config(name, seed)
    pad = None if config.pad_id is None else TOKENIZER.pad
    start = None if config.decoder_start_id is None else TOKENIZER.pad
    special = {"vocab_size": TOKENIZER.vocab_size, "pad_id": pad, "decoder_start_id": start}
    special["n_encoder_layers"] = config.n_layers  # with fewer, transformers' cache of T5 has no room for the decoder
    return ModelConfig.read(config.model_dump(), special)


def out(name: str, seed: int, folder: Path) -> Measured:
    """Ours is saved, theirs is what opens it."""
    config = fitting_config(name, seed)
    model = random_model(config, seed)
    save_as(name, folder / "out", model, SpecialTokens(END, TOKENIZER.pad))
    save_as(name, folder / "again", load(folder / "out"), SpecialTokens(END, TOKENIZER.pad))
    first, second = ((folder / subfolder / "model.safetensors").read_bytes() for subfolder in ("out", "again"))
    return measured(OwnPeer(model, start=config.first_token(END)), config, folder / "out", first == second)


def back(name: str, seed: int, folder: Path) -> Measured:
    """Theirs is saved, ours is what reads it."""
    foreign = random_foreign(name, fitting_config(name, seed), end=END)
    foreign.save_pretrained(folder)
    family, config = read_config(folder)
    model = load(folder)
    tensors, state, table = load_file(folder / "model.safetensors"), model.state_dict(), links(family, config)
    names = names_in_file(family, table, tensors)

    def has_same_bits(link: Link) -> bool:
        """But for rows that nobody reads."""
        ours, foreign_tensor = to_foreign(link, state), tensors[names[link.foreign]]
        return torch.equal(ours[link.unread_rows :], foreign_tensor[link.unread_rows :])

    same = all(has_same_bits(link) for link in table if link.foreign in names)
    return measured(OwnPeer(model, start=config.first_token(END)), config, folder, same)


def measured(ours: OwnPeer, config: ModelConfig, folder: Path, same_bits: bool) -> Measured:
    """Both sides, compared as every export is."""
    TOKENIZER.save(folder)
    comparison = PeerComparison(ours, open_transformers(folder), config, TOKENIZER, config.first_token(END))
    largest = max(ours.logits(*arguments).abs().max().item() for arguments in comparison.inputs().values())
    return Measured(comparison.certificate("hf"), largest, same_bits)


DIRECTIONS: dict[str, Callable[[str, int, Path], Measured]] = {"out": out, "in": back}


def rows() -> Iterator[str]:
    """The lines of the table."""
    for name in FAMILIES:
        for direction, measure in DIRECTIONS.items():
            measurements = []
            for seed in SEEDS:
                with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                    measurements.append(measure(name, seed, Path(folder)))
            yield line(name, direction, measurements)


def line(name: str, direction: str, measurements: list[Measured]) -> str:
    """One of them."""
    certificates = [measurement.certificate for measurement in measurements]
    difference = max(max(certificate.differences.values()) for certificate in certificates)
    n_greedy = sum(certificate.greedy_tokens for certificate in certificates)
    greedy = count_equal([certificate.greedy_equal for certificate in certificates], n_greedy)
    n_characters = sum(certificate.tokenizer_characters for certificate in certificates)
    tokenizer = count_equal([certificate.tokenizer_equal for certificate in certificates], n_characters)
    bits = "same bits" if all(measurement.same_bits for measurement in measurements) else "NOT the same bits"
    largest = max(measurement.largest for measurement in measurements)
    return f"| {name} | {direction} | {difference:.1e} | {largest:.1f} | {bits} | {greedy} | {tokenizer} |"


def count_equal(equal: list[bool | None], count: int) -> str:
    """Whether all are, and how many were compared; of an encoder there is no greedy text."""
    if equal[0] is None:
        return "none"
    return f"{count:,} equal" if all(equal) else "DIFFERENT"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    import transformers

    page = ABOUT.format(versions=f"transformers {transformers.__version__}, torch {torch.__version__}")
    for row in rows():
        print(row, flush=True)
        page += row + "\n"
    if options.keep:
        PAGE.write_text(page + BELOW, encoding="utf-8")


if __name__ == "__main__":
    main()
