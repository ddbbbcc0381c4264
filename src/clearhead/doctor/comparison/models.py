"""Two models on the same ids with the same weights: the first module that differs."""

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import parameters_of
from clearhead.doctor.catalogue.faults import refuse_unknown
from clearhead.doctor.checks.dependence.paths import LONGER
from clearhead.doctor.checks.padding.masks import PaddingMask, padding_masks
from clearhead.doctor.comparison.bisect import CallPair, counterparts, difference, divergence, paired_calls
from clearhead.doctor.comparison.weights import WeightPair, corresponding, match, named, parted_ties, transfer
from clearhead.doctor.preparation import prepare
from clearhead.doctor.probes.locations import owner_of
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules, without_dropout
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.comparison import Comparison, Difference, Weights
from clearhead.doctor.report.findings import Where
from clearhead.doctor.spec import Kind, Spec
from clearhead.doctor.state_guard import guarded, in_training, twin
from clearhead.doctor.subject import Subject
from clearhead.errors import DataError

ROWS = 3
GRADIENT = 1e-4  # of a weight's largest, or a hundredth of the largest of all: where parts work in float32 anyway


def compare(
    a: nn.Module, b: nn.Module, *, kind: Kind | None = None, seed: int = 0, names: tuple[str, str] = ("A", "B")
) -> Comparison:
    """Find the first module that gets the same input in both models and computes something else from it.

    Copies of both get the weights of A and the same token ids: in evaluation, with the weights as they are and with
    noise on them, in training mode without dropout, in shorter and longer rows, after padding, and backward. Neither
    model is changed.

    Args:
        kind: what they are meant to be; read from each by default.
        seed: of the ids and of the noise.
        names: of the two in the comparison.

    Raises:
        DataError: a model cannot be called, or their weights do not correspond.
    """
    refuse_unknown(kind, "quick", ())
    begun = time.perf_counter()
    with guarded(seed, a, b):
        both = _Both(prepare(a, Spec(kind=kind), "quick", seed), prepare(b, Spec(kind=kind), "quick", seed))
        weights = both.copy_weights()
        first, paths = both.examine()
    return Comparison(*names, first, weights, tuple(paths), time.perf_counter() - begun)


@dataclass(frozen=True)
class CodePath:
    """One code path. `masks`: a padding mask for each side, by the id of its subject; `keep` (B, T): what counts."""

    name: str
    inputs: Inputs
    perturbed: bool = True
    training: bool = False
    masks: Mapping[int, PaddingMask] = field(default_factory=dict)
    keep: Tensor | None = None

    def run(self, subject: Subject, model: nn.Module) -> Tensor:
        """The logits of one side."""
        mask = self.masks.get(id(subject))
        more = {} if mask is None else mask.arguments(self.inputs)
        with in_training(model) if self.training else nullcontext(), without_dropout():
            return subject.convention.logits(model, self.inputs, **more)

    def select(self, tensor: Tensor) -> Tensor | None:
        """The part of a tensor that counts: all, or that of real tokens if it is (B, T, ...) or (T, B, ...)."""
        if self.keep is None:
            return tensor
        for keep in (self.keep, self.keep.t()):
            if tensor.shape[:2] == keep.shape:
                return tensor[keep]
        return None


