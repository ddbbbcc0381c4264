"""The model under examination: two copies of it, the way to call them, and what it is taken for."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.calling import Convention, Inputs, find_convention
from clearhead.doctor.calling.batches import Batch
from clearhead.doctor.calling.lengths import length_of_source, lengths_for
from clearhead.doctor.calling.search import Found
from clearhead.doctor.kind import assumed_kind, hints_of
from clearhead.doctor.probes.dependency import Matrix, dependency, shape_of
from clearhead.doctor.probes.tracing import Call, recorded_modules, recorded_ops, without_dropout
from clearhead.doctor.spec import Assumption, Kind, Level, Spec
from clearhead.doctor.state_guard import CPU, in_double, perturbed, twin
from clearhead.errors import DataError

LARGE = 20_000_000  # parameters
OF_A_LENGTH = (
    "_pool",
    "source_pool",
    "module_calls",
    "inside",
    "inside_fresh",
    "inside_training",
    "matrix",
    "source_matrix",
    "moved_under_masks",
)


class Inside(NamedTuple):
    """Every operation of one pass over two rows without dropout, and the logits (2, T, V) that it ends with."""

    calls: list[Call]
    logits: Tensor


@dataclass
class Subject:
    """What the checks work on. `fresh` has the weights as they came, `model` has noise on them (see `perturbed`)."""

    original: nn.Module
    spec: Spec
    level: Level
    seed: int
    batch: Batch | None = None  # of the person
    device: torch.device = CPU
    assumptions: list[Assumption] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)  # names of checks
    random: bool = False  # dropout is alive in evaluation: it is taken out, so that the rest can be examined

    def __post_init__(self) -> None:
        try:
            self.fresh = twin(self.original, self.device)
            self.model = perturbed(self.original, self.seed, self.device)
        except (RuntimeError, TypeError, AttributeError) as error:
            said = " ".join(str(error).split())[:160]
            name = type(self.original).__name__
            raise DataError(f"{name} cannot be copied ({said}); give a model that copy.deepcopy can copy") from None
        hints = hints_of(self.original)
        wanted = self.spec if self.spec.kind else replace(self.spec, kind=hints.kind if hints.sure else None)
        with self.quiet():
            self.found: Found = find_convention(
                self.model,
                wanted,
                may_be_causal=wanted.kind != "bidirectional",
                short=self.is_hurried,
                named=self.batch.names if self.batch else (),
                lengths=self.batch.lengths if self.batch else (),
            )
        self.own = self.batch.arranged(self.model, self.found) if self.batch else None
        self.hints = hints
        if self.spec.time_first is None and self.convention.time_first:
            reason = "tokens meet along the first axis, and are counted along no other"
            self.assumptions.append(Assumption("axes", "time first, (T, B)", (reason,)))
        for name, filler in self.convention.call:
            if filler.startswith("causal: "):
                reason = "with it no token reaches an earlier position"
                self.assumptions.append(Assumption(name, f"given by the caller, {filler[8:]}", (reason,)))

    @cached_property
    def is_large(self) -> bool:
        """Whether another copy of the model, or a backward pass over many rows, costs seconds."""
        return sum(parameter.numel() for parameter in self.model.parameters()) > LARGE

    @property
    def is_hurried(self) -> bool:
        """Whether the model is so large that a quick look has to do with short rows."""
        return self.level == "quick" and self.is_large

    @property
    def convention(self) -> Convention:
        """How the model is called."""
        return self.found.convention

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No dropout in it, and no gradients."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(without_dropout())
            yield

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
        if not self.random:
            return self.convention.logits(model or self.model, inputs)
        with without_dropout():
            return self.convention.logits(model or self.model, inputs)

    def shorten(self) -> bool:
        """Take shorter rows, of which the model takes one more than a row has tokens: so many are compared at once.

        For a model that takes no more rows than its buffers have. Returns whether there are any.
        """
        for T in (length for length in lengths_for(self.model, short=True) if 1 < length < self.found.T):
            try:
                with self.quiet():
                    self.run(self.inputs(T + 1, T=T))
            except Exception:  # still too many rows, or a length that it does not take
                continue
            self.found = replace(self.found, T=T, S=length_of_source(T, self.model))
            for name in OF_A_LENGTH:
                vars(self).pop(name, None)
            return True
        return False

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
                if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < self.found.vocab_size:
                    return value
        tables = (m for m in self.original.modules() if isinstance(m, nn.Embedding))
        told = next((m.padding_idx for m in tables if m.padding_idx is not None), None)
        return self.compared_id if told is None else told

    @cached_property
    def compared_id(self) -> int | None:
        """The number that the model compares its token ids with, as masks of padding are made."""
        ids = torch.full((2, self.found.T), min(5, self.found.vocab_size - 1))
        source = torch.full((2, self.found.S), min(5, self.found.source_vocab_size - 1))
        inputs = Inputs(ids, source if self.convention.has_source else None)
        try:
            with self.quiet(), recorded_ops(lambda name: name.strip("_") in ("eq", "ne")) as ops:
                self.convention.logits(self.model, inputs)
        except Exception:  # the checks tell why it does not run
            return None
        for call in ops.calls:
            first, *rest = call.options["args"]
            if isinstance(first, Tensor) and first.dtype == torch.long and rest and isinstance(rest[0], int):
                return rest[0] if 0 <= rest[0] < self.found.vocab_size else None
        return None

    def pool(self) -> Tensor:
        """Ordinary ids: none that is special by its number, by the config or by being padding."""
        return self._pool

    @cached_property
    def _pool(self) -> Tensor:
        return self._ordinary(self.found.vocab_size, self.own.inputs.ids if self.own else None)

    @cached_property
    def source_pool(self) -> Tensor:
        """The same for sources."""
        return self._ordinary(self.found.source_vocab_size, self.own.inputs.source if self.own else None)

    def _ordinary(self, V: int, own: Tensor | None) -> Tensor:
        """Those of the person's batch, if they are enough for rows of different ids; else of the whole vocabulary."""
        config = getattr(self.original, "config", None)
        told = vars(config).items() if hasattr(config, "__dict__") else ()
        special = {value for name, value in told if name.endswith("_id") and isinstance(value, int)} | {self.pad_id}
        known = [] if own is None else [id for id in sorted({*own.flatten().tolist()}) if id not in special]
        if len(known) > max(self.found.T, self.found.S):
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
        ids = self._draw(self.pool(), (rows, T or self.found.T), generator)
        has_source = self.convention.has_source
        source = self._draw(self.source_pool, (rows, self.found.S), generator) if has_source else None
        return Inputs(ids, source, labels=ids)

    @staticmethod
    def _draw(pool: Tensor, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        rows, n = shape
        if len(pool) >= n:  # pairwise different within a row
            return torch.stack([pool[torch.randperm(len(pool), generator=generator)[:n]] for _ in range(rows)])
        return pool[torch.randint(len(pool), shape, generator=generator)]

    @cached_property
    def module_calls(self) -> list[Call]:
        """Every call of a module in one pass of the perturbed copy over two rows."""
        with self.quiet(), recorded_modules(self.model) as calls:
            self.run(self.inputs(2))
        return calls

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
    def matrix(self) -> Matrix:
        """Which token moves which logit."""
        return dependency(self.run, self.inputs(), self.pool(), self.generator(1))

    @cached_property
    def source_matrix(self) -> Matrix:
        """Which token of the source moves which logit."""
        return dependency(self.run, self.inputs(), self.source_pool, self.generator(2), source=True)

    @cached_property
    def kind(self) -> Kind:
        """As declared, or as everything that can be read of the model suggests; then an assumption says so."""
        if self.spec.kind:
            return self.spec.kind
        if self.gives_rows:
            self.assumptions.append(Assumption("kind", "bidirectional", ("it gives one output for each row",)))
            return "bidirectional"
        try:
            told = assumed_kind(self)
        except Exception:  # it does not run as batches go: what was read before the first call must do
            reasons = tuple(reason for kind, _, reason in self.hints.votes if kind == self.hints.kind)
            told = Assumption("kind", self.hints.kind, reasons)
        self.assumptions.append(told)
        return told.value  # type: ignore[return-value]

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


PAD_NAMES = (
    "pad_id",
    "pad_idx",
    "pad_token_id",
    "padding_idx",
    "pad_token",
    "pad",
    "tgt_pad_idx",
    "trg_pad_idx",
    "tgt_pad_id",
    "trg_pad_id",
    "target_pad_id",
    "PAD",
)
