"""How the next token is computed: by the model's own call, or by its step compiled once for this machine."""

import os
import shutil
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.config import EngineConfig
from clearhead.inference.compiled import CompiledStep, build, folder_of, is_built, step_of
from clearhead.inference.mode import Notice
from clearhead.models import CausalLM, DecoderLM
from clearhead.parts import DecoderCache

ReadToken = Callable[[Tensor, DecoderCache], Tensor]  # one token (B,) per row, into the cache -> logits (B, V)

BUILDING, LOADING = 60.0, 0.5  # seconds that a compiled step costs before its first token, made anew or kept
CALL = 1.5e-4  # seconds that a block takes at least, call by call
READING = 1.2e10  # bytes of weights that are read in a second, call by call
TOLERANCE = 1e-3  # of the largest logit


def call(model: CausalLM, ids: Tensor, cache: DecoderCache) -> Tensor:
    """The logits (B, V) after one more token (B,) of each row, by the model's own call."""
    return model.head(model.hidden(ids[:, None], cache=cache)[:, -1])


class Engine:
    """Reads one token (B,) of each row into a cache; returns the logits (B, V) of the next.

    Where the step is compiled, that is for one row or for any greater number. Before it is used, compiled code is held
    against the model's own call; what cannot be compiled, or came out wrong, is computed call by call.
    """

    def __init__(self, model: CausalLM, config: EngineConfig, tokens: int, notice: Notice | None = None) -> None:
        """
        Args:
            model: rounded already, as `config.weights` says.
            config: which engine.
            tokens: how many steps there may be.
            notice: told in a sentence what takes time, or cannot be done.
        """
        self.model, self.config, self.tokens = model, config, tokens
        self._say = notice or (lambda sentence: None)
        self._steps = dict[bool, CompiledStep | None]()  # for one row, and for more

    def __call__(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        self.tokens -= 1
        one_row = len(ids) == 1
        if one_row not in self._steps:
            return self._first(ids, cache, one_row)
        step = self._steps[one_row]
        return step(ids, cache) if step else call(self.model, ids, cache)

    def _first(self, ids: Tensor, cache: DecoderCache, one_row: bool) -> Tensor:
        """The first step is taken both ways, into the same column."""
        with torch.inference_mode(False), torch.no_grad():
            step = self._find(one_row)
        compiled = step.logits(ids, cache) if step else None
        logits = call(self.model, ids, cache)
        if compiled is not None and (compiled - logits).abs().max() > TOLERANCE * logits.abs().max():
            self._say("the compiled step is not what the model computes, so it is not used; please report this")
            step = None
        self._steps[one_row] = step
        return logits

    def _find(self, one_row: bool) -> CompiledStep | None:
        asked = self.config.engine == "compiled"
        if self.config.engine == "plain" or not (asked or self._pays(LOADING)):
            return None
        if reason := obstacle(self.model):
            if asked:
                self._say(f"the step of this model is not compiled: {reason}")
            return None
        try:
            folder = folder_of(self.model, self.config.weights, one_row=one_row)
            found = is_built(folder)
            if not found and not (asked or self._pays(BUILDING)):
                return None
            step = step_of(self.model, self.config.weights, one_row=one_row)
            if not found:
                self._say(
                    "compiling the step of a model of this shape, which takes about a minute and is kept for the next "
                    "time; the engine 'plain' does without"
                )
                build(folder, step)
            return CompiledStep(folder, step)
        except Exception as error:  # a compiler fails in ways without number, and nothing here depends on it
            self._say(f"the step could not be compiled ({_first_line(error)}), so the text is written without")
            return None

    def _pays(self, seconds: float) -> bool:
        """Whether the rest of the text, call by call, takes so long that half of that is more than these seconds."""
        weights = sum(parameter.nbytes for parameter in self.model.parameters())
        token = max(CALL * self.model.config.n_layers, weights / READING)
        return self.tokens * token > 2 * seconds


def obstacle(model: CausalLM) -> str | None:
    """Why the model's step cannot be compiled here, or None."""
    if not isinstance(model, DecoderLM):
        return "only a decoder's is"
    if model.device.type != "cpu":
        return f"that is for a CPU, and the model is on {model.device.type}"
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        return "its weights are not float32"
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks:
            return f"something is hooked onto its {type(module).__name__}"
        if type(module).__module__.partition(".")[0] not in ("clearhead", "torch"):
            return f"{type(module).__name__} is a part of your own"
    if shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")) is None:
        return "there is no C++ compiler"
    return None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
