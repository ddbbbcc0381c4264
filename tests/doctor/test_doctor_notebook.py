"""What a notebook shows of an examination and of a comparison."""

from dataclasses import replace

import pytest
import torch
from hostile_texts import hostile_texts
from page_reader import Page
from torch import nn

from clearhead import doctor
from clearhead.doctor.report.comparison import Comparison, Difference, Differing, Weights
from clearhead.doctor.report.findings import Where


class Peeking(nn.Module):
    """A causal model that looks ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(17, 8)
        self.head = nn.Linear(8, 17)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        return self.head(x + x.flip(1))  # type: ignore[no-any-return]


def tags(html: str) -> list[str]:
    elements = [tag for tag, _ in Page(html).elements]
    assert not {"script", "img", "iframe", "link", "object", "meta"} & set(elements)
    return elements


def compared(text: str) -> Comparison:
    where = Where(module=text, file=f"missing/{text}x", line=3, op=text)
    first = Difference("output", text, where, where, 0.5, agreed=text or "x", growth=(Differing(text, "b", 0.5),))
    return Comparison(text, "b", first, Weights({"name": 3}, notes=(text,)), (text,), 0.1)


@pytest.mark.campaign
def test_a_report_shows_what_is_wrong_as_on_its_page() -> None:
    report = doctor.check(Peeking())
    html = report._repr_html_()
    assert report.verdict == "faulty"
    assert tags(html).count("article") == len(report.findings)
    assert all(finding.id in html for finding in report.findings)
    plain = tags(replace(report, target="x", paths=("x",))._repr_html_())
    for text in hostile_texts():
        assert tags(replace(report, target=text, paths=(text,))._repr_html_()) == plain


def test_a_comparison_shows_where_two_models_part() -> None:
    html = compared("layers.1")._repr_html_()
    assert "layers.1 computes something else from the same input" in html
    assert "5.0e-01" in html
    equal = Comparison("a", "b", None, Weights({"name": 3}), ("forward",), 0.1)._repr_html_()
    assert "are equal on every path" in equal
    assert "article" not in tags(equal)
    plain = tags(compared("x")._repr_html_())
    for text in hostile_texts():
        assert tags(compared(text)._repr_html_()) == plain
