"""Text from a model, token by token."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, SupportsIndex

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.data import Tokenizer
from clearhead.errors import DataError, UsageError
from clearhead.inference.batching import GenerationBatch
from clearhead.inference.constraints import ConstraintCompiler
from clearhead.inference.engine import DEFAULT, Engine
from clearhead.inference.text_options import PLAIN, TextOptions
from clearhead.inference.text_stream import TextStream
from clearhead.models import CausalLM
from clearhead.models.eval_mode import OnNotice


class TextCodec(Protocol):
    """The part of a tokenizer that generation uses."""

    @property
    def end_of_document(self) -> int | None: ...

    @property
    def beginning(self) -> Sequence[int]: ...

    def encode(self, text: str, /) -> Iterable[SupportsIndex]: ...

    def decode(self, ids: Sequence[int], /) -> str: ...


class Piece(NamedTuple):
    """New text of one sample of one prompt; `prompt` and `sample` are counted from 0."""

    prompt: int
    sample: int
    text: str


def generate(
    model: CausalLM,
    tokenizer: TextCodec,
    prompts: Sequence[str],
    config: SamplingConfig,
    *,
    engine: EngineConfig | Engine = DEFAULT,
    draft: CausalLM | None = None,
    on_text: Callable[[Piece], None] | None = None,
    on_notice: OnNotice | None = None,
) -> list[list[str]]:
    """Continue each prompt: `num_samples` texts per prompt, without the prompt.

    A text depends on the model, its prompt and the config alone, and not on the other prompts.

    Args:
        model: in any mode; it writes without dropout and is left as it was.
        tokenizer: the one that the model was trained with.
        prompts: an empty one starts a new document.
        config: sampling, and when to stop.
        engine: the backend; to write many texts, make one `Engine` of the model and pass it each time.
        draft: the smaller model that drafts, where the engine's `draft` names a run.
        on_text: called with each new piece of text as soon as it is certain.
        on_notice: called with a sentence, once each, when a text outgrows the model's context, and with what the engine
            reports.

    Raises:
        UsageError: a stop string is empty, the tokenizer has ids that the model does not know, or no text can have the
            form that is asked for.
        DataError: the tokenizer cannot encode a prompt.
        ClearheadError: the model's output is not finite.
    """
    texts = [[""] * config.num_samples for _ in prompts]
    for piece in stream(model, tokenizer, prompts, config, engine=engine, draft=draft, on_notice=on_notice):
        texts[piece.prompt][piece.sample] += piece.text
        if on_text:
            on_text(piece)
    return texts


def stream(
    model: CausalLM,
    tokenizer: TextCodec,
    prompts: Sequence[str],
    config: SamplingConfig,
    *,
    engine: EngineConfig | Engine = DEFAULT,
    draft: CausalLM | None = None,
    on_notice: OnNotice | None = None,
) -> Iterator[Piece]:
    """Yield the pieces of what `generate` returns, each as soon as it is certain; arguments and errors as there.

    Characters come whole, and nothing of a stop string comes at all.
    """
    if "" in config.stop:
        raise UsageError("stop: an empty stop string would end every text at once; leave it out")
    starts = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    owners = [(prompt, sample) for prompt in range(len(prompts)) for sample in range(config.num_samples)]
    rows = [starts[prompt] for prompt, _ in owners]
    texts = [TextStream(tokenizer.decode, ids, config.stop) for ids in rows]
    finished: set[int] = set()
    end = tokenizer.end_of_document
    options = PLAIN
    if config.is_constrained:
        options = TextOptions(constraint=_compiler(tokenizer, model.config.vocab_size).of(config))
    batch = GenerationBatch(model, engine, draft=draft, on_notice=on_notice)
    if rows:
        batch.add(rows, config, end, options)
    for column in _columns(batch, finished):
        for row, token in column.items():
            text = texts[row].add(token)
            if texts[row].stopped:
                finished.add(row)
            if text:
                yield Piece(*owners[row], text)
    for row, stream_of_row in enumerate(texts):
        if text := stream_of_row.close():
            yield Piece(*owners[row], text)


def stream_ids(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    config: SamplingConfig,
    *,
    end: int | None = None,
    finished: set[int] | None = None,
    engine: EngineConfig | Engine = DEFAULT,
    draft: CausalLM | None = None,
    on_notice: OnNotice | None = None,
) -> Iterator[dict[int, int]]:
    """Yield {row: id}, one new token per unfinished row, until every row has ended.

    With speculative decoding, rows advance unevenly, so a dict may miss rows.

    Args:
        model: as in `generate`.
        prompts: ids of each row, at least one.
        config: the sampling.
        end: eos; never yielded.
        finished: rows to stop; the caller may add to it between yields.
        engine, draft, on_notice: as in `generate`.

    Raises:
        UsageError: a prompt is empty, or has an id that is not in the model's vocabulary, or the config asks for a
            form, which ids have not.
    """
    if not prompts:
        return
    finished = set() if finished is None else finished
    batch = GenerationBatch(model, engine, draft=draft, on_notice=on_notice)
    batch.add(prompts, config, end)
    yield from _columns(batch, finished)


def _compiler(tokenizer: TextCodec, vocab_size: int) -> ConstraintCompiler:
    if not isinstance(tokenizer, Tokenizer):
        raise UsageError(
            "`regex` and `json_schema` need a tokenizer of `clearhead.data`, which knows what each token writes"
        )
    return ConstraintCompiler(tokenizer, vocab_size)


def _columns(batch: GenerationBatch, finished: set[int]) -> Iterator[dict[int, int]]:
    """As `stream_ids`: what a batch writes, until all of its texts have ended."""
    with batch:
        while batch.live:
            written = batch.step()
            for error in batch.failed.values():
                raise error
            for index in range(max(map(len, written.values()), default=0)):
                column = {row: new[index] for row, new in written.items() if index < len(new) and row not in finished}
                if column:
                    yield column
            batch.cancel(finished)


def encode_prompt(tokenizer: TextCodec, prompt: str) -> list[int]:
    """The ids of the prompt, after the tokenizer's bos if it has one.

    For an empty prompt without bos: the end of a document, else a line break, else id 0.

    Raises:
        DataError: the tokenizer cannot encode the prompt.
    """
    if not prompt and tokenizer.beginning:
        return [*tokenizer.beginning]
    if not prompt and tokenizer.end_of_document is not None:
        return [tokenizer.end_of_document]
    try:
        return [*tokenizer.beginning, *(int(token) for token in tokenizer.encode(prompt or "\n"))] or [0]
    except DataError:
        if prompt:
            raise
        return [0]  # a tokenizer without line breaks
