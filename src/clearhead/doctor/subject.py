"""The model under examination: two copies of it, how they are called, and what kind of model it is."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.calling import Convention, Inputs
from clearhead.doctor.calling.batches import OwnBatch
from clearhead.doctor.calling.inputs import Run, drawn_rows
from clearhead.doctor.calling.names import pad_ids_of
from clearhead.doctor.calling.settings import settings_of
from clearhead.doctor.calling.trial import WorkingCall
from clearhead.doctor.kind import Hints, assumed_kind
from clearhead.doctor.probes.attention import AttentionCall
from clearhead.doctor.probes.dependency import DependencyMatrix, dependency, shape_of, swapped_rows
from clearhead.doctor.probes.inside import Inside
from clearhead.doctor.probes.tracing import ModuleCall, quiet, recorded_modules, recorded_ops, without_dropout
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Where
from clearhead.doctor.spec import Assumption, Journal, Kind, Level, Spec
from clearhead.doctor.state_guard import in_training, is_large, random_states

TRIES = 4  # calls of one batch: what is drawn rarely does not show at once


class Repeated(NamedTuple):
    """The logits of one batch in two calls. `generators`: the libraries whose random numbers were drawn for them."""

    first: Tensor
    second: Tensor
    generators: frozenset[str]

    @property
    def is_same(self) -> bool:
        """To the last bit."""
        return torch.equal(self.first.nan_to_num(), self.second.nan_to_num())


@dataclass(frozen=True)
class Subject:
    """What the checks work on: made once by `prepare`, and never changed.

    What has to be learned by calling the model is computed on first use and kept.
    """

    original: nn.Module  # as it came; it is never touched
    spec: Spec
    level: Level
    seed: int
    device: torch.device
    fresh: nn.Module  # a copy with the weights as they came
    model: nn.Module  # a copy with noise on the weights (see `perturbed`)
    hints: Hints
    calling: WorkingCall
    own: OwnBatch | None = None  # the person's batch, as inputs of the model
    failed: AbstractSet[str] = frozenset()  # names of the checks that failed so far; the examination keeps the list
    journal: Journal = field(default_factory=Journal)
    drops_in_evaluation: bool = False  # dropout stays active in eval(); it is taken out to examine the rest
    is_seeded: bool = False  # it draws random numbers, the same in every call; each row of a batch has its own

    @cached_property
    def is_large(self) -> bool:
        """Whether another copy of the model, or a backward pass over many rows, takes seconds."""
        return is_large(self.model)

    @property
    def is_hurried(self) -> bool:
        """Whether the model is so large that a quick look must make do with short rows."""
        return self.level == "quick" and self.is_large

    @property
    def convention(self) -> Convention:
        """How the model is called."""
        return self.calling.convention

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the model's `config` holds; empty if it has none."""
        return settings_of(self.original)

    def training(self) -> AbstractContextManager[None]:
        """Every module of the perturbed copy is in training mode meanwhile."""
        return in_training(self.model)

    def run(
        self,
        inputs: Inputs,
        more: Mapping[str, object] | None = None,
        *,
        model: nn.Module | None = None,
        graph: bool = False,
    ) -> Tensor:
        """Logits (B, T, V) of the perturbed copy or of another, without dropout.

        Args:
            more: further arguments of `forward`, by name.
            graph: record the graph that gradients need.
        """
        with torch.set_grad_enabled(graph), without_dropout():
            return self.convention.logits(model or self.model, inputs, **(more or {}))

    def operations(
        self, inputs: Inputs, *, model: nn.Module | None = None, named: Callable[[str], bool] = lambda name: True
    ) -> list[ModuleCall]:
        """Every operation of one call, or those with such names."""
        return self.look_inside(model or self.model, inputs, named).calls

    def modules_called(self, inputs: Inputs) -> list[ModuleCall]:
        """Every call of a module within one call."""
        with recorded_modules(self.model) as calls:
            self.run(inputs)
        return calls

    @cached_property
    def paths(self) -> dict[int, str]:
        """The path of each module of either copy, by its id."""
        return {id(module): path for copy in (self.fresh, self.model) for path, module in copy.named_modules()}

    def place_of(self, call: ModuleCall) -> Where:
        """The module in which an operation was called, and the line."""
        class_name = None if call.module is None else type(call.module).__name__
        return Where(self.paths.get(id(call.module)), class_name, call.file, call.line, call.name)

    @property
    def attentions(self) -> list[AttentionCall]:
        """Every attention in one pass of the perturbed copy."""
        return self.inside.attentions

    @cached_property
    def attention_place(self) -> Where:
        """Where the first attention is."""
        return self.place_of(self.attentions[0].call) if self.attentions else Where()

    @cached_property
    def repeated(self) -> Repeated:
        """What the same batch gives twice in evaluation."""
        inputs = self.inputs(3)
        states = random_states()
        with torch.no_grad():
            first, *others = (self.convention.logits(self.model, inputs) for _ in range(TRIES))
        second = next((other for other in others if not torch.equal(other, first)), others[0])
        drawn = frozenset(name for name, state in random_states().items() if state != states[name])
        return Repeated(first, second, drawn)

    @cached_property
    def pad_id(self) -> int | None:
        """The token that fills up rows: as declared, or as the model has it."""
        return self.padding(source=False)[1]

    def padding(self, *, source: bool) -> tuple[str, int | None]:
        """What says which token fills up rows, or those of the source, and that token; None if nothing says it."""
        if not self.convention.reads_words("source" if source else "ids"):
            return "", None
        if self.spec.pad_id is not None:
            return "you", self.spec.pad_id
        side = source if self.convention.has_source else None
        V = self.calling.source_vocab_size if source else self.calling.vocab_size
        declared = next(pad_ids_of(self.original, V, source=side), None)
        return declared or ("a comparison", self.compared_ids.get(source))

    @cached_property
    def compared_ids(self) -> dict[bool, int]:
        """The number that the model compares its ids, or its source, with, as it does to make a padding mask."""
        V, source_V = self.calling.vocab_size, self.calling.source_vocab_size
        tokens = {False: min(5, V - 1), True: min(6, source_V - 2) if source_V > 2 else 1}
        ids, source = torch.full((2, self.calling.T), tokens[False]), torch.full((2, self.calling.S), tokens[True])
        labels = ids - 1 if self.convention.inner else None  # what a loss compares is not what it reads
        inputs = Inputs(ids, source if self.convention.has_source else None, labels=labels)
        with attempt() as attempted:
            calls = self.operations(inputs, named=lambda name: name.strip("_") in ("eq", "ne", "gt"))
        compared: dict[bool, int] = {}
        for call in () if attempted.failed else calls:  # the checks report why it does not run
            first, *rest = call.options["args"]
            if not isinstance(first, Tensor) or first.dtype != torch.long or not rest or not isinstance(rest[0], int):
                continue
            side = next((side for side, token in tokens.items() if bool((first == token).all())), None)
            is_id = side is not None and 0 <= rest[0] < (1 if "gt" in call.name else source_V if side else V)
            if side is not None and is_id:
                compared.setdefault(side, rest[0])
        return compared

    @cached_property
    def pool(self) -> Tensor:
        """Ordinary token ids: neither special by number or config, nor padding."""
        return self._ordinary(self.calling.vocab_size, self.own.inputs.ids if self.own else None)

    @cached_property
    def source_pool(self) -> Tensor:
        """Ordinary token ids of the source."""
        return self._ordinary(self.calling.source_vocab_size, self.own.inputs.source if self.own else None)

    def _ordinary(self, V: int, own: Tensor | None) -> Tensor:
        """The ids in the person's batch if they suffice for rows without repeats, else of the whole vocabulary."""
        special = {self.padding(source=source)[1] for source in (False, True)}
        special |= {value for name, value in self.settings.items() if name.endswith("_id") and isinstance(value, int)}
        known = [] if own is None else [id for id in sorted({*own.flatten().tolist()}) if id not in special]
        if len(known) > max(self.calling.T, self.calling.S):
            return torch.tensor(known)
        first, last = (4, V - 2) if V > 12 else (0, V)
        ids = [id for id in range(first, min(last, first + 4096)) if id not in special]
        return torch.tensor(ids if len(ids) > 1 else list(range(V)))

    def generator(self, salt: int = 0) -> torch.Generator:
        """A generator for one use; another `salt` gives another stream."""
        return torch.Generator().manual_seed(1000 * self.seed + salt)

    def inputs(self, rows: int = 1, *, salt: int = 0, T: int | None = None) -> Inputs:
        """Random rows, with a source if the model reads one; tokens that stand side by side differ."""
        generator = self.generator(salt)
        ids = drawn_rows(self.pool, (rows, T or self.calling.T), generator)
        has_source, shape = self.convention.has_source, (rows, self.calling.S)
        source = drawn_rows(self.source_pool, shape, generator) if has_source else None
        return Inputs(ids, source, labels=ids)

    @cached_property
    def module_calls(self) -> list[ModuleCall]:
        """Every call of a module in one pass of the perturbed copy over two rows."""
        return self.modules_called(self.inputs(2))

    @cached_property
    def inside(self) -> Inside:
        """One pass of the perturbed copy, operation by operation."""
        return self.look_inside(self.model)

    @cached_property
    def inside_fresh(self) -> Inside:
        """The same with the weights as they came."""
        return self.look_inside(self.fresh)

    @cached_property
    def inside_training(self) -> Inside:
        """The same of the perturbed copy in training mode; dropout is called, and drops nothing."""
        with self.training():
            return self.look_inside(self.model)

    def look_inside(
        self, model: nn.Module, inputs: Inputs | None = None, named: Callable[[str], bool] = lambda name: True
    ) -> Inside:
        """One pass of a model over two rows or other inputs, operation by operation, or those with such names."""
        inputs = inputs or self.inputs(2)  # these may take calls of the model, which are not to be recorded
        with quiet(), recorded_ops(named) as ops:
            logits = self.convention.logits(model, inputs)
        return Inside(ops.calls, logits)

    @cached_property
    def moved_under_masks(self) -> dict[tuple[tuple[str, ...], str, bool], float]:
        """How far padding moves real logits under (parameters, form, whether of the source); see checks.paddings."""
        return {}

    @cached_property
    def matrix(self) -> DependencyMatrix:
        """Which token moves which logit."""
        return self.dependencies(self.run)

    @cached_property
    def source_matrix(self) -> DependencyMatrix:
        """Which token of the source moves which logit."""
        return self.dependencies(self.run, source=True)

    def dependencies(self, run: Run, T: int | None = None, *, source: bool = False) -> DependencyMatrix:
        """Which token moves which logit where the model is run like this, in rows of T tokens."""
        return dependency(run, *self.swapped(T, source=source), source=source)

    def swapped(self, T: int | None = None, *, source: bool = False) -> tuple[Inputs, Inputs]:
        """The two batches that `dependencies` compares: equal rows, and the same with token j of row j changed."""
        pool = self.source_pool if source else self.pool
        return swapped_rows(self.inputs(T=T), pool, self.generator(2 if source else 1), source=source)

    @cached_property
    def kind(self) -> Kind:
        """As declared, or as the model's names, code and behavior suggest; then an assumption says so."""
        return self.spec.kind or self.assumed_kind.value  # type: ignore[union-attr, return-value]

    @cached_property
    def assumed_kind(self) -> Assumption | None:
        """The kind with its reasons, if nobody declared it."""
        if self.spec.kind:
            return None
        return assumed_kind(self.hints, self.convention, lambda: self.matrix.alive)

    @cached_property
    def shifts_its_rows(self) -> bool:
        """Whether logits depend on the tokens before their position and not on its own: they predict that one."""
        return shape_of(self.matrix.alive)[0] == "strict"

    @property
    def looks_back_only(self) -> bool:
        """Whether no logit may depend on a later token of its row."""
        return self.kind != "bidirectional" and not self.gives_rows

    @property
    def gives_rows(self) -> bool:
        """Whether it gives one output for a whole row; the logits here repeat it at each token."""
        return self.convention.gives != "tokens"
