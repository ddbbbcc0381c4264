"""Families of encoder-decoders: padding, generating, their table of waves, and what cannot be read is refused."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from family_models import (
    END,
    SEEDS,
    TRANSLATORS,
    logits_of,
    opened,
    random_config,
    random_ids,
    random_inputs,
    random_model,
)
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearhead.config import ModelConfig, TranslationConfig
from clearhead.errors import DataError
from clearhead.inference.beam import beam_search
from clearhead.interop import FAMILIES, SpecialTokens, family_of, load, read_config, save
from clearhead.models import EncoderDecoder

WAVES = "model.encoder.embed_positions.weight"
Case = tuple[EncoderDecoder, Path]


@pytest.fixture(params=[(name, seed) for name in TRANSLATORS for seed in SEEDS], ids=lambda p: f"{p[0]}-{p[1]}")
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    name, seed = request.param
    model = random_model(random_config(name, seed), seed)
    assert isinstance(model, EncoderDecoder)
    save(tmp_path, model, SpecialTokens(END, model.config.pad_id))
    with torch.no_grad():
        yield model, tmp_path


def filled_up(ids: Tensor, lengths: list[int], pad_id: int | None) -> Tensor:
    """Rows that end earlier, as if they had been filled up."""
    assert pad_id is not None
    return ids.masked_fill(torch.arange(ids.shape[1]) >= torch.tensor(lengths)[:, None], pad_id)


@pytest.mark.sampled
@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_that_are_filled_up(side: str, case: Case) -> None:
    model, folder = case
    source, target = random_inputs(model.config, 3, 30)
    pad_id, absolute = model.config.pad_id, model.config.positions != "relative"
    target[:, 0] = model.config.first_token(END)
    inputs = filled_up(source, [23, 9, 1], pad_id), filled_up(target, [2, 30, 11], pad_id)
    inputs = (inputs[0].flip(1), inputs[1]) if side == "left" else inputs
    real = filled_up(torch.zeros_like(target), [2, 30, 11], pad_id) != pad_id
    there = inputs[0].ne(torch.tensor(pad_id))
    columns = torch.arange(23).where(there, -1) if absolute else None  # theirs count padding on the left
    expected = logits_of(opened(folder, "encoder_decoder"), inputs, pad_id)
    torch.testing.assert_close(model(*inputs, source_positions=columns)[real], expected[real], rtol=0, atol=1e-5)
    unpadded = model(inputs[0][1:2, -9:] if side == "left" else inputs[0][1:2, :9], inputs[1][1:2])
    torch.testing.assert_close(model(*inputs)[1:2], unpadded, rtol=0, atol=1e-5)


@pytest.mark.sampled(4)
def test_twenty_greedy_tokens_are_equal(case: Case) -> None:
    model, folder = case
    foreign = opened(folder, "encoder_decoder")
    foreign.generation_config.eos_token_id = None  # no early end
    pad_id = model.config.pad_id
    source = filled_up(random_ids(model.config, 2, 12), [12, 5], pad_id)
    mask = torch.ne(source, torch.tensor(pad_id)).long()
    for beams in (1, 4):
        generated = foreign.generate(
            source,
            attention_mask=mask,
            max_new_tokens=20,
            do_sample=False,
            num_beams=beams,
            use_cache=has_room(model),
        )
        assert torch.equal(generated, written(model, source, 20, beams))


def has_room(model: EncoderDecoder) -> bool:
    """Whether their cache holds the decoder: T5's is made for as many layers as the encoder has."""
    return model.config.positions != "relative" or model.config.n_layers <= model.config.n_encoder_layers


