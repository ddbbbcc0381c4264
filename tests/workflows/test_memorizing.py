"""What a text has copied from a run's training text."""

from pathlib import Path

import pytest

from clearhead.errors import UsageError
from clearhead.workflows import Run, memorization, train


def test_a_passage_of_the_training_text_is_copied_and_others_are_not(finished: Run) -> None:
    training = Path("my.txt").read_text(encoding="utf-8")
    passage, other = training[100:180], training[100:180][::-1]
    copied = finished.memorization([other, other[:30] + passage])
    assert copied.text == 1
    assert passage in copied.span
    assert copied.copied[0] == 0
    assert copied.copied[1] >= len(passage) - 19
    assert finished.memorization(passage).share == 1
    assert memorization("run", passage, n=5).n_grams == (76,)


def test_a_translator_has_no_training_text(tmp_path: Path) -> None:
    Path("a.tsv").write_text("".join(f"{n} {n + 1}\t{n} und {n + 1}\n" for n in range(80)), encoding="utf-8")
    model = {"n_layers": 1, "n_heads": 2, "d_model": 16, "block_size": 32}
    train("a.tsv", out="pairs", options={"objective": "seq2seq", "model": model, "train": {"steps": 1}})
    with pytest.raises(UsageError, match="sentence pairs"):
        memorization("pairs", "1")
