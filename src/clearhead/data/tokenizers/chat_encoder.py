"""The ids of a chat: special tokens where its template writes them, and nowhere else, so nobody can type a role.

A message never changes what the template writes, as far as that can be told, so the chat is rendered as it is, and
again with every character of the messages replaced: what is the same in both is the template's. Where a template looks
into the messages, and so writes something else, it is the template's own special tokens that are replaced.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise

import tokenizers
from tokenizers import models

from clearhead.data.tokenizers.characters import refuse_surrogates
from clearhead.data.tokenizers.chat_template import ChatMessage, ChatTemplate
from clearhead.data.tokenizers.guard import cannot_panic, catch_tokenizer_errors
from clearhead.data.tokenizers.length_bound import bytes_per_token, visible_bytes
from clearhead.data.tokenizers.tokenizer import Tokenizer
from clearhead.errors import DataError, UsageError

# Private characters, for what is replaced: tokens of the template, and characters of messages.
FOR_TOKENS, FOR_CHARACTERS = range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE)
WHITE = " \t\r\n\u2581"  # a token of these alone is no role, and messages may have it
MAX_CUTS = 8  # of a text that the tokenizer takes for a special token
Piece = str | int  # a text in which nothing is special, or the id of a special token
# Texts that no template writes by itself, as nobody has private characters on a keyboard.
QUESTION, ANSWER, THANKS, SYSTEM = "\ue0f1\ue0f2", "\ue0f3\ue0f4", "\ue0f5\ue0f6", "\ue0f7\ue0f8"
PROBE = (ChatMessage("user", QUESTION), ChatMessage("assistant", ANSWER), ChatMessage("user", THANKS))


class LongChatError(UsageError):
    """A chat has more tokens than the model's context."""