class _Both:
    """Two subjects whose weights correspond."""

    def __init__(self, a: Subject, b: Subject) -> None:
        if a.convention.has_source != b.convention.has_source:
            first, second = ("A", "B") if a.convention.has_source else ("B", "A")
            raise DataError(f"{first} reads a source beside its ids and {second} does not; compare models of one kind")
        self.a, self.b = a, b
        self.T = self._length()
        plain = CodePath("", a.inputs(2, T=self.T))
        self.pairs = match(a.fresh, b.fresh, *(self._trace(subject, subject.model, plain)[0] for subject in (a, b)))
        self.partners = counterparts(a.fresh, b.fresh, self.pairs)

    def _length(self) -> int:
        """A number of tokens that both accept."""
        problem = ""
        for T in (self.a.calling.T, self.b.calling.T, *LONGER[::-1]):
            attempted = self._attempt_rows(2, T)
            if not attempted.failed:
                return T
            problem = problem or attempted.sentence()
        raise DataError(f"A and B do not take the same ids ({problem}); give both one vocabulary and one block size")

    def _attempt_rows(self, rows: int, T: int) -> attempt:
        with attempt() as attempted, torch.no_grad():
            for subject in (self.a, self.b):
                subject.run(self.a.inputs(rows, T=T))
        return attempted

    def copy_weights(self) -> Weights:
        """Put the weights of A into both models, as they are and with noise on them."""
        transfer(self.pairs, self.a.model, self.b.model)
        return transfer(self.pairs, self.a.fresh, self.b.fresh)

    def examine(self) -> tuple[Difference | None, list[str]]:
        """The first difference on any path, and the paths that were run."""
        paths = [f"A: {self.a.convention.sentence}", f"B: {self.b.convention.sentence}"]
        for number, code_path in enumerate(self._code_paths()):
            with attempt() as attempted:
                difference = self._divergence(code_path)
            if attempted.failed:
                if number == 0:
                    raise DataError(f"A and B cannot be run side by side ({attempted.sentence()})")
                paths.append(f"{code_path.name} (could not be run: {attempted.kind})")
                continue
            paths.append(code_path.name)
            if difference is not None:
                return difference, paths
        return self._sharing(paths) or self._gradients(paths), paths

    def _code_paths(self) -> Iterator[CodePath]:
        inputs = self.a.inputs(ROWS, salt=21, T=self.T)
        yield CodePath("eval(), float32, the weights as they are", inputs, perturbed=False)
        yield CodePath("noise on every weight", inputs)
        modules = (*self.a.model.modules(), *self.b.model.modules())
        if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules):
            yield CodePath("train() without dropout", inputs, training=True)
        yield CodePath("one token", self.a.inputs(ROWS, salt=22, T=1))
        longer = next((T for T in LONGER if T > self.T and not self._attempt_rows(1, T).failed), None)
        if longer is not None:
            yield CodePath(f"rows of {longer} tokens", self.a.inputs(ROWS, salt=23, T=longer))
        yield from self._padded(inputs)

    def _padded(self, inputs: Inputs) -> Iterator[CodePath]:
        """Padding in front, where both take a mask for it."""
        masks_a, masks_b = ({mask.source: mask for mask in padding_masks(subject)} for subject in (self.a, self.b))
        known = {parameter.name for parameter in parameters_of(self.b.model)}
        for source, mask in masks_a.items():
            # if B ignores its mask, it is given the form of A's
            other = masks_b.get(source, mask if mask.names[0] in known else None)
            if other is None:
                continue
            padded = inputs.padded(source, (2, inputs.tokens(source).shape[1] // 3), front=True)
            name = "padding in front" + (" of the source" if source else "")
            yield CodePath(name, padded, masks={id(self.a): mask, id(self.b): other}, keep=padded.keep)

    def _trace(self, subject: Subject, model: nn.Module, code_path: CodePath) -> tuple[list[ModuleCall], Tensor]:
        torch.manual_seed(0)
        with torch.no_grad(), recorded_modules(model, lambda tensor: True) as calls:
            logits = code_path.run(subject, model)
        return calls, logits

    def _divergence(self, code_path: CodePath) -> Difference | None:
        """Compared in float32; where that differs, in float64."""
        models = [subject.model if code_path.perturbed else subject.fresh for subject in (self.a, self.b)]
        (calls_a, logits_a), (calls_b, logits_b) = map(self._trace, (self.a, self.b), models, (code_path, code_path))
        if torch.equal(logits_a, logits_b):
            return None
        rounded, floor = None, None
        exact = self._in_float64(models, code_path)
        if exact is not None:
            rounded, floor = calls_a, difference([exact[0][1]], [logits_a], code_path.select)
            (calls_a, logits_a), (calls_b, logits_b) = exact
        moved = difference([logits_a], [logits_b], code_path.select)
        whole = CallPair(calls_a[-1], calls_b[-1], 0.0, moved, floor)
        if whole.agrees or moved is None:
            return None
        pairs = paired_calls(calls_a[:-1], calls_b[:-1], rounded, self.partners, code_path.select)
        name = code_path.name + (", confirmed in float64" if exact else "; float64 could not be run")
        return divergence([*pairs, whole], name)

    def _in_float64(self, models: list[nn.Module], code_path: CodePath) -> list[tuple[list[ModuleCall], Tensor]] | None:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # for tensors that forward creates
        with attempt() as attempted:
            both = zip((self.a, self.b), models, strict=True)
            traces = [self._trace(subject, twin(model).double(), code_path) for subject, model in both]
        torch.set_default_dtype(default)
        if attempted.failed:  # some parts work in float32 only
            return None
        return traces if all(bool(logits.isfinite().all()) for _, logits in traces) else None

    def _sharing(self, paths: list[str]) -> Difference | None:
        """Weights that are one tensor in one model only: equal now, and different after a step of training."""
        paths.append("which weights are one tensor")
        parted = parted_ties(self.pairs, self.a.model, self.b.model)
        if parted is None:
            return None
        partner, first, second = parted
        names, other = ((first.a, second.a), "B") if partner == "A" else ((first.b, second.b), "A")
        path = f"{partner} holds {names[0]} and {names[1]} in one tensor, {other} in two"
        return Difference("sharing", path, *self._owners(second), difference=1.0)

    def _owners(self, pair: WeightPair) -> tuple[Where, Where]:
        return owner_of(self.a.model, pair.a, own_code=True), owner_of(self.b.model, pair.b, own_code=True)

    def _gradients(self, paths: list[str]) -> Difference | None:
        """The last module on the way forward whose gradients differ, which is the first on the way back."""
        inputs = self.a.inputs(ROWS, salt=24, T=self.T)
        with attempt() as attempted:
            gradients = [_gradients(subject, twin(subject.model).double(), inputs) for subject in (self.a, self.b)]
        if attempted.failed:  # some parts work in float32 only
            return None
        paths.append("gradients")
        calls, _ = self._trace(self.a, self.a.model, CodePath("", inputs))
        done = {call.name: number for number, call in enumerate(calls)}
        pairs = sorted(self.pairs, key=lambda pair: -done.get(pair.a.rpartition(".")[0], -1))
        largest = max(float(gradient.abs().max()) for gradient in gradients[0].values())
        for pair, x, y in corresponding(pairs, *gradients):
            scale = max(float(x.abs().max()), float(y.abs().max()), 1e-2 * largest)
            gap = float((x - y).abs().max()) / scale
            if gap > GRADIENT:
                return Difference("gradient", f"gradients of {pair.a}", *self._owners(pair), gap, GRADIENT)
        return None


def _gradients(subject: Subject, model: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """The gradient of a random mixture of the logits with respect to every weight, zero if there is none."""
    with torch.enable_grad(), without_dropout():
        logits = subject.convention.logits(model, inputs)
        weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0), dtype=logits.dtype)
        (weights * logits).sum().backward()  # type: ignore[no-untyped-call]
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named(model).items()}
