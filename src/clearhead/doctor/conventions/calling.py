"""A way to call a model, found once and used by every instrument."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.doctor.conventions.inputs import FILLERS, Inputs
from clearhead.doctor.conventions.names import Call
from clearhead.doctor.conventions.outputs import Path, arrange, follow

CPU = torch.device("cpu")


class Batch(dict[str, Any]):
    """Inputs by name, for models that take one dict: what they ask for is made when they ask."""

    def __init__(self, inputs: Inputs, time_first: bool) -> None:
        tokens = FILLERS["ids"](inputs, time_first)
        names = ("ids", "input_ids", "inputs", "tokens", "x", "idx", "text")
        super().__init__(dict.fromkeys(names, tokens))
        self["attention_mask"] = inputs.kept.long()
        if inputs.source is not None:
            source = FILLERS["source"](inputs, time_first)
            self.update(dict.fromkeys(("src", "source", "input_ids", "inputs", "x"), source))
            self.update(dict.fromkeys(("tgt", "trg", "target", "decoder_input_ids", "y", "ids"), tokens))
            self["attention_mask"] = inputs.source_kept.long()


@dataclass(frozen=True)
class Convention:
    """How a model is called and where its logits are.

    Args:
        call: parameters of `forward` and what each is given.
        output: the way to the logits.
        time_first: tensors of ids are (T, B).
        as_dict: the only argument is a dict that holds the inputs by name.
        device: where the model is. Inputs and logits are on the CPU; what the model is given is moved there.
    """

    call: Call
    output: Path = ()
    time_first: bool = False
    as_dict: bool = False
    device: torch.device = CPU

    @property
    def has_source(self) -> bool:
        """Whether the model reads a source beside the ids."""
        return any(filler == "source" for _, filler in self.call)

    @property
    def sentence(self) -> str:
        """The call as one would write it."""
        if self.as_dict:
            return "model({...})"
        given = ", ".join(filler if filler in ("ids", "source") else f"{name}={filler}" for name, filler in self.call)
        returned = "".join(f"[{step!r}]" if isinstance(step, int) else f".{step}" for step in self.output)
        return f"model({given}){returned}" + (" with time first" if self.time_first else "")

    def raw(self, model: nn.Module, inputs: Inputs, **more: Any) -> Any:
        """Whatever the model returns. `more`: further parameters by name, which win."""
        more = {name: self._there(value) for name, value in more.items()}
        if self.as_dict:
            batch = Batch(inputs, self.time_first)
            for name, value in batch.items():
                batch[name] = self._there(value)
            return model(batch, **more)
        filled = [(name, self._there(FILLERS[filler](inputs, self.time_first))) for name, filler in self.call]
        given = {name: value for name, value in filled if name}
        unnamed = [value for name, value in filled if not name]
        given |= more
        ahead = [given.pop(name) for name in _positional_only(model) if name in given]
        return model(*unnamed, *ahead, **given)

    def logits(self, model: nn.Module, inputs: Inputs, **more: Any) -> Tensor:
        """(B, T, V), batch first whatever the model does."""
        rows, columns = inputs.ids.shape
        output = here(follow(self.raw(model, inputs, **more), self.output), self.device)
        if self.time_first and output.dim() == 3 and tuple(output.shape[:2]) == (columns, rows):
            return output.transpose(0, 1)  # also where T = B
        arranged = arrange(output, rows, columns)
        assert arranged is not None, "an output changed its shape"
        return arranged

    def _there(self, value: Any) -> Any:
        on_cpu = self.device.type == "cpu" or not isinstance(value, Tensor)
        return value if on_cpu else value.to(self.device)


def here(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the CPU, where the instruments are. `device` is where it comes from."""
    return tensor if device.type == "cpu" else tensor.cpu()


def _positional_only(model: nn.Module) -> list[str]:
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.POSITIONAL_ONLY]
