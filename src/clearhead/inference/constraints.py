"""Texts that follow a regular expression or a JSON schema: which tokens may come next, by llguidance.

https://github.com/guidance-ai/llguidance
"""

import hashlib
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.config import SamplingConfig
from clearhead.data import Tokenizer
from clearhead.errors import UsageError
from clearhead.inference import constraint_trial as program
from clearhead.inference.grammars import (
    ConstraintError,
    grammar_of_choice,
    grammar_of_regex,
    grammar_of_schema,
    read_schema,
    trial_fault,
)
from clearhead.inference.text_stream import CONTEXT

REMEMBERED = 256  # grammars that passed their trial, or did not
FEW = 8  # tokens that may follow, from which on one is trusted to lead on
MOST_STATES, MOST_STATES_EACH_STEP = 1024, 192  # looked at ahead


class ConstraintCompiler:
    """Makes constraints for the texts of one tokenizer. It takes a moment to be made for a large one. On any thread."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """
        Args:
            tokenizer: of the texts.
            vocab_size: the model's; it may know more ids than the tokenizer.

        Raises:
            UsageError: the extra is not installed.
            DataError: the tokenizer writes tokens in a way that depends on their neighbors.
        """
        if find_spec("llguidance") is None:
            raise UsageError("texts of a given form need llguidance; install with: pip install 'clearhead[grammar]'")
        self.vocabulary = ByteTokens(tokenizer, vocab_size)
        self._lock = threading.Lock()  # of what follows
        self._faults = dict[bytes, str | None]()  # of grammars, by their digests; the last used comes last

    def regex(self, pattern: str) -> "Constraint":
        """Texts that match a regular expression as a whole: Rust's syntax, without look-around and back-references.

        Raises:
            ConstraintError: it is none, is too large, or the tokenizer cannot write such a text.
            UntriedError: the machine could not try it this time.
        """
        return self._compile(grammar_of_regex(pattern))

    def json_schema(self, schema: str | Mapping[str, object]) -> "Constraint":
        """Texts that are JSON and valid by a schema (draft 2020-12), whose properties come in the schema's order.

        Raises:
            ConstraintError: it is none, is too large or uses what is not supported, or the tokenizer cannot write such
                a text.
            UntriedError: the machine could not try it this time.
        """
        return self._compile(grammar_of_schema(schema))

    def choice(self, texts: Sequence[str]) -> "Constraint":
        """Texts that are one of these.

        Raises:
            ConstraintError: there are none or too many, or the tokenizer cannot write any of them.
            UntriedError: the machine could not try it this time.
        """
        return self._compile(grammar_of_choice(texts))

    def of(self, config: SamplingConfig) -> "Constraint | None":
        """The form that a config asks for, if any.

        Raises:
            ConstraintError: as `regex` and `json_schema` do, or the file with the schema cannot be read.
            UntriedError: as they do.
        """
        if config.regex is not None:
            return self.regex(config.regex)
        return None if config.json_schema is None else self.json_schema(read_schema(config.json_schema))

    def _trial_fault(self, grammar: str) -> str | None:
        """As `trial_fault`, whose answer is remembered; that there was none is not."""
        digest = hashlib.sha256(grammar.encode()).digest()
        with self._lock:
            if digest in self._faults:
                self._faults[digest] = self._faults.pop(digest)
                return self._faults[digest]
        fault = trial_fault(grammar)
        with self._lock:
            self._faults[digest] = fault
            if len(self._faults) > REMEMBERED:
                del self._faults[next(iter(self._faults))]
        return fault

    def _compile(self, grammar: str) -> "Constraint":
        fault = self._trial_fault(grammar)
        matcher = None if fault else program.compiled(self.vocabulary.library, grammar)
        fault = fault or program.error_of(matcher)
        if fault:
            raise ConstraintError(f"no text can be held to it: {fault}")
        if not ConstraintState(self.vocabulary, matcher).can_go_on:
            raise ConstraintError("the model's tokenizer has no tokens for such a text")
        return Constraint(self.vocabulary, matcher)


class ByteTokens:
    """The tokens of a tokenizer, as llguidance has them: their bytes, and an end."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        table = tokenizer.token_bytes()[:vocab_size]
        tokens = [written or b"\xff[%d]" % number for number, written in enumerate(table)]
        self.size, self.end = vocab_size, len(tokens)
        self.is_whole = {bytes([byte]) for byte in range(256)} <= {*tokens}
        self.decode = tokenizer.decode
        spaced = [number for number, written in enumerate(table) if written and written.startswith(b" ")]
        # What a decoder leaves out at the beginning of a text: these cannot begin one.
        is_lost = any(not self.decode([number]).startswith(" ") for number in spaced[:1])
        self.lost_at_start = sum(1 << number for number in spaced) if is_lost else 0  # a bit for each
        self.library = _library_of(tokens)


class _Tokens:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens, self.eos_token_id = [*tokens, b"\xff[end]"], len(tokens)
        self.special_token_ids = [number for number, token in enumerate(self.tokens) if token.startswith(b"\xff[")]

    def __call__(self, text: object) -> list[int]:
        raise AssertionError("nothing is forced, so nothing is encoded")


def _library_of(tokens: Sequence[bytes]) -> Any:
    import llguidance

    wrapper: Any = _Tokens(tokens)
    return llguidance.LLTokenizer(wrapper)


