"""Continuous batching: texts advance at their own pace, join at any time, and may gain several tokens per step."""

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack
from itertools import chain
from types import TracebackType
from typing import Self

from torch import Tensor

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.errors import ClearheadError, UsageError
from clearhead.inference.decoder_backend import DecoderBackend
from clearhead.inference.drafting import Drafting
from clearhead.inference.engine import DEFAULT, Engine, as_engine
from clearhead.inference.ids import known_ids
from clearhead.inference.kv_context import PREFILL_TOKENS, KVContext
from clearhead.inference.requests import FinishReason, GenerationRequest, new_requests
from clearhead.inference.speculative import drafter_for
from clearhead.inference.text_options import PLAIN, TextOptions, TokenLogprobs
from clearhead.inference.verification import DraftTokens, verify
from clearhead.models import CausalLM
from clearhead.models.eval_mode import OnNotice, evaluating

MANY = 10**9  # new tokens: what a server writes, so that an engine that takes long to begin is worth it


class GenerationBatch:
    """A batch for a server: add prompts at any time, and call `step` for the next tokens of all texts.

        with GenerationBatch(model) as batch:
            batch.add([ids], config)
            while batch.live:
                for name, tokens in batch.step().items(): ...

    Each text is the one that `stream_ids` would write alone. With `EngineConfig.draft`, decoding is speculative: one
    call reads the last token and the draft tokens, and `verify` accepts or rejects them.

    Attributes:
        failed: the error of each text that could not go on, by its name; the others do.
        finish_reasons: why each text ended, by its name. These four are the caller's to empty.
        logprobs: of each token that a text was given, by its name, if it asks for them; last, of the one that ended it.
        prompt_logprobs: of each token of a prompt but the first, once it is read, if its text asks for them.
    """

    def __init__(
        self,
        model: CausalLM,
        engine: EngineConfig | Engine = DEFAULT,
        *,
        draft: CausalLM | None = None,
        on_notice: OnNotice | None = None,
        slots: int | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        """
        Args:
            model: in any mode; inside the `with` it has no dropout.
            engine: the backend; to make many batches, make one `Engine` of the model and pass it to each.
            draft: the smaller model that drafts; needed where the engine's `draft` names a run.
            on_notice: called with sentences to show the user.
            slots: texts at once, for which room is reserved now; others wait. None: as many as there are.
            prompt_tokens: read between two steps of the other texts at most; None: all prompts that wait.

        Raises:
            UsageError: `slots` or `prompt_tokens` below 1, or drafts that do not fit the model.
        """
        for name, number in (("slots", slots), ("prompt_tokens", prompt_tokens)):
            if number is not None and number < 1:
                raise UsageError(f"`{name}` must be at least 1, not {number}")
        self._engine, self._on_notice, self._stack = as_engine(model, engine), on_notice, ExitStack()
        self._model = self._engine.model
        self._slots, self._prompt_tokens = slots, prompt_tokens
        self._context = KVContext(
            self._model, on_notice, slots=slots or 0, prompt_tokens=prompt_tokens or PREFILL_TOKENS
        )
        drafter = drafter_for(self._engine.config, draft, model.config.vocab_size)
        self._drafting = Drafting(drafter, on_notice)
        self._models = [self._model] if draft is None else [self._model, draft]
        self._backend: DecoderBackend | None = None  # chosen with the first texts, and kept: it decides their last bits
        self._waiting = deque[GenerationRequest]()
        self._reading = list[GenerationRequest]()  # whose prompts are being read, in these pieces
        self._pieces: Generator[None, None, Tensor] | None = None
        self._requests = list[GenerationRequest]()  # each is in the cache but for its last token
        self._paused = set[int]()  # names
        self._added = 0
        self.failed = dict[int, ClearheadError]()
        self.finish_reasons = dict[int, FinishReason]()
        self.logprobs = dict[int, list[TokenLogprobs]]()
        self.prompt_logprobs = dict[int, list[TokenLogprobs]]()

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
        texts = chain(self._requests, self._reading, self._waiting)
        return {request.name for request in texts if request.is_live}

    def add(
        self,
        prompts: Sequence[Sequence[int]],
        config: SamplingConfig,
        end: int | None = None,
        options: TextOptions = PLAIN,
    ) -> list[int]:
        """Add texts, which begin with the next step, or when there is room; return their names, 0, 1, ...

        Raises:
            UsageError: a prompt is empty, or an id is not in the model's vocabulary, or a prompt of which more than its
                end is to be scored is longer than the model's context, or `config` asks for a form, which `options`
                has to hold; none of them joins.
        """
        if config.is_constrained and options.constraint is None:
            raise UsageError(
                "`regex` and `json_schema` are about texts, and token ids have none; use `generate`, or give "
                "`options` the `constraint` that a `ConstraintCompiler` makes"
            )
        known_ids([[*options.logit_bias, *options.stop_ids] or [0]], self._model.config.vocab_size)
        ids = known_ids(prompts, self._model.config.vocab_size)
        if options.prompt_logprobs is not None:
            self._context.refuse_longer(ids)
        requests = new_requests(self._added, ids, config, end, options)
        self._waiting += requests
        self._added += len(requests)
        return [request.name for request in requests]

    def cancel(self, names: Iterable[int]) -> None:
        """Stop generating these texts; their slots are free at the next step."""
        unwanted = set(names)
        for request in chain(self._requests, self._reading, self._waiting):
            if request.name in unwanted and request.is_live:
                request.finish("cancelled")
                self.finish_reasons[request.name] = "cancelled"
        self._waiting = deque(request for request in self._waiting if request.is_live)
        if self._pieces is not None and not any(request.is_live for request in self._reading):
            self._pieces.close()
            self._reading, self._pieces = [], None

    def pause(self, names: Iterable[int]) -> None:
        """These texts keep their slots and gain no more tokens until they are resumed; no text differs for it."""
        self._paused.update(names)

    def resume(self, names: Iterable[int]) -> None:
        """These texts go on."""
        self._paused.difference_update(names)

    def step(self) -> dict[int, list[int]]:
        """The next tokens of every text that has begun: those of one backend call, or accepted draft tokens and one.

        The list is empty where eos comes first; a text that is paused has none.
        """
        self._remove_finished()
        written = self._decode() if self._requests else {}
        return written | self._begin()

    def _begin(self) -> dict[int, list[int]]:
        """Read prompts that wait, or a piece of them; sample a first token for each that is read."""
        if self._pieces is None:
            self._admit()
        if self._pieces is None:
            return {}
        try:
            next(self._pieces)
            while self._prompt_tokens is None:
                next(self._pieces)
            return {}
        except StopIteration as end:
            requests, logits = self._reading, end.value[:, None]  # (B', V) -> (B', 1, V)
        except ClearheadError as error:
            self._retry_alone(error)
            return {}
        except BaseException:  # such as Ctrl-C: the prompts are read from their beginning if somebody goes on
            self._waiting.extendleft(request for request in reversed(self._reading) if request.is_live)
            self._reading, self._pieces = [], None
            raise
        self._reading, self._pieces = [], None
        sampled = verify(requests, logits, DraftTokens([[] for _ in requests]))
        self._drafting.begin(*_prompts_and_length(requests), [*([] for _ in self._requests), *sampled])
        self._requests += requests
        scored = (request for request in requests if request.on_logits and request.is_live)
        self.prompt_logprobs |= {request.name: request.prompt_logprobs for request in scored}
        steps = zip(requests, sampled, logits, strict=True)
        return {request.name: self._append(request, *step) for request, *step in steps if request.is_live}

    def _append(self, request: GenerationRequest, tokens: Sequence[int], logits: Tensor | None) -> list[int]:
        """Append tokens to a text; those of them that belong to it. `logits` (T, V): theirs, where it needs them."""
        try:
            written = request.append(tokens)
        except ClearheadError as error:
            self._fail(request, error)
            return []
        if request.options.logprobs is not None and logits is not None:
            ends = [] if request.end_token is None else [request.end_token]
            self.logprobs.setdefault(request.name, []).extend(request.logprobs(logits, [*written, *ends]))
        if request.finish_reason is not None:
            self.finish_reasons[request.name] = request.finish_reason
        return written

    def _admit(self) -> None:
        """Begin to read prompts that wait: the first, and those after it that fit into a free slot and one call."""
        free = len(self._waiting) if self._slots is None else self._slots - len(self._requests)
        read, tokens = set[tuple[int, ...]](), 0
        while self._waiting and len(self._reading) < free:
            prompt = tuple(self._waiting[0].prompt)
            tokens += 0 if prompt in read else len(prompt)
            is_first = not self._reading
            if not is_first and (self._waiting[0].is_alone or self._reading[0].is_alone):
                break
            if not is_first and self._prompt_tokens is not None and tokens > self._prompt_tokens:
                break
            read.add(prompt)
            self._reading.append(self._waiting.popleft())
        if self._reading:
            prompts, new_tokens = _prompts_and_length(self._reading)
            if self._backend is None:
                self._backend = self._engine.backend(MANY if self._slots else new_tokens, self._on_notice)
                self._context.backend = self._backend
            observers = [request.on_logits for request in self._reading]
            self._pieces = self._context.prefill_in_pieces(prompts, new_tokens, observers)

    def _retry_alone(self, error: ClearheadError) -> None:
        """Of texts that could not be read together, each is read alone; one that was alone has failed."""
        alive = [request for request in self._reading if request.is_live]
        if len(self._reading) == 1:
            self._fail(self._reading[0], error)
        else:
            for request in alive:
                request.is_alone = True
            self._waiting.extendleft(reversed(alive))
        self._reading, self._pieces = [], None

    def _fail(self, request: GenerationRequest, error: ClearheadError) -> None:
        self.failed[request.name], self.finish_reasons[request.name] = error, "error"
        request.finish("error")

    def _decode(self) -> dict[int, list[int]]:
        """Read the last token of each text, and what was drafted after it; sample the next."""
        rows = [row for row, request in enumerate(self._requests) if request.name not in self._paused]
        most = [0] * len(self._requests)
        for row in rows if self._drafting else ():
            most[row] = self._requests[row].max_draft_tokens(self._context.room(row))
        drafted = self._drafting.draft(most, self._requests)
        with_logits = [row for row in rows if any(drafted.tokens) or self._requests[row].needs_logits]
        without = [row for row in rows if row not in with_logits]
        steps = dict[int, tuple[list[int], Tensor | None]]()
        for group in filter(None, (with_logits, without)):
            try:
                steps |= zip(group, self._advance(group, drafted), strict=True)
            except ClearheadError:  # which of them it is shows when each goes on alone; what others get is the same
                steps |= {row: self._advance_alone(row, drafted) for row in group}
        self._drafting.accept([steps[row][0] if row in steps else [] for row in range(len(self._requests))])
        pairs = [(self._requests[row], steps[row]) for row in rows]
        return {request.name: self._append(request, *step) for request, step in pairs if request.is_live}

    def _advance(self, rows: Sequence[int], drafted: DraftTokens) -> list[tuple[list[int], Tensor | None]]:
        """The next tokens of these rows, and the logits (T, V) that they were sampled from, where they are known."""
        any_drafted = any(drafted.tokens)
        requests, drafted = [self._requests[row] for row in rows], drafted.select(rows)
        if not any_drafted and not requests[0].needs_logits:
            return [(tokens, None) for tokens in self._context.decode(requests, rows)]
        read = [[request.last_token, *row] for request, row in zip(requests, drafted.tokens, strict=True)]
        logits = self._context.forward(read, rows)
        try:
            tokens = verify(requests, logits, drafted)
        except ClearheadError:
            self._context.rollback(list(map(len, read)), rows)
            raise
        self._context.rollback([len(old) - len(new) for old, new in zip(read, tokens, strict=True)], rows)
        for request, row, new in zip(requests, drafted.tokens, tokens, strict=True):
            request.adapt_draft_length(len(row), len(new) - 1)
        return list(zip(tokens, logits, strict=True))

    def _advance_alone(self, row: int, drafted: DraftTokens) -> tuple[list[int], Tensor | None]:
        """The next tokens of one row; any one where it fails, which nobody gets."""
        try:
            return self._advance([row], drafted)[0]
        except ClearheadError as error:
            self._fail(self._requests[row], error)
            return [0], None

    def _remove_finished(self) -> None:
        """Remove ended texts, which costs the others nothing."""
        rows = [row for row, request in enumerate(self._requests) if request.is_live]
        if len(rows) == len(self._requests):
            return
        failed = [row for row, request in enumerate(self._requests) if request.finish_reason == "error"]
        self._context.reorder(rows, failed)
        self._drafting.reorder(rows)
        self._requests = [self._requests[row] for row in rows]
        self._paused &= self.live


def _prompts_and_length(requests: Sequence[GenerationRequest]) -> tuple[list[Sequence[int]], int]:
    """Their prompts, and the most new tokens of one of them."""
    return [request.prompt for request in requests], max(request.remaining for request in requests)
