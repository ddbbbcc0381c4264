import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data import Tokenizer
from clearhead.data.documents import Document, Source
from clearhead.data.survey import pieces, place_of_cut, sample, survey

WORDS = [
    "the",
    "cat's",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "1st",
    "--",
    "été",
    "猫",
    "🦜",
    "e\u0301",
    "'ll",
    " 's",
    "_",
    "\x1c",
]
prose = st.lists(st.sampled_from(WORDS), max_size=60).map("".join)
BPE = Tokenizer.train_bpe(iter(["the cat's mat, the cats' mats: l'été, 猫猫 the 1st--2nd   cat\n\n\n  the"] * 9), 320)


def source_of(*texts: str) -> Source:
    return Source("", str, lambda: (Document(str(i), iter([text])) for i, text in enumerate(texts)))


@given(st.lists(prose), st.integers(1, 40))
def test_pieces_are_the_text_in_bounded_stretches(texts: list[str], size: int) -> None:
    stretches = list(pieces(texts, size))
    assert "".join(stretches) == "".join(texts)
    assert all(0 < len(piece) <= size for piece in stretches)


@given(prose, st.integers(20, 40))
def test_a_cut_at_a_space_changes_no_token(text: str, size: int) -> None:
    stretches = list(pieces([text], size))
    cuts = np.cumsum([len(piece) for piece in stretches])[:-1]
    if all(text[at] == " " and text[at - 1].isalpha() and text[at + 1 : at + 2].isalpha() for at in cuts):
        together = [token for row in BPE.encode_batch(stretches) for token in row.tolist()]
        assert together == BPE.encode(text).tolist()


def test_pieces_prefer_a_space_between_letters() -> None:
    stretches = list(pieces(["one  (two) three four  five, six\n" * 40], 60))
    assert all(piece.startswith(" four") for piece in stretches[1:])


@given(st.lists(prose, min_size=1))
def test_a_survey_counts_characters_and_their_kinds(texts: list[str]) -> None:
    counts = survey(source_of(*texts))
    assert counts.lengths.tolist() == [len(text) for text in texts]
    assert counts.alphabet == "".join(sorted(set("".join(texts))))


@given(st.integers(200, 10**12), st.floats(0.01, 0.99))
def test_one_document_is_cut_by_position(length: int, val_fraction: float) -> None:
    assert place_of_cut(np.array([length]), val_fraction) == int(length * (1 - val_fraction))


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=30), st.floats(0.01, 0.99))
def test_the_cut_moves_to_an_end_of_a_document_if_any_is_near(lengths: list[int], val_fraction: float) -> None:
    total, cut = sum(lengths), place_of_cut(np.array(lengths), val_fraction)
    exact = int(total * (1 - val_fraction))
    sensible = [
        end
        for i in range(1, len(lengths))
        if (end := sum(lengths[:i])) >= total * (1 - val_fraction) / 2
        and total * val_fraction / 2 <= total - end <= total * val_fraction * 2
    ]
    if sensible:
        assert cut in sensible
        assert abs(cut - exact) == min(abs(end - exact) for end in sensible)
    else:
        assert cut == exact


def test_a_sample_is_bounded_and_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.data.survey._SAMPLE", 10_000)
    monkeypatch.setattr("clearhead.data.survey._SAMPLE_PIECE", 100)
    text = "".join(chr(0x4E00 + i // 1000) for i in range(100_000))  # every thousand characters is another one
    taken = "".join(sample(source_of(text), len(text)))
    assert 9_000 <= len(taken) <= 10_000
    assert len(set(taken)) == 100
