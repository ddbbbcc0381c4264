import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from data_helpers import file
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from parallel_helpers import Texts, json_lines, made_pairs, table, two_files

from clearhead.config import DataConfig
from clearhead.data import EncodedPairs, PairData, Tokenizer, encode_pairs, prepare_pairs
from clearhead.data.parallel import encoded, survey
from clearhead.data.parallel.reading import PairSource
from clearhead.errors import DataError

TEXTS = made_pairs(300)
KINDS = [(kind, vocabulary) for kind in ("auto", "char") for vocabulary in ("joint", "separate")]


def config_of(source: str, target: str | None = None, **options: object) -> DataConfig:
    return DataConfig.read({"source": source, "target": target, "bpe_vocab_size": 300, **options})


def texts_of(data: PairData, pairs: EncodedPairs) -> Texts:
    """What the rows say, each of which must end in the end and hold no other special token."""
    texts = []
    for i in range(len(pairs)):
        source, target = pairs.source[i].tolist(), pairs.target[i].tolist()
        for row in (source, target):
            assert row[-1] == data.end
            assert not {data.end, data.pad} & set(row[:-1])
        texts.append((data.source_tokenizer.decode(source[:-1]), data.target_tokenizer.decode(target[:-1])))
    return texts


@pytest.mark.parametrize(("kind", "vocabulary"), KINDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_every_pair_comes_back_from_one_side_of_the_cut(
    tmp_path: Path, kind: str, vocabulary: str, reverse: bool
) -> None:
    source, target = two_files(tmp_path, TEXTS)
    data = prepare_pairs(config_of(source, target, tokenizer=kind, vocabulary=vocabulary, reverse=reverse))
    expected = [(b, a) for a, b in TEXTS] if reverse else TEXTS
    train, val = texts_of(data, data.train), texts_of(data, data.val)
    assert sorted(train + val) == sorted(expected)
    assert val == data.val_texts == [pair for pair in expected if pair in set(val)]  # in the order of the file
    assert len(val) == 30
    assert (data.n_pairs, data.n_skipped) == (300, 0)
    assert (data.source, data.target) == (source, target)
    assert (data.source_tokenizer is data.target_tokenizer) == (vocabulary == "joint")
    for tokenizer in (data.source_tokenizer, data.target_tokenizer):
        assert (tokenizer.end_of_document, tokenizer.pad) == (data.end, data.pad)
        assert tokenizer.is_character_level == (kind == "char")
    assert data.train.n_tokens == sum(len(data.train.source[i]) + len(data.train.target[i]) for i in range(270))
    again = encode_pairs(train, data.source_tokenizer, data.target_tokenizer)
    for side, prepared in ((again.source, data.train.source), (again.target, data.train.target)):
        assert np.array_equal(side.ids, prepared.ids)
        assert np.array_equal(side.offsets, prepared.offsets)
        assert side.ids.dtype == prepared.ids.dtype
        assert side.lengths.tolist() == [len(side[i]) for i in range(len(side))]


@given(
    texts=st.lists(
        st.tuples(st.sampled_from("abcdefghijklmnop"), st.text("xyz ", min_size=1, max_size=50).filter(str.strip)),
        min_size=40,
    ),
    val_fraction=st.floats(0.05, 0.6),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_source_sentence_is_on_both_sides_whatever_the_order(
    tmp_path_factory: pytest.TempPathFactory, texts: Texts, val_fraction: float, seed: int
) -> None:
    texts = [*texts, ("one more", "x"), ("and another", "y")]
    folder = tmp_path_factory.mktemp("pairs")
    options: dict[str, Any] = {"tokenizer": "char", "val_fraction": val_fraction}
    data = prepare_pairs(config_of(table(folder, texts, "a.tsv"), **options))
    assert len(data.train) + len(data.val) == len(texts)
    sides = [{source for source, _ in texts_of(data, part)} for part in (data.train, data.val)]
    assert sides[0]
    assert sides[1]
    assert not sides[0] & sides[1]
    random.Random(seed).shuffle(texts)
    shuffled = prepare_pairs(config_of(table(folder, texts, "b.tsv"), **options))
    assert sorted(shuffled.val_texts) == sorted(data.val_texts)


def test_vocabularies_are_learned_from_training_pairs_alone(tmp_path: Path) -> None:
    path = table(tmp_path, TEXTS)
    held_out = set(prepare_pairs(config_of(path)).val_texts)
    marked = [(a, b + " Qqqqq" * 5 if (a, b) in held_out else b) for a, b in TEXTS]
    data = prepare_pairs(config_of(table(tmp_path, marked, "marked.tsv")))
    assert any("Qqqqq" in target for _, target in data.val_texts)
    assert len(data.target_tokenizer.encode("Qqqqq")) >= 5  # no piece of it was learned


def test_separate_vocabularies_are_learned_from_their_own_side(tmp_path: Path) -> None:
    texts = [(f"aaaa{i} ", f"bbbb{i}") for i in range(50)]
    data = prepare_pairs(config_of(table(tmp_path, texts), vocabulary="separate"))
    assert len(data.source_tokenizer.encode("aaaa")) < len(data.target_tokenizer.encode("aaaa"))
    assert len(data.target_tokenizer.encode("bbbb")) < len(data.source_tokenizer.encode("bbbb"))
    letters = prepare_pairs(config_of(table(tmp_path, texts), vocabulary="separate", tokenizer="char"))
    assert letters.source_tokenizer.vocab_size == letters.target_tokenizer.vocab_size == 11 + 2
    with pytest.raises(DataError, match="never seen the character 'b'"):
        letters.source_tokenizer.encode("b")


def test_bad_pairs_are_counted_and_skipped_or_refused(tmp_path: Path) -> None:
    bad: Texts = [("a", ""), ("x" * 200, "y"), (" ", "b"), ("", "")]
    texts = [*TEXTS[:10], *bad[:2], *TEXTS[10:], *bad[2:]]
    both = two_files(tmp_path, texts)
    sentence = "3 pairs have an empty side (line 11) and 1 pair has one side more than 9 times as long as the other "
    data = prepare_pairs(config_of(*both))
    assert (data.n_pairs, data.n_skipped) == (300, 4)
    assert f"skipped of {both[0]}: {sentence}(line 12)" in data.notes
    assert sorted(texts_of(data, data.train) + data.val_texts) == sorted(TEXTS)
    with pytest.raises(DataError) as error:
        prepare_pairs(config_of(*both, bad_pairs="refuse"))
    assert (
        str(error.value) == f"{both[0]}: {sentence}(line 12); mend them, or set `options={{'data.bad_pairs': 'skip'}}`"
    )
    assert prepare_pairs(config_of(table(tmp_path, TEXTS), bad_pairs="refuse")).n_skipped == 0


def test_unequal_files_are_refused_before_anything_else_is_said(tmp_path: Path) -> None:
    source, target = two_files(tmp_path, [("", "b"), *TEXTS])
    with Path(target).open("ab") as longer:
        longer.write(b"more\n")
    for choice in ("skip", "refuse"):
        with pytest.raises(DataError, match=r"my\.de has 301 lines and .*my\.en has 302"):
            prepare_pairs(config_of(source, target, bad_pairs=choice))


def test_notes_say_what_was_chosen(tmp_path: Path) -> None:
    data = prepare_pairs(config_of(table(tmp_path, TEXTS)))
    held_out = "held out: data.val_fraction 0.1, at most 2,000, chosen so that no source sentence is on both sides"
    assert data.notes == (
        "tokens: byte-level BPE trained on the training pairs, 300 for both sides",
        held_out,
    )
    repeated = prepare_pairs(config_of(table(tmp_path, TEXTS + TEXTS[:40]), vocabulary="separate", tokenizer="char"))
    source, target = repeated.source_tokenizer, repeated.target_tokenizer
    assert repeated.notes == (
        f"tokens: characters, {source.vocab_size} for the source and {target.vocab_size} for the target",
        held_out,
        "40 of 340 pairs repeat an earlier one; they are kept",
    )
    assert repeated.n_pairs == 340
    assert len(prepare_pairs(config_of(table(tmp_path, TEXTS + TEXTS[:30]))).notes) == 2


@pytest.mark.parametrize("n_pairs", [0, 1, 9])
def test_too_few_pairs_are_a_sentence(tmp_path: Path, cache: Path, n_pairs: int) -> None:
    path = table(tmp_path, [*TEXTS[:n_pairs], ("", "")])
    with pytest.raises(DataError, match=rf"my\.tsv has {n_pairs} usable pairs?; at least 10 are needed to train"):
        prepare_pairs(config_of(path))
    assert list((cache / "pairs").iterdir()) == []  # nothing half made is left
    assert len(prepare_pairs(config_of(table(tmp_path, TEXTS[:10]))).val) == 1


@pytest.mark.parametrize(("kind", "vocabulary"), KINDS)
def test_batches_of_any_size_write_the_same(
    tmp_path: Path, kind: str, vocabulary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(table(tmp_path, TEXTS), tokenizer=kind, vocabulary=vocabulary)
    at_once = prepare_pairs(config, cache=tmp_path / "one")
    monkeypatch.setattr(encoded, "_BATCH", 70)
    in_pieces = prepare_pairs(config, cache=tmp_path / "two")
    assert in_pieces.fingerprint == at_once.fingerprint
    for pairs, expected in ((in_pieces.train, at_once.train), (in_pieces.val, at_once.val)):
        assert np.array_equal(pairs.source.ids, expected.source.ids)
        assert np.array_equal(pairs.target.ids, expected.target.ids)
        assert np.array_equal(pairs.target.offsets, expected.target.offsets)


def test_memory_holds_no_more_than_a_batch_of_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    encode = Tokenizer.encode_batch

    def counting(self: Tokenizer, texts: list[str]) -> list[NDArray[np.integer]]:
        sizes.append(sum(map(len, texts)))
        return encode(self, texts)

    monkeypatch.setattr(encoded, "_BATCH", 1000)
    monkeypatch.setattr(Tokenizer, "encode_batch", counting)
    data = prepare_pairs(config_of(table(tmp_path, TEXTS)))
    assert sum(sizes) == sum(len(a) + len(b) for a, b in TEXTS)
    assert max(sizes) <= 1000
    assert len(sizes) > 10
    assert isinstance(data.train.source.ids, np.memmap)
    assert isinstance(data.train.target.offsets, np.memmap)


def test_what_was_prepared_is_found_again(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = two_files(tmp_path, TEXTS)
    first = prepare_pairs(config_of(source, target))
    moved = two_files(tmp_path / "elsewhere", TEXTS)
    monkeypatch.setattr("clearhead.data.parallel.preparation.survey_pairs", None)  # reading again would fail
    done: list[float] = []
    again = prepare_pairs(config_of(*moved), on_progress=done.append)
    assert done == [1.0]
    assert (again.source, again.target) == moved
    assert (again.fingerprint, again.notes, again.val_texts) == (first.fingerprint, first.notes, first.val_texts)
    both = (first.source_tokenizer, first.target_tokenizer)
    assert prepare_pairs(config_of(source, target, tokenizer="auto"), tokenizers=both).fingerprint == first.fingerprint
    assert len(list((cache / "pairs").iterdir())) == 1


def test_other_content_options_or_tokenizers_are_prepared_anew(tmp_path: Path, cache: Path) -> None:
    path = table(tmp_path, TEXTS)
    others = [
        config_of(path),
        config_of(path, reverse=True),
        config_of(path, vocabulary="separate"),
        config_of(path, tokenizer="char"),
        config_of(path, bpe_vocab_size=280),
        config_of(path, val_fraction=0.2),
        config_of(table(tmp_path, TEXTS[:-1], "other.tsv")),
    ]
    assert len({prepare_pairs(config).fingerprint for config in others}) == len(others)
    letters = Tokenizer.characters("".join(map("".join, TEXTS)), end=True, pad=True)
    data = prepare_pairs(config_of(path), tokenizers=(letters, letters))
    assert data.source_tokenizer.fingerprint == letters.fingerprint
    assert data.source_tokenizer is data.target_tokenizer
    assert len(list((cache / "pairs").iterdir())) == len(others) + 1
    assert prepare_pairs(config_of(json_lines(tmp_path, TEXTS))).val_texts == prepare_pairs(others[0]).val_texts


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["train.source.bin", "val.target.offsets", "val.json", "facts.json", "source.json"])
@pytest.mark.parametrize("damage", ["cut", "replaced", "gone"])
def test_a_damaged_entry_is_made_anew(tmp_path: Path, cache: Path, name: str, damage: str) -> None:
    config = config_of(table(tmp_path, TEXTS))
    first = prepare_pairs(config)
    before = texts_of(first, first.train)
    (entry,) = (cache / "pairs").iterdir()
    harmed = entry / name
    content = harmed.read_bytes()
    harmed.unlink()
    if damage != "gone":
        harmed.write_bytes(content[: len(content) // 16 * 8] if damage == "cut" else b"[]")
    again = prepare_pairs(config)
    assert texts_of(again, again.train) == before
    assert texts_of(again, again.val) == again.val_texts == first.val_texts


def test_a_given_tokenizer_serves_both_sides(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train_bpe(iter(map(" ".join, TEXTS)), 300, end=True, pad=True, sentences=True)
    tokenizer.save(tmp_path / "own")
    data = prepare_pairs(config_of(table(tmp_path, TEXTS), tokenizer=str(tmp_path / "own" / "tokenizer.json")))
    assert data.source_tokenizer is data.target_tokenizer
    assert data.source_tokenizer.fingerprint == tokenizer.fingerprint
    assert sorted(texts_of(data, data.train) + data.val_texts) == sorted(TEXTS)


def test_a_tokenizer_without_the_special_tokens_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path, TEXTS)
    alphabet = "".join(map("".join, TEXTS))
    for end, pad, what in ((False, True, "end of a sentence"), (True, False, "filling up short rows")):
        Tokenizer.characters(alphabet, end=end, pad=pad).save(tmp_path / what)
        with pytest.raises(
            DataError, match=f"the tokenizer has no special token for the {what}.*; set `data.tokenizer`"
        ):
            prepare_pairs(config_of(path, tokenizer=str(tmp_path / what)))
    source, target = (Tokenizer.characters(letters, end=True, pad=True) for letters in (alphabet, alphabet + "§"))
    with pytest.raises(DataError, match="source and target have different ids for the end of a sentence"):
        prepare_pairs(config_of(path), tokenizers=(source, target))
    library = tokenizers.Tokenizer.from_str(source._library.to_str())
    same = Tokenizer(library, source.end_of_document, pad=source.end_of_document)
    with pytest.raises(DataError, match="one token both for the end and for padding"):
        prepare_pairs(config_of(path), tokenizers=(same, same))


def test_a_tokenizer_that_changes_sentences_is_told_of(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_str(
        Tokenizer.train_bpe(iter(map(" ".join, TEXTS)), 300, end=True, pad=True)._library.to_str()
    )
    library.normalizer = tokenizers.normalizers.Lowercase()
    library.save(str(tmp_path / "lower.json"))
    data = prepare_pairs(config_of(table(tmp_path, TEXTS), tokenizer=str(tmp_path / "lower.json")))
    assert any("does not give a text back as it was" in note for note in data.notes)


def test_an_unseen_character_is_placed_in_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = Tokenizer.characters("".join(map("".join, TEXTS)), end=True, pad=True)
    texts = [*TEXTS[:250], ("zwei", "TWO§"), *TEXTS[250:]]
    message = r"'§' \(U\+00A7\) at character 3 of the target in line 251 of .*"
    with pytest.raises(DataError, match=message + r"my\.tsv; remove it"):
        prepare_pairs(config_of(table(tmp_path, texts)), tokenizers=(letters, letters))
    monkeypatch.setattr(encoded, "_BATCH", 100)
    with pytest.raises(DataError, match=message + r"my\.tsv; remove it"):
        prepare_pairs(config_of(table(tmp_path, texts)), tokenizers=(letters, letters))
    with pytest.raises(DataError, match=message + "the text; remove it"):
        encode_pairs(texts, letters, letters)


def test_empty_sentences_can_be_encoded_for_evaluation() -> None:
    letters = Tokenizer.characters("ab", end=True, pad=True)
    pairs = encode_pairs([("ab", ""), ("", "b")], letters, letters)
    assert [pairs.source[i].tolist() for i in range(2)] == [[0, 1, 2], [2]]
    assert [pairs.target[i].tolist() for i in range(2)] == [[2], [1, 2]]
    assert len(encode_pairs([], letters, letters)) == 0


def test_progress_grows_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "_BATCH", 1000)
    done: list[float] = []
    prepare_pairs(config_of(table(tmp_path, TEXTS)), on_progress=done.append)
    assert done[-1] == 1.0
    assert len(done) > 10
    assert all(a <= b for a, b in pairwise(done))


def test_pairs_that_change_while_they_are_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, TEXTS)
    look = survey.survey_pairs

    def then_altered(source: PairSource) -> survey.PairSurvey:
        counts = look(source)
        table(tmp_path, TEXTS[:-5])
        return counts

    monkeypatch.setattr("clearhead.data.parallel.preparation.survey_pairs", then_altered)
    with pytest.raises(DataError, match=r"my\.tsv changed while it was read; run the command again"):
        prepare_pairs(config_of(path))


def test_a_missing_file_is_a_sentence_before_anything_is_made(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError, match="there is no file or corpus of sentence pairs"):
        prepare_pairs(config_of(file(tmp_path, "a\n", "a.de"), str(tmp_path / "a.en")))
    assert not (cache / "pairs").exists()


@pytest.mark.campaign
def test_every_flipped_bit_of_an_entry_is_made_good(tmp_path: Path, cache: Path) -> None:
    config = config_of(table(tmp_path, TEXTS))
    first = prepare_pairs(config)
    sides = [np.array(side.ids) for cut in (first.train, first.val) for side in (cut.source, cut.target)]
    (entry,) = (cache / "pairs").iterdir()
    draw = random.Random(0)
    for path in sorted(entry.iterdir()) * 3:
        content = bytearray(path.read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        again = prepare_pairs(config)
        ids = [np.array(side.ids) for cut in (again.train, again.val) for side in (cut.source, cut.target)]
        assert all(map(np.array_equal, ids, sides)), path.name
        assert again.val_texts == first.val_texts
        assert (again.fingerprint, again.notes) == (first.fingerprint, first.notes)
