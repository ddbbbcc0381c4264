"""GGUF files: transformers' reader of them, as it is, computes what the model computes and cuts texts as it does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from family_models import END, random_config, random_ids, random_model

from clearhead.config import ModelConfig
from clearhead.config.presets import DEFAULTS, preset
from clearhead.data import Tokenizer
from clearhead.errors import ClearheadError, DataError, UsageError
from clearhead.interop import FAMILIES, CannotOpenError, SpecialTokens, extras
from clearhead.interop.gguf import open_gguf, reader_advice, save_gguf, saving
from clearhead.interop.gguf.layouts import LAYOUTS, layout_of
from clearhead.interop.peer import Peer
from clearhead.models import LanguageModel, build_model
from clearhead.parts import positions_from_lengths

gguf = pytest.importorskip("gguf", reason="needs the extra: pip install 'clearhead[gguf]'")
pytest.importorskip("accelerate", reason="needs the extra: pip install 'clearhead[gguf]'")

TEXT = "It's 12 o'clock, the 3rd of May;\n\n  KATE: why,\twho'd have thought it?   They're all here.\r\n"
ABROAD = TEXT + "Größe: 5 µm, 漢字 🙂 <|endoftext|> [MASK]"
HELD = [name for name in LAYOUTS if name in FAMILIES]


def config_of(family: str, seed: int) -> ModelConfig:
    """A random model that GGUF holds and transformers reads, with room for a tokenizer of bytes."""
    layout = LAYOUTS[family]
    config = ModelConfig.read(random_config(family, seed).model_dump(), layout.needs, {"vocab_size": 300})
    return config.model_copy(update={option: value(config) for option, value in layout.assumed.items()})


def character_tokenizer(folder: Path, alphabet: str = TEXT) -> Path:
    Tokenizer.characters(alphabet, end=True, pad=True).save(folder)
    return folder / "tokenizer.json"


def byte_pair_tokenizer(folder: Path) -> Path:
    Tokenizer.train_bpe(iter([TEXT * 3, ABROAD * 2]), 290, end=True, mask=True).save(folder)
    return folder / "tokenizer.json"


def written(folder: Path, model: LanguageModel) -> Peer:
    path = folder / "model.gguf"
    assert save_gguf(path, model, byte_pair_tokenizer(folder), SpecialTokens(end=END)) == [path]
    return open_gguf(path)


def difference(peer: Peer, model: LanguageModel) -> float:
    """The largest, over left-padded rows of which one is a single token."""
    lengths, ids = torch.tensor([30, 1, 11]), random_ids(model.config, 3, 30)
    positions = positions_from_lengths(lengths, 30, "left")
    with torch.no_grad():
        logits, expected = peer.logits(ids, lengths), model(ids, positions=positions)
    return float((logits - expected)[positions >= 0].abs().max())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", HELD)
def test_logits_and_greedy_text_are_the_models(family: str, seed: int, tmp_path: Path) -> None:
    model = random_model(config_of(family, seed), seed)
    assert layout_of(model.config) == (FAMILIES[family], LAYOUTS[family])
    assert reader_advice(model.config) == ""
    peer = written(tmp_path, model)
    assert difference(peer, model) < 1e-4
    text = random_ids(model.config, 1, 5)
    expected = text
    with torch.no_grad():
        for _ in range(25):
            expected = torch.cat((expected, model(expected)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(peer.greedy(text, 25), expected)


UNREAD = [(family, option) for family in HELD for option in LAYOUTS[family].assumed]


@pytest.mark.parametrize(("family", "option"), UNREAD)
def test_what_the_reader_does_not_read_is_named_and_is_really_not_read(
    family: str, option: str, tmp_path: Path
) -> None:
    config = config_of(family, 0)
    config = config.model_copy(update={option: getattr(config, option) // 2})
    advice = reader_advice(config)
    assert f"assumes {option} = {2 * getattr(config, option)}" in advice
    assert "or with the preset llama" in advice
    with pytest.raises(CannotOpenError, match=r"^transformers .* cannot open .*model\.gguf: [^\n]+$"):
        written(tmp_path, random_model(config, 0))


def test_pairs_that_are_not_made_neighbors_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "as_neighbors", lambda rows, width: rows)
    model = random_model(config_of("llama", 0), 0)
    assert difference(written(tmp_path, model), model) > 1e-2


@pytest.mark.parametrize(("make", "text"), [(byte_pair_tokenizer, ABROAD), (character_tokenizer, TEXT)])
def test_texts_are_cut_as_the_tokenizer_cuts_them(make: Any, text: str, tmp_path: Path) -> None:
    tokenizer = make(tmp_path)
    own = Tokenizer.load(tokenizer)
    model = build_model(config_of("llama", 0))  # has more tokens than the tokenizer
    save_gguf(tmp_path / "model.gguf", model, tokenizer, SpecialTokens(end=own.end_of_document, pad=own.pad))
    peer = open_gguf(tmp_path / "model.gguf")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    held, kinds = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type"))
    assert [kinds[i] for i in (own.end_of_document, own.encode("K")[0], 299)] == [3, 1, 5]  # control, normal, unused
    assert len(held) == 300
    assert [held[own.encode(byte)[0]] for byte in (" ", "\n", "K")] == ["Ġ", "Ċ", "K"]  # as other readers need them
    for sample in (text, text.lower()[::-1], " ", "\n\n\n", ""):
        if make is byte_pair_tokenizer or set(sample) <= set(TEXT):
            assert peer.tokenize(sample) == own.encode(sample).tolist()


def test_nothing_is_said_and_nothing_is_left(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, build_model(config_of("llama", 1)))
    assert capfd.readouterr() == ("", "")
    assert {path.name for path in tmp_path.iterdir()} == {"model.gguf", "tokenizer.json", "tokenizer_config.json"}
    model = build_model(config_of("llama", 1))
    with pytest.raises(ClearheadError, match=r"cannot be written to .*tokenizer.json"):
        save_gguf(tmp_path / "tokenizer.json" / "model.gguf", model, tmp_path / "tokenizer.json")
    (tmp_path / "model.gguf").write_bytes(b"GGUF?")
    with pytest.raises(ClearheadError, match=r"transformers .* cannot open .*model.gguf"):
        open_gguf(tmp_path / "model.gguf")


LLAMA: dict[str, Any] = {"norm": "rmsnorm", "positions": "rope", "feedforward": "swiglu"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feedforward": "relu"}, "feedforward = 'relu' (gpt2 has 'gelu_tanh')"),
        (LLAMA | {"feedforward": "relu2"}, "feedforward = 'relu2' (llama has 'swiglu')"),
        (LLAMA | {"bias": True}, "bias = true (qwen2 has false)"),
        (LLAMA | {"sliding_window": 8}, "sliding_window = 8 (llama has none)"),
        (LLAMA | {"logit_ngrams": 3}, "logit_ngrams = 3 (llama has 1)"),
        ({"architecture": "bigram"}, "architecture = 'bigram'"),
    ],
)
def test_the_option_that_stands_in_the_way_is_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        save_gguf(tmp_path / "model.gguf", build_model(ModelConfig.read(options)), tmp_path / "tokenizer.json")
    assert message in str(refusal.value)
    assert "export it to onnx or hf" in str(refusal.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for _, name in DEFAULTS["causal"]])
def test_the_defaults_of_training_are_held(name: str) -> None:
    assert layout_of(ModelConfig.read(preset(name).model))[0].name == "qwen3"


def test_a_tokenizer_that_cuts_otherwise_is_refused(tmp_path: Path) -> None:
    model = build_model(config_of("llama", 0))
    beyond = character_tokenizer(tmp_path, "aé")
    with pytest.raises(UsageError, match=r"characters of ASCII; train with `options=\{'data.tokenizer': 'bpe'\}`"):
        save_gguf(tmp_path / "model.gguf", model, beyond)
    path = byte_pair_tokenizer(tmp_path)
    state = json.loads(path.read_text(encoding="utf-8"))
    for changed in ({"normalizer": {"type": "NFC"}}, {"pre_tokenizer": None}, {"model": {"type": "Unigram"}}):
        path.write_text(json.dumps(state | changed), encoding="utf-8")
        with pytest.raises(UsageError, match=r"neither a byte-level BPE that splits texts like GPT-2's"):
            save_gguf(tmp_path / "model.gguf", model, path)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"cannot be read as a tokenizer.json"):
        save_gguf(tmp_path / "model.gguf", model, path)


def test_without_the_packages_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs gguf; .* pip install 'clearhead\[gguf\]'"):
        save_gguf(tmp_path / "model.gguf", build_model(config_of("llama", 0)), tmp_path / "tokenizer.json")
    with pytest.raises(UsageError, match=r"needs gguf and transformers and accelerate; .*\[gguf\]'"):
        open_gguf(tmp_path / "model.gguf")
