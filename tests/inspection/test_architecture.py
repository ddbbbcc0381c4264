"""The page of an architecture as it is written; tests/browser opens it."""

import json
import re
from pathlib import Path

import pytest
from hostile_texts import hostile_texts
from page_reader import Page

from clearhead import cli
from clearhead.config import PRESETS, ModelConfig, RunConfig
from clearhead.inspection.architecture import ArchitectureReport, build_graph
from clearhead.inspection.architecture.equations import EQUATIONS, equations
from clearhead.inspection.architecture.mathml import equation
from clearhead.inspection.architecture.probe import probe_gradients, shrink
from clearhead.inspection.architecture.sources import sources_of
from clearhead.models import build_model
from clearhead.pages import printable
from clearhead.workflows import describe_architecture

LIMIT = 150_000  # bytes of a page without its data
DATA = re.compile(r'<script type="application/json" id="data">.*?</script>', re.DOTALL)


def config_of(preset: str) -> ModelConfig:
    return RunConfig.read(PRESETS[preset].options, {}).model


@pytest.mark.parametrize("preset", ["bigram", "tutorial", "llama", "masked", "vaswani2017"])
def test_a_page_is_small_and_complete(preset: str) -> None:
    report = describe_architecture(preset=preset)
    html = report.html()
    page = Page(html)
    assert len(DATA.sub("", html).encode()) < LIMIT
    assert not {"img", "iframe", "object"} & {tag for tag, _ in page.elements}
    links = [attributes["href"] or "" for tag, attributes in page.elements if tag == "a"]
    anchors = {attributes.get("id") for _, attributes in page.elements}
    assert all(link.removeprefix("#") in anchors for link in links)
    for _, (graph, _) in report.variants.items():
        for name, node in graph.nodes.items():
            assert node.about in page.text
            if parameters := report.measures[name].parameters:
                assert f"{parameters:,} parameters" in page.text


def test_the_head_width_of_the_original_is_written_out() -> None:
    config = config_of("vaswani2017")
    graph = build_graph(config)
    scores = graph.nodes["decoder.blocks.0.cross_attention.part.scores"]
    assert "sqrt{d_k} = sqrt{64} = 8" in equations(graph, scores)
    assert "<msqrt><mn>64</mn></msqrt><mo>=</mo><mn>8</mn>" in equation("sqrt{64} = 8")


def test_every_kind_that_computes_has_an_equation_and_a_source() -> None:
    configs = [config_of(preset) for preset in ("bigram", "tutorial", "llama", "vaswani2017", "ngram-tables")]
    configs += [
        ModelConfig.read({"positions": positions, "architecture": architecture, "head_transform": True, **more})
        for positions, architecture, more in (
            ("alibi", "decoder", {"parallel_residual": True, "dropout": 0.1}),
            ("relative", "encoder_decoder", {"attention_softcap": 5, "source_vocab_size": 7, "scale_logits": True}),
            ("learned", "encoder", {"n_token_types": 2, "n_kv_heads": 2, "sliding_window": None}),
        )
    ]
    kinds = set()
    for config in configs:
        report = ArchitectureReport(config)
        graph, _ = next(iter(report.variants.values()))
        for node in graph.nodes.values():
            kinds.add(node.kind)
            assert bool(equations(graph, node)) == (node.kind not in ("input", "logits")), node
            for line in equations(graph, node):
                Page(equation(line))
            assert sources_of(graph, report.model, node), node
    assert kinds >= EQUATIONS.keys()


def test_the_probe_measures_both_norm_positions_on_a_model_of_the_same_kind() -> None:
    config = config_of("vaswani2017")
    probe = probe_gradients(config)
    assert probe.by_position.keys() == {"pre", "post"}
    assert all(len(values) == config.n_layers and min(values) > 0 for values in probe.by_position.values())
    first, *_, last = probe.by_position["post"]
    assert last > 2 * first, "Xiong et al. 2020, figure 3: with post-norm the last layers' gradients are the largest"
    assert "n_heads 4, n_kv_heads 4, d_ff 512" in re.sub("d_model 128, |head_dim 32, ", "", probe.changed)


@pytest.mark.parametrize("preset", sorted(set(PRESETS) - {"bigram"}))
def test_the_caption_names_every_field_that_differs_and_no_other(preset: str) -> None:
    config = config_of(preset)
    for chosen in (config, config.model_copy(update={"n_layers": 48, "d_model": 96, "d_ff": 8192, "dropout": 0.1})):
        small, changed = shrink(chosen)
        before, after = chosen.model_dump(), small.model_dump()
        assert [entry.split()[0] for entry in sorted(changed.split(", "))] == sorted(
            name for name in before if before[name] != after[name]
        )


def test_the_verdict_and_the_note_are_sentences() -> None:
    small = {"n_layers": 1, "d_model": 8, "n_heads": 1, "d_ff": 8, "block_size": 4, "vocab_size": 16, "dropout": 0.1}
    report = ArchitectureReport(ModelConfig.read(small))
    assert re.search(r", \d,\d{3} FLOPs per token\.$", report.verdict)
    page = Page(report.html()).text
    assert "Dropout after the self-attention" in page
    assert re.search(r"with post-norm: it would have \d+ fewer parameters, because a pre-norm stack ends", page)
    original = describe_architecture(preset="vaswani2017")
    assert "6 encoder blocks and 6 decoder blocks (post-norm)" in original.verdict
    assert re.search(r"\d MFLOPs per token\.$", original.verdict)


@pytest.mark.parametrize("preset", sorted(set(PRESETS) - {"bigram"}))
def test_what_is_measured_instead_of_a_large_model_can_be_built(preset: str) -> None:
    config = config_of(preset).model_copy(update={"n_layers": 10**6, "d_model": 2**16, "vocab_size": 10**7})
    small, _ = shrink(config.model_copy(update={"head_dim": 2**14, "partial_rotary_factor": 0.25}))
    ModelConfig.read(small.model_dump())
    assert sum(parameter.numel() for parameter in build_model(small).parameters()) < 20_000_000


def test_hostile_names_stay_text() -> None:
    config = ModelConfig.read({"architecture": "bigram"})
    plain = [tag for tag, _ in Page(ArchitectureReport(config, "x").html()).elements]
    for text in hostile_texts(120):
        report = ArchitectureReport(config, text)
        page = Page(report.html())
        assert [tag for tag, _ in page.elements] == plain
        assert printable(report.title) in page.text


def test_describe_writes_the_page(tmp_path: Path) -> None:
    path = tmp_path / "model.html"
    options = ["--model.n_layers", "1", "--model.d_model", "16", "--model.block_size", "8"]
    assert cli.run(["describe", "--preset", "tutorial", *options, "--report", str(path)]) == 0
    html = path.read_text(encoding="utf-8")
    match = DATA.search(html)
    assert match
    names = json.loads(match[0].partition(">")[2].removesuffix("</script>"))["names"]
    assert names["stack.blocks.0.feedforward.part.up"] == "Up projection, 1,024 parameters"
