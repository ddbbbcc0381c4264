import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from data_helpers import PROSE, ends, entries, file, folder_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clearhead.config import DataConfig
from clearhead.data import CORPORA, Corpus, Tokenizer, encode_for_evaluation, encoded, prepare
from clearhead.data.choices import suggested_vocab_size
from clearhead.data.documents import files_source
from clearhead.errors import DataError


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
@pytest.mark.parametrize("val_fraction", [0.1, 0.5, 0.73])
def test_one_text_is_cut_by_position_and_then_encoded(tmp_path: Path, tokenizer: str, val_fraction: float) -> None:
    data = prepare(DataConfig(source=file(tmp_path), tokenizer=tokenizer, val_fraction=val_fraction))
    cut = int(len(PROSE) * (1 - val_fraction))
    before, after = PROSE[:cut], PROSE[cut:]
    assert data.train.tolist() == data.tokenizer.encode(before).tolist()
    assert data.val.tolist() == data.tokenizer.encode(after).tolist()
    assert (data.train_characters, data.val_characters) == (len(before), len(after))
    assert (data.train_bytes, data.val_bytes) == (len(before.encode()), len(after.encode()))
    assert data.tokenizer.end_of_document is None  # one document needs no end
    assert (data.n_documents, data.distinct_characters) == (1, len(set(PROSE)))
    assert data.floor is None


@given(texts=st.lists(st.integers(1, 400).map(lambda n: PROSE[:n]), min_size=2, max_size=8), jsonl=st.booleans())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_documents_are_each_followed_by_an_end(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: str, texts: list[str], jsonl: bool
) -> None:
    texts = [*texts, PROSE[:250]]
    folder = tmp_path_factory.mktemp("documents")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    source = file(folder, lines, "my.jsonl") if jsonl else folder_of(folder, *texts)
    data = prepare(DataConfig(source=source, tokenizer=tokenizer))
    both = np.concatenate([data.train, data.val])
    assert int((both == ends(data)).sum()) == len(texts) == data.n_documents
    assert both[-1] == ends(data)
    documents = [
        data.tokenizer.decode(part) for part in np.split(both, np.flatnonzero(both == ends(data)) + 1) if part.size
    ]
    assert documents == texts
    assert data.train_characters + data.val_characters == sum(map(len, texts))
    whole = "".join(texts)
    assert data.train_bytes == len(whole[: data.train_characters].encode())
    if data.train[-1] == ends(data):  # the cut is between documents
        assert data.train_characters in np.cumsum([len(text) for text in texts])
        assert "for validation" in data.notes[1]
    else:
        assert "is on both sides" in data.notes[1]


