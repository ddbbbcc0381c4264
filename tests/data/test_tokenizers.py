import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from clearhead.data import Tokenizer, UnseenCharacterError
from clearhead.errors import DataError

END = "<|endoftext|>"
CORPUS = "  The cat's\t4 mats,\r\n\r\nthe   dog's mat -- été, 猫は猫。\n<|endoftext|> 🦜🦜 \n" * 5
ALPHABET = "".join(sorted(set(CORPUS)))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
corpus_texts = st.one_of(
    st.text(st.sampled_from(ALPHABET), max_size=60),
    st.lists(st.sampled_from([END, " ", "\n", "the", "'s"])).map("".join),
)


def characters(end: bool = True) -> Tokenizer:
    return Tokenizer.characters(CORPUS, end=end)


def bpe(end: bool = True) -> Tokenizer:
    return Tokenizer.train_bpe(iter([CORPUS]), 300, end=end)


CHARACTERS, BPE = characters(), bpe()


@given(corpus_texts)
def test_characters_come_back(text: str) -> None:
    ids = CHARACTERS.encode(text)
    assert ids.dtype == np.int64
    assert len(ids) == len(text)
    assert CHARACTERS.decode(ids) == text


@given(st.one_of(texts, corpus_texts))
def test_bytes_of_any_text_come_back(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text


@given(corpus_texts)
def test_no_text_becomes_a_special_token(text: str) -> None:
    for tokenizer in (CHARACTERS, BPE):
        assert tokenizer.end_of_document is not None
        assert tokenizer.end_of_document not in tokenizer.encode(text + END + text)


@given(corpus_texts)
def test_the_table_says_what_the_library_says(text: str) -> None:
    library = tokenizers.Tokenizer.from_str(CHARACTERS._library.to_str())
    library.encode_special_tokens = True
    assert CHARACTERS.encode(text).tolist() == library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("make", [characters, bpe])
def test_a_batch_is_its_texts_one_by_one(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    rows = tokenizer.encode_batch(["", "the cat", " \n "])
    assert [row.tolist() for row in rows] == [tokenizer.encode(text).tolist() for text in ("", "the cat", " \n ")]


@pytest.mark.parametrize("make", [characters, bpe])
@pytest.mark.parametrize("end", [True, False])
def test_a_saved_tokenizer_comes_back(make: Callable[[bool], Tokenizer], end: bool, tmp_path: Path) -> None:
    tokenizer = make(end)
    tokenizer.save(tmp_path)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = Tokenizer.load(path)
        assert loaded.fingerprint == tokenizer.fingerprint
        assert loaded.end_of_document == tokenizer.end_of_document
        assert loaded.vocab_size == tokenizer.vocab_size
        assert loaded.is_character_level == tokenizer.is_character_level
        assert loaded.encode(CORPUS).tolist() == tokenizer.encode(CORPUS).tolist()


def test_fingerprints_tell_tokenizers_apart() -> None:
    built = [characters(), characters(end=False), bpe(), bpe(end=False), Tokenizer.characters(CORPUS + "z", end=True)]
    assert len({tokenizer.fingerprint for tokenizer in built}) == len(built)
    assert characters().fingerprint == CHARACTERS.fingerprint
    assert bpe().fingerprint == BPE.fingerprint


@pytest.mark.parametrize("tokenizer", [CHARACTERS, BPE])
@pytest.mark.parametrize("model_type", [None, "gpt2", "llama"])
def test_transformers_does_the_same_with_the_saved_files(
    tokenizer: Tokenizer, model_type: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)

    @given(corpus_texts)
    @settings(max_examples=30)
    def same(text: str) -> None:
        ids = tokenizer.encode(text).tolist()
        assert loaded(text)["input_ids"] == ids
        assert loaded.decode(ids) == text

    same()
    assert loaded(CORPUS)["input_ids"] == tokenizer.encode(CORPUS).tolist()
    assert loaded.decode(tokenizer.encode(CORPUS)) == CORPUS
    assert loaded.eos_token_id == tokenizer.end_of_document
    assert len(loaded) == tokenizer.vocab_size


def test_characters_are_exactly_the_distinct_ones() -> None:
    assert characters(end=False).vocab_size == len(ALPHABET)
    assert characters(end=False).end_of_document is None
    assert characters().vocab_size == len(ALPHABET) + 1


@given(
    st.text(st.sampled_from(ALPHABET), max_size=30),
    st.characters(exclude_characters=ALPHABET),
    st.text(st.sampled_from(ALPHABET), max_size=30),
)
def test_an_unseen_character_is_named_with_its_place(before: str, unseen: str, after: str) -> None:
    with pytest.raises(UnseenCharacterError) as error:
        CHARACTERS.encode(before + unseen + after)
    assert error.value.character == unseen
    assert error.value.offset == len(before)
    line, column = before.count("\n") + 1, len(before.split("\n")[-1]) + 1
    assert f"{unseen!r} (U+{ord(unseen):04X}) at line {line}, column {column}" in str(error.value)


def test_a_lone_surrogate_is_a_sentence_not_a_type_error() -> None:
    for tokenizer in (CHARACTERS, BPE):
        with pytest.raises(UnseenCharacterError, match=r"U\+D800\) at line 2, column 3"):
            tokenizer.encode("the\nca\ud800t")


def foreign(**parts: object) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2, "</s>": 7}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    for name, part in parts.items():
        setattr(library, name, part)
    return library


def test_an_unknown_word_of_a_strangers_tokenizer_is_named(tmp_path: Path) -> None:
    foreign().save(str(tmp_path / "mine.json"))
    tokenizer = Tokenizer.load(tmp_path / "mine.json")
    assert tokenizer.vocab_size == 8  # the largest id counts, not the number of entries
    assert tokenizer.encode("the cat").tolist() == [1, 2]
    with pytest.raises(UnseenCharacterError, match=r"'d'.* at line 2, column 5"):
        tokenizer.encode("the cat\nthe dog")


def test_a_strangers_habits_of_adding_and_cutting_are_dropped(tmp_path: Path) -> None:
    library = foreign(post_processor=processors.TemplateProcessing(single="</s> $A </s>", special_tokens=[("</s>", 7)]))
    library.enable_truncation(1)
    library.enable_padding(length=9)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("the cat the").tolist() == [1, 2, 1]
    tokenizer.save(tmp_path / "again")
    transformers = pytest.importorskip("transformers")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "again")("the cat the")["input_ids"] == [1, 2, 1]


