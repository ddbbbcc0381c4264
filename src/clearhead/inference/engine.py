"""Who computes the next tokens: the model's own call, one by one, or compiled code, some at a time."""

import torch

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.inference.compiled import CPP_TYPES, CompiledDecoder, UnknownPartError, compiler, library
from clearhead.inference.mode import Notice, evaluating, hooked
from clearhead.inference.rounding import rounded
from clearhead.inference.texts import begin
from clearhead.inference.writers import PlainWriter, Writer
from clearhead.models import CausalLM, DecoderLM, EncoderDecoder

DEFAULT, GREEDY = EngineConfig(), SamplingConfig(greedy=True)
BUILDING, LOADING = 3.0, 0.02  # seconds that compiled code costs before its first token, made anew or kept
PACKING = 5e8  # bytes of weights that are brought into its order in a second
CALL = 1.5e-4  # seconds that a block takes at least, call by call; what is around the blocks takes as much as two
READING = 1.2e10  # bytes of weights that are read in a second, call by call
TOLERANCE = 1e-3  # of the largest logit


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
        self.model = rounded(model, config.weights)
        self._compiled: CompiledDecoder | None = None
        self._given_up = False

    def writer(self, tokens: int, notice: Notice | None = None) -> Writer:
        """What writes texts.

        Args:
            tokens: how many a text may have.
            notice: told in a sentence what takes time, or cannot be done.
        """
        if self._compiled is None and not self._given_up and self.config.engine != "plain":
            try:
                self._prepare(tokens, notice or (lambda sentence: None))
            except (UnknownPartError, OSError, RuntimeError) as error:
                self._given_up = True
                if notice and (self.config.engine == "compiled" or not isinstance(error, UnknownPartError)):
                    notice(f"the text is written without compiled code: {error}")
        if self._compiled is None or hooked(self.model):
            return PlainWriter(self.model)
        return self._compiled

    def _prepare(self, tokens: int, say: Notice) -> None:
        """Load compiled code, and compile it before where there is none, if that is asked for or pays.

        Raises:
            UnknownPartError: the model has parts that compiled code does not know.
            OSError, RuntimeError: it cannot be made or loaded, or came out wrong.
        """
        weights = sum(parameter.nbytes for parameter in self.model.parameters())
        token = max(CALL * (2 + self.model.config.n_layers), weights / READING)  # seconds, call by call
        saved = tokens * token / 2  # half of them
        asked = self.config.engine == "compiled"
        if not asked and saved < LOADING + weights / PACKING:
            return
        model = compilable(self.model)
        found = library(next(model.parameters()).dtype, build=asked or saved > BUILDING, notice=say)
        if found is not None:
            compiled = CompiledDecoder(model, self.config.weights, found)
            _refuse_wrong_code(model, compiled)
            self._compiled = compiled


def engine_of(model: CausalLM, engine: EngineConfig | Engine) -> Engine:
    """A new one, or the one that was kept."""
    engine = engine if isinstance(engine, Engine) else Engine(model, engine)
    assert engine.source is model, "this engine was made for another model"
    return engine


def compilable(model: CausalLM) -> DecoderLM:
    """The model.

    Raises:
        UnknownPartError: its next token cannot be computed by compiled code.
    """
    if not isinstance(model, DecoderLM):
        raise UnknownPartError("only a decoder has any")
    refuse_unknown(model)
    return model


def refuse_unknown(model: DecoderLM | EncoderDecoder) -> None:
    """
    Raises:
        UnknownPartError: something of the model is not for compiled code.
    """
    if model.device.type != "cpu":
        raise UnknownPartError(f"it is for a CPU, and the model is on {model.device.type}")
    if any(parameter.dtype not in CPP_TYPES for parameter in model.parameters()):
        raise UnknownPartError("the model's weights are not float32")
    if kind := hooked(model):
        raise UnknownPartError(f"something is hooked onto {kind}, a part of the model")
    for module in model.modules():
        if type(module).__module__.partition(".")[0] not in ("clearhead", "torch"):
            raise UnknownPartError(f"{type(module).__name__} is not a part of this library")
    if compiler() is None:
        raise UnknownPartError("there is no C++ compiler")


@torch.inference_mode()
def _refuse_wrong_code(model: DecoderLM, compiled: CompiledDecoder) -> None:
    """Let both read on after a prompt, one row and two, which are computed in ways of their own.

    Raises:
        RuntimeError: the two do not compute the same.
    """
    plain, length = PlainWriter(model), min(5, model.config.block_size)
    before = max(0, length - 3)
    steps = min(2, length - before - 1, compiled.at_once)
    ids = torch.arange(2 * (before + 1), device=model.device).view(2, -1) % model.config.vocab_size
    for rows in (1, 2):
        mine, theirs = (model.new_cache(rows, length) for _ in range(2))
        with evaluating(model):
            for writer, cache in ((compiled, mine), (plain, theirs)) if before else ():
                writer.read(ids[:rows, :before], cache, wanted=0)
            last = ids[:rows, before]
            if steps:
                written = compiled.write(last, mine, begin(0, [[0]] * rows, GREEDY), steps)
                columns = torch.cat((last[:, None], torch.tensor(written, device=model.device)), dim=1)
                plain.read(columns[:, :-1], theirs, wanted=0)
                last = columns[:, -1]
            expected, found = (
                writer.read(last[:, None], cache) for writer, cache in ((plain, theirs), (compiled, mine))
            )
        if expected.isfinite().all() and not (found - expected).abs().max() <= TOLERANCE * expected.abs().max():
            raise RuntimeError("its logits are not the model's; please report this")