def test_no_document_is_on_both_sides_when_an_end_is_near(tmp_path: Path) -> None:
    data = prepare(DataConfig(source=folder_of(tmp_path / "texts", *[PROSE[: 90 + i] for i in range(20)])))
    assert data.train[-1] == ends(data)
    assert 0.05 <= data.val_characters / (data.train_characters + data.val_characters) <= 0.2


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_encoding_in_small_batches_changes_nothing(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder_of(tmp_path / "texts", *[PROSE[i:] for i in range(7)])
    config = DataConfig(source=source, tokenizer=tokenizer)
    at_once = prepare(config, cache=tmp_path / "one")
    monkeypatch.setattr(encoded, "_BATCH", 100)
    monkeypatch.setattr(encoded, "_PIECE", 61)
    in_pieces = prepare(config, cache=tmp_path / "two")
    assert in_pieces.tokenizer.decode(in_pieces.train) == at_once.tokenizer.decode(at_once.train)
    if tokenizer == "char":
        assert np.array_equal(in_pieces.train, at_once.train)
        assert np.array_equal(in_pieces.val, at_once.val)
        assert in_pieces.fingerprint == at_once.fingerprint


def test_auto_takes_characters_while_they_are_few_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = prepare(DataConfig(source=file(tmp_path)))
    assert few.tokenizer.is_character_level
    assert few.tokenizer.vocab_size == len(set(PROSE))
    assert few.notes == (f"tokens: characters, because the text is short and has only {len(set(PROSE))} of them",)
    many = prepare(DataConfig(source=file(tmp_path, "".join(map(chr, range(0x4E00, 0x5000))))))
    assert not many.tokenizer.is_character_level
    assert many.notes[0].endswith(", because the text has many different characters (512)")
    monkeypatch.setattr("clearhead.data.choices._CHAR_BYTES", 300)
    long = prepare(DataConfig(source=file(tmp_path, PROSE + "!")))
    assert not long.tokenizer.is_character_level
    kind = f"byte-level BPE, {long.tokenizer.vocab_size:,} tokens trained on the text"
    assert long.notes == (f"tokens: {kind}, because the text is long enough to learn them",)


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_what_was_asked_for_is_the_reason(tmp_path: Path, tokenizer: str) -> None:
    (note,) = prepare(DataConfig(source=file(tmp_path), tokenizer=tokenizer)).notes
    assert note.endswith(f", because data.tokenizer is {tokenizer}")


@pytest.mark.parametrize("vocab_size", [2, 256, 257, 65_536, 65_537])
def test_ids_are_kept_in_the_smallest_type(tmp_path: Path, vocab_size: int) -> None:
    alphabet = [chr(i) for i in range(0x10000, 0x10000 + vocab_size)]
    tokenizer = Tokenizer.characters(alphabet)
    text = (alphabet[0] + alphabet[-1]) * 150
    data = prepare(DataConfig(source=file(tmp_path, text)), tokenizer=tokenizer)
    assert (
        data.train.dtype
        == {2: np.uint8, 256: np.uint8, 257: np.uint16, 65_536: np.uint16, 65_537: np.uint32}[vocab_size]
    )
    assert data.train.tolist() == [0, vocab_size - 1] * 135


def test_an_unseen_character_is_placed_in_its_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "_PIECE", 50)
    source = folder_of(tmp_path / "texts", PROSE, PROSE[:300] + "ß" + PROSE)
    with pytest.raises(DataError, match=r"'ß' \(U\+00DF\) at character 300 of .*001\.txt"):
        prepare(DataConfig(source=source), tokenizer=Tokenizer.characters(PROSE, end=True))
    with pytest.raises(DataError, match=r"'ß' \(U\+00DF\) at character 300 of .*001\.txt"):
        encode_for_evaluation(source, Tokenizer.characters(PROSE, end=True))


def test_a_tokenizer_that_changes_the_text_is_told_of(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_str(Tokenizer.train_bpe(iter([PROSE]), 300)._library.to_str())
    library.normalizer = tokenizers.normalizers.Lowercase()
    library.save(str(tmp_path / "lower.json"))
    data = prepare(DataConfig(source=file(tmp_path), tokenizer=str(tmp_path / "lower.json")))
    assert data.notes == ('The tokenizer does not give a text back as it was: "The cat\'s " becomes "the cat\'s ".',)


def test_a_tokenizer_without_an_end_marks_none_and_says_so(tmp_path: Path) -> None:
    texts = [PROSE, PROSE[:100]]
    data = prepare(DataConfig(source=folder_of(tmp_path / "texts", *texts)), tokenizer=Tokenizer.characters(PROSE))
    assert data.tokenizer.decode(np.concatenate([data.train, data.val])) == "".join(texts)
    assert any("no token for the end" in note for note in data.notes)


@pytest.mark.parametrize("length", [200, 201, 333])
@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_tiny_texts_work_from_200_characters(tmp_path: Path, length: int, tokenizer: str) -> None:
    data = prepare(DataConfig(source=file(tmp_path, PROSE[:length]), tokenizer=tokenizer))
    assert data.train_characters + data.val_characters == length
    assert len(data.val) >= 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "my.txt is empty; give a text of at least 200 characters"),
        (" \n\t\r\n " * 100, "my.txt is empty; give a text of at least 200 characters"),
        (PROSE[:199], "my.txt has 199 characters; at least 200 are needed to train"),
    ],
)
def test_too_little_text_is_a_sentence(tmp_path: Path, cache: Path, text: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence.replace(".", r"\.")):
        prepare(DataConfig(source=file(tmp_path, text)))
    assert entries(cache) == []  # nothing half made is left


