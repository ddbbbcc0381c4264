"""A run in memory: its model on a thread of its own, its tokenizers, and the queue of its texts."""

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import lru_cache, partial

from clearhead.config.serving import ServerConfig
from clearhead.data import ChatEncoder, Tokenizer
from clearhead.errors import DataError, UsageError
from clearhead.inference import Engine, GenerationBatch
from clearhead.inference.batching import MANY
from clearhead.inference.constraints import Constraint, ConstraintCompiler
from clearhead.models import CausalLM, EncoderDecoder, LanguageModel
from clearhead.server.http.errors import HttpError
from clearhead.server.http.model_thread import ModelThread, closed
from clearhead.server.openai.fields import token_text
from clearhead.server.openai.formats import Compile
from clearhead.server.text_batch import TextBatch
from clearhead.server.texts import TextQueue
from clearhead.server.translations import BATCH, MAX_HYPOTHESES, TranslationQueue
from clearhead.workflows.generating import draft_model
from clearhead.workflows.hardware import choose_device
from clearhead.workflows.runs.digests import WEIGHTS
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder

LOG = logging.getLogger(__name__)

MOST_COMPILING = 32  # forms of texts that wait to be compiled
TOKEN_TEXTS = 2**16  # that are remembered
COPIES = 2  # of the weights: the model's, and what the native engine packs


