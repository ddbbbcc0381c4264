"""Who computes the next tokens: the model's own call, one by one, or compiled code, some at a time."""

import torch

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.inference.decoder_step import DecoderStep, EagerDecoderStep, NativeDecoderStep
from clearhead.inference.requests import begin
from clearhead.models import CausalLM, DecoderLM
from clearhead.models.eval_mode import Notice, evaluating, hooked
from clearhead.models.quantization import rounded
from clearhead.native import UnknownPartError
from clearhead.native.facade import CALL, bytes_of_weights, code_for, refuse_difference

DEFAULT, GREEDY = EngineConfig(), SamplingConfig(greedy=True)
READING = 1.2e10  # bytes of weights that are read in a second, call by call


class Engine:
    """Computes the next tokens of a model's texts; whoever writes many keeps it, while the weights stay as they are.

    Compiled code is held against the model's own call before it is used; what cannot be compiled, or came out wrong, is
    computed call by call.
    """

    def __init__(self, model: CausalLM, config: EngineConfig = DEFAULT) -> None:
        """
        Args:
            model: whose texts they are.
            config: which engine, and what the matrices are rounded to.
        """
        self.source, self.config = model, config
        self.model = rounded(model, config.dtype)
        self._compiled: NativeDecoderStep | None = None
        self._given_up = False

    def writer(self, tokens: int, notice: Notice | None = None) -> DecoderStep:
        """What writes texts.

        Args:
            tokens: how many a text may have.
            notice: told in a sentence what takes time, or cannot be done.
        """
        if self._compiled is None and not self._given_up and self.config.engine != "eager":
            try:
                self._prepare(tokens, notice or (lambda sentence: None))
            except (UnknownPartError, OSError, RuntimeError) as error:
                self._given_up = True
                if notice and (self.config.engine == "native" or not isinstance(error, UnknownPartError)):
                    notice(f"the text is written without compiled code: {error}")
        if self._compiled is None or hooked(self.model):
            return EagerDecoderStep(self.model)
        return self._compiled

    def _prepare(self, tokens: int, say: Notice) -> None:
        """Load compiled code, and compile it before where there is none, if that is asked for or pays.

        Raises:
            UnknownPartError: the model has parts that compiled code does not know.
            OSError, RuntimeError: it cannot be made or loaded, or came out wrong.
        """
        model = self.model
        if not isinstance(model, DecoderLM):
            raise UnknownPartError("only a decoder has any")
        token = max(CALL * (2 + model.config.n_layers), bytes_of_weights(model) / READING)  # seconds, call by call
        saved = tokens * token / 2  # half of them
        library = code_for(model, saved, required=self.config.engine == "native", say=say)
        if library is not None:
            compiled = NativeDecoderStep(model, self.config.dtype, library)
            _refuse_wrong_code(model, compiled)
            self._compiled = compiled


def engine_of(model: CausalLM, engine: EngineConfig | Engine) -> Engine:
    """A new one, or the one that was kept."""
    engine = engine if isinstance(engine, Engine) else Engine(model, engine)
    assert engine.source is model, "this engine was made for another model"
    return engine


@torch.inference_mode()
def _refuse_wrong_code(model: DecoderLM, native: NativeDecoderStep) -> None:
    """Let both read on after a prompt, with one row and with two: the native code computes them differently.

    Raises:
        RuntimeError: the two do not compute the same.
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
