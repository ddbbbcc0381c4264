"""Texts: prompts, stops, streams, notices, modes."""

from pathlib import Path

import pytest
import torch

from clearhead.config import ModelConfig, SamplingConfig
from clearhead.data import Tokenizer, UnseenCharacterError
from clearhead.errors import ClearheadError, UsageError
from clearhead.inference import Piece, encode_prompt, generate, stream, stream_ids
from clearhead.models import CausalLM, DecoderLM, build_model

LETTERS = "\n abcdefgé🙂"
TOKENIZER = Tokenizer.characters(LETTERS)


def make_model(tokenizer: Tokenizer = TOKENIZER, block_size: int = 16, **options: float) -> CausalLM:
    shape = {"n_layers": 1, "n_heads": 2, "d_model": 16, "block_size": block_size, "vocab_size": tokenizer.vocab_size}
    model = build_model(ModelConfig.read(shape, options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    assert isinstance(model, CausalLM)
    return model


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def config(**options: object) -> SamplingConfig:
    return SamplingConfig.read({"seed": 1, "temperature": 1.0, "max_new_tokens": 40}, options)


def test_the_seed_decides_the_text() -> None:
    model, prompts = make_model(), ["abc", "g"]
    first = generate(model, TOKENIZER, prompts, config(num_samples=3))
    assert first == generate(model, TOKENIZER, prompts, config(num_samples=3))
    assert first != generate(model, TOKENIZER, prompts, config(num_samples=3, seed=2))
    assert [len(texts) for texts in first] == [3, 3]
    assert len({text for texts in first for text in texts}) == 6
    assert all(len(text) == 40 for texts in first for text in texts)


def test_without_a_seed_texts_differ_and_the_global_generator_is_left_alone() -> None:
    model, before = make_model(), torch.get_rng_state()
    first, second = (generate(model, TOKENIZER, ["abc"], config(seed=None)) for _ in range(2))
    assert first != second
    assert torch.equal(torch.get_rng_state(), before)


def test_a_shorter_text_is_the_beginning_of_a_longer_one() -> None:
    short, long = (generate(make_model(), TOKENIZER, ["a"], config(max_new_tokens=n))[0][0] for n in (9, 300))
    assert len(long) == 300
    assert long.startswith(short)


def test_a_stop_string_ends_its_row_alone() -> None:
    model = make_model()
    full = generate(model, TOKENIZER, ["a", "b"], config(num_samples=3))
    stop = full[0][1][5:8]
    stopped = generate(model, TOKENIZER, ["a", "b"], config(num_samples=3, stop=(stop, "zzz")))
    assert stopped == [[text.split(stop)[0] for text in texts] for texts in full]
    assert stopped != full


def test_a_stopped_row_costs_no_more_tokens() -> None:
    finished: set[int] = set()
    columns = []
    for column in stream_ids(make_model(), [[1], [2], [3]], config(), finished=finished):
        columns.append(sorted(column))
        finished |= {0} if len(columns) == 3 else {2} if len(columns) == 5 else set()
        if len(columns) == 9:
            finished |= {1}
    assert columns == [[0, 1, 2]] * 3 + [[1, 2]] * 2 + [[1]] * 4


def test_the_end_of_a_document_ends_the_text() -> None:
    tokenizer = Tokenizer.characters(LETTERS, end=True)
    model = make_model(tokenizer)
    texts = generate(model, tokenizer, ["a"], config(num_samples=20, max_new_tokens=200))[0]
    assert len(set(map(len, texts))) > 5
    assert all(set(text) <= set(LETTERS) for text in texts)


def test_the_stream_is_the_text_in_pieces() -> None:
    model, reported = make_model(), list[Piece]()
    options = config(num_samples=2, stop=("ab",))
    texts = generate(model, TOKENIZER, ["a", "b"], options, on_text=reported.append)
    pieces = list(stream(model, TOKENIZER, ["a", "b"], options))
    assert pieces == reported
    for prompt in range(2):
        for sample in range(2):
            mine = [piece.text for piece in pieces if piece[:2] == (prompt, sample)]
            assert "".join(mine) == texts[prompt][sample]


def test_byte_level_pieces_hold_whole_characters() -> None:
    text = "🙂é🚀ß漢字" * 3
    tokenizer = Tokenizer.train_bpe(iter([text]), 258)  # hardly a merge: characters are several tokens
    ids = [int(token) for token in tokenizer.encode("\n" + text)]
    model = DecoderLM(ModelConfig(n_layers=1, n_heads=2, d_model=64, block_size=99, vocab_size=tokenizer.vocab_size))
    with torch.no_grad():  # a model that knows the text by heart: each position's vector points at the next token
        model.get_parameter("embedding.weight").copy_(torch.randn(tokenizer.vocab_size, 64, generator=seeded()))
        places = model.get_parameter("positions.weight")
        places[: len(ids) - 1] = 100 * model.get_parameter("embedding.weight")[ids[1:]]
    options = config(greedy=True, max_new_tokens=len(ids) - 1)
    pieces = [piece.text for piece in stream(model, tokenizer, ["\n"], options)]
    assert len(ids) > 2 * len(text)
    assert pieces == list(text)
    halved = config(greedy=True, max_new_tokens=len(ids) - 2)
    assert generate(model, tokenizer, ["\n"], halved) == [[text[:-1]]]


def test_a_prompt_longer_than_the_window_is_read_from_its_end_and_said_so() -> None:
    model, notices = make_model(), list[str]()
    long = "abcdefg" * 6
    texts = generate(model, TOKENIZER, [long], config(greedy=True), on_notice=notices.append)
    assert texts == generate(model, TOKENIZER, [long[-16:]], config(greedy=True))
    assert len(notices) == 2
    assert "42 tokens" in notices[0]
    assert "last 16" in notices[0]
    assert "outgrown" in notices[1]


def test_the_slide_is_said_once_and_only_when_it_happens() -> None:
    notices: list[str] = []
    generate(make_model(block_size=64), TOKENIZER, ["a"], config(max_new_tokens=64), on_notice=notices.append)
    assert not notices
    generate(make_model(), TOKENIZER, ["a", "bcd"], config(max_new_tokens=100), on_notice=notices.append)
    assert len(notices) == 1
    assert "block_size of 16" in notices[0]


def test_an_empty_prompt_starts_somewhere_sensible() -> None:
    ending = Tokenizer.characters(LETTERS, end=True)
    assert encode_prompt(ending, "") == [ending.end_of_document]
    assert encode_prompt(TOKENIZER, "") == encode_prompt(TOKENIZER, "\n")
    assert encode_prompt(Tokenizer.characters("ab"), "") == [0]
    assert len(generate(make_model(), TOKENIZER, [""], config())[0][0]) == 40


def test_no_prompts_give_no_texts() -> None:
    assert generate(make_model(), TOKENIZER, [], config()) == []


def test_an_unseen_character_is_named() -> None:
    with pytest.raises(UnseenCharacterError, match="x"):
        generate(make_model(), TOKENIZER, ["abx"], config())


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="stop"):
        generate(make_model(), TOKENIZER, ["a"], config(stop=("",)))


def test_a_damaged_model_is_refused() -> None:
    model = make_model()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ClearheadError, match="not finite"):
        generate(model, TOKENIZER, ["a"], config())


