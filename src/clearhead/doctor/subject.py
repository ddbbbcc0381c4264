"""The model under examination: two copies of it, the way to call them, and what it is taken for."""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.calling import Convention, Inputs
from clearhead.doctor.calling.batches import OwnBatch
from clearhead.doctor.calling.names import PAD_NAMES
from clearhead.doctor.calling.search import WorkingCall
from clearhead.doctor.kind import Hints, assumed_kind
from clearhead.doctor.probes.dependency import DependencyMatrix, dependency, shape_of
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules, recorded_ops, without_dropout
from clearhead.doctor.problems import attempt
from clearhead.doctor.spec import Assumption, Kind, Level, Spec
from clearhead.doctor.state_guard import in_double

LARGE = 20_000_000  # parameters


class Repeated(NamedTuple):
    """The logits of one batch in two calls. `drew`: random numbers were drawn for them."""

    first: Tensor
    second: Tensor
    drew: bool

    @property
    def is_same(self) -> bool:
        """To the last bit."""
        return torch.equal(self.first.nan_to_num(), self.second.nan_to_num())


class Inside(NamedTuple):
    """Every operation of one pass over two rows without dropout, and the logits (2, T, V) that it ends with."""

    calls: list[ModuleCall]
    logits: Tensor


@dataclass(frozen=True)
class Journal:
    """What the checks ran and assumed, for the report: they add to it, and none of them reads it."""

    paths: list[str] = field(default_factory=list)
    assumptions: list[Assumption] = field(default_factory=list)

    def untried(self, path: str, attempted: attempt) -> None:
        """A path that raised, so that nothing is known of it."""
        self.paths.append(f"{path} (could not be run: {attempted.kind})")