class LoadedRun:
    """A run that is served. Whatever touches its model runs on its thread.

    Attributes:
        name: as requests call it.
        kind: the objective: causal, masked or seq2seq.
        thread: the model's.
        tokenizers: of what the model reads and of what it writes.
        token_text: the text of a token that the model writes; it remembers most of them. On any thread.
        texts: the queue of texts; None but for a causal model.
        translations: the queue of sentences; None but for a translator.
    """

    model: LanguageModel
    tokenizers: tuple[Tokenizer, Tokenizer]
    token_text: Callable[[int], str]

    def __init__(self, name: str, folder: RunFolder, config: ServerConfig) -> None:
        self.name, self.folder, self._config = name, folder, config
        self.options = folder.config
        self.kind = self.options.objective
        self.thread = ModelThread(name)
        self.texts: TextQueue | None = None
        self.translations: TranslationQueue | None = None
        self._chat_encoder: ChatEncoder | None = None
        self._compiling, self._n_compiling = ModelThread(f"{name}: forms"), 0
        self._compiles, self._ending = False, asyncio.Event()
        self._compiler: ConstraintCompiler | None = None
        self._lock = threading.Lock()  # of the encoder, while it is made

    @property
    def tokenizer(self) -> Tokenizer:
        """Of what the model writes."""
        return self.tokenizers[1]

    @property
    def block_size(self) -> int:
        """How many tokens the model reads at once."""
        return self.options.model.block_size

    @property
    def context(self) -> int | None:
        """How many tokens a text may have, prompt and all; None: no limit."""
        if isinstance(self.model, CausalLM) and self.model.receptive_field is not None:
            return None
        return self.block_size

    @property
    def chat_encoder(self) -> ChatEncoder:
        """What makes ids of chats; it takes a moment to be made, and is kept. On any thread.

        Raises:
            UsageError: the run has no chat template.
            DataError: it cannot be used.
        """
        with self._lock:
            if self._chat_encoder is None:
                template = self.tokenizer.chat_template
                if template is None:
                    raise UsageError(
                        f"the model {self.name} has no chat template, so it cannot chat; use /v1/completions, or "
                        "import a model that was trained for chats"
                    )
                self._chat_encoder = ChatEncoder(self.tokenizer, template)
            return self._chat_encoder

    async def constraint(self, compile_form: Compile | None) -> Constraint | None:
        """The form of a request's texts. One after the other is compiled, so that others keep the processor.

        Raises:
            HttpError: 400, there is no such form, or texts of this run have none; 429, too many wait; 503, the run
                was closed meanwhile, or the machine could not try the form.
        """
        if compile_form is None:
            return None
        if self._n_compiling >= MOST_COMPILING:
            raise HttpError(429, f"the server is busy: {MOST_COMPILING} forms wait; try again", retry_after=1)
        if not self._compiles:
            self._compiling.start()
            self._compiles = True
        self._n_compiling += 1
        form = asyncio.ensure_future(self._compiling.call(lambda: compile_form(self._constraint_compiler)))
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait((form, ending), return_when=asyncio.FIRST_COMPLETED)
            if not form.done():  # what is being compiled is not awaited
                raise closed()
            return form.result()
        finally:
            form.cancel()
            ending.cancel()
            self._n_compiling -= 1

    def _constraint_compiler(self) -> ConstraintCompiler:
        if self._compiler is None:
            self._compiler = ConstraintCompiler(self.tokenizer, self.options.model.vocab_size)
        return self._compiler

    def queue(self) -> TextQueue:
        """The queue of texts.

        Raises:
            HttpError: 400, the model writes none.
        """
        if self.texts is None:
            other = "translates: use /translate" if self.kind == "seq2seq" else "fills in what is masked"
            raise HttpError(400, f"the model {self.name} does not continue a text; it {other}", "model")
        return self.texts

    async def load(self) -> None:
        """Load model and tokenizers, on the thread.

        Raises:
            ClearheadError: the run is damaged, or has no model yet.
        """
        self.thread.start()
        try:
            await self.thread.call(self._load)
        except BaseException:
            self.thread.close(0)
            raise

    def end_texts(self) -> None:
        """End all texts with an error, also those whose form is not compiled yet. On the event loop's thread."""
        self._ending.set()
        for queue in (self.texts, self.translations):
            if queue is not None:
                queue.close()

    def close(self, seconds: float) -> bool:
        """End the thread; whether it has ended by then. From any other thread."""
        self._compiling.close(0)  # what it compiles has an end, and nobody waits for it
        return self.thread.close(seconds)

    def _load(self) -> None:
        config, device = self._config, choose_device(self._config.device)
        self.tokenizers = self.folder.tokenizers
        self.token_text = lru_cache(TOKEN_TEXTS)(partial(token_text, self.tokenizer))
        self.model = model = self.folder.model().to(device).eval()
        capacity = config.slots + config.queue_length
        if isinstance(model, EncoderDecoder):
            if self.tokenizer.end_of_document is None:
                raise DataError(f"the tokenizer of {self.folder} has no token that ends a text")
            self.translations = TranslationQueue(
                self.thread,
                model,
                end=self.tokenizer.end_of_document,
                seconds=config.gather_milliseconds / 1000,
                capacity=capacity,
                on_notice=self._notice,
            )
        if not isinstance(model, CausalLM):
            return
        draft = None
        if config.draft not in (None, "ngrams"):
            draft = draft_model(open_folder(config.draft), self.folder, config.device)
        engine = Engine(model, config)
        engine.backend(MANY, self._notice)  # compiles native code where there is none yet

        def make(slots: int) -> GenerationBatch:
            return GenerationBatch(
                model, engine, draft=draft, slots=slots, prompt_tokens=config.prompt_tokens, on_notice=self._notice
            )

        batch = TextBatch(make, config.slots, self.tokenizer.end_of_document)
        batch.prepare()
        self.texts = TextQueue(
            self.thread,
            batch,
            self.tokenizer.decode,
            vocab_size=model.config.vocab_size,
            context=self.context,
            capacity=capacity,
            patience=config.send_seconds,
            seconds=config.stream_milliseconds / 1000,
        )

    def _notice(self, sentence: str) -> None:
        LOG.info("%s: %s", self.name, sentence)


def bytes_needed(folder: RunFolder, config: ServerConfig) -> float:
    """The memory that a run takes, about: its weights and the cache of its texts, and those of a draft model.

    Raises:
        DataError: the run's options or its model are missing or damaged.
    """
    model = folder.config.model
    columns = {
        "decoder": config.slots * model.block_size,
        "encoder_decoder": (MAX_HYPOTHESES + BATCH) * model.block_size,  # of what a search writes, and of its sources
    }.get(model.architecture, 0)
    needed = _weights_and_cache(folder, columns)
    if model.architecture == "decoder" and config.draft not in (None, "ngrams"):
        needed += _weights_and_cache(open_folder(config.draft), columns)
    return needed


def _weights_and_cache(folder: RunFolder, columns: int) -> float:
    """Bytes of weights, and of keys and values in float32."""
    model = folder.config.model
    try:
        weights = (folder.folder / WEIGHTS).stat().st_size
    except OSError as error:
        raise DataError(f"{folder.folder} has no {WEIGHTS}") from error
    return COPIES * weights + columns * 2 * model.n_layers * model.n_kv_heads * model.head_dim * 4
