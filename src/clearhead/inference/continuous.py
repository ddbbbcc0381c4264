"""Texts side by side, each at its own pace: others join meanwhile, and several tokens may come at once."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.errors import UsageError
from clearhead.inference.checking import Guesses, check
from clearhead.inference.context import Context
from clearhead.inference.drafts import Draft, ModelDraft, NgramDraft
from clearhead.inference.engine import DEFAULT, Engine, engine_of
from clearhead.inference.mode import Notice, evaluating
from clearhead.inference.texts import Text, begin
from clearhead.models import CausalLM

FIRST_REACH, LONGEST_REACH = 4, 16  # tokens guessed at once


class Batch:
    """What a server needs: add prompts at any time, ask for the next tokens of all texts, again and again.

        with Batch(model) as batch:
            batch.add([ids], config)
            while batch.live:
                for name, tokens in batch.step().items(): ...

    Each text is the one that `generate_ids` would write alone. Guesses (`EngineConfig.draft`) are read behind the last
    token in one call, and those that `check` believes are kept: speculative decoding.
    """

    def __init__(
        self,
        model: CausalLM,
        engine: EngineConfig | Engine = DEFAULT,
        *,
        draft: CausalLM | None = None,
        notice: Notice | None = None,
    ) -> None:
        """
        Args:
            model: in whatever mode; within the `with` it is without dropout.
            engine: how tokens are computed; who makes many batches makes an `Engine` of the model once.
            draft: a smaller model that guesses; needed where the engine's `draft` names one.
            notice: told in a sentence what a person should know.
        """
        self._engine, self._notice, self._stack = engine_of(model, engine), notice, ExitStack()
        self._model = self._engine.model
        self._context = Context(self._model, notice)
        self._draft = _draft_of(self._engine.config.draft, draft, model.config.vocab_size)
        self._guessing = [self._model] if draft is None else [self._model, draft]
        self._waiting = list[tuple[Text, Sequence[int]]]()
        self._texts = list[Text]()
        self._pending = list[int]()  # the last token of each text, not read yet
        self._reach = list[int]()  # how many tokens of each are guessed at once
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
        """The texts that are waiting or being written."""
        return {text.name for text in [*self._texts, *(text for text, _ in self._waiting)] if text.remaining}

    def add(self, prompts: Sequence[Sequence[int]], config: SamplingConfig, end: int | None = None) -> list[int]:
        """Texts that begin with the next step, as `generate_ids` would write them: their names, 0, 1, ..."""
        texts = begin(self._added, prompts, config, end)
        self._waiting += zip(texts, prompts, strict=True)
        self._added += len(texts)
        return [text.name for text in texts]

    def drop(self, names: Iterable[int]) -> None:
        """No more of these."""
        unwanted = set(names)
        self._waiting = [(text, prompt) for text, prompt in self._waiting if text.name not in unwanted]
        for text in self._texts:
            if text.name in unwanted:
                text.remaining = 0

    def step(self) -> dict[int, list[int]]:
        """The next tokens of every live text: as many as the engine writes at once, or as were guessed right, and one.

        None where a text just ended.
        """
        self._clear(seldom=not self._waiting)
        written = self._go_on() if self._texts else {}
        if self._waiting:
            written |= self._begin()
        return written

    def _begin(self) -> dict[int, list[int]]:
        """Read the prompts that wait, and draw a first token for each."""
        texts, prompts = zip(*self._waiting, strict=True)
        self._waiting = []
        new_tokens = max(text.remaining for text in texts)
        self._context.writer = self._engine.writer(new_tokens, self._notice)
        logits = self._context.join(prompts, new_tokens)[:, None]  # (B', V) -> (B', 1, V)
        drawn = check(texts, logits, Guesses([[] for _ in texts]))
        if self._draft is not None:
            self._draft.join(prompts, new_tokens)
            self._draft.learn([*([] for _ in self._texts), *drawn])
        self._texts += texts
        self._pending += [token for (token,) in drawn]
        self._reach += [FIRST_REACH for _ in texts]
        return {text.name: text.write(tokens) for text, tokens in zip(texts, drawn, strict=True)}

    def _go_on(self) -> dict[int, list[int]]:
        """Read the last token of each text and the guesses behind it; what follows is drawn where they are right."""
        if self._draft is None:
            most = max(text.remaining for text in self._texts)
            return self._written(self._context.write(self._pending, self._texts, most))
        guesses = self._guesses(self._draft)
        read = [[last, *guess] for last, guess in zip(self._pending, guesses.tokens, strict=True)]
        tokens = check(self._texts, self._context.read(read), guesses)
        self._context.forget([len(old) - len(new) for old, new in zip(read, tokens, strict=True)])
        self._draft.learn(tokens)
        triples = zip(self._reach, guesses.tokens, tokens, strict=True)
        self._reach = [_next_reach(reach, len(guess), len(new) - 1) for reach, guess, new in triples]
        return self._written(tokens)

    def _written(self, tokens: Sequence[Sequence[int]]) -> dict[int, list[int]]:
        self._pending = [new[-1] for new in tokens]
        pairs = zip(self._texts, tokens, strict=True)
        return {text.name: text.write(new) for text, new in pairs if text.remaining}

    def _guesses(self, draft: Draft) -> Guesses:
        most = []
        for place, (text, reach) in enumerate(zip(self._texts, self._reach, strict=True)):
            room = self._context.room(place)
            most.append(max(0, min(reach, text.remaining - 1, reach if room is None else room - 1)))
        return draft.guess(most, self._texts)

    def _clear(self, *, seldom: bool) -> None:
        """Throw out texts that have ended; where `seldom`, only if they are the half, as it moves the others' cache."""
        places = [place for place, text in enumerate(self._texts) if text.remaining]
        if len(places) == len(self._texts) or (seldom and 2 * len(places) > len(self._texts)):
            return
        self._context.keep(places)
        if self._draft is not None:
            self._draft.keep(places)
        self._texts = [self._texts[place] for place in places]
        self._pending = [self._pending[place] for place in places]
        self._reach = [self._reach[place] for place in places]


def _draft_of(name: str | None, model: CausalLM | None, vocab_size: int) -> Draft | None:
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
    return ModelDraft(model)


def _next_reach(reach: int, guessed: int, right: int) -> int:
    """Further where all guesses were right; where not, as far as they were."""
    if right < guessed:
        return max(1, right + 1)
    return min(2 * reach, LONGEST_REACH) if guessed == reach else reach
