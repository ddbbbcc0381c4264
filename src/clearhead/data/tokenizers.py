"""Text to token ids and back. Every tokenizer is a standard tokenizer.json underneath."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from clearhead.errors import DataError

END_OF_DOCUMENT = "<|endoftext|>"
PAD, MASK = "<|pad|>", "[MASK]"
_ENDS = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>")  # what the ends of other people's texts are called
_PADS, _MASKS = (PAD, "<pad>", "[PAD]"), (MASK, "<mask>")
_ONE_CHARACTER = r"[\s\S]"  # any code point, newlines too

Ids = NDArray[np.int64]


class UnseenCharacterError(DataError):
    """A character that the tokenizer has no token for; `offset` is its place in the text."""

    def __init__(self, character: str, offset: int, where: str) -> None:
        self.character, self.offset = character, offset
        super().__init__(
            f"the tokenizer has never seen the character {character!r} (U+{ord(character):04X}) {where}; "
            "remove it, or train with a text that has it or with data.tokenizer bpe"
        )


class Tokenizer:
    """A `tokenizers.Tokenizer` that never turns typed text into a special token and never adds one by itself.

    Attributes:
        vocab_size: one more than the largest id.
        end_of_document: id of the token after each document (a sentence, where pairs of them are the text), or None.
        pad: id of the token that fills up short rows, or None.
        mask: id of the token that stands for what is to be filled in, or None.
        beginning, ending: ids that the model which it belongs to finds around every text; `encode` leaves them out.
        fingerprint: equal for tokenizers that make the same ids of a text.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        end_of_document: int | None = None,
        *,
        pad: int | None = None,
        mask: int | None = None,
        frame: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> None:
        library.encode_special_tokens = True  # "<|endoftext|>" in a text is thirteen characters, not an end
        library.no_truncation()
        library.no_padding()
        library.post_processor = processors.Sequence([])  # nothing is put before or after a text
        self._library = library
        self.end_of_document, self.pad, self.mask = end_of_document, pad, mask
        self.beginning, self.ending = map(tuple, frame)
        self.vocab_size = max(library.get_vocab(with_added_tokens=True).values()) + 1
        state = json.loads(library.to_str())
        special = [i for i in (pad, mask) if i is not None]
        self.fingerprint = hashlib.sha256(json.dumps([state, end_of_document, *special]).encode()).hexdigest()
        self._unknown = _unknown_id(state["model"], library)
        self._table = _character_table(state)

    @classmethod
    def characters(cls, alphabet: Iterable[str], *, end: bool = False, pad: bool = False, mask: bool = False) -> Self:
        """One token per character of the alphabet, in the order of code points, then the special ones asked for."""
        library = tokenizers.Tokenizer(models.WordLevel({c: i for i, c in enumerate(sorted(set(alphabet)))}))
        library.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(_ONE_CHARACTER), "isolated")
        library.decoder = decoders.Fuse()
        library.add_special_tokens(_specials(end, pad, mask))
        return cls._of(library)

    @classmethod
    def train_bpe(
        cls,
        texts: Iterator[str],
        vocab_size: int,
        *,
        end: bool = False,
        pad: bool = False,
        mask: bool = False,
        sentences: bool = False,
    ) -> Self:
        """Byte-level byte pair encoding (Sennrich et al. 2016; bytes as in GPT-2), so no text is out of vocabulary.

        Args:
            texts: to learn the pieces from.
            vocab_size: at most so many tokens, the special ones among them.
            end, pad, mask: special tokens to have.
            sentences: texts stand alone, so a first word is cut up as it would be after another one.
        """
        library = tokenizers.Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=sentences)
        library.decoder = decoders.ByteLevel()
        if sentences:
            library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            show_progress=False,
            special_tokens=_specials(end, pad, mask),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
        library.train_from_iterator(texts, trainer)
        return cls._of(library)

    @classmethod
    def _of(cls, library: tokenizers.Tokenizer) -> Self:
        end, pad, mask = map(library.token_to_id, (END_OF_DOCUMENT, PAD, MASK))
        return cls(library, end, pad=pad, mask=mask)

    @classmethod
    def load(cls, path: Path, *, end: int | None = None, pad: int | None = None, keep_frame: bool = False) -> Self:
        """The tokenizer in a tokenizer.json, or in a folder that holds one.

        Its special tokens are those that the files beside it name, tokenizer_config.json or special_tokens_map.json,
        else the given ones, else those with a usual name.

        Args:
            path: see above.
            end, pad: ids that the model they came with goes by.
            keep_frame: know what the file puts around every text, for the model that it belongs to.

        Raises:
            DataError: there is none, it cannot be read, or it has no tokens.
        """
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            library = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"there is no tokenizer at {file}; give auto, char, bpe or a tokenizer.json") from None
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror or error}") from None
        except Exception as error:  # the library raises nothing more precise
            raise DataError(f"{file} is not a tokenizer.json: {error}") from None
        if not library.get_vocab_size(with_added_tokens=False):
            raise DataError(f"{file} has no tokens; give auto, char, bpe or another tokenizer.json")
        beside = [file.with_name(name) for name in (f"{file.stem}_config.json", "special_tokens_map.json")]
        wanted = (("eos_token", end, _ENDS), ("pad_token", pad, _PADS), ("mask_token", None, _MASKS))
        end, pad, mask = (_special_id(library, beside, *how) for how in wanted)
        try:
            return cls(library, end, pad=pad, mask=mask, frame=_frame(library) if keep_frame else ((), ()))
        except ValueError as error:
            raise DataError(f"{file} {error}; fetch it again") from None

    def save(self, folder: Path, *, append_end: bool = False, name: str = "tokenizer") -> None:
        """Write tokenizer.json and tokenizer_config.json, with which `transformers.AutoTokenizer` does the same.

        Args:
            name: of the files, where two tokenizers share a folder.
            append_end: other readers of the files are to put `end_of_document` after every text by themselves.
        """
        folder.mkdir(parents=True, exist_ok=True)
        library = tokenizers.Tokenizer.from_str(self._library.to_str())
        own_end = [self.end_of_document] if append_end and self.end_of_document is not None else []
        ending = self.ending or own_end
        if self.beginning or ending:
            before, after = ([library.id_to_token(i) for i in ids] for ids in (self.beginning, ending))
            library.post_processor = processors.TemplateProcessing(
                single=[*before, "$A", *after],
                special_tokens=list({*zip(before, self.beginning, strict=True), *zip(after, ending, strict=True)}),
            )
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,
            "model_max_length": 10**30,
        }
        special = {"eos_token": self.end_of_document, "pad_token": self.pad, "mask_token": self.mask}
        config |= {key: library.id_to_token(i) for key, i in special.items() if i is not None}
        (folder / f"{name}.json").write_text(library.to_str(pretty=True), encoding="utf-8")
        (folder / f"{name}_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @property
    def is_character_level(self) -> bool:
        """Whether every token of a text is one character."""
        return self._table is not None

    def encode(self, text: str) -> Ids:
        """The ids of a text, int64, and no special ones.

        Raises:
            UnseenCharacterError: a character without a token; a DataError that names it, its line and its column.
        """
        return self.encode_batch([text])[0].astype(np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The ids of each text, of any integer type, on all cores."""
        if self._table is not None:
            return [_look_up(self._table, text) for text in texts]
        for text in texts:
            _refuse_surrogates(text)
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]
        if self._unknown is not None:
            for text, row in zip(texts, ids, strict=True):
                if (row == self._unknown).any():
                    raise self._unseen(text, self._unknown)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, specials left out. What `encode` made comes back exactly."""
        return str(self._library.decode([int(i) for i in ids], skip_special_tokens=True))

    def _unseen(self, text: str, unknown: int) -> UnseenCharacterError:
        encoding = self._library.encode(text, add_special_tokens=False)
        start, stop = encoding.offsets[encoding.ids.index(unknown)]
        return _unseen(text, next((i for i in range(start, stop) if not text[i].isspace()), start))


def _look_up(table: NDArray[Any], text: str) -> NDArray[Any]:
    """The same ids as the library's, forty times as fast."""
    ids = table.take(code_points(text), mode="clip")
    if ids.size and ids.min() < 0:
        raise _unseen(text, int(ids.argmin()))
    return ids


def code_points(text: str) -> NDArray[Any]:
    """The number of each character, in one byte where that is enough for all of them, else in four."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def _unseen(text: str, offset: int) -> UnseenCharacterError:
    line = text.count("\n", 0, offset) + 1
    column = offset - text.rfind("\n", 0, offset)
    return UnseenCharacterError(text[offset], offset, f"at line {line}, column {column}")


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _unseen(text, error.start) from None


def _character_table(state: dict[str, Any]) -> NDArray[Any] | None:
    """Code point -> id, -1 where there is none; None unless the tokenizer is a character level one."""
    pre_tokenizer = {"type": "Split", "pattern": {"Regex": _ONE_CHARACTER}, "behavior": "Isolated", "invert": False}
    vocab = state["model"].get("vocab", {})
    if (
        state["model"]["type"] != "WordLevel"
        or state["normalizer"] is not None
        or state["pre_tokenizer"] != pre_tokenizer
        or any(len(token) != 1 for token in vocab)
        or not all(added["special"] for added in state["added_tokens"])
    ):
        return None
    codes = np.array([ord(token) for token in vocab])
    table = np.full(codes.max() + 2, -1, dtype=np.min_scalar_type(-max(vocab.values()) - 1))
    table[codes] = list(vocab.values())
    return table


def _unknown_id(model: dict[str, Any], library: tokenizers.Tokenizer) -> int | None:
    """The id that stands for whatever has no token of its own."""
    if model["type"] == "Unigram":
        return None if model.get("byte_fallback") else model.get("unk_id")
    unknown = model.get("unk_token")
    return None if unknown is None else library.token_to_id(unknown)


def _frame(library: tokenizers.Tokenizer) -> tuple[Sequence[int], Sequence[int]]:
    """The ids that the library puts before and after every text by itself."""
    if library.post_processor is None:
        return (), ()
    text = tokenizers.Tokenizer(models.WordLevel({"a": 0})).encode("a")
    whole = library.post_processor.process(text)
    if 0 not in whole.special_tokens_mask:
        raise ValueError("puts tokens around a text and leaves the text itself out")
    place = whole.special_tokens_mask.index(0)
    before, after = whole.ids[:place], whole.ids[place + 1 :]
    if any(token >= library.get_vocab_size() or library.id_to_token(token) is None for token in (*before, *after)):
        raise ValueError("puts tokens around a text that it does not have")
    return before, after


def _specials(end: bool, pad: bool, mask: bool) -> list[tokenizers.AddedToken]:
    wanted = ((END_OF_DOCUMENT, end), (PAD, pad), (MASK, mask))
    return [tokenizers.AddedToken(token, special=True) for token, asked in wanted if asked]


def _special_id(
    library: tokenizers.Tokenizer, beside: Sequence[Path], key: str, known: int | None, usual: Sequence[str]
) -> int | None:
    """The special token that the files beside the tokenizer name, else the known one, else one with a usual name."""
    named = next(filter(None, (_named(path, key) for path in beside)), None)
    if named is None and known is not None and known < library.get_vocab_size():
        named = library.id_to_token(known)
    if named is not None and library.token_to_id(named) is not None:
        library.add_special_tokens([tokenizers.AddedToken(named, special=True)])  # where it was a plain one
        return library.token_to_id(named)
    special = {token.content: i for i, token in library.get_added_tokens_decoder().items() if token.special}
    return next((special[token] for token in usual if token in special), None)


def _named(path: Path, key: str) -> str | None:
    """The token that a JSON file has under the key, as a string or as an object with its content."""
    try:
        told = json.loads(path.read_text(encoding="utf-8")).get(key)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    told = told.get("content") if isinstance(told, dict) else told
    return told if isinstance(told, str) else None