def written(model: EncoderDecoder, source: Tensor, tokens: int, beams: int) -> Tensor:
    """The likeliest of the texts of so many tokens that a beam search keeps, one source after the other."""
    texts_of_sources, config = [], model.config
    for row in source:
        memory = model.encode(row[None])
        texts, scores = (
            torch.tensor([[END if config.decoder_start_id is None else config.decoder_start_id]]),
            torch.zeros(1),
        )
        for _ in range(tokens):
            held = memory.select(torch.zeros(len(texts), dtype=torch.int64))
            last = model.head(model.decode(texts, held)[:, -1]).log_softmax(-1)  # (beams, V)
            last[:, config.pad_id] = -torch.inf
            scores, indices = (scores[:, None] + last).flatten().topk(beams)
            texts = torch.cat((texts[indices // last.shape[1]], (indices % last.shape[1])[:, None]), dim=1)
        texts_of_sources.append(texts[:1])
    return torch.cat(texts_of_sources)


@pytest.mark.sampled(4)
def test_beam_search_finds_what_theirs_finds(case: Case) -> None:
    """The third token that is written greedily is called the end, so that most hypotheses come to one."""
    model, folder = case
    model.config = model.config.model_copy(update={"decoder_start_id": model.config.first_token(END)})
    foreign = opened(folder, "encoder_decoder")
    source = random_ids(model.config, 1, 12)
    end = int(written(model, source, 3, 1)[0, 3])
    for beams in (1, 3):
        hypotheses = beam_search(
            model,
            source.tolist(),
            TranslationConfig(beam_size=beams, n_best=beams, length_penalty=0, max_new_tokens=20),
            end=end,
        )[0]
        generated = foreign.generate(
            source,
            eos_token_id=end,
            max_new_tokens=20,
            do_sample=False,
            num_beams=beams,
            num_return_sequences=beams,
            length_penalty=0.0,
            early_stopping=True if beams > 1 else None,
            use_cache=has_room(model),
            return_dict_in_generate=True,
            output_scores=True,
        )
        assert beams > 1 or len(hypotheses[0].ids) < 20
        if any(len(hypothesis.ids) == 20 for hypothesis in hypotheses):
            continue  # theirs rank what was cut off among the others, ours behind them
        for row, hypothesis in zip(generated.sequences.tolist(), hypotheses, strict=True):
            assert row[1 : len(hypothesis.ids) + 2] == [*hypothesis.ids, end]
        if beams > 1:
            torch.testing.assert_close(
                torch.tensor([h.score for h in hypotheses]), generated.sequences_scores, rtol=0, atol=1e-4
            )


@pytest.mark.sampled(4)
def test_a_folder_that_transformers_wrote_again_is_the_same_model(case: Case) -> None:
    model, folder = case
    opened(folder, "encoder_decoder").save_pretrained(folder / "again")
    inputs, again = random_inputs(model.config, 2, 30), load(folder / "again")
    assert torch.equal(again(*inputs), model(*inputs))
    reopened = logits_of(opened(folder / "again", "encoder_decoder"), inputs)  # Marian leaves its tables out
    torch.testing.assert_close(reopened, model(*inputs), rtol=0, atol=2e-5)


def test_the_tokens_are_told(case: Case) -> None:
    model, folder = case
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text(encoding="utf-8"))
        assert settings["eos_token_id"] == END
        assert settings["decoder_start_token_id"] == (
            END if model.config.decoder_start_id is None else model.config.decoder_start_id
        )
        assert settings["pad_token_id"] == model.config.pad_id
    assert settings["bad_words_ids"] == [[model.config.pad_id]]
    assert read_config(folder)[1].pad_id == model.config.pad_id
    assert read_config(folder)[1].decoder_start_id == model.config.decoder_start_id
    assert load(folder, config=model.config).config == model.config
    with pytest.raises(DataError, match=r"says pad_id = \d+, the run's options say 5"):
        load(folder, config=model.config.model_copy(update={"pad_id": 5}))


@pytest.mark.parametrize("name", ["pegasus", "marian"])
def test_waves_may_be_left_out_but_not_differ(name: str, tmp_path: Path) -> None:
    model = random_model(random_config(name, 0), 0)
    save(tmp_path, model, SpecialTokens(END))
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    waves, D = whole[WAVES], model.config.d_model
    alternating = torch.stack((waves[:, : D // 2], waves[:, D // 2 :]), dim=-1).flatten(1)
    inputs = random_inputs(model.config, 2, 30)

    def change(to: Tensor | None) -> None:
        save_file({**{k: v for k, v in whole.items() if k != WAVES}, **({} if to is None else {WAVES: to})}, path)

    for close in (None, waves.bfloat16(), waves + 1e-3):
        change(close)
        with torch.no_grad():
            assert torch.equal(load(tmp_path)(*inputs), model(*inputs))
    for wrong in (alternating.contiguous(), waves.roll(1, 0), torch.zeros_like(waves), waves * torch.nan):
        change(wrong)
        with pytest.raises(DataError, match=f"the numbers in {WAVES} are not supported; the sines of"):
            load(tmp_path)
    change(waves[1:].contiguous())
    with pytest.raises(DataError, match=rf"{WAVES} has shape"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["pegasus", "marian", "bart"])
def test_what_the_head_adds_may_be_left_out(name: str, tmp_path: Path) -> None:
    model = random_model(random_config(name, 0).model_copy(update={"head_bias": False}), 0)
    save(tmp_path, model, SpecialTokens(END))
    path = tmp_path / "model.safetensors"
    whole, inputs = load_file(path), random_inputs(model.config, 2, 30)
    assert not whole["final_logits_bias"].any()
    assert whole["final_logits_bias"].shape == (1, model.config.vocab_size)
    save_file({name: tensor for name, tensor in whole.items() if name != "final_logits_bias"}, path)
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(*inputs), model(*inputs))
        whole["final_logits_bias"][0, 3] = 1e-6
        save_file(whole, path)
        assert load(tmp_path)(*inputs)[0, 0, 3] == model(*inputs)[0, 0, 3] + 1e-6
    with pytest.raises(DataError, match=r"final_logits_bias is not zero, but the model has no lm_head\.bias"):
        load(tmp_path, config=model.config)


def test_the_first_rows_of_barts_positions_are_not_read(tmp_path: Path) -> None:
    model = random_model(random_config("bart", 0), 0)
    save(tmp_path, model, SpecialTokens(END))
    path, inputs = tmp_path / "model.safetensors", random_inputs(model.config, 2, 30)
    whole = load_file(path)
    for stack, own in (("encoder", "source_positions"), ("decoder", "positions")):
        table = whole[f"model.{stack}.embed_positions.weight"]
        assert not table[:2].any()
        assert torch.equal(table[2:], model.state_dict()[f"{own}.weight"])
        table[:2] = 7.0
    save_file(whole, path)
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(*inputs), model(*inputs))
        expected = logits_of(opened(tmp_path, "encoder_decoder"), inputs)
        torch.testing.assert_close(model(*inputs), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"decoder_start_token_id": 2**40}, "decoder_start_id"),
        ({"decoder_start_token_id": "</s>"}, "decoder_start_id"),
        ({"pad_token_id": END}, "pad_token_id = 2 with eos_token_id = 2 is not supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = false is not supported"),
        ({"encoder_ffn_dim": 7}, "decoder_ffn_dim = "),
        ({"encoder_attention_heads": 5}, "decoder_attention_heads = "),
        ({"activation_function": "quick_gelu"}, "activation_function = 'quick_gelu' is not supported"),
        ({"d_model": 9, "encoder_attention_heads": 1, "decoder_attention_heads": 1}, "even d_model"),
        ({"encoder_layers": 0}, "n_encoder_layers"),
        ({"encoder_layers": "many"}, "n_encoder_layers"),
        ({"pad_token_id": -1}, "pad_id"),
        ({"pad_token_id": 2**40}, "pad_id"),
        ({"scale_embedding": [1]}, "scale_embedding"),
    ],
)
@pytest.mark.parametrize("name", ["pegasus", "marian"])
def test_a_foreign_option_without_equal_is_refused(
    name: str, changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    save(tmp_path, random_model(random_config(name, 0), 0), SpecialTokens(END))
    settings = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(settings | changed), encoding="utf-8")
    with pytest.raises(DataError) as refusal:
        load(tmp_path)
    assert message in str(refusal.value)
    assert "config.json" in str(refusal.value)


@pytest.mark.parametrize("changed", [{"share_encoder_decoder_embeddings": False}, {"decoder_vocab_size": 31}])
def test_two_vocabularies_are_refused(changed: dict[str, object], tmp_path: Path) -> None:
    config = random_config("marian", 0).model_copy(update={"vocab_size": 40, "pad_id": 3, "decoder_start_id": None})
    save(tmp_path, random_model(config, 0), SpecialTokens(END))
    settings = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(settings | {"decoder_vocab_size": None}), encoding="utf-8")
    assert read_config(tmp_path)[1].vocab_size == 40
    (tmp_path / "config.json").write_text(json.dumps(settings | changed), encoding="utf-8")
    with pytest.raises(DataError, match=next(iter(changed))):
        read_config(tmp_path)


def test_the_place_of_the_norms_decides_between_them() -> None:
    for name, norm_position in (("pegasus", "pre"), ("marian", "post")):
        config = ModelConfig.read(
            {"architecture": "encoder_decoder", "positions": "sinusoidal", "norm_position": norm_position}
        )
        assert family_of(config) is FAMILIES[name]
