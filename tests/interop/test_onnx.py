"""ONNX files: what onnxruntime computes from them is what the model computes, for every option, batch and length."""

import importlib.util
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from model_options import listed_choices
from torch import Tensor

import clearhead
from clearhead.config import ModelConfig
from clearhead.errors import ClearheadError, DataError, UsageError
from clearhead.interop import SpecialTokens, extras
from clearhead.interop.onnx import open_onnx, running, save_onnx, saving
from clearhead.models import BigramLM, CausalLM, EncoderDecoder, EncoderLM, LanguageModel, build_model
from clearhead.parts import positions_from_lengths

pytest.importorskip("onnxscript", reason="needs the extra: pip install 'clearhead[onnx]'")
onnx = pytest.importorskip("onnx", reason="needs the extra: pip install 'clearhead[onnx]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra: pip install 'clearhead[onnx]'")

Choice = dict[str, Any]
VOCAB_SIZE, BLOCK_SIZE, END = 19, 24, 1
SHAPE: Choice = {"vocab_size": VOCAB_SIZE, "block_size": BLOCK_SIZE, "n_layers": 1, "n_heads": 4, "d_model": 16}
LLAMA: Choice = {"norm": "rmsnorm", "positions": "rope", "feedforward": "swiglu", "tie_embeddings": False}
# Between them every seam at which positions enter, every kind of mask and nearly every part. Each takes 10 to 20
# seconds, so the suite runs the first, and the campaign the others.
DECODERS: list[Choice] = [
    LLAMA
    | {
        "n_kv_heads": 2,
        "sliding_window": 5,
        "qk_norm": True,
        "head_dim": 8,
        "partial_rotary_factor": 0.5,
    },
    {
        "positions": "alibi",
        "embedding_ngrams": 3,
        "logit_ngrams": 2,
        "ngram_rows": 500,
        "norm_position": "post",
        "n_kv_heads": 1,
        "bias": True,
        "embedding_norm": True,
        "head_transform": True,
        "head_bias": True,
        "dropout": 0.5,
        "attention_dropout": 0.5,
    },
    {
        "positions": "relative",
        "relative_buckets": 8,
        "relative_max_distance": 12,
        "norm": "rmsnorm_plus_one",
        "parallel_residual": True,
        "feedforward": "geglu",
        "scale_attention": False,
        "attention_softcap": 2.0,
        "scale_logits": True,
    },
    {"architecture": "bigram"},
]
ENCODER: Choice = {
    "architecture": "encoder",
    "pad_id": 0,
    "norm": "rmsnorm",
    "feedforward": "swiglu",
    "n_token_types": 2,
}
TRANSLATOR: Choice = {
    "architecture": "encoder_decoder",
    "pad_id": 0,
    "positions": "sinusoidal",
    "scale_embedding": True,
    "source_vocab_size": 31,
    "feedforward": "relu",
}
OPTIONS: dict[str, tuple[Any, ...]] = {
    "n_layers": (1, 2),
    **listed_choices("architecture", "init", "parallel_residual"),
    "partial_rotary_factor": (1.0, 0.5),
    "n_kv_heads": (4, 2, 1),
    "head_dim": (4, 8),
    "attention_softcap": (None, 2.0),
}
OPTIONS_OF: dict[str, dict[str, tuple[Any, ...]]] = {
    "decoder": {
        "sliding_window": (None, 1, 5),
        "parallel_residual": (False, True),
        "embedding_ngrams": (1, 3),
        "logit_ngrams": (1, 2),
        "ngram_rows": (7, 500),
    },
    "encoder": {"n_token_types": (0, 2), "parallel_residual": (False, True), "pad_id": (0,)},
    "encoder_decoder": {
        "source_vocab_size": (None, 31),
        "n_encoder_layers": (1, 2),
        "pad_id": (0,),
        "decoder_start_id": (0, 1),
    },
}


