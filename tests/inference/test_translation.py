"""Sentences in, sentences out: order, blanks, too long ones, unseen characters."""

from typing import Any

import pytest
from small_translators import random_translator

from clearhead.config import TranslationConfig
from clearhead.data import Tokenizer, UnseenCharacterError
from clearhead.errors import DataError
from clearhead.inference import translation_backend
from clearhead.inference.beam import beam_search
from clearhead.inference.translation import Translation, translate
from clearhead.models import EncoderDecoder

SOURCE = Tokenizer.characters(" abcdef", end=True)
TARGET = Tokenizer.characters("#$ uvwxyz", end=True)  # '#' is the model's padding, id 0, and is never written
SENTENCES = ["abc", "", "f", "fed cab fed cab", " \t", "aa bb", "c"]
CONFIG = TranslationConfig(beam_size=2, max_new_tokens=8)


def make_model(**options: Any) -> EncoderDecoder:
    return random_translator(TARGET.vocab_size, source_vocab_size=SOURCE.vocab_size, **options)


def translated(model: EncoderDecoder, sentences: list[str], config: TranslationConfig) -> list[list[Translation]]:
    return translate(model, SOURCE, TARGET, sentences, config)


def test_each_sentence_gets_the_search_of_its_own_ids() -> None:
    model, end, source_end = make_model(), TARGET.end_of_document, SOURCE.end_of_document
    assert end is not None
    assert source_end is not None
    config = TranslationConfig(beam_size=3, n_best=3, max_new_tokens=8)
    for sentence, translations in zip(SENTENCES, translated(model, SENTENCES, config), strict=True):
        if not sentence.strip():
            assert translations == [Translation("", 0.0, [], [])]
            continue
        ids = [*SOURCE.encode(sentence).tolist(), source_end]
        [expected] = beam_search(model, [ids], config, end=end)
        assert [t.target_ids for t in translations] == [h.ids for h in expected]
        assert [t.score for t in translations] == pytest.approx([h.score for h in expected])
        assert [t.text for t in translations] == [TARGET.decode(h.ids) for h in expected]
        assert all(t.source_ids == ids for t in translations)
    assert len({translations[0].text for translations in translated(model, SENTENCES, CONFIG)}) > 3, (
        "else an exchange would not show"
    )


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
def test_the_size_of_a_batch_changes_no_translation(batch_size: int) -> None:
    model, progress = make_model(), list[tuple[int, int]]()
    config = CONFIG.model_copy(update={"batch_size": batch_size})
    expected = translated(model, SENTENCES, CONFIG)
    translations = translate(model, SOURCE, TARGET, SENTENCES, config, on_progress=lambda *now: progress.append(now))
    assert [[t.text for t in some] for some in translations] == [[t.text for t in some] for some in expected]
    assert len(progress) == -(-5 // batch_size)
    assert progress[-1] == (len(SENTENCES), len(SENTENCES))
    assert sorted(progress) == progress


def test_like_lengths_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[list[int]] = []

    def look(model: EncoderDecoder, sources: list[list[int]], config: TranslationConfig, **options: Any) -> object:
        widths.append([len(source) for source in sources])
        return beam_search(model, sources, config, **options)

    monkeypatch.setattr(translation_backend, "beam_search", look)
    translated(make_model(), SENTENCES, CONFIG.model_copy(update={"batch_size": 2}))
    assert widths == [[16, 6], [4, 2], [2]]


def test_blank_sentences_do_not_ask_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setattr(model, "encode", None)
    assert translated(model, ["", "  ", "\t\n"], CONFIG) == [[Translation("", 0.0, [], [])]] * 3
    assert translated(model, [], CONFIG) == []


def test_a_sentence_that_is_too_long_is_cut_with_one_notice() -> None:
    model, notices, end = make_model(block_size=6, positions="learned"), list[str](), SOURCE.end_of_document
    sentences = ["abc", "abcde", "abcdef", "", "fedcba" * 9]
    translations = translate(model, SOURCE, TARGET, sentences, CONFIG, on_notice=notices.append)
    [notice] = notices
    assert "2 lines" in notice
    assert "the first is 3," in notice
    assert "block_size of 6" in notice
    assert translations[1][0].source_ids == [*SOURCE.encode("abcde").tolist(), end]
    assert translations[2] == [translations[1][0]]
    assert translations[4][0].source_ids == [*SOURCE.encode("fedcb").tolist(), end]
    notices.clear()
    translate(model, SOURCE, TARGET, ["a", "abcdef"], CONFIG, on_notice=notices.append)
    assert notices[0].startswith("line 2 has more tokens")
    notices.clear()
    translate(model, SOURCE, TARGET, ["abcde"], CONFIG, on_notice=notices.append)
    assert not notices


def test_an_unseen_character_is_named_with_its_line() -> None:
    with pytest.raises(UnseenCharacterError, match=r"'ß' \(U\+00DF\) at line 3, column 2;") as caught:
        translated(make_model(), ["abc", "", "aß"], CONFIG)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_tokenizer_without_an_end_is_refused(side: str) -> None:
    endless = Tokenizer.characters("abc")
    source, target = (endless, TARGET) if side == "source" else (SOURCE, endless)
    with pytest.raises(DataError, match="no token that ends a text"):
        translate(make_model(), source, target, ["abc"], CONFIG)