class Constraint:
    """A form for some texts. They share what llguidance learns of it, which has an end: make one for each request."""

    def __init__(self, vocabulary: ByteTokens, matcher: Any) -> None:
        self._vocabulary, self._matcher = vocabulary, matcher

    def begin(self, prompt: Sequence[int]) -> "ConstraintState":
        """The state of a text after this prompt, which is not part of it."""
        is_start = bool(self._vocabulary.lost_at_start) and not self._vocabulary.decode(prompt[-CONTEXT:])
        return ConstraintState(self._vocabulary, self._matcher.deep_copy(), is_start=is_start)


class ConstraintState:
    """How far a text has come in its form. For one thread."""

    def __init__(self, vocabulary: ByteTokens, matcher: Any, *, is_start: bool = False) -> None:
        self._vocabulary, self._matcher, self._is_start = vocabulary, matcher, is_start
        self._next: tuple[int, bool] | None = None  # what `_continuations` has returned

    @property
    def is_finished(self) -> bool:
        """Whether the text may end and nothing can be added, or no token that there is."""
        if self._is_stopped:
            return True
        return not self._matcher.is_error() and self._matcher.is_accepting() and self._continuations() == (0, True)

    @property
    def _is_stopped(self) -> bool:
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def accept(self, token: int) -> None:
        """Take in a token of the text.

        Raises:
            ConstraintError: it may not stand there, since none may, or the text is too complex.
        """
        matcher = self._matcher
        if not matcher.is_error() and not matcher.validate_tokens([token]) and not self._continuations()[0]:
            raise self._error()  # before the library takes offense at a token that had to be some token
        if not matcher.consume_token(token):
            raise self._error()
        self._is_start, self._next = False, None

    def end(self) -> None:
        """Take in that the text ends here.

        Raises:
            ConstraintError: it may not.
        """
        if self._matcher.is_error() or not self._matcher.is_accepting():
            raise self._error()

    def _error(self) -> ConstraintError:
        fault = program.error_of(self._matcher)
        if fault in (None, program.NO_TEXT):
            return ConstraintError("the model's tokenizer has no token that continues the text in its form")
        return ConstraintError(f"the text cannot be continued in its form: {fault}")

    def masks(self, drafted: Sequence[int], count: int, ends: Collection[int]) -> Tensor:
        """Which tokens may follow the text, and which after each of the drafted ones: the last `count` rows (T, V).

        A row that would be all False is all True instead: `accept` says what is wrong, or nobody looks at it.

        Args:
            drafted: tokens; what follows one that may not stand where it does is of no interest.
            count: rows, at most one more than there are drafted tokens.
            ends: tokens that end the text where it may end.
        """
        rows, ahead = [self._mask(ends)], self
        for token in drafted:
            if not rows[-1][token] or token in ends or ahead.is_finished:
                break
            ahead = ahead._after(token)
            rows.append(ahead._mask(ends))
        rows += [torch.zeros_like(rows[0])] * (len(drafted) + 1 - len(rows))
        masks = torch.stack(rows[-count:])  # (T, V)
        return masks | ~masks.any(-1, keepdim=True)

    @property
    def can_go_on(self) -> bool:
        """Whether the text may end or some token leads on: not for sure, but more than a few tokens ahead."""
        return self._leads_on([MOST_STATES])

    def _mask(self, ends: Collection[int]) -> Tensor:
        """The tokens that may follow (V,)."""
        allowed, may_end = self._continuations()
        size = self._vocabulary.size
        octets = np.frombuffer(allowed.to_bytes((size + 7) // 8, "little"), dtype=np.uint8)
        mask = torch.from_numpy(np.unpackbits(octets, count=size, bitorder="little")).bool()
        mask[[*ends]] = may_end
        return mask

    def _continuations(self) -> tuple[int, bool]:
        """As `_allowed`, without tokens after which none leads on, as far as a step's budget lasts."""
        if self._next is None:
            allowed, may_end = self._allowed()
            budget = [0 if self._vocabulary.is_whole else MOST_STATES_EACH_STEP]
            for token in _numbers(allowed):
                if budget[0] <= 0:
                    break
                if not self._after(token)._leads_on(budget):
                    allowed ^= 1 << token
            self._next = allowed, may_end
        return self._next

    def _allowed(self) -> tuple[int, bool]:
        """The tokens that continue the text, a bit for each, and whether it may end. On error none, and no."""
        if self._matcher.is_stopped():
            return 0, self._is_stopped
        bits = int.from_bytes(self._matcher.compute_bitmask(), "little")
        if self._matcher.is_error():
            return 0, False
        end = 1 << self._vocabulary.end
        allowed = bits & (end - 1)
        return (allowed & ~self._vocabulary.lost_at_start if self._is_start else allowed), bool(bits & end)

    def _leads_on(self, budget: list[int]) -> bool:
        """Whether some text of tokens that there are leads on from here, as far as the budget lasts."""
        ahead = [self]
        while ahead:
            state = ahead.pop()
            if budget[0] <= 0 or state._is_stopped:
                return True
            budget[0] -= 1
            allowed, may_end = state._allowed()
            if may_end or allowed.bit_count() >= FEW:
                return True
            ahead += [state._after(token) for token in _numbers(allowed)]
        return False

    def _after(self, token: int) -> "ConstraintState":
        """The state after one more token; this one stays as it is."""
        ahead = ConstraintState(self._vocabulary, self._matcher.deep_copy())
        ahead._matcher.consume_token(token)
        return ahead


def _numbers(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1