def random_choice(architecture: str, seed: int) -> Choice:
    """Every option drawn, of those that go together."""
    draw = random.Random(seed)
    drawn = {option: draw.choice(values) for option, values in (OPTIONS | OPTIONS_OF[architecture]).items()}
    if drawn.get("parallel_residual"):
        drawn["norm_position"] = "pre"
    return drawn | {"architecture": architecture, "relative_buckets": 8, "relative_max_distance": 12}


def make_model(choice: Choice) -> LanguageModel:
    """A model of this choice, whose weights are all large enough to matter."""
    model = build_model(ModelConfig.read(SHAPE, choice)).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def random_ids(*shape: int, vocab_size: int = VOCAB_SIZE) -> Tensor:
    return torch.randint(2, vocab_size, shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture(autouse=True)
def nothing_is_learned() -> Iterator[None]:
    with torch.no_grad():
        yield


def assert_same(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def assert_decoder_is_the_same(model: CausalLM, folder: Path) -> None:
    """Left-padded rows, one token, a full window; and in pieces through the cache, padded and greedy."""
    peer = open_onnx(folder)
    lengths = torch.tensor([BLOCK_SIZE, 1, 9])
    ids, positions = random_ids(3, BLOCK_SIZE), positions_from_lengths(lengths, BLOCK_SIZE, "left")
    whole = model(ids, positions=positions)
    assert_same(peer.logits(ids, lengths), whole)  # padding too: what sees nothing yields zeros here and there
    assert_same(peer.logits(ids[:1, :1], lengths[1:2]), model(ids[:1, :1]))

    session, text = running.Session(folder / "model.onnx"), random_ids(1, 3)
    past, mask = session.without_past(3), (positions >= 0).long().numpy()
    pieces = []
    for start, stop in ((0, 15), (15, 20), (20, 21), (21, BLOCK_SIZE)):
        outputs = session.run(input_ids=ids[:, start:stop].numpy(), attention_mask=mask[:, :stop], **past)
        past = running.as_past(outputs)
        pieces.append(torch.from_numpy(outputs["logits"]))
    assert_same(torch.cat(pieces, dim=1), whole)

    for _ in range(BLOCK_SIZE - 3):
        text = torch.cat((text, model(text)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(peer.greedy(text[:, :3], BLOCK_SIZE - 3), text)


def assert_encoder_is_the_same(model: EncoderLM, folder: Path) -> None:
    peer, lengths, ids = open_onnx(folder), torch.tensor([BLOCK_SIZE, 1, 9]), random_ids(3, BLOCK_SIZE)
    assert_same(peer.logits(ids, lengths), model(ids, positions=positions_from_lengths(lengths, BLOCK_SIZE)))
    assert_same(peer.logits(ids[:1, :1], lengths[1:2]), model(ids[:1, :1]))

    left = positions_from_lengths(lengths, BLOCK_SIZE, "left")
    inputs, kinds = {"input_ids": ids.numpy(), "attention_mask": (left >= 0).long().numpy()}, None
    if model.config.n_token_types:
        kinds = ids % model.config.n_token_types
        inputs["token_type_ids"] = kinds.numpy()
    logits = running.Session(folder / "model.onnx").run(**inputs)["logits"]
    assert_same(torch.from_numpy(logits), model(ids, positions=left, token_type_ids=kinds))


def assert_translator_is_the_same(model: EncoderDecoder, folder: Path) -> None:
    peer, lengths = open_onnx(folder), torch.tensor([BLOCK_SIZE, 1, 9])
    source, target = random_ids(3, BLOCK_SIZE), random_ids(3, 17)
    places = torch.arange(17).expand(3, -1)
    expected = model(
        source, target, source_positions=positions_from_lengths(lengths, BLOCK_SIZE), target_positions=places
    )
    assert_same(peer.logits(source, lengths, target), expected)
    assert_same(peer.logits(source[1:2, :1], lengths[1:2], target[1:2, :1]), expected[1:2, :1])
    start = model.config.decoder_start_id
    text = torch.tensor([[END if start is None else start]])
    for _ in range(BLOCK_SIZE - 1):
        text = torch.cat((text, model(source[2:, :9], text)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(peer.greedy(source[2:, :9], BLOCK_SIZE - 1), text)


SAME = {
    "decoder": assert_decoder_is_the_same,
    "bigram": assert_decoder_is_the_same,
    "encoder": assert_encoder_is_the_same,
    "encoder_decoder": assert_translator_is_the_same,
}


def assert_files_are_the_model(choice: Choice, folder: Path) -> None:
    model = make_model(choice)
    save_onnx(folder, model, SpecialTokens(end=END))
    compare: Any = SAME[model.config.architecture]
    compare(model, folder)


@pytest.mark.parametrize(
    "choice",
    [DECODERS[0], *(pytest.param(choice, marks=pytest.mark.campaign) for choice in (*DECODERS[1:], TRANSLATOR))],
    ids=lambda choice: choice.get("architecture", "decoder"),
)
def test_onnxruntime_computes_the_model(choice: Choice, tmp_path: Path) -> None:
    assert_files_are_the_model(choice, tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("architecture", ["decoder", "encoder", "encoder_decoder"])
def test_every_option_is_in_the_graph(architecture: str, seed: int, tmp_path: Path) -> None:
    assert_files_are_the_model(random_choice(architecture, seed), tmp_path)


def test_an_encoder_is_computed_left_as_it_was_and_nothing_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model(ENCODER | {"dropout": 0.5}).double().train()
    levels = [logging.getLogger(name).level for name in saving.TALKERS]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert [path.name for path in save_onnx(tmp_path, model)] == ["model.onnx"]
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno >= logging.INFO]
    assert levels == [logging.getLogger(name).level for name in saving.TALKERS]

    graph = onnx.load(tmp_path / "model.onnx").graph
    stored = [torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer]
    for name, weight in before.items():  # a tied one is stored once, too
        copies = [tensor for tensor in stored if torch.equal(tensor, weight.to(tensor.dtype))]
        assert len(copies) == 1, name
    assert sum(map(torch.numel, stored)) < sum(map(torch.numel, before.values())) + 100

    written = (tmp_path / "model.onnx").read_bytes()
    for directory in (Path(clearhead.__file__).parent, Path(torch.__file__).parent, Path(__file__).parent):
        assert str(directory).encode() not in written
    plain = model.float().eval()  # in float32, and without dropout
    assert isinstance(plain, EncoderLM)
    assert_encoder_is_the_same(plain, tmp_path)


def test_weights_of_two_gigabytes_have_their_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "MAX_BYTES", 0)
    model = BigramLM(ModelConfig(architecture="bigram", vocab_size=300), seed=3)
    assert [path.name for path in save_onnx(tmp_path, model)] == ["model.onnx.data", "model.onnx"]
    assert (tmp_path / "model.onnx.data").stat().st_size >= 4 * 300**2
    ids = random_ids(2, 5)
    assert_same(open_onnx(tmp_path).logits(ids, torch.tensor([5, 2])), model(ids))


def test_without_the_packages_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name.startswith("onnx") else find_spec(name))
    with pytest.raises(UsageError, match=r"needs onnx and onnxscript; .* pip install 'clearhead\[onnx\]'"):
        save_onnx(tmp_path, make_model({"architecture": "bigram"}))
    with pytest.raises(UsageError, match=r"needs onnxruntime; .* pip install 'clearhead\[onnx\]'"):
        open_onnx(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_or_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"not a model")
    with pytest.raises(ClearheadError, match=r"cannot be written to .*file"):
        save_onnx(tmp_path / "file", make_model({"architecture": "bigram"}))
    with pytest.raises(DataError, match=r"model.onnx cannot be read by onnxruntime"):
        open_onnx(tmp_path)
    (tmp_path / "file").rename(tmp_path / "model.onnx")
    with pytest.raises(DataError, match=r"model.onnx cannot be read by onnxruntime"):
        open_onnx(tmp_path)
