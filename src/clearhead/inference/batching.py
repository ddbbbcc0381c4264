"""Continuous batching: texts advance at their own pace, join at any time, and may gain several tokens per step."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.errors import UsageError
from clearhead.inference.engine import DEFAULT, Engine, as_engine
from clearhead.inference.ids import known_ids
from clearhead.inference.kv_context import KVContext
from clearhead.inference.requests import GenerationRequest, new_requests
from clearhead.inference.speculative import Drafter, ModelDrafter, NgramDrafter
from clearhead.inference.verification import DraftTokens, verify
from clearhead.models import CausalLM
from clearhead.models.eval_mode import OnNotice, evaluating


class GenerationBatch:
    """A batch for a server: add prompts at any time, and call `step` for the next tokens of all texts.

        with GenerationBatch(model) as batch:
            batch.add([ids], config)
            while batch.live:
                for name, tokens in batch.step().items(): ...

    Each text is the one that `stream_ids` would write alone. With `EngineConfig.draft`, decoding is speculative: one
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
        self._engine, self._on_notice, self._stack = as_engine(model, engine), on_notice, ExitStack()
        self._model = self._engine.model
        self._context = KVContext(self._model, on_notice)
        self._drafter = _drafter_for(self._engine.config, draft, model.config.vocab_size)
        self._models = [self._model] if draft is None else [self._model, draft]
        self._waiting = list[GenerationRequest]()
        self._requests = list[GenerationRequest]()  # each is in the cache but for its last token
        self._added = 0

    def __enter__(self) -> Self:
        for model in self._models:
            self._stack.enter_context(evaluating(model))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def live(self) -> set[int]:
        """The names of texts that have not ended."""
        return {request.name for request in [*self._requests, *self._waiting] if request.remaining}

    def add(self, prompts: Sequence[Sequence[int]], config: SamplingConfig, end: int | None = None) -> list[int]:
        """Add texts, which begin with the next step; return their names, 0, 1, ...

        Raises:
            UsageError: a prompt is empty, or has an id that is not in the model's vocabulary; none of them joins.
        """
        requests = new_requests(self._added, known_ids(prompts, self._model.config.vocab_size), config, end)
        self._waiting += requests
        self._added += len(requests)
        return [request.name for request in requests]

    def cancel(self, names: Iterable[int]) -> None:
        """Stop generating these texts."""
        unwanted = set(names)
        self._waiting = [request for request in self._waiting if request.name not in unwanted]
        for request in self._requests:
            if request.name in unwanted:
                request.remaining = 0

    def step(self) -> dict[int, list[int]]:
        """The next tokens of every live text: those of one backend call, or the accepted draft tokens and one.

        The list is empty where eos comes first.
        """
        self._remove_finished(lazily=not self._waiting)
        written = self._decode() if self._requests else {}
        if self._waiting:
            written |= self._begin()
        return written

    def _begin(self) -> dict[int, list[int]]:
        """Prefill the waiting prompts, and sample a first token for each."""
        requests, self._waiting = self._waiting, []
        prompts, new_tokens = [request.prompt for request in requests], max(request.remaining for request in requests)
        self._context.backend = self._engine.backend(new_tokens, self._on_notice)
        logits = self._context.prefill(prompts, new_tokens)[:, None]  # (B', V) -> (B', 1, V)
        sampled = verify(requests, logits, DraftTokens([[] for _ in requests]))
        if self._drafter is not None:
            self._drafter.prefill(prompts, new_tokens)
            self._drafter.accept([*([] for _ in self._requests), *sampled])
        self._requests += requests
        return {request.name: request.append(tokens) for request, tokens in zip(requests, sampled, strict=True)}

    def _decode(self) -> dict[int, list[int]]:
        """Read the last token of each text, and sample the next."""
        tokens = self._context.decode(self._requests) if self._drafter is None else self._speculate(self._drafter)
        pairs = zip(self._requests, tokens, strict=True)
        return {request.name: request.append(new) for request, new in pairs if request.remaining}

    def _speculate(self, drafter: Drafter) -> list[list[int]]:
        """Speculate: read draft tokens after the last ones; return the accepted ones and one more."""
        most = [self._max_draft_tokens(row, request) for row, request in enumerate(self._requests)]
        drafted = drafter.draft(most, self._requests)
        if not any(drafted.tokens):
            tokens = self._context.decode(self._requests)
            drafter.accept(tokens)
            return tokens
        read = [[request.last_token, *row] for request, row in zip(self._requests, drafted.tokens, strict=True)]
        tokens = verify(self._requests, self._context.forward(read), drafted)
        self._context.rollback([len(old) - len(new) for old, new in zip(read, tokens, strict=True)])
        drafter.accept(tokens)
        for request, row, new in zip(self._requests, drafted.tokens, tokens, strict=True):
            request.adapt_draft_length(len(row), len(new) - 1)
        return tokens

    def _max_draft_tokens(self, row: int, request: GenerationRequest) -> int:
        """How many tokens to draft for a text at most."""
        room = self._context.room(row)
        length = min(request.draft_length, request.remaining - 1)
        return max(0, length if room is None else min(length, room - 1))

    def _remove_finished(self, *, lazily: bool) -> None:
        """Remove ended texts.

        That copies the cache, so `lazily` means only if half have ended, or one of the ended has run out of room.
        """
        ended = [row for row, request in enumerate(self._requests) if not request.remaining]
        few = 2 * len(ended) < len(self._requests) and all(map(self._context.has_room, ended))
        if not ended or (lazily and few):
            return
        rows = [row for row, request in enumerate(self._requests) if request.remaining]
        self._context.reorder(rows)
        if self._drafter is not None:
            self._drafter.reorder(rows)
        self._requests = [self._requests[row] for row in rows]


def _drafter_for(config: EngineConfig, model: CausalLM | None, vocab_size: int) -> Drafter | None:
    name = config.draft
    if model is None:
        if name in (None, "ngrams"):
            return None if name is None else NgramDrafter()
        raise UsageError(f"draft: '{name}' is a run, so its model must be given")
    if name == "ngrams":
        raise UsageError("draft: ngrams or a smaller model, not both")
    if model.config.vocab_size != vocab_size:
        raise UsageError(
            f"draft: it knows {model.config.vocab_size} tokens and the model {vocab_size}; give one like it"
        )
    return ModelDrafter(model, config)
