"""Choose the backend of a decoder: eager, one token per call, or native, several tokens per call."""

import torch

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.inference.decoder_step import DecoderStep, EagerDecoderStep, NativeDecoderStep
from clearhead.inference.requests import begin
from clearhead.models import CausalLM, DecoderLM
from clearhead.models.eval_mode import OnNotice, evaluating, first_hooked_module
from clearhead.models.quantization import rounded
from clearhead.native import UnknownPartError
from clearhead.native.facade import CALL, bytes_of_weights, code_for, refuse_difference

DEFAULT, GREEDY = EngineConfig(), SamplingConfig(greedy=True)
READING = 1.2e10  # bytes of weights that eager calls read per second


class Engine:
    """A model with its backend. Keep it to generate many texts, as long as the weights stay as they are.

    Native results are compared with eager ones before use; where native code is missing or wrong, eager takes over.
    """

    def __init__(self, model: CausalLM, config: EngineConfig = DEFAULT) -> None:
        """
        Args:
            model: the decoder.
            config: which backend, and the dtype of the matrices.
        """
        self.source, self.config = model, config
        self.model = rounded(model, config.dtype)
        self._compiled: NativeDecoderStep | None = None
        self._given_up = False

    def writer(self, tokens: int, on_notice: OnNotice | None = None) -> DecoderStep:
        """The backend for texts of this length.

        Args:
            tokens: new tokens per text, at most.
            on_notice: called with a sentence when something takes long or is not possible.
        """
        if self._compiled is None and not self._given_up and self.config.engine != "eager":
            try:
                self._prepare(tokens, on_notice or (lambda sentence: None))
            except (UnknownPartError, OSError, RuntimeError) as error:
                self._given_up = True
                if on_notice and (self.config.engine == "native" or not isinstance(error, UnknownPartError)):
                    on_notice(f"the text is written without native code: {error}")
        if self._compiled is None or first_hooked_module(self.model):
            return EagerDecoderStep(self.model)
        return self._compiled

    def _prepare(self, tokens: int, on_notice: OnNotice) -> None:
        """Load native code, compiled first if need be, where the config names it or it saves time.

        Raises:
            UnknownPartError: native code does not implement a part of the model.
            OSError, RuntimeError: it cannot be compiled or loaded, or computes something else.
        """
        model = self.model
        if not isinstance(model, DecoderLM):
            raise UnknownPartError("only a decoder has any")
        token = max(CALL * (2 + model.config.n_layers), bytes_of_weights(model) / READING)  # seconds, call by call
        saved = tokens * token / 2  # half of them
        library = code_for(model, saved, required=self.config.engine == "native", on_notice=on_notice)
        if library is not None:
            compiled = NativeDecoderStep(model, self.config.dtype, library)
            _refuse_wrong_code(model, compiled)
            self._compiled = compiled


def engine_of(model: CausalLM, engine: EngineConfig | Engine) -> Engine:
    """A new engine from a config, or the given one."""
    engine = engine if isinstance(engine, Engine) else Engine(model, engine)
    assert engine.source is model, "this engine was made for another model"
    return engine


@torch.inference_mode()
def _refuse_wrong_code(model: DecoderLM, native: NativeDecoderStep) -> None:
    """Compare native with eager results after a prompt, with one row and with two, which take different native paths.

    Raises:
        RuntimeError: they differ.
    """
    eager, length = EagerDecoderStep(model), min(5, model.config.block_size)
    before = max(0, length - 3)
    steps = min(2, length - before - 1, native.at_once)
    ids = torch.arange(2 * (before + 1), device=model.device).view(2, -1) % model.config.vocab_size
    for rows in (1, 2):
        native_cache, eager_cache = (model.new_cache(rows, length) for _ in range(2))
        with evaluating(model):
            for writer, cache in ((native, native_cache), (eager, eager_cache)) if before else ():
                writer.read(ids[:rows, :before], cache, logits_to_keep=0)
            last = ids[:rows, before]
            if steps:
                written = native.write(last, native_cache, begin(0, [[0]] * rows, GREEDY), steps)
                columns = torch.cat((last[:, None], torch.tensor(written, device=model.device)), dim=1)
                eager.read(columns[:, :-1], eager_cache, logits_to_keep=0)
                last = columns[:, -1]
            expected, actual = (
                writer.read(last[:, None], cache) for writer, cache in ((eager, eager_cache), (native, native_cache))
            )
        refuse_difference(actual, expected)
