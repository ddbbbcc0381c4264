"""Probabilities as a view: its numbers are those of the logits, on the page, in the picture and on a terminal."""

import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hostile_texts import hostile_texts
from page_reader import Page
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.errors import UsageError
from clearhead.inspection import Prediction, predict
from clearhead.inspection.labels import columns
from clearhead.inspection.prediction.page import MAX_POSITIONS
from clearhead.inspection.prediction.prediction import PositionPrediction
from clearhead.inspection.prediction.terminal import lines_of
from clearhead.models import DecoderLM, EncoderDecoder, EncoderLM, LanguageModel
from clearhead.pages import CONTROLS

LETTERS = "abcdefghijk"
SHAPE = {"vocab_size": 11, "block_size": 64, "n_layers": 2, "n_heads": 2, "d_model": 16}


def loud(model: LanguageModel) -> LanguageModel:
    """With weights large enough for probabilities that differ."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.5 if parameter.dim() > 1 else 1.0))
    return model


def make(kind: type[LanguageModel] = DecoderLM, **options: Any) -> LanguageModel:
    names = {DecoderLM: "decoder", EncoderLM: "encoder", EncoderDecoder: "encoder_decoder"}
    return loud(kind(ModelConfig.read({"architecture": names[kind]}, SHAPE, options)))


def ids_of(length: int, seed: int = 0) -> Tensor:
    return torch.randint(11, (1, length), generator=torch.Generator().manual_seed(seed))


def spell(before: int | None, token: int) -> str:
    return LETTERS[token]


def causal(length: int = 6, tokens: str | list[str] = LETTERS, **options: Any) -> tuple[Prediction, Tensor]:
    """A prediction and the logits (T, V) that it is of."""
    model, ids = make(), ids_of(length)
    row = ids[0].tolist()
    labels = [tokens[token] for token in row]
    view = predict(model, [ids], labels, [*row[1:], None], lambda before, token: tokens[token], **options)
    with torch.no_grad():
        return view, model.eval()(ids)[0]


def terminal_of(view: Prediction) -> str:
    return "\n".join("".join(text for text, _ in line) for line in lines_of(view, "numbers", None))


def test_the_numbers_are_those_of_the_logits() -> None:
    view, logits = causal(top_k=3)
    row, probs = ids_of(6)[0], logits.double().softmax(-1)
    for index, position in enumerate(view.positions[:-1]):
        target = int(row[index + 1])
        assert position.following == LETTERS[target]
        assert position.probability == pytest.approx(float(probs[index, target]), rel=1e-4)
        assert position.bits == pytest.approx(-math.log2(probs[index, target]), abs=1e-4)
        assert position.nats == pytest.approx(-math.log(probs[index, target]), abs=1e-4)
        assert position.rank == 1 + sorted(probs[index].tolist(), reverse=True).index(float(probs[index, target]))
    for position, shares in zip(view.positions, probs, strict=True):
        assert position.entropy == pytest.approx(-float((shares * shares.log2()).sum()), abs=1e-4)
        best = shares.sort(descending=True).indices[:3].tolist()
        assert [candidate.token for candidate in position.top] == [LETTERS[token] for token in best]
        assert [candidate.probability for candidate in position.top] == pytest.approx(shares[best].tolist(), rel=1e-4)
    assert view.positions[-1].following is None
    assert view.loss == pytest.approx(float(F.cross_entropy(logits[:-1], row[1:])), rel=1e-5)


def test_a_token_is_colored_by_how_it_was_predicted() -> None:
    view, _ = causal()
    (first, before), *rest = view.colored
    assert (first, before) == (view.positions[0].token, None)
    assert [(token, position) for token, position in rest] == [(p.following, p) for p in view.positions[:-1]]
    ids = ids_of(5)
    row = ids[0].tolist()
    masked = predict(
        make(EncoderLM), [ids], list("vwxyz"), [row[0], None, *row[2:]], spell, objective="masked", lens=True
    )
    assert [token for token, _ in masked.colored] == list("vwxyz")
    assert masked.positions[1].bits is None
    assert "The masked token is most likely" in masked.verdict
    pair = predict(make(EncoderDecoder), [ids_of(4, 1), ids], list("vwxyz"), row, spell, objective="seq2seq", lens=True)
    assert [token for token, _ in pair.colored] == ["v", *(LETTERS[token] for token in row)]
    assert all(position.rank for position in pair.positions)
    for view in (masked, pair):
        assert view.lens is not None
        for cells in view.lens.rows:
            for cell in cells:
                assert f'title="{cell.probability:.1%}"' in view.html()
                assert f"<title>{cell.probability:.1%}</title>" in view.svg()
                assert f",{cell.probability}," in view.csv()
        terminal = terminal_of(view)
        for position in view.positions:
            assert f"{position.entropy:.2f}" in terminal
            assert position.bits is None or f"{position.bits:>5.2f}  {position.nats:>5.2f}" in terminal


def test_the_last_row_of_the_lens_is_the_prediction() -> None:
    view, _ = causal(lens=True)
    assert view.lens is not None
    assert len(view.lens.rows) == 3
    for cell, position in zip(view.lens.rows[-1], view.positions, strict=True):
        assert (cell.token, cell.rank) == (position.top[0].token, position.rank)
        assert cell.probability == pytest.approx(position.top[0].probability)
    assert [(row["layer"], row["position"]) for row in view.rows()] == [
        (layer, index) for layer in range(3) for index in range(6)
    ]


def test_the_model_is_left_as_it_was_and_mistakes_are_sentences() -> None:
    model, ids = make().train(), ids_of(3)
    predict(model, [ids], list("abc"), [None] * 3, spell)
    assert model.training
    with pytest.raises(UsageError, match="`top_k` must be at least 1"):
        predict(model, [ids], list("abc"), [None] * 3, spell, top_k=0)


def test_one_token_with_nothing_behind_it() -> None:
    view, _ = causal(1)
    assert view.loss is None
    assert "The next token is most likely" in view.verdict
    [position] = view.positions
    best = position.top[0].probability
    assert f"<b>{best:.1%}</b>" in view.html()
    assert f"at {best:.1%}." in view.svg()
    assert f",{best}," in view.csv()
    assert f"{best:>6.1%}" in terminal_of(view)


def test_the_entropies_stand_in_one_column() -> None:
    known = PositionPrediction("a", "b", math.log(0.25), 2, 1.5, ())
    positions = [
        known,
        replace(known, log_probability=0.0, rank=1),
        replace(known, log_probability=-40.0, rank=150_000),
        replace(known, following=None, log_probability=None, rank=None),
    ]
    header, *rows = terminal_of(Prediction("causal", tuple(positions))).splitlines()[:5]
    end = header.index("entropy") + len("entropy")
    assert [row.index("1.50") + len("1.50") for row in rows] == [end] * 4


@pytest.mark.parametrize(("kind", "objective"), [(DecoderLM, "causal"), (EncoderLM, "masked")])
def test_a_page_has_a_button_only_for_the_positions_that_it_sends(kind: type[LanguageModel], objective: Any) -> None:
    for length in (MAX_POSITIONS, MAX_POSITIONS + 1):
        row = ids_of(length)[0].tolist()
        following = row if objective == "masked" else [*row[1:], None]
        model = make(kind, block_size=length)
        page = predict(model, [ids_of(length)], ["a"] * length, following, spell, objective=objective).html()
        sent = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])["positions"]
        assert len(sent) == MAX_POSITIONS
        assert list(map(int, re.findall(r'data-position="(\d+)"', page))) == list(range(MAX_POSITIONS))


def test_the_page_has_the_numbers_of_the_library() -> None:
    view, _ = causal(top_k=4, lens=True)
    page = view.html()
    content = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])
    for sent, position in zip(content["positions"], view.positions, strict=True):
        assert sent["top"] == [[candidate.token, candidate.probability] for candidate in position.top]
        assert position.bits is None or f"{position.bits:.2f} bits" in sent["sentence"]
    reader = Page(page)
    cells = [attributes["title"] for tag, attributes in reader.elements if tag == "td" and "title" in attributes]
    assert view.lens is not None
    expected = [f"{cell.probability:.1%}" for row in reversed(view.lens.rows) for cell in row]
    assert cells == expected
    for position in view.positions[:-1]:
        assert f"<td>{position.bits:.2f}</td><td>{position.nats:.2f}</td><td>{position.rank}</td>" in page


def test_the_bars_are_as_high_as_the_surprisal() -> None:
    view, _ = causal()
    heights = [210 - float(top) for top in re.findall(r'd="M\d+,([\d.]+)h16V', view.svg())]
    bits = [position.bits for position in view.positions if position.bits is not None]
    assert len(heights) == len(bits)
    ratios = [(214 - 210 + height) / share for height, share in zip(heights, bits, strict=True)]
    assert max(ratios) - min(ratios) < 0.1 * max(ratios)


def test_a_terminal_is_not_exceeded() -> None:
    view, _ = causal(40, lens=True)
    for ink in ("color", "shades", "numbers"):
        for width in (100, 120):
            *lines, _ = lines_of(view, ink, width)
            texts = ["".join(text for text, _ in line) for line in lines]
            colored = 2 if ink == "color" else 0  # the text itself, and its legend
            assert max(map(columns, texts[colored:])) <= width
            assert any("of 40 positions are shown" in text for text in texts)
    assert any(style.count(" on #") for line in lines_of(view, "color", 80) for _, style in line)
    assert not any("on #" in style for line in lines_of(view, "shades", 80) for _, style in line)


def test_hostile_tokens_are_text_everywhere() -> None:
    hostile = [token[:300] for token in hostile_texts()]
    plain = [tag for tag, _ in Page(causal(30, list(LETTERS), lens=True)[0].html()).elements if tag != "path"]
    for start in range(0, 500, 11):
        tokens = [*hostile[start : start + 11], *("x" for _ in range(11))][:11]
        view, _ = causal(30, tokens, lens=True)
        page = view.html()
        page.encode("utf-8")
        assert [tag for tag, _ in Page(page).elements if tag != "path"] == plain
        for picture in (view.svg(), causal(30, tokens)[0].svg()):
            tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(picture).iter()}
            assert tags <= {"svg", "desc", "style", "title", "g", "path", "text", "rect"}
        for line in lines_of(view, "color", 80):
            assert not {ord(sign) for text, _ in line for sign in text} & set(CONTROLS)
