"""Filling in what is masked: what is asked of the model, what is made of its answer."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.config import FillConfig, ModelConfig, TrainConfig
from clearhead.data import Masking, Tokenizer, UnseenCharacterError, masked_training_batch
from clearhead.errors import ClearheadError, DataError, UsageError
from clearhead.inference import fill
from clearhead.models import EncoderLM
from clearhead.training import fit

CHARACTERS = Tokenizer.characters("abcdefghij, ", end=True, pad=True, mask=True)
COUNTING = "one two three four five six seven " * 40
WORDS = Tokenizer.train_bpe(iter([COUNTING]), 320, end=True, pad=True, mask=True)


def make_model(tokenizer: Tokenizer = CHARACTERS, **options: object) -> EncoderLM:
    shape = {"n_layers": 2, "n_heads": 2, "d_model": 32, "block_size": 16, "positions": "rope", "norm": "rmsnorm"}
    size = {"architecture": "encoder", "vocab_size": tokenizer.vocab_size, "pad_id": tokenizer.pad}
    model = EncoderLM(ModelConfig.read(shape, size, options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model


class Oracle(EncoderLM):
    """Remembers what it was shown; its logits at place t are `answers[t]`."""

    def __init__(self, tokenizer: Tokenizer, answers: Tensor, block_size: int = 64) -> None:
        super().__init__(make_model(tokenizer, block_size=block_size).config)
        self.answers, self.shown = answers, list[int]()

    def body(self, ids: Tensor, **options: object) -> Tensor:
        assert ids.shape[0] == 1
        self.shown = ids[0].tolist()
        return torch.arange(ids.shape[1])[None, :, None]

    def head(self, hidden: Tensor) -> Tensor:
        return self.answers[hidden[..., 0]]


def oracle(tokenizer: Tokenizer, *likely_tokens: Sequence[tuple[int, float]], block_size: int = 64) -> Oracle:
    """Answers with these tokens and probabilities, one list for each place; the rest is shared by no one."""
    answers = torch.full((64, tokenizer.vocab_size), -1e9)
    for position, candidates in enumerate(likely_tokens):
        for token, probability in candidates:
            answers[position, token] = torch.tensor(probability).log()
    return Oracle(tokenizer, answers, block_size)


def config(top_k: int = 5) -> FillConfig:
    return FillConfig(top_k=top_k)


def token(text: str, tokenizer: Tokenizer = WORDS) -> int:
    (only,) = tokenizer.encode(text).tolist()
    return int(only)


def mask_of(tokenizer: Tokenizer) -> int:
    assert tokenizer.mask is not None
    return tokenizer.mask


def test_the_likeliest_are_told_and_the_first_is_filled_in() -> None:
    model = oracle(WORDS, [], [(token(" two"), 0.7), (token(" six"), 0.2), (token(" one"), 0.1)])
    filled = fill(model, WORDS, " five [MASK] three", config())
    assert filled.text == " five two three"
    assert [candidate.token for candidate in filled.masks[0]] == [" two", " six", " one"]
    assert [candidate.probability for candidate in filled.masks[0]] == pytest.approx([0.7, 0.2, 0.1])
    few = fill(model, WORDS, " five [MASK] three", config(2))
    assert few.masks == [filled.masks[0][:2]]
    assert model.shown == [token(" five"), mask_of(WORDS), token(" three")]


@pytest.mark.parametrize(
    ("text", "shown", "filled"),
    [
        ("two [MASK]", ["two", None], "two six"),  # the space belongs to the token that is asked for
        ("two[MASK]", ["two", None], "two six"),
        ("two  [MASK]", ["two", " ", None], "two  six"),
        ("two\n[MASK]", ["two", "\n", None], "two\n six"),
        ("[MASK] two", [None, " two"], " six two"),
        ("[MASK], two", [None, ",", " two"], " six, two"),
        ("[MASK]", [None], " six"),
        ("two [MASK] [MASK][MASK] two", ["two", None, None, None, " two"], "two six six six two"),
        ("two [mask] [MASK]", ["two", " [", "m", "a", "s", "k", "]", None], "two [mask] six"),
    ],
)
def test_a_mask_takes_the_space_before_it(text: str, shown: list[str | None], filled: str) -> None:
    model = oracle(WORDS, *([[(token(" six"), 1.0)]] * 16))
    assert fill(model, WORDS, text, config()).text == filled
    pieces = [mask_of(WORDS) if piece is None else WORDS.encode(piece).tolist() for piece in shown]
    assert model.shown == [i for piece in pieces for i in (piece if isinstance(piece, list) else [piece])]


def test_where_a_space_was_written_a_word_with_its_space_is_wanted() -> None:
    likely = [(token("\n"), 0.4), (token("s"), 0.2), (token(" "), 0.1), (token(" two"), 0.2), (token(" six"), 0.1)]
    model = oracle(WORDS, [], likely, likely)
    filled = fill(model, WORDS, " one [MASK][MASK]", config())
    assert filled.text == " one two\n", "the first has a space before it, the second none"
    assert [candidate.token for candidate in filled.masks[0]] == [" two", " six"]
    assert [candidate.probability for candidate in filled.masks[0]] == pytest.approx([2 / 3, 1 / 3])
    assert {candidate.token for candidate in filled.masks[1]} == {"\n", "s", " ", " two", " six"}


def test_a_character_is_not_a_word_and_leaves_spaces_alone() -> None:
    model = oracle(CHARACTERS, *([[(token("j", CHARACTERS), 1.0)]] * 16))
    assert fill(model, CHARACTERS, "ab [MASK] [MASK]c", config()).text == "ab j jc"
    assert model.shown.count(token(" ", CHARACTERS)) == 2


def test_special_tokens_are_never_proposed() -> None:
    tokenizer, special = CHARACTERS, (CHARACTERS.end_of_document, CHARACTERS.pad, CHARACTERS.mask)
    likely = [(i, 0.3) for i in special if i is not None] + [
        (token("c", tokenizer), 0.06),
        (token("d", tokenizer), 0.04),
    ]
    (candidates,) = fill(oracle(tokenizer, likely), tokenizer, "[MASK]", config(100)).masks
    assert [candidate.token for candidate in candidates] == ["c", "d"]
    assert [candidate.probability for candidate in candidates] == pytest.approx([0.6, 0.4])


def test_all_tokens_that_are_not_special_share_the_probability() -> None:
    (candidates,) = fill(make_model(), CHARACTERS, "ab[MASK]de", config(1000)).masks
    assert sorted(candidate.token for candidate in candidates) == sorted("abcdefghij, ")
    assert sum(candidate.probability for candidate in candidates) == pytest.approx(1, abs=1e-5)
    shares = [candidate.probability for candidate in candidates]
    assert shares == sorted(shares, reverse=True)


def test_it_is_what_the_model_says() -> None:
    model, text = make_model(), "ab[MASK]de[MASK], "
    ids = [mask_of(CHARACTERS) if c == "?" else token(c, CHARACTERS) for c in "ab?de?, "]
    logits = model.eval()(torch.tensor([ids]))[0, [2, 5]]
    expected = logits[:, : token("j", CHARACTERS) + 1].softmax(-1)  # the special tokens come last
    for candidates, row in zip(fill(model, CHARACTERS, text, config(1000)).masks, expected, strict=True):
        for candidate in candidates:
            assert candidate.probability == pytest.approx(row[token(candidate.token, CHARACTERS)].item(), rel=1e-4)


def test_masks_do_not_see_what_others_were_filled_with() -> None:
    model = make_model()
    both = fill(model, CHARACTERS, "ab[MASK]de[MASK]j", config())
    first = both.masks[0][0].token
    alone = fill(model, CHARACTERS, f"ab{first}de[MASK]j", config())
    assert [candidate.probability for candidate in alone.masks[0]] != pytest.approx(
        [candidate.probability for candidate in both.masks[1]]
    )


def test_the_bytes_of_a_character_come_together() -> None:
    first, second = WORDS.encode("é").tolist()  # never seen, so a token for each byte
    model = oracle(WORDS, [], [(first, 0.6), (token(" two"), 0.4)], [(second, 1.0)])
    filled = fill(model, WORDS, "one[MASK][MASK] two", config())
    assert filled.text == "oneé two"
    assert filled.masks[0][1].token == " two"
    assert filled.masks[1][0].token == "\ufffd", "half a character is told as what it is"


@given(first=st.integers(0, 99), distance=st.integers(0, 15))
@settings(max_examples=60)
def test_of_a_long_text_the_model_reads_what_stands_around_the_masks(first: int, distance: int) -> None:
    model, block = oracle(CHARACTERS, *([[(token("j", CHARACTERS), 1.0)]] * 16), block_size=16), 16
    characters = [*"abcdefghi "] * 10
    masked = sorted({first, min(99, first + distance)})
    ids = [mask_of(CHARACTERS) if i in masked else token(c, CHARACTERS) for i, c in enumerate(characters)]
    for i in masked:
        characters[i] = "[MASK]"
    notices: list[str] = []
    text = "".join(characters)
    assert fill(model, CHARACTERS, text, config(), on_notice=notices.append).text == text.replace("[MASK]", "j")
    start = next(i for i in range(100 - block + 1) if ids[i : i + block] == model.shown)
    before, after = masked[0] - start, start + block - 1 - masked[-1]
    assert min(before, after) >= 0
    assert abs(before - after) <= 1 or start in (0, 100 - block), "they stand in the middle where the text goes on"
    assert len(notices) == 1
    assert "100 tokens" in notices[0]


def test_what_the_model_sees_whole_is_not_worth_a_notice() -> None:
    notices: list[str] = []
    fill(make_model(), CHARACTERS, "abcdefghij, abc[MASK]", config(), on_notice=notices.append)
    assert notices == []


def test_masks_that_the_model_cannot_see_together_are_a_sentence() -> None:
    text = "[MASK]" + "a" * 14 + "[MASK]"
    assert len(fill(make_model(), CHARACTERS, text, config()).masks) == 2
    with pytest.raises(DataError, match="it is 17 tokens, but the model reads 16 at once; fill in those"):
        fill(make_model(), CHARACTERS, text.replace("a", "aa", 1), config())


def test_what_cannot_be_is_a_sentence() -> None:
    for text in ("", "ab", "[mask]", "[MASK"):
        with pytest.raises(UsageError, match=r"nothing to fill in; write \[MASK\] where"):
            fill(make_model(), CHARACTERS, text, config())
    with pytest.raises(DataError, match="no mask token"):
        fill(make_model(), Tokenizer.characters("ab"), "a[MASK]", config())
    with pytest.raises(UnseenCharacterError, match=r"'ß' \(U\+00DF\) at character 8 of the text") as unseen:
        fill(make_model(), CHARACTERS, "a[MASK]bß", config())
    assert "a[MASK]bß"[unseen.value.offset] == "ß"
    broken = make_model()
    with torch.no_grad():
        broken.embedding.weight.fill_(torch.nan)
    with pytest.raises(ClearheadError, match="not finite"):
        fill(broken, CHARACTERS, "[MASK]", config())


def test_the_mode_is_restored_and_nothing_is_drawn() -> None:
    model, before = make_model(dropout=0.5).train(), torch.get_rng_state()
    assert fill(model, CHARACTERS, "ab[MASK]", config()) == fill(model, CHARACTERS, "ab[MASK]", config())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), before)


def learned(tokenizer: Tokenizer, text: str) -> EncoderLM:
    """An encoder that was trained on the text for a moment."""
    tokens, masking = tokenizer.encode(text), Masking.of(tokenizer, 0.15)
    shape = {"n_layers": 2, "n_heads": 2, "d_model": 32, "block_size": 16, "positions": "rope", "norm": "rmsnorm"}
    size = {"architecture": "encoder", "vocab_size": tokenizer.vocab_size, "pad_id": tokenizer.pad}
    model = EncoderLM(ModelConfig.read(shape, size))
    train = TrainConfig(
        steps=150, optimizer="muon", learning_rate=0.02, warmup_steps=10, precision="float32", compile="off"
    )

    def batch(step: int) -> Sequence[Tensor]:
        return masked_training_batch(tokens, block_size=16, batch_size=16, seed=1, step=step, masking=masking)

    for _ in fit(model, train, batch, seed=1):
        pass
    return model


def test_an_encoder_learns_to_count_and_fills_in_what_is_missing() -> None:
    model = learned(WORDS, COUNTING)
    filled = fill(model, WORDS, "six seven one [MASK] three four [MASK] six seven one", config())
    assert filled.text == "six seven one two three four five six seven one"
    assert all(candidates[0].probability > 0.8 for candidates in filled.masks)
    assert fill(model, WORDS, "[MASK] five six seven one two", config()).text == " four five six seven one two", (
        "what follows says as much as what comes before"
    )
    assert fill(model, WORDS, "three four five six [MASK]", config()).text == "three four five six seven"
