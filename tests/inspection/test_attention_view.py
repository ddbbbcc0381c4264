"""Attention as a view: its numbers are the model's, on the page, in the picture and on a terminal."""

import json
import re
import xml.etree.ElementTree as ET
from base64 import b64decode
from math import log2
from typing import Any

import numpy as np
import pytest
from hostile_texts import hostile_texts
from page_reader import Page

from clearhead.inspection import AttentionView
from clearhead.inspection.attention.svg import pictured
from clearhead.inspection.attention.terminal import WIDTHS, head_table, heat_map
from clearhead.inspection.heat import LEVELS, levels_of, paths
from clearhead.inspection.labels import columns, in_columns, visible
from clearhead.pages import CONTROLS

TOKENS = ["To", " be", " or", "\n", " not", "<b>"]


def view_of(weights: Any, tokens: list[str] | None = None, **choice: Any) -> AttentionView:
    """A view of weights (L, H, T, T), causal."""
    array = np.asarray(weights, dtype=np.float32)
    size = array.shape[-1]
    labels = tuple(tokens or [f"t{index}" for index in range(size)])
    return AttentionView("self", array, np.tri(size, dtype=bool), labels, labels, **choice)


def random_view(layers: int, heads: int, size: int, tokens: list[str] | None = None, **choice: Any) -> AttentionView:
    draw = np.random.default_rng(0)
    weights = draw.random((layers, heads, size, size)) ** 8 * np.tri(size)
    return view_of(weights / weights.sum(-1, keepdims=True), tokens, **choice)


@pytest.mark.parametrize(
    ("weights", "entropy", "target", "share"),
    [
        (np.eye(5), 0, "the token itself", 1),
        (np.eye(5, k=-1) + np.diag([1, 0, 0, 0, 0]), 0, "the previous token", 1),
        (np.eye(5, k=-3) + np.diag([1, 1, 1, 0, 0]), 0, "the token itself", 0.5),
        (np.tri(5) * [1, 0, 0, 0, 0], 0, "token 0, “t0”", 1),
        (np.tri(5) / np.arange(1, 6)[:, None], sum(map(log2, (2, 3, 4, 5))) / 4, "the token itself", 77 / 240),
    ],
)
def test_where_a_head_looks_most(weights: Any, entropy: float, target: str, share: float) -> None:
    [focus] = view_of([[weights]]).heads
    assert focus.entropy == pytest.approx(entropy)
    assert focus.target == target
    assert focus.share == pytest.approx(share)


def test_one_token_has_no_choice_and_is_shown() -> None:
    view = view_of([[[[1.0]]]])
    assert view.heads[0].entropy == 0
    assert "100% of its attention goes to the token itself" in view.html()
    assert drawn(view.svg(), (1, 1)) == [[1.0]]
    assert "the token itself,1.0" in view.csv()
    for lines in (head_table(view), heat_map(view, "numbers", 80)):
        assert "100" in "".join(text for line in lines for text, _ in line)


def test_an_overview_has_a_row_for_each_head_and_a_head_one_for_each_weight() -> None:
    view = random_view(2, 3, 4)
    assert [(row["layer"], row["head"]) for row in view.rows()] == list(np.ndindex(2, 3))
    assert view.as_dict()["weights"] is None
    head = random_view(2, 3, 4, layer=1, head=2)
    assert len(head.rows()) == 10, "what the mask allows"
    for row in head.rows():
        query, key = row["query"], row["key"]
        assert isinstance(query, int)
        assert isinstance(key, int)
        assert row["weight"] == head.weights[1, 2, query, key]
    assert head.as_dict()["weights"] == head.weights[1, 2].tolist()
    assert "layer 1, head 2" in head.title


def test_the_page_has_the_numbers_of_the_library() -> None:
    view = random_view(2, 3, 6, TOKENS, layer=1, head=2)
    page = view.html()
    content = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])
    roots = np.frombuffer(b64decode(content["weights"]), "<u2").reshape(2, 3, 6, 6) / 65535
    np.testing.assert_allclose(roots**2, view.weights, atol=2e-5)
    assert content["shown"] == [1, 2]
    table = page.partition('id="links">')[2].partition("</tbody>")[0]
    for row, cells in enumerate(re.findall(r'<td class="name">([^<]*)</td></tr>', table)):
        shares = [float(share) for share in re.findall(r"([\d.]+)%(?:,|$)", cells)]
        best = sorted((100 * view.weights[1, 2, row]).tolist(), reverse=True)[: len(shares)]
        np.testing.assert_allclose(shares, best, atol=0.051)
        assert row == 0 or len(shares) > 1