@pytest.mark.parametrize("named", ["<stop>", {"content": "<stop>"}])
def test_the_end_of_a_document_is_the_one_the_tokenizers_config_names(tmp_path: Path, named: object) -> None:
    library = foreign()
    library.add_special_tokens(["</s>", "<stop>"])
    library.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).end_of_document == library.token_to_id("</s>")  # a usual name
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}), encoding="utf-8")
    assert Tokenizer.load(tmp_path).end_of_document == library.token_to_id("<stop>")


def test_a_sentencepiece_style_tokenizer_loads(tmp_path: Path) -> None:
    vocab = [("<unk>", 0.0), ("▁the", -1.0), ("▁cat", -1.5), ("s", -2.0)]
    library = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=False))
    library.normalizer = normalizers.Replace(" ", "▁")
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.encode("the cats")) == "the cats"
    with pytest.raises(UnseenCharacterError, match="'x'"):
        tokenizer.encode("the cats x")


@pytest.mark.parametrize("special", [[], ["</s>"]])
@pytest.mark.parametrize("model", [models.BPE(), models.WordLevel({}, "[UNK]"), models.Unigram([])])
def test_a_tokenizer_without_tokens_is_a_sentence(tmp_path: Path, model: models.Model, special: list[str]) -> None:
    library = tokenizers.Tokenizer(model)
    library.add_special_tokens(special)
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match=r"tokenizer\.json has no tokens"):
        Tokenizer.load(tmp_path)


def test_what_is_no_tokenizer_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no tokenizer at .*tokenizer.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}', encoding="utf-8")
    with pytest.raises(DataError, match=r"is not a tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"is not a tokenizer\.json"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("size", [1, 127, 128, 129, 255, 256, 257, 40_000])
def test_any_number_of_characters_has_ids_of_its_own(size: int) -> None:
    alphabet = "".join(map(chr, range(0x20, 0x20 + size)))  # of one byte, of several
    tokenizer = Tokenizer.characters(alphabet)
    for text in (alphabet, alphabet[:90], alphabet[::-1]):
        assert tokenizer.encode(text).tolist() == [ord(character) - 0x20 for character in text]
    for unseen in ("\x1f", chr(0x20 + size), chr(0x10FFFF)):
        with pytest.raises(UnseenCharacterError, match="line 1, column 1"):
            tokenizer.encode(unseen)
