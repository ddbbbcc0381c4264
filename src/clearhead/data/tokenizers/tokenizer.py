"""Text to token ids and back. Every tokenizer is a standard tokenizer.json underneath."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from clearhead.data.tokenizers.characters import (
    UnseenCharacterError,
    character_table,
    look_up,
    refuse_surrogates,
    unseen,
)
from clearhead.data.tokenizers.chat_template import FILE, ChatTemplate
from clearhead.data.tokenizers.guard import cannot_panic, catch_tokenizer_errors
from clearhead.data.tokenizers.sandbox import mark_trusted, read_safely
from clearhead.data.tokenizers.sandboxed import ONE_CHARACTER
from clearhead.data.tokenizers.special import (
    END_OF_DOCUMENT,
    ENDS,
    MASK,
    MASKS,
    PAD,
    PADS,
    frame_of,
    named_tokens,
    special_id,
    specials,
    template,
)
from clearhead.data.tokenizers.token_bytes import token_bytes
from clearhead.errors import DataError
from clearhead.files import write_json, write_whole

Ids = NDArray[np.int64]


class Tokenizer:
    """A `tokenizers.Tokenizer` that never turns typed text into a special token and never adds one by itself.

    Attributes:
        vocab_size: one more than the largest id.
        end_of_document: id of the token after each document (a sentence, where pairs of them are the text), or None.
        pad: id of the token that fills up short rows, or None.
        mask: id of the token that stands for what is to be filled in, or None.
        beginning, ending: special ids that its model expects around each text; `encode` leaves them out.
        chat_template: how the model that it belongs to wants chats to be written, or None.
        unknown: id that stands for what has no token, or None.
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
        chat_template: ChatTemplate | None = None,
    ) -> None:
        library.encode_special_tokens = True  # "<|endoftext|>" in a text is thirteen characters, not an end
        library.no_truncation()
        library.no_padding()
        library.post_processor = processors.Sequence([])  # nothing is put before or after a text
        self._library = library
        self.end_of_document, self.pad, self.mask = end_of_document, pad, mask
        self.beginning, self.ending = map(tuple, frame)
        self.vocab_size = max(library.get_vocab(with_added_tokens=True).values()) + 1
        special = [i for i in (pad, mask) if i is not None]
        digest = hashlib.sha256(library.__getstate__())  # its tokenizer.json
        digest.update(json.dumps([end_of_document, *special]).encode())
        self.fingerprint = digest.hexdigest()
        self.unknown, self.chat_template = _unknown_id(library), chat_template
        self._table = character_table(library)
        self._quiet = not cannot_panic(library)

    @classmethod
    def characters(cls, alphabet: Iterable[str], *, end: bool = False, pad: bool = False, mask: bool = False) -> Self:
        """One token per character of the alphabet, in the order of code points, then the special ones asked for."""
        library = tokenizers.Tokenizer(models.WordLevel({c: i for i, c in enumerate(sorted(set(alphabet)))}))
        library.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(ONE_CHARACTER), "isolated")
        library.decoder = decoders.Fuse()
        library.add_special_tokens(specials(end, pad, mask))
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
            special_tokens=specials(end, pad, mask),
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
        else the given ones, else those with a usual name. The file is first loaded in a sandboxed process.

        Args:
            path: see above.
            end, pad: ids that the model they came with goes by.
            keep_frame: know what the file puts around every text, for the model that it belongs to, and its chats.

        Raises:
            DataError: there is none, it cannot be read, has no tokens, or takes too much time or memory to use.
        """
        file = path / "tokenizer.json" if path.is_dir() else path
        content = read_safely(file)
        config = file.with_name(f"{file.stem}_config.json")
        beside = named_tokens([config, file.with_name("special_tokens_map.json")])
        chats = keep_frame and file.stem == "tokenizer"
        chat_template = ChatTemplate.beside(config, file.with_name(FILE)) if chats else None
        choices = (("eos_token", end, ENDS), ("pad_token", pad, PADS), ("mask_token", None, MASKS))
        try:
            with catch_tokenizer_errors("be loaded", quiet=True):
                library = tokenizers.Tokenizer.from_buffer(content)
                end, pad, mask = (special_id(library, beside, *choice) for choice in choices)
                frame = frame_of(library) if keep_frame else ((), ())
                return cls(library, end, pad=pad, mask=mask, frame=frame, chat_template=chat_template)
        except ValueError as error:
            raise DataError(f"{file} {error}; fetch it again") from None

    def copy_library(self) -> tokenizers.Tokenizer:
        """A `tokenizers.Tokenizer` of its own, to encode in another way than this one does."""
        library = tokenizers.Tokenizer.from_str(self._library.to_str())
        library.encode_special_tokens = True
        return library

    def save(self, folder: Path, *, append_end: bool = False, name: str = "tokenizer") -> None:
        """Write tokenizer.json and tokenizer_config.json, with which `transformers.AutoTokenizer` does the same.

        Args:
            name: of the files, where two tokenizers share a folder.
            append_end: other readers of the files are to put `end_of_document` after every text by themselves.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with catch_tokenizer_errors("be saved", quiet=self._quiet):
            library = tokenizers.Tokenizer.from_str(self._library.to_str())
        own_end = [self.end_of_document] if append_end and self.end_of_document is not None else []
        ending = self.ending or own_end
        if self.beginning or ending:
            library.post_processor = template(library, self.beginning, ending)
        config: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,
            "model_max_length": 10**30,
        }
        special = {"eos_token": self.end_of_document, "pad_token": self.pad, "mask_token": self.mask}
        config |= {key: library.id_to_token(i) for key, i in special.items() if i is not None}
        content = library.to_str(pretty=True).encode()
        write_whole(folder / f"{name}.json", lambda path: path.write_bytes(content))
        write_json(folder / f"{name}_config.json", config)
        if self.chat_template is not None and name == "tokenizer":
            self.chat_template.save(folder / f"{name}_config.json")
        mark_trusted(content)  # it was tried when it was loaded, or made here

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

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        """The ids of each text, of any integer type, on all cores."""
        if self._table is not None:
            return [look_up(self._table, text) for text in texts]
        for text in texts:
            refuse_surrogates(text)
        with catch_tokenizer_errors("encode this text", quiet=self._quiet):
            encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        ids: list[NDArray[np.integer]] = [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]
        if self.unknown is not None:
            for text, row in zip(texts, ids, strict=True):
                if (row == self.unknown).any():
                    raise self._unseen(text, self.unknown)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, specials left out. What `encode` made comes back exactly."""
        tokens = [int(i) for i in ids]
        with catch_tokenizer_errors("decode its own tokens", quiet=self._quiet):
            return str(self._library.decode(tokens, skip_special_tokens=True))

    def token_bytes(self) -> list[bytes | None]:
        """The bytes that each id adds to a text, None for none; a space at the beginning of a text may be lost.

        Raises:
            DataError: what a token adds depends on its neighbors.
        """
        return token_bytes(self._library, self.decode)

    def _unseen(self, text: str, unknown: int) -> UnseenCharacterError:
        with catch_tokenizer_errors("encode this text", quiet=self._quiet):
            encoding = self._library.encode(text, add_special_tokens=False)
        start, stop = encoding.offsets[encoding.ids.index(unknown)]
        return unseen(text, next((i for i in range(start, stop) if not text[i].isspace()), start))


def _unknown_id(library: tokenizers.Tokenizer) -> int | None:
    """The id that stands for whatever has no token of its own."""
    if isinstance(library.model, models.Unigram):
        state = json.loads(library.model.__getstate__())
        return None if state.get("byte_fallback") else state.get("unk_id")
    return None if library.model.unk_token is None else library.token_to_id(library.model.unk_token)
