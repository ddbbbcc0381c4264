"""What a notebook shows: pictures of what was asked for, and every text as text."""

import re
from dataclasses import replace

import pytest
import torch
from hostile_texts import hostile_texts
from page_reader import Page
from torch import nn

from clearhead.config import ModelConfig
from clearhead.config.presets import preset
from clearhead.inspection import ComparedRun, ComparisonReport, Curve, TrainingReport, estimate_cost, record
from clearhead.inspection.cost.estimate import CostEstimate
from clearhead.inspection.notebook import show_comparison, show_training
from clearhead.models import DecoderLM, EncoderDecoder

SHAPE = {"vocab_size": 11, "block_size": 16, "n_layers": 2, "n_heads": 2, "d_model": 16}
CURVE = Curve(((1, 3.0), (2, 2.5)), ((2, 2.6),))


def parts(html: str) -> list[str]:
    """The names of a fragment's elements; one that loads or runs something is a failure."""
    tags = [tag for tag, _ in Page(html).elements]
    assert not {"script", "img", "iframe", "link", "object", "meta"} & set(tags)
    return tags


def test_a_trace_shows_each_head_and_each_name() -> None:
    model = DecoderLM(ModelConfig.read(SHAPE))
    with record(model) as trace:
        model(torch.zeros(1, 5, dtype=torch.int64))
    html = trace._repr_html_()
    assert parts(html).count("svg") == 4
    for name in trace.names:
        assert f">{name}</th>" in html
    assert ">1 x 2 x 5 x 5<" in html
    with record(model, ["*.1.*.attention", "output"]) as some:
        model(torch.zeros(1, 5, dtype=torch.int64))
    assert parts(some._repr_html_()).count("svg") == 2
    assert "2 activations" in some._repr_html_()


def test_a_trace_of_a_translator_shows_all_three_attentions_and_one_of_a_stranger_none() -> None:
    model = EncoderDecoder(ModelConfig.read({"architecture": "encoder_decoder"}, SHAPE))
    ids = torch.ones(1, 5, dtype=torch.int64)
    with record(model) as trace:
        model(ids, ids)
    html = trace._repr_html_()
    assert parts(html).count("svg") == 12
    assert all(name in html for name in ("Self-attention", "Cross-attention", "Encoder attention"))
    stranger = nn.Sequential(nn.Linear(2, 2))
    with record(stranger) as other:
        stranger(torch.zeros(1, 2))
    assert parts(other._repr_html_()).count("svg") == 0


def test_costs_are_bars_that_add_up() -> None:
    costs = estimate_cost(ModelConfig.read(preset("gpt2").options["model"]))
    html = costs._repr_html_()
    shares = [float(share) for share in re.findall(r"--p:([\d.]+)", html)]
    assert sum(shares) == pytest.approx(1, abs=0.01)
    assert all(f"<td>{count:,}</td>" in html for count in costs.parts.values())


def test_a_training_is_its_curve_and_one_that_did_not_begin_has_none() -> None:
    report = TrainingReport("run", "verdict", (("loss", "2.5"),), CURVE, configuration="steps = 2")
    html = show_training(report)
    assert parts(html).count("svg") == 1
    assert all(text in html for text in ("2.5", "steps = 2", "verdict"))
    assert "svg" not in parts(show_training(replace(report, curve=Curve((), ()))))


def test_hostile_texts_are_text_everywhere() -> None:
    def shown(text: str) -> list[str]:
        facts = ((text or "x", text),)
        training = TrainingReport(text, text, facts, CURVE, configuration=text or "x")
        runs = [ComparedRun(text, {text: text}, ((1, 2.0),), ((1, 2.0),), text or "x") for _ in range(2)]
        comparison = ComparisonReport(runs, "nats", text, {text: (text, text)})
        costs = CostEstimate({text: 5}, 1, {text: 5})
        return [show_training(training), show_comparison(comparison), costs._repr_html_()]

    plain = [parts(html) for html in shown("x")]
    for text in hostile_texts():
        pages = shown(text)
        assert [parts(html) for html in pages] == plain
        assert all(html.encode("utf-8") for html in pages)
