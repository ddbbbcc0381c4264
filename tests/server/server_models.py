"""Small models with random weights, and what serves them without a run's folder."""

from collections.abc import Callable, Sequence

import torch

from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.data import Tokenizer
from clearhead.inference import Engine, GenerationBatch, generate
from clearhead.models import DecoderLM
from clearhead.server.http.model_thread import ModelThread
from clearhead.server.text_batch import TextBatch
from clearhead.server.texts import BUFFER, PATIENCE, TextQueue

LETTERS = "\n abcdefgé🙂"
TOKENIZER = Tokenizer.characters(LETTERS)
ENDING = Tokenizer.characters(LETTERS, end=True)
EAGER, NATIVE = EngineConfig(engine="eager"), EngineConfig(engine="native")


def small_model(block_size: int = 64, tokenizer: Tokenizer = TOKENIZER) -> DecoderLM:
    """One that is sure of nothing and certain of much: its weights are random and large."""
    config = ModelConfig(
        n_layers=2, n_heads=2, d_model=16, block_size=block_size, vocab_size=tokenizer.vocab_size, positions="rope"
    )
    model = DecoderLM(config, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model.eval()


def ids_of(text: str, tokenizer: Tokenizer = TOKENIZER) -> list[int]:
    return [int(token) for token in tokenizer.encode(text)]


def solo(
    model: DecoderLM, prompt: str, config: SamplingConfig, engine: EngineConfig, tokenizer: Tokenizer = TOKENIZER
) -> list[str]:
    """The texts that `inference.generate` writes, alone."""
    [texts] = generate(model, tokenizer, [prompt], config, engine=engine)
    return texts


class Served:
    """A model's thread and its queue; `with` it."""

    def __init__(
        self,
        model: DecoderLM,
        engine: EngineConfig = EAGER,
        *,
        slots: int = 3,
        waiting: int = 100,
        prompt_tokens: int = 1024,
        buffer: int = BUFFER,
        patience: float = PATIENCE,
        seconds: float = 0.0,
        tokenizer: Tokenizer = TOKENIZER,
        wrap: Callable[[GenerationBatch], GenerationBatch] = lambda batch: batch,
    ) -> None:
        self.thread = ModelThread("test")
        own = Engine(model, engine)

        def make(slots: int) -> GenerationBatch:
            return wrap(GenerationBatch(model, own, slots=slots, prompt_tokens=prompt_tokens))

        self.batch = TextBatch(make, slots, tokenizer.end_of_document)
        self.queue = TextQueue(
            self.thread,
            self.batch,
            tokenizer.decode,
            vocab_size=tokenizer.vocab_size,
            context=model.config.block_size,
            capacity=slots + waiting,
            buffer=buffer,
            patience=patience,
            seconds=seconds,
        )

    def __enter__(self) -> TextQueue:
        self.thread.start()
        return self.queue

    def __exit__(self, *_: object) -> None:
        assert self.thread.close(20)


def joined(events: Sequence[str]) -> str:
    return "".join(events)
