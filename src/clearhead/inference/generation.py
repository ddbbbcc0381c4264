"""Text from a model, token by token."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, SupportsIndex

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.errors import DataError, UsageError
from clearhead.inference.batching import GenerationBatch
from clearhead.inference.engine import DEFAULT, Engine
from clearhead.inference.text_stream import TextStream
from clearhead.models import CausalLM
from clearhead.models.eval_mode import Notice


class TextCodec(Protocol):
    """What generation asks of a tokenizer."""

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
    on_notice: Notice | None = None,
) -> list[list[str]]:
    """What the model writes after each prompt: `num_samples` texts per prompt, without the prompt.

    A text depends on the model, its prompt and the config alone, and not on the other prompts.

    Args:
        model: in whatever mode; it writes without dropout and is left as it was.
        tokenizer: the one that the model was trained with.
        prompts: an empty one starts a new document.
        config: how tokens are drawn, and when to stop.
        engine: how they are computed; who writes many texts makes an `Engine` of the model once.
        draft: the model that guesses, where the engine's `draft` is the name of one.
        on_text: told each new piece of text as soon as it is certain.
        on_notice: told, once each, in a sentence, that the model does not see the whole text any more, and what the
            engine has to say.

    Raises:
        UsageError: a stop string is empty, or the tokenizer has ids that the model does not know.
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
    on_notice: Notice | None = None,
) -> Iterator[Piece]:
    """The pieces of what `generate` returns, each as soon as it is certain; arguments and errors as there.

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
    tokens = generate_ids(
        model, rows, config, end=end, finished=finished, engine=engine, draft=draft, on_notice=on_notice
    )
    for column in tokens:
        for row, token in column.items():
            text = texts[row].add(token)
            if texts[row].stopped:
                finished.add(row)
            if text:
                yield Piece(*owners[row], text)
    for row, stream_of_row in enumerate(texts):
        if text := stream_of_row.close():
            yield Piece(*owners[row], text)


def generate_ids(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    config: SamplingConfig,
    *,
    end: int | None = None,
    finished: set[int] | None = None,
    engine: EngineConfig | Engine = DEFAULT,
    draft: CausalLM | None = None,
    on_notice: Notice | None = None,
) -> Iterator[dict[int, int]]:
    """One new token per row that is still being written, {row: id}, until every row has ended.

    Tokens are computed some at a time. Where they are guessed ahead, rows go on at their own pace: of some there is no
    token at a time.

    Args:
        model: as in `generate`.
        prompts: ids of each row, at least one.
        config: how tokens are drawn.
        end: a row that draws this id has ended; the id itself is not handed out.
        finished: rows that the caller wants no more of; may grow at any time.
        engine, draft, on_notice: as in `generate`.

    Raises:
        UsageError: a prompt is empty, or has an id that is not in the model's vocabulary.
    """
    if not prompts:
        return
    finished = set() if finished is None else finished
    batch = GenerationBatch(model, engine, draft=draft, notice=on_notice)
    batch.add(prompts, config, end)
    with batch:
        while batch.live:
            written = batch.step()
            for index in range(max(map(len, written.values()))):
                column = {row: new[index] for row, new in written.items() if index < len(new) and row not in finished}
                if column:
                    yield column
            batch.drop(finished)


def encode_prompt(tokenizer: TextCodec, prompt: str) -> list[int]:
    """The ids of the prompt, after those with which every text begins, if there are any.

    For an empty one, where none begin it: the end of a document, else a line break, else id 0.

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