def test_a_cut_that_leaves_a_side_without_text_is_a_sentence(tmp_path: Path) -> None:
    for val_fraction, name in ((0.001, "val"), (0.999, "train")):
        with pytest.raises(DataError, match=rf"`data\.val_fraction` {val_fraction} .* for {name}; at least 2"):
            prepare(DataConfig(source=file(tmp_path), val_fraction=val_fraction))


def test_evaluation_reads_the_whole_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.characters(PROSE, end=True)
    ids, n_bytes = encode_for_evaluation(file(tmp_path, PROSE[:50]), tokenizer)
    assert ids.tolist() == tokenizer.encode(PROSE[:50]).tolist()
    assert n_bytes == len(PROSE[:50].encode())
    ids, n_bytes = encode_for_evaluation(folder_of(tmp_path / "texts", "The", "cat"), tokenizer)
    end = tokenizer.end_of_document
    assert ids.tolist() == [*tokenizer.encode("The"), end, *tokenizer.encode("cat"), end]
    assert n_bytes == 6
    with pytest.raises(DataError, match="is empty; there is nothing to evaluate on"):
        encode_for_evaluation(file(tmp_path, "\n"), tokenizer)
    with pytest.raises(DataError, match=r"my\.txt is too short to evaluate on; at least two tokens are needed"):
        encode_for_evaluation(file(tmp_path, "T"), tokenizer)
    assert len(encode_for_evaluation(file(tmp_path, "Th"), tokenizer)[0]) == 2


@pytest.mark.campaign
def test_stories_know_their_floor_whatever_their_tokens_are() -> None:
    data = prepare(DataConfig(source="stories", tokenizer="char"))
    floor = CORPORA["stories"].floor
    assert floor is not None
    assert data.tokenizer.is_character_level
    assert data.floor == floor()
    assert data.source == "stories"
    cut = prepare(DataConfig(source="stories", tokenizer="bpe", bpe_vocab_size=400))
    assert cut.floor is not None
    assert cut.bytes_per_token > 1.5
    assert len(cut.val) * cut.floor == pytest.approx(len(data.val) * data.floor)  # the text's, however it is cut
    assert cut.floor / cut.bytes_per_token == pytest.approx(data.floor / data.bytes_per_token)


@pytest.mark.campaign
def test_stories_have_as_many_characters_as_are_wanted() -> None:
    """Each length is a text of its own, whose tokens a BPE learns from it, the more the longer it is."""
    sizes = (60_000, 200_000, 600_000)
    texts = [prepare(DataConfig(source="stories", corpus_characters=size)) for size in sizes]
    lengths = [text.train_characters + text.val_characters for text in texts]
    assert lengths == [pytest.approx(size, rel=0.05) for size in sizes]
    assert [text.tokenizer.is_character_level for text in texts] == [True, False, False]
    assert texts[1].tokenizer.vocab_size == suggested_vocab_size(lengths[1])
    assert texts[1].tokenizer.vocab_size < texts[2].tokenizer.vocab_size
    assert len({text.fingerprint for text in texts}) == len(texts)


