"""Whatever byte of a run or of the cache is damaged: noticed, repaired, or without effect."""

from pathlib import Path
from typing import Any

import pytest
from damage_law import PAIRS, Outcome, files_of, judge, make_run, use

OPTIONS: dict[str, dict[str, Any]] = {
    "characters": {},
    "pairs": {"data": {"vocabulary": "separate"}},
    "pieces": {
        "data": {"tokenizer": "bpe", "bpe_vocab_size": 270},
        "train": {"average_checkpoints": 2, "optimizer": "muon"},
    },
}


@pytest.fixture(scope="module", params=OPTIONS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A run that was interrupted, not to be changed, and what comes of it undamaged."""
    folder = tmp_path_factory.mktemp("base")
    make_run(folder, OPTIONS[request.param], pairs=request.param == "pairs")
    scratch = tmp_path_factory.mktemp("whole") / "copy"
    import shutil

    shutil.copytree(folder, scratch)
    reference = use(scratch)
    assert not reference.sentences, reference.sentences
    return folder, reference


def check(base: tuple[Path, Outcome], scratch: Path, seeds: range) -> None:
    folder, reference = base
    tally = judge(folder, scratch, seeds, reference)
    print(f"{len(seeds)} damages: {tally._replace(breaches=[])}, {len(tally.breaches)} breaches")
    assert not tally.breaches, "\n".join(tally.breaches)
    assert tally.refused, "nothing was noticed at all"


def test_every_kind_of_file_is_among_those_that_are_damaged(base: tuple[Path, Outcome]) -> None:
    names = {path.name for path in files_of(base[0])}
    assert {"clearhead.toml", "facts.json", "metrics.jsonl", "state.json"} <= names
    prepared = {"train.bin", "train.bin.blocks"}
    if (base[0] / PAIRS).exists():
        prepared = {"train.source.bin", "train.source.bin.blocks", "val.json", "source_tokenizer.json"}
    assert prepared <= names, names


@pytest.mark.sampled(1)
def test_damage_is_noticed_or_changes_nothing(base: tuple[Path, Outcome], tmp_path: Path) -> None:
    check(base, tmp_path, range(30))


@pytest.mark.campaign
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seeds", [range(1_000, 3_500), range(1_000_000, 1_002_500)], ids=["open", "locked"])
def test_thousands_of_damages_are_noticed_or_change_nothing(
    base: tuple[Path, Outcome], tmp_path: Path, seeds: range
) -> None:
    check(base, tmp_path, seeds)
