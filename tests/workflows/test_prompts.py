"""What a model reads of a text, for every objective."""

from pathlib import Path

import pytest
from pair_helpers import tiny_translator, write_pairs
from workflow_helpers import some_text, tiny, trained

from clearhead.data import Tokenizer
from clearhead.errors import ClearheadError, UsageError
from clearhead.workflows import Run, train
from clearhead.workflows.predicting import speller
from clearhead.workflows.prompts import END, PART, START, read_prompt


@pytest.fixture(scope="module")
def translator(shared_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("translator")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return Run(folder / train(write_pairs(), out="run", options=tiny_translator()).folder)


def test_a_prompt_is_its_tokens_and_what_follows_them(finished: Run) -> None:
    text = some_text(12)
    prompt = read_prompt(finished, text)
    [ids] = prompt.inputs
    assert prompt.tokenizer.decode(ids[0].tolist()) == text == "".join(prompt.labels)
    assert prompt.following == [*ids[0, 1:].tolist(), None]
    assert prompt.model(*prompt.inputs).shape == (1, len(prompt.labels), prompt.model.config.vocab_size)


def test_of_a_long_text_the_last_tokens_are_read(finished: Run) -> None:
    notices: list[str] = []
    text = some_text(100)
    prompt = read_prompt(finished, text, on_notice=notices.append)
    assert len(prompt.labels) == finished.config.model.block_size == prompt.inputs[0].shape[1]
    assert text.endswith("".join(prompt.labels))
    assert len(notices) == 1


def test_masks_are_read_as_masks() -> None:
    options = tiny() | {"objective": "masked"}
    Path("my.txt").write_text(some_text(900), encoding="utf-8")
    prompt = read_prompt(trained("masked", options), "the [MASK] king")
    assert "[MASK]" in prompt.labels
    assert prompt.following.count(None) == 1
    assert prompt.labels[prompt.following.index(None)] == "[MASK]"


def test_a_translator_reads_a_source_and_its_own_translation_or_another(translator: Run) -> None:
    own = read_prompt(translator, "dog sees cat.")
    source, target = own.inputs
    assert own.source_labels is not None
    assert (len(own.source_labels), len(own.labels)) == (source.shape[1], target.shape[1])
    assert own.source_labels[-1] == END
    assert own.labels[0] == START
    other = read_prompt(translator, "dog sees cat.", "hund sieht katze.")
    assert "".join(other.labels[1:]) == "hund sieht katze."
    assert other.following == [*other.inputs[1][0, 1:].tolist(), other.tokenizer.end_of_document]
    long = read_prompt(translator, "dog", "hund " * 50)
    assert long.inputs[1].shape[1] == translator.config.model.block_size


def test_what_cannot_be_read_is_one_sentence(finished: Run, translator: Run) -> None:
    for run in (finished, translator):
        with pytest.raises(UsageError, match="no text to read"):
            read_prompt(run, "")
    with pytest.raises(UsageError, match="no translator"):
        read_prompt(finished, "the", "the")
    with pytest.raises(ClearheadError, match="'Ω'"):
        read_prompt(finished, "Ω")


def test_a_token_after_part_of_a_character_is_spelled_without_it() -> None:
    tokenizer = Tokenizer.train_bpe(iter(["the end, and the end"] * 3), 260, end=True)
    first, second, *_, last = tokenizer.encode("Üx").tolist()
    spell = speller(tokenizer)
    assert (spell(None, first), spell(first, second)) == (PART, "Ü")
    assert spell(second, last) == "x"
