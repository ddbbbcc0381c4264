"""What is said of the parts of a model stands in their places on the picture."""

import pytest
from page_reader import Page

from clearhead.config import PRESETS, ModelConfig, RunConfig
from clearhead.inspection.architecture import ArchitectureReport, Mark, build_graph
from clearhead.inspection.architecture.marks import placed
from clearhead.models import build_model

HOSTILE = "<img src=x onerror=alert(1)>"


def config_of(preset: str) -> ModelConfig:
    return RunConfig.read(PRESETS[preset].options, {"model": {"n_layers": 3, "n_encoder_layers": 3}}).model


@pytest.mark.parametrize("preset", ["tutorial", "llama", "masked", "vaswani2017"])
def test_every_module_of_a_model_has_a_box_around_it(preset: str) -> None:
    config = config_of(preset)
    graph = build_graph(config)
    names = [name for name, _ in build_model(config, seed=0).named_modules() if ".blocks." in name]
    marks = [Mark(name, "warn", "a title") for name in names]
    places = placed(marks, graph)
    assert sum(map(len, places.values())) == len(names)
    assert "" not in places
    for box, marks_there in places.items():
        path = box.replace(".blocks.0", ".blocks")
        for mark in marks_there:
            path_there = [name for name in mark.module.split(".") if not name.isdigit()]
            assert ".".join(path_there).startswith(path.removesuffix(".part").removesuffix(".add")), (box, mark)


def test_the_last_block_is_drawn_as_the_first() -> None:
    graph = build_graph(config_of("tutorial"))
    module = "stack.blocks.2.self_attention.part.query"
    assert list(placed([Mark(module, "fail", "a title")], graph)) == [module.replace("2", "0")]
    assert list(placed([Mark("stack.blocks.2", "fail", "a title")], graph)) == ["stack.blocks"]
    assert list(placed([Mark("what.nobody.knows", "fail", "a title")], graph)) == [""]


def test_the_severest_mark_gives_a_box_its_color_and_all_are_told() -> None:
    name = "stack.blocks.0.feedforward.part"
    marks = [
        Mark("", "pass", "activations", "one stands there", ("feedforward",)),
        Mark(name, "fail", "dead", HOSTILE),
        Mark("", "warn", "all of it", "is strange"),
    ]
    report = ArchitectureReport(config_of("tutorial"), "name", marks)
    html = report.html()
    page = Page(html)
    [header] = [a for tag, a in page.elements if tag == "g" and a.get("data-name") == name]
    assert (header["class"] or "").split() == ["node", "header", "fail"]
    assert html.index("all of it") < html.index('id="picture"')
    assert "img" not in {tag for tag, _ in page.elements}
    assert HOSTILE in page.text
    names = report.data()["names"]
    assert isinstance(names, dict)
    assert names[name].endswith("; fail: dead; 1 check passed")
    [button] = [a for tag, a in page.elements if tag == "button"]
    assert button["data-goto"] == name
