"""Watching changes nothing: not the numbers of the training, not torch, not the script's own names."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from training_loops import loaded, written

from clearhead import doctor
from clearhead.errors import FaultError, UsageError

V = 11


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, 8)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, V)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.drop(self.embed(ids)))  # type: ignore[no-any-return]


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    for seed in itertools.count():
        ids = torch.randint(0, V, (4, 9), generator=torch.Generator().manual_seed(seed))
        yield ids[:, :-1], ids[:, 1:]


def steps(model: nn.Module, optimizer: Any, number: int = 2, *, clear: bool = True) -> None:
    for inputs, targets in itertools.islice(batches(), number):
        if clear:
            model.zero_grad()
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def trained(watching: bool) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(0)
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if watching:
        with doctor.watch(model, optimizer) as seen:
            steps(model, optimizer)
        seen.report()
    else:
        steps(model, optimizer)
    return [parameter.detach() for parameter in model.parameters()], torch.get_rng_state()


def test_the_training_is_bit_for_bit_what_it_would_have_been() -> None:
    (plain, plain_state), (watched, watched_state) = trained(False), trained(True)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert torch.equal(plain_state, watched_state)


def patched() -> list[Any]:
    """All that a watch replaces."""
    scaler = torch.amp.grad_scaler.GradScaler
    return [
        torch.autograd.backward,
        torch.nn.utils.clip_grad_norm_,
        torch.nn.utils.clip_grad.clip_grad_value_,
        globals()["clip_grad_norm_"],
        LRScheduler.step,
        LRScheduler._initial_step,
        torch.optim.lr_scheduler.ReduceLROnPlateau.step,
        torch.optim.Optimizer.__init__,
        *(vars(scaler)[name] for name in ("scale", "unscale_", "step", "update")),
        len(torch.nn.modules.module._global_forward_hooks),
        len(torch.nn.modules.module._global_forward_pre_hooks),
        len(_global_optimizer_pre_hooks),
        len(_global_optimizer_post_hooks),
    ]


def test_all_that_is_replaced_is_put_back() -> None:
    before = patched()
    with doctor.watch():
        assert all(now != then for now, then in zip(patched(), before, strict=True))
    assert patched() == before
    with pytest.raises(ZeroDivisionError), doctor.watch():
        raise ZeroDivisionError
    assert patched() == before


def test_what_was_imported_by_name_is_heard_too() -> None:
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with doctor.watch() as seen:
        steps(model, optimizer)
        clip_grad_norm_(model.parameters(), 0.5)  # after the step
    assert seen.report()["T05"].where.file == __file__


def test_a_report_has_the_form_of_every_other() -> None:
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda step: 1.0)
    with doctor.watch(model, optimizer, scheduler) as seen:
        steps(model, optimizer, clear=False)
    report = seen.report()
    assert report.verdict == "faulty"
    assert report.kind == "training"
    assert report.target == "Tiny"
    assert report["T01"].evidence.value > report["T01"].evidence.threshold
    assert doctor.Report.from_json(report.as_json()).as_json() == report.as_json()
    with pytest.raises(FaultError, match="T01 gradients are not cleared"):
        report.raise_if_failed()
    assert seen.report().findings == report.findings, "it may be asked twice"


def test_a_finding_may_be_allowed() -> None:
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with doctor.watch(model, optimizer, allow={"T01": "momentum by hand"}) as seen:
        steps(model, optimizer, clear=False)
    report = seen.report()
    assert "T01" not in report
    assert [check.note for check in report.checks if check.status == "waived"] == ["T01: momentum by hand"]
    with pytest.raises(UsageError, match="there is no check 'T0'"):
        doctor.watch(allow={"T0": "?"})


def test_where_nothing_steps_nothing_is_said() -> None:
    with doctor.watch(Tiny()) as seen:
        pass
    assert seen.report().verdict == "unknown"


class Mine:
    """An optimizer that is none of torch's."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.1)


