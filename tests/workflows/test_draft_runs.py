"""A smaller run that guesses for a larger one: the same text, and only with the same tokenizer."""

from pathlib import Path
from typing import Any

import pytest
from workflow_helpers import tiny, trained

from clearhead.errors import UsageError
from clearhead.workflows import generate, train

OPTIONS: dict[str, Any] = {"seed": 5, "max_new_tokens": 30}


def test_who_guesses_does_not_change_the_text() -> None:
    run = trained()
    trained("small", {"model": {"d_model": 8, "block_size": 12}})
    for options, drafts in ((OPTIONS, ["ngrams"]), (OPTIONS | {"greedy": True}, ["ngrams", "small"])):
        expected = generate(run, ["the", "a king"], **options)
        for draft in drafts:
            assert generate(run, ["the", "a king"], **options, draft=draft) == expected
    drawn = generate(run, "the", **OPTIONS, draft="small")
    assert drawn == generate(run, "the", **OPTIONS, draft="small")


def test_a_run_with_another_tokenizer_cannot_guess() -> None:
    run = trained()
    Path("other.txt").write_text("xyz " * 300, encoding="utf-8")
    train("other.txt", out="other", options=tiny(steps=1), check=False)
    with pytest.raises(
        UsageError, match=r"other is not that of run.*`options=\{'data\.tokenizer': 'run/tokenizer\.json'\}`"
    ):
        generate(run, "the", **OPTIONS, draft="other")
