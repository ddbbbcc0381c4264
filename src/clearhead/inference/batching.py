"""Continuous batching: texts advance at their own pace, join at any time, and may gain several tokens per step."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.errors import UsageError
from clearhead.inference.engine import DEFAULT, Engine, engine_of
from clearhead.inference.ids import known_ids
from clearhead.inference.kv_context import Context
from clearhead.inference.requests import Text, begin
from clearhead.inference.speculative import Draft, ModelDraft, NgramDraft
from clearhead.inference.verification import DraftTokens, verify
from clearhead.models import CausalLM
from clearhead.models.eval_mode import OnNotice, evaluating


class GenerationBatch:
    """A batch for a server: add prompts at any time, and call `step` for the next tokens of all texts.

        with GenerationBatch(model) as batch:
            batch.add([ids], config)
            while batch.live:
                for name, tokens in batch.step().items(): ...

    Each text is the one that `generate_ids` would write alone. With `EngineConfig.draft`, decoding is speculative: one
    call reads the last token and the draft tokens, and `verify` accepts or rejects them.
    """

    def __init__(
        self,
        model: CausalLM,
        engine: EngineConfig | Engine = DEFAULT,
        *,
        draft: CausalLM | None = None,
        on_notice: OnNotice | None = None,
    ) -> None:
        """
        Args:
            model: in any mode; inside the `with` it has no dropout.
            engine: the backend; to make many batches, make one `Engine` of the model and pass it to each.
            draft: the smaller model that drafts; needed where the engine's `draft` names a run.
            on_notice: called with sentences to show the user.
        """
        self._engine, self._on_notice, self._stack = engine_of(model, engine), on_notice, ExitStack()
        self._model = self._engine.model
        self._context = Context(self._model, on_notice)
        self._draft = _draft_of(self._engine.config, draft, model.config.vocab_size)
        self._guessing = [self._model] if draft is None else [self._model, draft]
        self._waiting = list[Text]()
        self._texts = list[Text]()  # each is in the cache but for its last token
        self._added = 0

    def __enter__(self) -> Self:
        for model in self._guessing:
            self._stack.enter_context(evaluating(model))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def live(self) -> set[int]:
        """The names of texts that have not ended."""
        return {text.name for text in [*self._texts, *self._waiting] if text.remaining}

    def add(self, prompts: Sequence[Sequence[int]], config: SamplingConfig, end: int | None = None) -> list[int]:
        """Add texts, which begin with the next step; return their names, 0, 1, ...

        Raises:
            UsageError: a prompt is empty, or has an id that is not in the model's vocabulary; none of them joins.
        """
        texts = begin(self._added, known_ids(prompts, self._model.config.vocab_size), config, end)
        self._waiting += texts
        self._added += len(texts)
        return [text.name for text in texts]

    def drop(self, names: Iterable[int]) -> None:
        """Cancel these texts."""
        unwanted = set(names)
        self._waiting = [text for text in self._waiting if text.name not in unwanted]
        for text in self._texts:
            if text.name in unwanted:
                text.remaining = 0

    def step(self) -> dict[int, list[int]]:
        """The next tokens of every live text: those of one backend call, or the accepted draft tokens and one.

        The list is empty where eos comes first.
        """
        self._clear(seldom=not self._waiting)
        written = self._go_on() if self._texts else {}
        if self._waiting:
            written |= self._begin()
        return written

    def _begin(self) -> dict[int, list[int]]:
        """Prefill the waiting prompts, and sample a first token for each."""
        texts, self._waiting = self._waiting, []
        prompts, new_tokens = [text.prompt for text in texts], max(text.remaining for text in texts)
        self._context.writer = self._engine.writer(new_tokens, self._on_notice)
        logits = self._context.join(prompts, new_tokens)[:, None]  # (B', V) -> (B', 1, V)
        drawn = verify(texts, logits, DraftTokens([[] for _ in texts]))
        if self._draft is not None:
            self._draft.join(prompts, new_tokens)
            self._draft.learn([*([] for _ in self._texts), *drawn])
        self._texts += texts
        return {text.name: text.write(tokens) for text, tokens in zip(texts, drawn, strict=True)}

    def _go_on(self) -> dict[int, list[int]]:
        """Read the last token of each text, and sample the next."""
        tokens = self._context.write(self._texts) if self._draft is None else self._guessed_ahead(self._draft)
        pairs = zip(self._texts, tokens, strict=True)
        return {text.name: text.write(new) for text, new in pairs if text.remaining}

    def _guessed_ahead(self, draft: Draft) -> list[list[int]]:
        """Speculate: read draft tokens after the last ones; return the accepted ones and one more."""
        guesses = draft.guess([self._most(row, text) for row, text in enumerate(self._texts)], self._texts)
        if not any(guesses.tokens):
            tokens = self._context.write(self._texts)
            draft.learn(tokens)
            return tokens
        read = [[text.last, *guess] for text, guess in zip(self._texts, guesses.tokens, strict=True)]
        tokens = verify(self._texts, self._context.read(read), guesses)
        self._context.forget([len(old) - len(new) for old, new in zip(read, tokens, strict=True)])
        draft.learn(tokens)
        for text, guess, new in zip(self._texts, guesses.tokens, tokens, strict=True):
            text.learn(len(guess), len(new) - 1)
        return tokens

    def _most(self, row: int, text: Text) -> int:
        """How many tokens to draft for a text at most."""
        room = self._context.room(row)
        return max(0, min(text.reach, text.remaining - 1, text.reach if room is None else room - 1))

    def _clear(self, *, seldom: bool) -> None:
        """Remove ended texts.

        That copies the cache, so with `seldom` only if half have ended, or one of the ended has run out of room.
        """
        ended = [row for row, text in enumerate(self._texts) if not text.remaining]
        few = 2 * len(ended) < len(self._texts) and all(map(self._context.has_room, ended))
        if not ended or (seldom and few):
            return
        rows = [row for row, text in enumerate(self._texts) if text.remaining]
        self._context.keep(rows)
        if self._draft is not None:
            self._draft.keep(rows)
        self._texts = [self._texts[row] for row in rows]


def _draft_of(config: EngineConfig, model: CausalLM | None, vocab_size: int) -> Draft | None:
    name = config.draft
    if model is None:
        if name in (None, "ngrams"):
            return None if name is None else NgramDraft()
        raise UsageError(f"draft: '{name}' is a run, so its model must be given")
    if name == "ngrams":
        raise UsageError("draft: ngrams or a smaller model, not both")
    if model.config.vocab_size != vocab_size:
        raise UsageError(
            f"draft: it knows {model.config.vocab_size} tokens and the model {vocab_size}; give one like it"
        )
    return ModelDraft(model, config)