class ChatEncoder:
    """Encodes chats for a model, by the template that belongs to its tokenizer. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer, self._template, self._lock = tokenizer, template, threading.Lock()
        with catch_tokenizer_errors("be copied", quiet=True):
            self._library = tokenizer.copy_library()
        self._quiet = not cannot_panic(self._library)
        self._bytes_per_token = bytes_per_token(self._library, is_character_level=tokenizer.is_character_level)
        self._learn(self._library.get_added_tokens_decoder(), plain=True)
        frame = self._framing()
        with catch_tokenizer_errors("be copied", quiet=True):  # some take them for words
            self._library.add_special_tokens([_special(self._added[i]) for i in sorted(frame)])
        self._learn(self._library.get_added_tokens_decoder(), plain=False)

    def _learn(self, added: Mapping[int, tokenizers.AddedToken], *, plain: bool) -> None:
        """Take these tokens for special, or those that are."""
        self._added = {i: token for i, token in added.items() if token.special or plain}
        self._ids = {token.content: i for i, token in self._added.items()}
        self._spotter = _Spotter(self._library, self._ids)

    def _framing(self) -> set[int]:
        """The ids of the tokens that the template writes by itself, for any role: nobody else may."""
        frame = set[int]()
        for head in ((), (ChatMessage("system", SYSTEM),)):
            for reply, probe in ((True, PROBE), (False, PROBE[:2])):
                try:
                    [text] = self._template.render([[*head, *probe]], reply=reply)
                except UsageError:
                    continue
                except DataError:
                    if not head:
                        raise
                    continue  # such a message it cannot have
                frame.update(i for i, _ in self._spotter.spot(text))
        return {i for i in frame if self._added[i].content.strip(WHITE)}

    def encode(self, messages: Sequence[ChatMessage], *, reply: bool = True, context: int | None = None) -> list[int]:
        """The ids of the chat.

        Args:
            messages: the last one is to be answered.
            reply: begin the answer.
            context: refuse at once what has more tokens than that for sure; None: encode whatever it is.

        Raises:
            LongChatError: it is too long for the context, which takes no time to see.
            UsageError: the template refuses these messages, or what it makes of them cannot be told from them.
            DataError: the template cannot be used, or the tokenizer cannot encode a message.
        """
        for message in messages:
            refuse_surrogates(message.content)
            if self._tokenizer.is_character_level:
                self._tokenizer.encode(message.content)  # which names a character without a token
        with self._lock:
            text, pieces = self._pieces(messages, reply, context)
            ids, tokens = self._encode(text, special=True)
            if _cut(text, tokens) != pieces:  # else they are those of the whole text, as transformers has them
                ids = list(chain.from_iterable([p] if isinstance(p, int) else self._plain(p) for p in pieces))
        if self._tokenizer.unknown in ids:
            for message in messages:
                self._tokenizer.encode(message.content)
        return ids

    @cached_property
    def end_of_turn(self) -> int | None:
        """The first special token that the template writes behind an answer, which ends it; None if there is none."""
        with self._lock:
            try:
                [text] = self._template.render([PROBE[:2]], reply=False)
            except UsageError:
                return None
            tokens = self._spotter.spot(text)
        after = text.rfind(ANSWER) + len(ANSWER) if ANSWER in text else len(text)
        return next((i for i, (begin, _) in tokens if begin >= after), None)

    def _refuse_long_text(self, text: str, context: int | None) -> None:
        if context is None or self._bytes_per_token is None:
            return
        size = visible_bytes(text)
        if size > context * self._bytes_per_token:
            raise LongChatError(
                f"the model's context has {context} tokens, and a chat of {size:,} bytes has more than that; shorten it"
            )

    def _pieces(self, messages: Sequence[ChatMessage], reply: bool, context: int | None) -> tuple[str, list[Piece]]:
        """The text of the chat, and the same in pieces."""
        contents = {character for message in messages for character in message.content}
        used = contents | {*self._template.source, *chain(*self._template.special_tokens.values())}
        trims = not any(token.isspace() for token in self._ids)  # templates do, so spaces stay what they are
        visible = sorted(character for character in contents if not (trims and character.isspace()))
        free = (chr(code) for code in FOR_CHARACTERS if chr(code) not in used)
        replaced = dict(zip(visible, free, strict=False))
        table = {ord(character): other for character, other in replaced.items()}
        opaque = [ChatMessage(role, content.translate(table)) for role, content in messages]
        written = sorted(filter(self._writes, self._ids), key=len, reverse=True)
        marks = dict(zip(written, (chr(code) for code in FOR_TOKENS if chr(code) not in used), strict=False))
        text, hidden = self._template.render([messages, opaque], reply=reply)
        self._refuse_long_text(text, context)
        if len(replaced) == len(visible) and len(text) == len(hidden):
            pairs = zip(text, hidden, strict=True)
            if all(a == b or replaced.get(a) == b for a, b in pairs):
                return text, _cut(text, self._spotter.spot(hidden))
        [marked] = self._template.render([messages], marks=[marks], reply=reply)
        by_mark = {mark: token for token, mark in marks.items()}
        if marked.translate({ord(mark): token for mark, token in by_mark.items()}) != text or self._composes_tokens:
            raise UsageError(
                "the chat template reads what is in these messages, so its own text cannot be told from theirs; "
                "leave out what it looks for"
            )
        return text, self._split(marked, by_mark)

    def _writes(self, token: str) -> bool:
        return token in self._template.source or token in self._template.special_tokens.values()

    @cached_property
    def _composes_tokens(self) -> bool:
        """Whether the template puts special tokens together from parts, such as a role, so that none is in it."""
        [text] = self._template.render([PROBE[:2]], reply=False)
        return any(not self._writes(self._added[i].content) for i, _ in self._spotter.spot(text))

    def _split(self, marked: str, by_mark: dict[str, str]) -> list[Piece]:
        """The pieces of a text in which marks stand for tokens."""
        pieces, start = list[Piece](), 0
        for span, mark in enumerate(marked):
            if mark in by_mark:
                pieces += [marked[start:span], self._ids[by_mark[mark]]]
                start = span + 1
        pieces.append(marked[start:])
        for number, piece in enumerate(pieces):
            token = self._added[piece] if isinstance(piece, int) else None
            before, after = (pieces[number - 1], pieces[number + 1]) if token else ("", "")
            if token and token.lstrip and isinstance(before, str):
                pieces[number - 1] = before.rstrip()
            if token and token.rstrip and isinstance(after, str):
                pieces[number + 1] = after.lstrip()
        return [piece for piece in pieces if piece != ""]

    def _encode(self, text: str, *, special: bool) -> tuple[list[int], list[tuple[int, tuple[int, int]]]]:
        """The ids of a text, and the special ones among them with their places."""
        self._library.encode_special_tokens = not special
        with catch_tokenizer_errors("encode this chat", quiet=self._quiet):
            [encoding] = self._library.encode_batch([text], add_special_tokens=False)  # others run meanwhile
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return list(encoding.ids), [(i, span) for i, span in pairs if i in self._added]

    def _plain(self, text: str, cuts: int = 0) -> list[int]:
        """The ids of a text, none of them special: words that the tokenizer takes for one are cut in two.

        Args:
            cuts: how often the text was cut already; the time is linear in its length.
        """
        ids, special = self._encode(text, special=False)
        starts = [begin for i, (begin, _) in special if i != self._tokenizer.unknown]
        if not starts:
            return ids
        if cuts == MAX_CUTS or len(text) == 1:
            raise DataError(f"the tokenizer makes a special token of the text {text[:20]!r}; leave it out")
        ends = sorted({min(start + 1, len(text) - 1) for start in starts} - {0})
        pieces = [text[start:end] for start, end in pairwise([0, *ends, len(text)])]
        return list(chain.from_iterable(self._plain(piece, cuts + 1) for piece in pieces))


class _Spotter:
    """Finds special tokens in any text, also one with characters that the tokenizer does not know."""

    def __init__(self, library: tokenizers.Tokenizer, ids: Mapping[str, int]) -> None:
        nothing = "\ufdd0"  # a character that no text has
        self._library = tokenizers.Tokenizer(models.WordLevel({nothing: 0}, unk_token=nothing))
        if library.normalizer is not None:
            self._library.normalizer = library.normalizer
        self._library.add_tokens([token for _, token in sorted(library.get_added_tokens_decoder().items())])
        self._ids = {self._library.token_to_id(token): i for token, i in ids.items()}

    def spot(self, text: str) -> list[tuple[int, tuple[int, int]]]:
        """The ids of the special tokens, and where they begin and end; some with the spaces beside them."""
        with catch_tokenizer_errors("look through this chat", quiet=True):
            [encoding] = self._library.encode_batch([text], add_special_tokens=False)  # others run meanwhile
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [(self._ids[i], span) for i, span in pairs if i in self._ids]


def _special(token: tokenizers.AddedToken) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=True,
    )


def _cut(text: str, tokens: Iterable[tuple[int, tuple[int, int]]]) -> list[Piece]:
    """The text in pieces, with these tokens in their places."""
    pieces, start = list[Piece](), 0
    for token, (begin, end) in tokens:
        pieces += [text[start:begin], token]
        start = end
    return [piece for piece in (*pieces, text[start:]) if piece != ""]
