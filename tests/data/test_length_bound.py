"""How long a text may be before it is encoded: the bound holds, and is not there where none does."""

import unicodedata
from typing import Literal

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from clearhead.data.tokenizers.length_bound import bytes_per_token, visible_bytes

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")


@pytest.mark.parametrize("form", FORMS)
def test_the_bound_holds_for_texts_that_a_normal_form_makes_shorter(form: Form) -> None:
    library = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    library.normalizer = getattr(normalizers, form)()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bound = bytes_per_token(library)
    assert bound is not None
    for text in map(chr, (*range(33, 0xD800), *range(0xE000, 0x30000))):
        for longer in {text, *(unicodedata.normalize(other, text) for other in FORMS)}:
            if not longer.isspace():
                assert visible_bytes(longer) <= bound * len(unicodedata.normalize(form, longer).encode()), longer


def test_a_tokenizer_that_drops_or_lumps_characters_has_no_bound() -> None:
    library = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    assert bytes_per_token(library) is None, "it drops what it does not know"
    library = tokenizers.Tokenizer(models.WordLevel({"a": 0, "u": 1}, unk_token="u"))
    assert bytes_per_token(library) is None
    alphabet = {c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    library = tokenizers.Tokenizer(models.BPE(alphabet, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel()
    assert bytes_per_token(library) == 2
    library.normalizer = normalizers.Replace("long", "l")
    assert bytes_per_token(library) is None
