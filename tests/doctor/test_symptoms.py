"""A symptom leads to the fault that was planted, and to none in a healthy model."""

import json
from pathlib import Path

import pytest
from doctor_helpers import NAMES, as_it_came, made, write
from mutants import MUTANTS, Mutant

from clearhead.doctor import check
from clearhead.doctor.catalogue.curves import signs
from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.catalogue.symptoms import SYMPTOMS, Diagnosis, diagnose, symptom
from clearhead.errors import UsageError


def diagnosed(path: Path, name: str) -> Diagnosis:
    return diagnose(symptom(name), check(made(path)))


def mutant(host: str, id: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if (mutant.host, mutant.id) == (host, id))


LEADS = [
    ("repeats", "llama", "K02"),
    ("flat-loss", "gpt", "I06"),
    ("too-good", "gpt", "M06"),
    ("nan", "gpt", "M14"),
    ("good-loss-bad-text", "gpt", "D02"),
    ("batch-changes-answer", "bert", "M11"),
    ("cached-differs", "llama", "K04"),
    ("validation-worse", "gpt", "A08"),
    ("cannot-overfit", "gpt", "L03"),
    ("loss-jumps", "gpt", "L10"),
    ("same-output", "bert", "A12"),
    ("order-does-not-matter", "bert", "P01"),
    ("long-inputs-fail", "llama", "P05"),
    ("ignores-source", "translator", "S02"),
    ("padding-changes-answer", "bert", "M12"),
    ("different-after-loading", "gpt", "I05"),
    ("random-characters", "llama", "K01"),
    ("one-token", "bert", "A12"),
]


@pytest.mark.parametrize(("name", "host", "id"), LEADS, ids=[name for name, _, _ in LEADS])
def test_a_symptom_leads_to_its_fault(name: str, host: str, id: str, tmp_path: Path) -> None:
    found = diagnosed(write(tmp_path, host, *mutant(host, id).changes), name)
    lines = [text for text, _ in found.lines()]
    assert lines[0] == f"{SYMPTOMS[name].title}: {id}, {CATALOGUE[id].title}", lines
    assert lines[1].startswith(f"  {id}: yes, ")
    assert SYMPTOMS[name].otherwise not in "\n".join(lines)


def test_every_symptom_is_tried_above() -> None:
    assert {name for name, _, _ in LEADS} == {*SYMPTOMS}


@pytest.mark.parametrize("host", NAMES)
def test_nothing_is_behind_the_symptoms_of_a_healthy_model(host: str) -> None:
    for chosen in SYMPTOMS.values():
        found = diagnose(chosen, as_it_came(host))
        assert not [cause for cause in found.causes if cause.answer == "yes"], found
        assert [cause for cause in found.causes if cause.answer == "no"]
        assert all(cause.why for cause in found.causes)
        lines = [text for text, _ in found.lines()]
        assert "known causes is found" in lines[0]
        assert lines[-1].strip() == chosen.otherwise


def test_what_was_not_examined_is_neither_found_nor_refuted(tmp_path: Path) -> None:
    by_id = {cause.id: cause for cause in diagnosed(write(tmp_path, "gpt"), "cached-differs").causes}
    assert by_id["K01"].answer == "unknown"
    assert by_id["K01"].sentence.startswith("K01: open, it takes no cache")
    assert by_id["A08"].sentence.startswith("not A08 (dropout is active in evaluation): the same batch gives")
    mean = ("self.head(self.ln_f(x))", "self.head(self.ln_f(x) + x.mean(1, keepdim=True))")
    blocked = diagnosed(write(tmp_path, "gpt", mean), "order-does-not-matter")
    assert {cause.id: cause for cause in blocked.causes}["P05"].answer == "unknown"


def test_the_symptoms_speak_of_what_there_is() -> None:
    for found in SYMPTOMS.values():
        assert {*found.causes} <= {*CATALOGUE}
        assert len({*found.causes}) == len(found.causes)


@pytest.mark.parametrize("word", ["flat-loss", "flat loss", "Flat_Loss"])
def test_a_name_may_be_joined_in_any_way(word: str) -> None:
    assert symptom(word).name == "flat-loss"


def test_an_unknown_symptom_is_told_with_the_known() -> None:
    with pytest.raises(UsageError, match=r"no symptom 'repeat'; did you mean 'repeats'\?; known are repeats"):
        symptom("repeat")


def test_a_diagnosis_as_json(tmp_path: Path) -> None:
    told = json.loads(json.dumps(diagnosed(write(tmp_path, "gpt"), "repeats").as_json()))
    assert set(told["symptom"]) == {"name", "title", "verdict", "causes", "signs", "otherwise"}
    assert set(told["symptom"]["causes"][0]) == {"id", "title", "answer", "why"}
    assert told["verdict"] == "healthy"


def steps(*losses: float | None, rate: float = 1e-3) -> list[dict[str, object]]:
    return [{"kind": "step", "step": n, "loss": loss, "learning_rate": rate, "skipped": loss is None}
            for n, loss in enumerate(losses, 1)]  # fmt: skip


def test_a_curve_speaks() -> None:
    assert signs([]) == ()
    assert signs(steps(4.0, 3.0, 2.0)) == ("the loss fell from 4.00 to 2.00 in 3 steps",)
    assert signs(steps(2.0, 3.0, 9.0)) == ("the loss rose from 2.00 to 9.00 in 3 steps",)
    assert "stayed near 4.17 in 9 steps; a uniform prediction has 4.17" in signs(steps(*[4.17] * 9), vocab_size=65)[0]
    assert "1 of 3 steps had no finite loss or gradient, the first was step 2" in signs(steps(4.0, None, 4.0))
    assert "the learning rate was 0 in 2 of 2 steps, first in step 1" in signs(steps(4.0, 4.0, rate=0))
    assert "it jumped at step 7, from 2.00 to 5.00" in signs(steps(*[2.0] * 6, 5.0, 2.0))
    evaluations = [{"kind": "evaluation", "step": n, "loss": loss} for n, loss in ((1, 3.0), (2, 2.0), (3, 2.5))]
    told = signs([*steps(3.0, 2.0, 1.0), *evaluations])
    assert any("best at step 2 with 2.00 and has risen to 2.50" in sign for sign in told)
    assert "validation is 2.50 where training is 2.00" in told
