"""Attention and probabilities of runs: every objective has the tokens that its model reads."""

import math
from pathlib import Path

import numpy as np
import pytest
from pair_helpers import tiny_translator, write_pairs
from workflow_helpers import some_text, tiny, trained

from clearhead.errors import ClearheadError, UsageError
from clearhead.workflows import Run, attend, train
from clearhead.workflows.predicting import speller
from clearhead.workflows.prompts import END, START

SOURCE, TARGET = "dog sees cat.", "hund sieht katze."


@pytest.fixture(scope="module")
def translator(shared_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("translator")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return Run(folder / train(write_pairs(), out="run", options=tiny_translator()).folder)


def test_each_attention_of_a_translator_is_shown_between_its_own_tokens(translator: Run) -> None:
    cross = translator.attend(SOURCE, target=TARGET)
    assert cross.kind == "cross"
    assert (cross.queries[0], cross.keys[-1]) == (START, END)
    assert ("".join(cross.queries[1:]), "".join(cross.keys[:-1])) == (TARGET, SOURCE)
    assert cross.weights.shape[2:] == (len(cross.queries), len(cross.keys))
    own = translator.attend(SOURCE, target=TARGET, of="self")
    assert own.queries == own.keys == cross.queries
    encoder = translator.attend(SOURCE, target=TARGET, of="encoder")
    assert encoder.queries == encoder.keys == cross.keys
    for view in (own, encoder):
        assert view.weights.shape[2:] == view.allowed.shape == (len(view.queries),) * 2


def test_the_probabilities_of_a_translation_are_those_of_its_tokens(translator: Run) -> None:
    prediction = translator.predict(SOURCE, target=TARGET, top_k=3, lens=True)
    assert prediction.objective == "seq2seq"
    assert [position.following for position in prediction.positions][-1] == END
    assert "".join(position.following or "" for position in prediction.positions[:-1]) == TARGET
    assert prediction.lens is not None
    assert prediction.positions[0].top[0].token == prediction.lens.rows[-1][0].token
    assert translator.predict(SOURCE).positions, "its own translation"


def test_a_masked_model_is_asked_for_what_is_masked() -> None:
    Path("my.txt").write_text(some_text(900), encoding="utf-8")
    run = trained("masked", tiny() | {"objective": "masked"})
    prediction = run.predict("the [MASK] king", top_k=4)
    [masked] = [position for position in prediction.positions if position.following is None]
    assert masked.token == "[MASK]"
    assert len(masked.top) == 4
    known = [position for position in prediction.positions if position.following is not None]
    assert all(position.following == position.token for position in known)
    view = run.attend("the [MASK] king")
    assert view.allowed.all()
    assert "[MASK]" in view.keys


def test_the_loss_of_a_text_is_the_mean_over_its_tokens(finished: Run) -> None:
    prediction = finished.predict(some_text(12))
    nats = [position.nats for position in prediction.positions if position.nats is not None]
    assert len(nats) == len(prediction.positions) - 1
    assert prediction.loss == pytest.approx(sum(nats) / len(nats))
    for position in prediction.positions:
        assert math.fsum(share for _, share in position.top) <= 1 + 1e-5


def test_a_long_text_is_cut_with_a_sentence_and_mistakes_are_sentences(finished: Run, translator: Run) -> None:
    notices: list[str] = []
    view = attend(finished, some_text(100), layer=0, head=0, on_notice=notices.append)
    assert len(notices) == 1
    np.testing.assert_allclose(view.matrix.sum(-1), 1, atol=1e-5)
    for look in (finished.attend, finished.predict, translator.attend, translator.predict):
        with pytest.raises(UsageError, match="no text to read"):
            look("")
    for run in (finished, translator):
        with pytest.raises(UsageError, match=r"^`of` must be self, cross or encoder, not 'decoder'$"):
            run.attend("the", of="decoder")  # type: ignore[arg-type]
    with pytest.raises(ClearheadError, match="did you mean `layer`"):
        finished.attend("the", layers=1)  # type: ignore[call-arg]


def test_a_token_that_the_tokenizer_does_not_have_is_a_number(finished: Run) -> None:
    tokenizer = finished.tokenizer
    spell = speller(tokenizer)
    assert spell(None, tokenizer.vocab_size) == f"⟨{tokenizer.vocab_size}⟩"
    [first, second, *_] = list(map(int, tokenizer.encode(some_text(12))))
    assert spell(first, second) == tokenizer.decode([first, second])[len(tokenizer.decode([first])) :]
