"""The sweep over other libraries: its table, what it says of a library that is there and of one that is not."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the tables are made as those of its models are: pip install it")

from other_libraries import (
    Examined,
    Library,
    Model,
    declared,
    left_out,
    measures,
    source,
    sweep,
    table,
    table_of_findings,
)

from clearhead.doctor.catalogue.faults import CATALOGUE

MODEL = """
import torch
from torch import nn

class Reader(nn.Module):
    '''A causal model.'''
    def __init__(self, far):
        super().__init__()
        self.words, self.places = nn.Embedding(19, 8), nn.Embedding(32, 8)
        self.q, self.k, self.v, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 19)
        self.far = far

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril(self.far)
        return self.head(x + nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), seen))
"""
READER = Library("small-reader", ("small-reader==1.0",), "from small_reader import Reader")
ABSENT = Library("nowhere", ("nowhere==1.0",), "import nowhere")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Examined]:
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "small_reader.py").write_text(MODEL, encoding="utf-8")
    (folder / "small_reader-1.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: small-reader\nVersion: 1.0\n"
    (folder / "small_reader-1.0.dist-info" / "METADATA").write_text(metadata, encoding="utf-8")
    models = [
        Model("small-reader", "leaking", "causal", "Reader(1)"),
        Model("small-reader", "meant to leak", "causal", "Reader(1)", design={"M06": "so it is meant"}),
        Model("small-reader", "misspelt", "causal", "Raeder(0)"),
        Model("nowhere", "anything", "causal", "nowhere.Anything()"),
    ]
    options = argparse.Namespace(libraries=Path(folder), level="quick", timeout=120)
    return list(sweep([READER, ABSENT], models, options))


@pytest.mark.campaign
def test_what_is_there_is_examined_and_what_is_not_is_said(cases: list[Examined]) -> None:
    assert [case.outcome for case in cases] == ["examined", "examined", "not examined", "missing"]
    lines = left_out(cases)[2:]
    assert "NameError: name 'Raeder' is not defined" in lines[0]
    assert "nowhere==1.0 is not in" in lines[1]


def test_an_alarm_counts_unless_it_is_by_design_or_a_bug(cases: list[Examined]) -> None:
    leaking, meant = cases[:2]
    known = replace(leaking.model, name="known to leak", bug={"M06": "its triangle is one too wide"})
    bug = replace(leaking, model=known)
    assert leaking.ids("fail") == ["M06"]
    assert not meant.ids("fail")
    assert not bug.ids("fail")
    counted = [leaking, meant, bug]
    assert any("| with a false alarm (fail) | 1 of 3 (33.3 %) | 0 |" in line for line in measures(counted))
    assert [line.rpartition(" | ")[2] for line in table_of_findings(counted, "fail")[2:]] == ["small-reader: leaking |"]
    assert declared(counted, "design")[2:] == ["| small-reader: meant to leak | M06 | so it is meant | yes |"]
    assert declared(counted, "bug")[2:] == [
        "| small-reader: known to leak | M06 | its triangle is one too wide | yes |"
    ]


def test_what_is_declared_and_not_seen_is_told(cases: list[Examined]) -> None:
    report: dict[str, Any] = {"findings": [], "checks": []}
    case = Examined(Model("a", "b", "causal", "c", design={"M06": "why"}), "examined", report=report)
    assert declared([case], "design")[2:] == ["| a: b | M06 | why | no longer |"]


def test_the_table_is_whole() -> None:
    libraries, models = table()
    known = {library.name for library in libraries}
    assert {model.library for model in models} == known
    assert len(known) >= 5
    assert len(models) >= 40
    assert len({model.title for model in models}) == len(models)
    assert all(package.count("==") == 1 for library in libraries for package in library.packages)
    by_name = {library.name: library for library in libraries}
    for model in models:
        assert model.kind in ("causal", "bidirectional", "seq2seq")
        compile(source(by_name[model.library], model), model.title, "exec")
        for id, reason in (model.design | model.bug).items():
            assert id in CATALOGUE, model.title
            assert reason, model.title