def drawn(picture: str, shape: tuple[int, int]) -> Any:
    """The shade of each cell, read off the paths."""
    cells = np.zeros(shape)
    for opacity, path in re.findall(r'<path fill-opacity="([\d.]+)" d="([^"]+)"', picture):
        for column, row, length in re.findall(r"M(\d+),(\d+)h(\d+)", path):
            cells[int(row), int(column) : int(column) + int(length)] = float(opacity)
    return cells


def test_the_picture_has_each_weight_in_its_cell() -> None:
    view = random_view(1, 1, 9)
    matrix = view.weights[0, 0]
    np.testing.assert_array_equal(np.rint(drawn(paths(matrix), (9, 9)) * LEVELS), levels_of(matrix))
    np.testing.assert_allclose(drawn(paths(matrix), (9, 9)) ** 2, matrix, atol=0.06)
    assert "forbidden" in random_view(1, 1, 9, layer=0, head=0).svg()


def test_a_terminal_shows_the_same_numbers_within_its_width() -> None:
    view = random_view(1, 1, 6, TOKENS, layer=0, head=0)
    *header, _ = (("".join(text for text, _ in line)) for line in heat_map(view, "numbers", None))
    for row, line in enumerate(header[-6:]):
        label, *cells = line.split()
        assert label == visible(TOKENS[row])
        assert cells[: row + 1] == [f"{100 * weight:.0f}" for weight in view.weights[0, 0, row, : row + 1]]
        assert cells[row + 1 :] == ["·"] * (5 - row)
    for ink in WIDTHS:
        for width in (8, 20, 33, 80):
            lines = list(heat_map(random_view(1, 1, 30, layer=0, head=0), ink, width))
            is_cut = "The first" in lines[-1][0][0]
            assert is_cut or (width == 80 and WIDTHS[ink] == 2)
            maps = lines[: -2 if is_cut else -1]
            assert max(columns("".join(text for text, _ in line)) for line in maps) <= max(width, 4 + WIDTHS[ink])
    colors = {style for line in heat_map(view, "color", 80) for _, style in line if style.startswith("on #")}
    assert len(colors) > 5
    assert not any(style.startswith("on") for line in heat_map(view, "shades", 80) for _, style in line)


def test_labels_take_the_columns_that_they_are_given() -> None:
    for label in ("", "abc", "漢字漢字", "e\u0301e\u0301", "a" * 40, "👩\u200d👩\u200d👧"):
        for width in (1, 2, 5, 9):
            assert columns(in_columns(label, width)) == width
            assert columns(in_columns(label, width, right=True)) == width
    assert visible(" a\n") == "·a⏎"
    assert visible("abcdef", 4) == "abc…"


def test_a_large_model_and_a_long_text_fit_on_a_page() -> None:
    view = random_view(12, 12, 256)
    page = view.html()
    data = re.findall(r'id="data">(.*?)</script>', page)[0]
    assert len(page) < 3_000_000
    drawings = re.findall(r'<g class="cells".*?</g>', page)
    assert len(page) - len(data) - sum(map(len, drawings)) < 150_000
    assert pictured(view)[0] < 256
    assert f"The first {pictured(view)[0]} of 256 tokens are shown." in page
    assert len(view.rows()) == 144, "the numbers are all there"


def test_hostile_tokens_are_text_everywhere() -> None:
    hostile = [token[:300] for token in hostile_texts()]
    plain = Page(random_view(1, 2, 50).html())
    for start in range(0, 500, 50):
        tokens = hostile[start : start + 50]
        view = random_view(1, 2, 50, tokens)
        page = Page(view.html())
        assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements] or _same_but_paths(page, plain)
        view.html().encode("utf-8")
        for picture in (view.svg(), random_view(1, 2, 50, tokens, layer=0, head=1).svg()):
            tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(picture).iter()}
            assert tags <= {"svg", "desc", "style", "title", "g", "path", "text", "rect", "defs", "pattern"}
        for line in (*heat_map(view, "numbers", None), *head_table(view)):
            assert not {ord(sign) for text, _ in line for sign in text} & set(CONTROLS)


def _same_but_paths(page: Page, plain: Page) -> bool:
    tags, expected = ([tag for tag, _ in document.elements if tag != "path"] for document in (page, plain))
    return tags == expected
