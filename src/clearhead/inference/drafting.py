"""A drafter that may fail: texts then go on without drafts, and are the same."""

from collections.abc import Callable, Sequence

from clearhead.errors import ClearheadError
from clearhead.inference.requests import GenerationRequest
from clearhead.inference.speculative import Drafter
from clearhead.inference.verification import DraftTokens
from clearhead.models.eval_mode import OnNotice


class Drafting:
    """What drafts for the texts of a batch, if anything does. It is false where nothing drafts, or no longer."""

    def __init__(self, drafter: Drafter | None, on_notice: OnNotice | None) -> None:
        self._drafter, self._on_notice = drafter, on_notice

    def __bool__(self) -> bool:
        return self._drafter is not None

    def begin(self, prompts: Sequence[Sequence[int]], new_tokens: int, tokens: Sequence[Sequence[int]]) -> None:
        """New rows have joined, and have their first tokens.

        Args:
            prompts: of the new rows.
            new_tokens: that each of them may gain.
            tokens: what each row, old or new, has gained.
        """

        def begin(drafter: Drafter) -> None:
            drafter.prefill(prompts, new_tokens)
            drafter.accept(tokens)

        self._attempt(begin)

    def draft(self, max_tokens: Sequence[int], requests: Sequence[GenerationRequest]) -> DraftTokens:
        """Draft at most `max_tokens` tokens for each row."""
        drafted = self._attempt(lambda drafter: drafter.draft(max_tokens, requests))
        return DraftTokens([[] for _ in requests]) if drafted is None else drafted

    def accept(self, tokens: Sequence[Sequence[int]]) -> None:
        """Take in what each row has gained."""
        self._attempt(lambda drafter: drafter.accept(tokens))

    def reorder(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        self._attempt(lambda drafter: drafter.reorder(rows))

    def _attempt(self, function: "Callable[[Drafter], DraftTokens | None]") -> DraftTokens | None:
        if self._drafter is None:
            return None
        try:
            return function(self._drafter)
        except ClearheadError as error:
            self._drafter = None
            if self._on_notice:
                self._on_notice(f"nothing is drafted any more: {error}")
            return None
