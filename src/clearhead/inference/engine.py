"""Choose the backend of a decoder: eager, one token per call, or native, several tokens per call."""

import torch

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.errors import ClearheadError
from clearhead.inference.decoder_backend import DecoderBackend, EagerDecoderBackend, NativeDecoderBackend
from clearhead.inference.requests import new_requests
from clearhead.models import CausalLM, DecoderLM
from clearhead.models.eval_mode import OnNotice, evaluating, first_hooked_module
from clearhead.models.quantization import quantize_model
from clearhead.native import UnknownPartError
from clearhead.native.facade import CALL_SECONDS, library_for, refuse_difference, weight_bytes

DEFAULT, GREEDY = EngineConfig(), SamplingConfig(greedy=True)
READ_BYTES_PER_SECOND = 1.2e10  # bytes of weights that eager calls read per second


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
        self.model = quantize_model(model, config.dtype)
        self._native: NativeDecoderBackend | None = None
        self._native_failed = False

    def backend(self, new_tokens: int, on_notice: OnNotice | None = None) -> DecoderBackend:
        """The backend for texts of this length.

        Args:
            new_tokens: new tokens per text, at most.
            on_notice: called with a sentence when something takes long or is not possible.
        """
        if self._native is None and not self._native_failed and self.config.engine != "eager":
            try:
                self._load_native(new_tokens, on_notice or (lambda sentence: None))
            except (UnknownPartError, OSError, RuntimeError, ClearheadError) as error:
                self._native_failed = True
                if on_notice and (self.config.engine == "native" or not isinstance(error, UnknownPartError)):
                    on_notice(f"native engine not used: {error}")
        if self._native is None or first_hooked_module(self.model):
            return EagerDecoderBackend(self.model)
        return self._native

    def _load_native(self, new_tokens: int, on_notice: OnNotice) -> None:
        """Load native code, compiled first if need be, where the config names it or it saves time.

        Raises:
            UnknownPartError: native code does not implement a part of the model.
            OSError, RuntimeError: it cannot be compiled or loaded, or computes something else.
        """
        model = self.model
        if not isinstance(model, DecoderLM):
            raise UnknownPartError(f"it runs decoders, and this is a {type(model).__name__}")
        overhead = CALL_SECONDS * (2 + model.config.n_layers)
        token = max(overhead, weight_bytes(model) / READ_BYTES_PER_SECOND)  # seconds, call by call
        saved = new_tokens * token / 2  # half of them
        library = library_for(model, saved, required=self.config.engine == "native", on_notice=on_notice)
        if library is not None:
            native = NativeDecoderBackend(model, self.config.dtype, library)
            _verify_native(model, native)
            self._native = native


def as_engine(model: CausalLM, engine: EngineConfig | Engine) -> Engine:
    """A new engine from a config, or the given one."""
    engine = engine if isinstance(engine, Engine) else Engine(model, engine)
    assert engine.source is model, "this engine was made for another model"
    return engine


@torch.inference_mode()
def _verify_native(model: DecoderLM, native: NativeDecoderBackend) -> None:
    """Compare native with eager results after a prompt, with one row and with two, which take different native paths.

    Raises:
        RuntimeError: they differ.
    """
    eager, length = EagerDecoderBackend(model), min(5, model.config.block_size)
    before = max(0, length - 3)
    steps = min(2, length - before - 1, native.max_steps)
    ids = torch.arange(2 * (before + 1), device=model.device).view(2, -1) % model.config.vocab_size
    for rows in (1, 2):
        native_cache, eager_cache = (model.new_cache(rows, length) for _ in range(2))
        with evaluating(model):
            for backend, cache in ((native, native_cache), (eager, eager_cache)) if before else ():
                backend.forward(ids[:rows, :before], cache, logits_to_keep=0)
            last = ids[:rows, before]
            if steps:
                written = native.decode(last, native_cache, new_requests(0, [[0]] * rows, GREEDY), steps)
                columns = torch.cat((last[:, None], torch.tensor(written, device=model.device)), dim=1)
                eager.forward(columns[:, :-1], eager_cache, logits_to_keep=0)
                last = columns[:, -1]
            expected, actual = (
                backend.forward(last[:, None], cache)
                for backend, cache in ((eager, eager_cache), (native, native_cache))
            )
        refuse_difference(actual, expected)