@dataclass(frozen=True)
class Subject:
    """What the checks work on, made once by `prepare` and then as it is.

    What is learned by calling it is computed when it is first asked for, and kept.

    Args:
        original: the model as it came, which nothing is done to.
        fresh: a copy with the weights as they came.
        model: a copy with noise on them (see `perturbed`).
        calling: how it is called.
        own: the person's batch, as its inputs.
        failed: names of the checks that failed so far; the examination keeps the list.
        drops_in_evaluation: dropout is alive there: it is taken out, so that the rest can be examined.
    """

    original: nn.Module
    spec: Spec
    level: Level
    seed: int
    device: torch.device
    fresh: nn.Module
    model: nn.Module
    hints: Hints
    calling: WorkingCall
    own: OwnBatch | None = None
    failed: AbstractSet[str] = frozenset()
    journal: Journal = field(default_factory=Journal)
    drops_in_evaluation: bool = False

    @cached_property
    def is_large(self) -> bool:
        """Whether another copy of the model, or a backward pass over many rows, costs seconds."""
        return is_large(self.model)

    @property
    def is_hurried(self) -> bool:
        """Whether the model is so large that a quick look has to do with short rows."""
        return self.level == "quick" and self.is_large

    @property
    def convention(self) -> Convention:
        """How the model is called."""
        return self.calling.convention

    def quiet(self) -> AbstractContextManager[None]:
        """No dropout in it, and no gradients."""
        return quiet()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Every module of the perturbed copy is in training mode meanwhile."""
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.train()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training

    def precise(self) -> AbstractContextManager[None]:
        """The perturbed copy computes in float64 meanwhile, where a change of one part in 1e13 is no rounding."""
        return in_double(self.model)

    def run(self, inputs: Inputs, *, model: nn.Module | None = None) -> Tensor:
        """Logits (B, T, V) of the perturbed copy, or of another."""
        if not self.drops_in_evaluation:
            return self.convention.logits(model or self.model, inputs)
        with without_dropout():
            return self.convention.logits(model or self.model, inputs)

    def operations(
        self, inputs: Inputs, *, model: nn.Module | None = None, named: Callable[[str], bool] = lambda name: True
    ) -> list[ModuleCall]:
        """Every operation of one call, or those of such names."""
        with self.quiet(), recorded_ops(named) as ops:
            self.run(inputs, model=model)
        return ops.calls

    def modules_called(self, inputs: Inputs) -> list[ModuleCall]:
        """Every call of a module within one call."""
        with self.quiet(), recorded_modules(self.model) as calls:
            self.run(inputs)
        return calls

    @cached_property
    def repeated(self) -> Repeated:
        """What the same batch gives twice in evaluation."""
        inputs = self.inputs(3)
        state = torch.get_rng_state()
        with torch.no_grad():
            first, second = (self.convention.logits(self.model, inputs) for _ in range(2))
        return Repeated(first, second, not torch.equal(state, torch.get_rng_state()))

    @cached_property
    def pad_id(self) -> int | None:
        """The token that fills up rows: as declared, or as the model's config or embedding has it."""
        if not self.convention.reads_words("ids"):
            return None
        if self.spec.pad_id is not None:
            return self.spec.pad_id
        config = getattr(self.original, "config", None)
        for owner, names in ((config, ("pad_token_id", "pad_id")), (self.original, PAD_NAMES)):
            for name in names:
                value = getattr(owner, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < self.calling.vocab_size:
                    return value
        tables = (m for m in self.original.modules() if isinstance(m, nn.Embedding))
        padding_idx = next((m.padding_idx for m in tables if m.padding_idx is not None), None)
        return self.compared_id if padding_idx is None else padding_idx

    @cached_property
    def compared_id(self) -> int | None:
        """The number that the model compares its token ids with, as masks of padding are made."""
        ids = torch.full((2, self.calling.T), min(5, self.calling.vocab_size - 1))
        source = torch.full((2, self.calling.S), min(5, self.calling.source_vocab_size - 1))
        inputs = Inputs(ids, source if self.convention.has_source else None)
        with attempt() as attempted, self.quiet(), recorded_ops(lambda name: name.strip("_") in ("eq", "ne")) as ops:
            self.convention.logits(self.model, inputs)
        if attempted.failed:  # the checks tell why it does not run
            return None
        for call in ops.calls:
            first, *rest = call.options["args"]
            if isinstance(first, Tensor) and first.dtype == torch.long and rest and isinstance(rest[0], int):
                return rest[0] if 0 <= rest[0] < self.calling.vocab_size else None
        return None

    def pool(self) -> Tensor:
        """Ordinary ids: none that is special by its number, by the config or by being padding."""
        return self._pool

    @cached_property
    def _pool(self) -> Tensor:
        return self._ordinary(self.calling.vocab_size, self.own.inputs.ids if self.own else None)

    @cached_property
    def source_pool(self) -> Tensor:
        """The same for sources."""
        return self._ordinary(self.calling.source_vocab_size, self.own.inputs.source if self.own else None)

    def _ordinary(self, V: int, own: Tensor | None) -> Tensor:
        """Those of the person's batch, if they are enough for rows of different ids; else of the whole vocabulary."""
        config = getattr(self.original, "config", None)
        settings = vars(config).items() if hasattr(config, "__dict__") else ()
        special = {value for name, value in settings if name.endswith("_id") and isinstance(value, int)} | {self.pad_id}
        known = [] if own is None else [id for id in sorted({*own.flatten().tolist()}) if id not in special]
        if len(known) > max(self.calling.T, self.calling.S):
            return torch.tensor(known)
        first, last = (4, V - 2) if V > 12 else (0, V)
        ids = [id for id in range(first, min(last, first + 4096)) if id not in special]
        return torch.tensor(ids if len(ids) > 1 else list(range(V)))

    def generator(self, salt: int = 0) -> torch.Generator:
        """Randomness of its own for every use."""
        return torch.Generator().manual_seed(1000 * self.seed + salt)

    def inputs(self, rows: int = 1, *, salt: int = 0, T: int | None = None) -> Inputs:
        """Random rows, with a source where the model reads one; neighbours differ."""
        generator = self.generator(salt)
        ids = self._draw(self.pool(), (rows, T or self.calling.T), generator)
        has_source = self.convention.has_source
        source = self._draw(self.source_pool, (rows, self.calling.S), generator) if has_source else None
        return Inputs(ids, source, labels=ids)

    @staticmethod
    def _draw(pool: Tensor, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        rows, n = shape
        if len(pool) >= n:  # pairwise different within a row
            return torch.stack([pool[torch.randperm(len(pool), generator=generator)[:n]] for _ in range(rows)])
        return pool[torch.randint(len(pool), shape, generator=generator)]

    @cached_property
    def module_calls(self) -> list[ModuleCall]:
        """Every call of a module in one pass of the perturbed copy over two rows."""
        return self.modules_called(self.inputs(2))

    @cached_property
    def inside(self) -> "Inside":
        """One pass of the perturbed copy: what all that read its operations look at."""
        return self._looked_into(self.model)

    @cached_property
    def inside_fresh(self) -> "Inside":
        """The same with the weights as they came."""
        return self._looked_into(self.fresh)

    @cached_property
    def inside_training(self) -> "Inside":
        """The same of the perturbed copy in training mode, where dropout is asked for and does nothing."""
        with self.training():
            return self._looked_into(self.model)

    def _looked_into(self, model: nn.Module) -> "Inside":
        with self.quiet(), recorded_ops() as ops:
            logits = self.run(self.inputs(2), model=model)
        return Inside(ops.calls, logits)

    @cached_property
    def moved_under_masks(self) -> dict[tuple[tuple[str, ...], str, bool], float]:
        """How far padding moves real logits under (parameters, form, whether of the source); see checks.paddings."""
        return {}

    @cached_property
    def matrix(self) -> DependencyMatrix:
        """Which token moves which logit."""
        return dependency(self.run, self.inputs(), self.pool(), self.generator(1))

    @cached_property
    def source_matrix(self) -> DependencyMatrix:
        """Which token of the source moves which logit."""
        return dependency(self.run, self.inputs(), self.source_pool, self.generator(2), source=True)

    @cached_property
    def kind(self) -> Kind:
        """As declared, or as everything that can be read of the model suggests; then an assumption says so."""
        if self.spec.kind:
            return self.spec.kind
        assert self.assumed_kind is not None
        return self.assumed_kind.value  # type: ignore[return-value]

    @cached_property
    def assumed_kind(self) -> Assumption | None:
        """The kind with its reasons, if nobody declared it."""
        if self.spec.kind:
            return None
        if self.gives_rows:
            return Assumption("kind", "bidirectional", ("it gives one output for each row",))
        with attempt():
            return assumed_kind(self)
        # it does not run as batches go: what was read before the first call must do
        reasons = tuple(reason for kind, _, reason in self.hints.votes if kind == self.hints.kind)
        return Assumption("kind", self.hints.kind, reasons)

    @cached_property
    def shifts_its_rows(self) -> bool:
        """Whether the logits of a place know the tokens before it and not its own: they are about that one."""
        return shape_of(self.matrix.alive)[0] == "strict"

    @property
    def looks_back_only(self) -> bool:
        """Whether no logit may depend on a later token of its row."""
        return self.kind != "bidirectional" and not self.gives_rows

    @property
    def gives_rows(self) -> bool:
        """Whether what comes out is said of a whole row, and stands here at each of its tokens."""
        return self.convention.gives != "tokens"


@contextmanager
def quiet() -> Iterator[None]:
    """No dropout, and no gradients."""
    with torch.no_grad(), without_dropout():
        yield


def is_large(model: nn.Module) -> bool:
    """Whether another copy of it, or a backward pass over many rows, costs seconds."""
    return sum(parameter.numel() for parameter in model.parameters()) > LARGE