@pytest.mark.parametrize("named", [True, False])
def test_an_optimizer_of_your_own_is_heard_where_it_is_named_and_seen_where_it_is_not(named: bool) -> None:
    model = Tiny()
    optimizer = Mine([p for p in model.parameters() if p.dim() > 1])
    with doctor.watch(model, optimizer if named else None) as seen:
        steps(model, optimizer, 3)
    report = seen.report()
    assert [finding.id for finding in report.findings] == ["O01"]
    assert report["O01"].where.module == "head"
    assert "head.bias" in report["O01"].evidence.witness
    assert "step" not in vars(optimizer)


def test_a_group_without_parameters_is_no_obstacle() -> None:
    model = Tiny()
    groups: list[dict[str, Any]] = [{"params": []}, {"params": list(model.parameters())}]
    optimizer = torch.optim.Adam(groups, lr=1e-3, weight_decay=0.02)
    with doctor.watch(model, optimizer) as seen:
        steps(model, optimizer)
    report = seen.report()
    assert not report.broken
    assert [finding.id for finding in report.findings] == ["O05"]


class Lookahead(torch.optim.Optimizer):
    """An optimizer that wraps another one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_an_optimizer_that_wraps_another_is_one() -> None:
    model = Tiny()
    optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=1e-3))
    with doctor.watch() as seen:
        steps(model, optimizer)
    report = seen.report()
    assert not report.findings, str(report)
    assert "2 steps of Lookahead" in report.paths[0]


class Wrapper(torch.optim.Optimizer):
    """Has the groups of another one and none of its own, as libraries for many devices have them."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_a_schedule_may_drive_the_wrapper_of_what_steps() -> None:
    model = Tiny()
    optimizer = Wrapper(torch.optim.Adam(model.parameters(), lr=1e-3))
    scheduler = LambdaLR(optimizer, lambda step: 1 / (step + 1))
    with doctor.watch() as seen:
        for _ in range(2):
            steps(model, optimizer, 1)
            scheduler.step()
    assert [finding.id for finding in seen.report().findings] == ["D17"], "and it is the same batch"


def test_a_model_in_two_parts_is_seen_as_both() -> None:
    embed, head = nn.Embedding(V, 8), nn.Linear(8, V)
    optimizer = torch.optim.Adam(embed.parameters(), lr=1e-3)
    with doctor.watch() as seen:
        for inputs, targets in itertools.islice(batches(), 3):
            optimizer.zero_grad()
            head.zero_grad()
            F.cross_entropy(head(embed(inputs)).flatten(0, 1), targets.flatten()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    found = seen.report()["O01"]
    assert found.status == "warn", "a part that no optimizer holds, and no model that was named, may be frozen so"
    assert "2 parameters of Linear" in found.evidence.witness
    model = nn.Sequential(embed, head)
    with doctor.watch(model) as seen:
        steps(model, optimizer)
    assert [finding.id for finding in seen.report().findings] == ["O01"]


ONWARD = ("        scheduler.step()\n", "")


def test_steps_that_a_scaler_leaves_out_are_told(tmp_path: Path) -> None:
    changes = ("init_scale=1024.0", "init_scale=1e30"), ("scaler.scale(loss)", "scaler.scale(1e30 * loss)"), ONWARD
    module = loaded(written(tmp_path, "scaled", *changes))
    with doctor.watch() as seen:
        module.train()
    assert [finding.id for finding in seen.report().findings] == ["T07"]


def test_a_loss_without_a_graph_is_found_although_torch_raises() -> None:
    model = Tiny()
    seen = doctor.watch(model)
    with seen:
        with torch.no_grad():
            loss = model(next(batches())[0]).mean()
        with pytest.raises(RuntimeError, match="does not require grad"):
            loss.backward()
    report = seen.report()
    assert report["I06"].where.file == __file__


def test_it_looks_at_a_few_steps_only() -> None:
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with doctor.watch() as seen:
        steps(model, optimizer, 30)
    assert len(seen.event_log.steps) == 8
    assert len(seen.event_log.timeline) < 60
