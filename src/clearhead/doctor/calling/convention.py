"""A way to call a model, found once and used by every probe."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs, Run, filler_of, role_of
from clearhead.doctor.calling.names import MASK, START, Call, signature_of
from clearhead.doctor.calling.numbers import holds_numbers, is_picture
from clearhead.doctor.calling.outputs import Path, arrange, follow, recorded_outputs, spread, tensors
from clearhead.doctor.problems import attempt
from clearhead.doctor.state_guard import CPU

NOTHING = torch.zeros(0)


class NamedInputs(dict[str, object]):
    """Inputs by name, for models that take dicts or objects.

    `requested`: the names that were asked for, and whether each may be absent. `missed`: of those that it was asked
    whether it has them, the last that it has not.
    """

    def __init__(self, inputs: Mapping[str, object]) -> None:
        super().__init__(inputs)
        self.requested: dict[str, bool] = {}
        self.missed = ""

    def __getitem__(self, name: str) -> object:
        if isinstance(name, str):
            self.requested[name] = False
        value = super().__getitem__(name)
        looked_up = (value if isinstance(value, Tensor) else NOTHING)[...][...]  # two operations: it got further
        return looked_up if isinstance(value, Tensor) else value

    def get(self, name: str, default: object = None) -> object:
        """What it holds under a name, which is noted as well; None stands for what is absent."""
        self.requested.setdefault(name, True)
        value = super().get(name)
        return default if value is None else value

    def __contains__(self, name: object) -> bool:
        if super().get(str(name)) is None:
            self.missed = str(name)
        return super().get(str(name)) is not None

    def __getattr__(self, name: str) -> object:
        if name.startswith("_") or hasattr(Tensor, name):  # asked whether it is a tensor
            raise AttributeError(name)
        return self[name]


@dataclass(frozen=True)
class Convention:
    """How a model is called and where its logits are.

    Args:
        call: parameters of `forward`, and what each of them is given; those of *args are called *0, *1 and so on.
        output: the path to the logits in what it returns.
        time_first: tensors of ids are (T, B).
        dicts: parameters that take a dict of the inputs by name, and, behind a dot, names in it that take another;
            `call` says what is under its names.
        gives: logits of each token, one output for each row, as a classifier does, or one for each pair of rows.
        drops_last: it drops the last token itself, as a target only; it is given one token more.
        adds_first: it puts a token of its own in front; the logits of that one are left out.
        returns_time_first: its logits are (T, B, V), whatever its ids are.
        device: where the model is. Inputs and logits are on the CPU; what the model is given is moved there.
        mask_types: parameters whose masks must be of a class of the model's library; it is made from the tensor.
        at_once: it takes this number of rows and no other; more are given one after the other.
        stepwise: it takes one token at a time, and its number in the row.
        unbatched: its tensors have no axis for rows.
        inner: the module whose output holds its logits, where what it returns holds none, such as a loss alone.
    """

    call: Call
    output: Path = ()
    time_first: bool = False
    dicts: tuple[str, ...] = ()
    gives: Literal["tokens", "rows", "pairs"] = "tokens"
    drops_last: bool = False
    adds_first: bool = False
    returns_time_first: bool = False
    device: torch.device = CPU
    mask_types: tuple[tuple[str, type], ...] = ()
    at_once: int = 0
    stepwise: bool = False
    unbatched: bool = False
    inner: str = ""

    @property
    def has_source(self) -> bool:
        """Whether the model reads a source beside the ids."""
        return any(role_of(filler) == "source" for _, filler in self.call)

    def reads_words(self, role: str) -> bool:
        """Whether ids or a source are given as they are, and not as numbers in their place."""
        return not any(role_of(filler) == role and holds_numbers(filler) for _, filler in self.call)

    @property
    def reads_numbers(self) -> bool:
        """Whether anything that it is given holds numbers in the place of ids."""
        return any(holds_numbers(filler) for _, filler in self.call)

    @property
    def reads_pictures(self) -> bool:
        """Whether anything that it is given is a picture."""
        return any(is_picture(filler) for _, filler in self.call)

    def held(self, inputs: Inputs) -> list[dict[str, object]]:
        """Where the same ids stand for several inputs: for each of these, the others as these rows give them."""
        read = {name: filler for name, filler in self.call if name[0] != "*" and role_of(filler) == "ids"}
        values = {name: filler_of(filler)(inputs, self.time_first) for name, filler in read.items()}
        return [{other: value for other, value in values.items() if other != name} for name in values] or [{}]

    @property
    def reads(self) -> str:
        """What it is given, in a word or two."""
        return "pictures" if self.reads_pictures else "numbers" if self.reads_numbers else "token ids"

    @property
    def sentence(self) -> str:
        """The call as it would be written."""
        arguments = (filler if filler in ("ids", "source") else f"{name}={filler}" for name, filler in self.call)
        returned = "".join(f"[{step!r}]" if isinstance(step, int) else f".{step}" for step in self.output)
        whole = "" if self.gives == "tokens" else ", one output for each row"
        whole += f", {self.at_once} at a time" if self.at_once else ", one token at a time" if self.stepwise else ""
        if self.inner:
            return f"the output of {self.inner} in {replace(self, inner='', output=self.output[1:]).sentence}"
        if self.dicts:
            return f"model({', '.join('{...}' for name in self.dicts if name[0] != '.')})" + whole
        return f"model({', '.join(arguments)}){returned}{whole}" + (" with time first" if self.time_first else "")

    def raw(self, model: nn.Module, inputs: Inputs, /, **more: object) -> object:
        """Whatever the model returns. `more`: further parameters by name, which win."""
        more = {name: self._typed(name, self._moved(value)) for name, value in more.items()}
        inputs = inputs.longer if self.drops_last else inputs
        if self.at_once:  # no more rows and no fewer
            inputs = inputs.rows(torch.arange(self.at_once).clamp_max(len(inputs.ids) - 1))
        if self.stepwise and inputs.ids.shape[1] > 1:
            return self._step_by_step(model, inputs, more)
        unnamed, arguments = self._arguments(model, inputs, more)
        if not self.inner:
            return model(*unnamed, **arguments)
        with recorded_outputs(model, [self.inner]) as outputs:
            value = model(*unnamed, **arguments)
        return (outputs[self.inner], *(value if isinstance(value, (tuple, list)) else (value,)))

    def _arguments(
        self, model: nn.Module, inputs: Inputs, more: Mapping[str, object]
    ) -> tuple[list[object], dict[str, Any]]:
        """What the model is called with, by position and by name."""
        filled = [(name, self._moved(filler_of(filler)(inputs, self.time_first))) for name, filler in self.call]
        if next((p.dtype for p in model.parameters()), None) == torch.float64:
            filled = [(name, _in_double(value)) for name, value in filled]
        if self.unbatched:
            filled = [(name, self._of_one_row(value)) for name, value in filled]
        arguments = {name: self._typed(name, value) for name, value in filled if name[0] != "*"} | {**more}
        unnamed = [value for name, value in filled if name[0] == "*"]
        if self.dicts:
            own = {parameter.name for parameter in signature_of(model)}
            named = arguments | {name[1:]: NamedInputs(arguments) for name in self.dicts if name[0] == "."}
            arguments = {name: value for name, value in arguments.items() if name in own}
            arguments |= {name: NamedInputs(named) for name in self.dicts if name[0] != "."}
        positional = [p.name for p in signature_of(model) if p.kind is p.POSITIONAL_ONLY and p.name in arguments]
        return [*unnamed, *(arguments.pop(name) for name in positional)], arguments

    def requested(self, model: nn.Module, inputs: Inputs) -> dict[str, bool]:
        """The names that the model looks up in its dicts, and whether each may be absent."""
        unnamed, arguments, names = list[object](), dict[str, Any](), dict[str, bool]()
        with attempt() as attempted, torch.no_grad():  # also where it takes no rows of this length, as of pictures
            unnamed, arguments = self._arguments(model, inputs.longer if self.drops_last else inputs, {})
            model(*unnamed, **arguments)
        batches = [value for value in (*unnamed, *arguments.values()) if isinstance(value, NamedInputs)]
        for batch in batches:
            inside = {name: part for name, part in batch.items() if isinstance(part, NamedInputs)}
            batches += inside.values()
            for name, optional in batch.requested.items():
                names[name] = optional and names.get(name, True)
            if attempted.failed and batch.missed:
                names[batch.missed] = False
            names = {name: optional for name, optional in names.items() if name not in inside}
        return names

    def _step_by_step(self, model: nn.Module, inputs: Inputs, more: Mapping[str, Any]) -> Tensor:
        """What it returns for one token after the other, (B, T, V)."""
        starts = [name for name, _ in self.call if START.search(name)]
        begin = next((more[name] for name in starts if name in more), 0)
        steps = [
            self.raw(model, replace(inputs, ids=inputs.ids[:, [t]]), **{**more, **dict.fromkeys(starts, begin + t)})
            for t in range(inputs.ids.shape[1])
        ]
        return torch.cat([tensors(step)[0].reshape(len(inputs.ids), 1, -1) for step in steps], 1)

    def logits(self, model: nn.Module, inputs: Inputs, /, **more: object) -> Tensor:
        """(B, T, V), batch first whatever the model does; one output for a row is repeated at each of its tokens."""
        rows, columns = inputs.ids.shape
        if self.at_once and rows != self.at_once:
            filled = torch.arange(rows + -rows % self.at_once).clamp_max(rows - 1).reshape(-1, self.at_once)
            split = {n for n, value in more.items() if isinstance(value, Tensor) and value.shape[:1] == (rows,)}
            parts = []
            for chunk in filled:
                chosen: dict[str, Any] = {name: more[name][chunk] for name in split}  # type: ignore[index]
                parts.append(self.logits(model, inputs.rows(chunk), **(more | chosen)))
            return torch.cat(parts)[:rows]
        output = here(follow(self.raw(model, inputs, **more), self.output), self.device)
        if self.gives != "tokens":
            output = output[None] if self.unbatched else output
            return spread(output, columns, paired=self.gives == "pairs")
        length = columns + self.adds_first
        if (self.time_first or self.returns_time_first) and tuple(output.shape[:2]) == (length, rows):
            turned = output.transpose(0, 1)  # also if T = B
            arranged: Tensor | None = turned if turned.dim() > 2 else turned[..., None]
        else:
            arranged = arrange(output, rows, length)
        assert arranged is not None, "an output changed its shape"
        logits = arranged[:, self.adds_first :]  # (B, T, V)
        ruled_out = logits.isneginf().all(0).all(0)  # (V,), tokens that are never to be predicted
        return logits.masked_fill(ruled_out, 0) if ruled_out.any() else logits

    def run_by(self, model: nn.Module) -> Run:
        """The model, called like this."""
        return partial(self.logits, model)

    def _typed(self, name: str, value: object) -> object:
        expected = dict(self.mask_types).get(name)
        return expected(value) if expected is not None and isinstance(value, Tensor) else value

    def _of_one_row(self, value: object) -> object:
        axis = 1 if self.time_first else 0
        is_row = isinstance(value, Tensor) and value.dim() > axis and value.shape[axis] == 1
        return value.squeeze(axis) if isinstance(value, Tensor) and is_row else value

    def _moved(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return self.device
        on_cpu = self.device.type == "cpu" or not isinstance(value, Tensor)
        return value if on_cpu else value.to(self.device)


def mask_types_of(model: nn.Module) -> tuple[tuple[str, type], ...]:
    """Parameters of `forward` that are named after masks, and whose declared class is made from one argument."""
    with attempt():
        parameters = inspect.signature(model.forward, eval_str=True).parameters.values()
        masks = [p for p in parameters if MASK.search(p.name) and isinstance(p.annotation, type)]
        return tuple((p.name, p.annotation) for p in masks if _holds_a_tensor(p.annotation))
    return ()  # an annotation may be any expression


def _holds_a_tensor(declared: type) -> bool:
    if issubclass(declared, Tensor) or declared.__module__ in ("builtins", "jaxtyping"):
        return False
    parameters = inspect.signature(declared).parameters.values()
    return sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) == 1


def _in_double(value: object) -> object:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def here(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the CPU, where the probes are. `device`: where it comes from."""
    return tensor if device.type == "cpu" else tensor.cpu()