def test_a_model_that_breaks_on_the_way_is_refused() -> None:
    """Not only behind the prompt: a NaN would otherwise be written as token 0 from there on."""
    model, calls = make_model(), list[int]()

    def spoil(_: object, __: object, logits: torch.Tensor) -> torch.Tensor | None:
        calls.append(1)
        return logits * torch.nan if len(calls) > 3 else None

    model.get_submodule("lm_head").register_forward_hook(spoil)
    with pytest.raises(ClearheadError, match="not finite"):
        generate(model, TOKENIZER, ["a"], config(max_new_tokens=9))


def test_the_models_mode_is_restored_module_by_module() -> None:
    model = make_model(dropout=0.5).train()
    frozen = next(module for module in model.modules() if isinstance(module, torch.nn.Dropout))
    frozen.eval()
    before = [module.training for module in model.modules()]
    assert generate(model, TOKENIZER, ["a"], config()) == generate(model.eval(), TOKENIZER, ["a"], config())
    model.train()
    frozen.eval()
    generate(model, TOKENIZER, ["a"], config())
    assert [module.training for module in model.modules()] == before
    pieces = stream(model, TOKENIZER, ["a"], config())
    next(pieces)
    assert not model.training
    assert not torch.is_inference_mode_enabled()
    pieces.close()  # type: ignore[attr-defined]
    assert [module.training for module in model.modules()] == before


def test_a_saved_tokenizer_writes_the_same(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    model = make_model()
    assert generate(model, Tokenizer.load(tmp_path), ["a"], config()) == generate(model, TOKENIZER, ["a"], config())
