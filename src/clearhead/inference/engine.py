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

BUILDING, LOADING = 60.0, 1.0  # seconds that a compiled step costs before its first token, made anew or kept
CALL = 1.5e-4  # seconds that a block takes at least, call by call
READING = 1.2e10  # bytes of weights that are read in a second, call by call
TOLERANCE = 1e-3  # of the largest logit


def call(model: CausalLM, ids: Tensor, cache: DecoderCache) -> Tensor:
    """The logits (B, V) after one more token (B,) of each row, by the model's own call."""
    return model.head(model.hidden(ids[:, None], cache=cache)[:, -1])


class Engine:
    """Reads one token (B,) of each row into a cache; returns the logits (B, V) of the next.

    A compiled step is for one row, or for any greater number. Its first result is held against the model's own call;
    what cannot be compiled, or came out wrong, is computed call by call.
    """

    def __init__(
        self, model: CausalLM, config: EngineConfig, *, rows: int, tokens: int, notice: Notice | None = None
    ) -> None:
        """
        Args:
            model: rounded already, as `config.weights` says.
            config: which engine.
            rows: how many there are at first; some may leave.
            tokens: how many steps there may be.
            notice: told in a sentence what takes time, or cannot be done.
        """
        self.model, self.config, self.tokens = model, config, tokens
        self._say = notice or (lambda sentence: None)
        self._steps = dict[bool, CompiledStep | None]()  # for one row, and for more
        self._trusted = set[bool]()
        self._prepare(rows == 1, asked=config.engine == "compiled")

    def __call__(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        one_row = len(ids) == 1
        if one_row not in self._steps:
            self._prepare(one_row)
        self.tokens -= 1
        step = self._steps[one_row]
        if step is None:
            return call(self.model, ids, cache)
        return step(ids, cache) if one_row in self._trusted else self._compare(step, ids, cache)

    def _prepare(self, one_row: bool, *, asked: bool = False) -> None:
        self._steps[one_row] = None
        if self.config.engine == "plain" or not (asked or self._pays(LOADING)):
            return
        if reason := obstacle(self.model):
            if asked:
                self._give_up(one_row, reason)
            return
        try:
            with torch.inference_mode(False), torch.no_grad():
                self._steps[one_row] = self._compiled(one_row, asked)
        except Exception as error:  # a compiler fails in ways without number, and nothing here depends on it
            self._give_up(one_row, _first_line(error))

    def _give_up(self, one_row: bool, reason: str) -> None:
        self._steps[one_row] = None
        self._say(f"the text is written without a compiled step: {reason}")

    def _compiled(self, one_row: bool, asked: bool) -> CompiledStep | None:
        """The compiled step, made if there is none and it is asked for or pays."""
        folder = folder_of(self.model, self.config.weights, one_row=one_row)
        found = is_built(folder)
        if not (found or asked or self._pays(BUILDING)):
            return None
        step = step_of(self.model, self.config.weights, one_row=one_row)
        if not found:
            self._say(
                "compiling the step of a model of this shape, which takes a minute or so and is kept for next time; "
                "the engine 'plain' does without"
            )
            build(folder, step)
        return CompiledStep(folder, step)

    def _compare(self, step: CompiledStep, ids: Tensor, cache: DecoderCache) -> Tensor:
        """Both ways, into the same column: only a compiled step that does what the model does is used again."""
        one_row = len(ids) == 1
        try:
            found = step.logits(ids, cache)
        except RuntimeError as error:
            self._give_up(one_row, _first_line(error))
            return call(self.model, ids, cache)
        logits = call(self.model, ids, cache)
        if (found - logits).abs().max() <= TOLERANCE * logits.abs().max():
            self._trusted.add(one_row)
        else:
            self._give_up(one_row, "its logits are not the model's; please report this")
        return logits

    def _pays(self, seconds: float) -> bool:
        """Whether half of the rest of the text, call by call, takes longer than this."""
        weights = sum(parameter.nbytes for parameter in self.model.parameters())
        token = max(CALL * self.model.config.n_layers, weights / READING)
        return self.tokens * token > 2 * seconds


def obstacle(model: CausalLM) -> str | None:
    """Why the model's step cannot be compiled here, or None."""
    if not isinstance(model, DecoderLM):
        return "only a decoder has one"
    if model.device.type != "cpu":
        return f"they are for a CPU, and the model is on {model.device.type}"
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        return "the model's weights are not float32"
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks:
            return f"something is hooked onto {type(module).__name__}, a part of the model"
        if type(module).__module__.partition(".")[0] not in ("clearhead", "torch"):
            return f"{type(module).__name__} is not a part of this library"
    if shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")) is None:
        return "there is no C++ compiler"
    return None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