def test_a_longer_text_is_given_a_larger_vocabulary_within_bounds() -> None:
    sizes = [suggested_vocab_size(n_bytes) for n_bytes in range(0, 4_000_000, 1000)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (512, 8192)
    assert all(size % 64 == 0 for size in sizes)


def test_a_vocabulary_is_as_large_as_it_is_asked_to_be(tmp_path: Path) -> None:
    """Also of a short text, for which nobody asked for BPE by its name."""
    assert prepare(DataConfig(source=file(tmp_path), bpe_vocab_size=270)).tokenizer.vocab_size == 270


def test_shakespeare_is_the_known_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = os.environ.get("CLEARHEAD_DATA", "")
    if not (Path(folder) / "shakespeare.txt").exists() or not folder:
        pytest.skip("CLEARHEAD_DATA names no folder with shakespeare.txt")
    data = prepare(DataConfig(source="shakespeare", tokenizer="char"))
    assert (data.train_characters, data.val_characters) == (1_003_854, 111_540)
    assert (len(data.train), len(data.val)) == (1_003_854, 111_540)
    assert data.tokenizer.vocab_size == data.distinct_characters == 65
    own = Path(folder) / "shakespeare.txt"
    assert prepare(DataConfig(source=str(own), tokenizer="char")).fingerprint == data.fingerprint
    shutil.copy(own, tmp_path / "shakespeare.txt")
    with (tmp_path / "shakespeare.txt").open("ab") as altered:
        altered.write(b"!")
    monkeypatch.setenv("CLEARHEAD_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"shakespeare\.txt is not the published file"):
        prepare(DataConfig(source="shakespeare"))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", ["auto", "bpe", "char"])
def test_what_is_to_be_masked_has_a_mask_and_a_pad(tmp_path: Path, kind: str, several: bool) -> None:
    source = folder_of(tmp_path / "texts", PROSE, PROSE[:300]) if several else file(tmp_path)
    data = prepare(DataConfig(source=source, tokenizer=kind), masks=True)
    prepared = data.tokenizer
    special = [i for i in (prepared.end_of_document, prepared.pad, prepared.mask) if i is not None]
    assert len(set(special)) == (3 if several else 2)
    assert prepared.is_character_level == (kind == "char"), "auto: there are words to fill in"
    assert {prepared.pad, prepared.mask}.isdisjoint(np.concatenate([data.train, data.val]).tolist())
    assert prepared.decode(np.concatenate([data.train, data.val])) == (PROSE + PROSE[:300] if several else PROSE)
    why = "there are words to fill in" if kind == "auto" else f"data.tokenizer is {kind}"
    assert data.notes[0].endswith(f", because {why}")


@pytest.mark.parametrize("tokenizer", ["auto", "bpe", "char"])
def test_with_and_without_masks_are_two_texts_in_the_cache(tmp_path: Path, cache: Path, tokenizer: str) -> None:
    config = DataConfig(source=file(tmp_path), tokenizer=tokenizer)
    for _ in range(2):
        with_masks, without = prepare(config, masks=True), prepare(config)
        assert with_masks.tokenizer.mask is not None
        assert without.tokenizer.mask is without.tokenizer.pad is None
        assert with_masks.fingerprint != without.fingerprint
        assert len(entries(cache)) == 2
    again = prepare(config, masks=True, tokenizer=with_masks.tokenizer)  # as a run finds its own text
    assert again.fingerprint == with_masks.fingerprint
    assert len(entries(cache)) == 2


def test_a_tokenizer_without_a_mask_cannot_mask(tmp_path: Path, cache: Path) -> None:
    config, plain = DataConfig(source=file(tmp_path)), Tokenizer.characters(PROSE)
    plain.save(tmp_path / "plain")
    named = config.model_copy(update={"tokenizer": str(tmp_path / "plain" / "tokenizer.json")})
    for options, tokenizer in ((config, plain), (named, None)):
        with pytest.raises(DataError, match=r"no mask token.* set `data\.tokenizer` to auto, char, bpe or a tokenizer"):
            prepare(options, tokenizer=tokenizer, masks=True)
    assert not (cache / "texts").exists()
    Tokenizer.characters(PROSE, mask=True).save(tmp_path / "plain")
    assert prepare(named, masks=True).tokenizer.mask == len(set(PROSE))


def test_what_is_masked_has_no_known_floor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = Corpus("known", "", lambda cache: files_source("known", [Path(file(tmp_path))]), lambda: 0.5)
    monkeypatch.setitem(CORPORA, "known", known)
    config = DataConfig(source="known", tokenizer="char")
    assert prepare(config).floor == 0.5
    assert prepare(config, masks=True).floor is None
