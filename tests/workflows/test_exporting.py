"""Exports end with a certificate; a peer that computes anything else does not get one."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from pair_helpers import tiny_translator, write_pairs
from torch import Tensor
from workflow_helpers import some_text, tiny, trained

from clearhead.config import ModelConfig
from clearhead.data import Tokenizer
from clearhead.errors import ClearheadError, UsageError
from clearhead.interop import OwnPeer, load_file
from clearhead.interop.hf.weights import to_foreign
from clearhead.models import DecoderLM, build_model
from clearhead.options import merge
from clearhead.workflows import Run, exporting, generate, train
from clearhead.workflows import export as export_run
from clearhead.workflows.certificate import Certificate, PeerComparison

TOKENIZER = Tokenizer.characters(some_text(900), end=True, pad=True, mask=True)
SIZE = TOKENIZER.vocab_size
DECODER = ModelConfig(vocab_size=SIZE, block_size=40, n_layers=1, n_heads=2, d_model=16, positions="rope")
ARCHITECTURES = [
    DECODER,
    DECODER.model_copy(update={"positions": "learned", "block_size": 8}),
    ModelConfig(architecture="bigram", vocab_size=SIZE, block_size=20),
    DECODER.model_copy(update={"architecture": "encoder", "pad_id": TOKENIZER.pad}),
    DECODER.model_copy(update={"architecture": "encoder_decoder", "n_encoder_layers": 1, "pad_id": TOKENIZER.pad}),
]


def random_peer(config: ModelConfig, seed: int = 0) -> OwnPeer:
    model = build_model(config, seed=seed).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return OwnPeer(model, start=TOKENIZER.end_of_document or 0)


class Reading(OwnPeer):
    """Another program, which is ours in disguise, with a tokenizer."""

    def __init__(self, own: OwnPeer) -> None:
        self.__dict__ |= own.__dict__
        self.name = "disguise 1.0"

    def tokenize(self, text: str) -> list[int] | None:
        return list(map(int, TOKENIZER.encode(text)))


def certificate(config: ModelConfig, peer: OwnPeer) -> Certificate:
    start = TOKENIZER.end_of_document or 0
    return PeerComparison(random_peer(config), peer, config, TOKENIZER, start).certificate("hf")


@pytest.mark.parametrize("config", ARCHITECTURES, ids=lambda config: f"{config.architecture}-{config.positions}")
def test_one_that_computes_the_same_gets_one(config: ModelConfig) -> None:
    result = certificate(config, Reading(random_peer(config)))
    assert result.passed
    assert set(result.differences.values()) == {0.0}
    kinds = " ".join(result.differences)
    for kind in ("random batch", "one token", "full window", "padded on the "):
        assert kind in kinds
    assert result.tokenizer_equal
    assert result.tokenizer_characters > 1000
    if config.architecture == "encoder":
        assert (result.greedy_tokens, result.greedy_equal) == (0, None)
    else:
        assert result.greedy_equal
        prompt = 1 if config.architecture == "encoder_decoder" else min(8, config.block_size // 4)
        assert result.greedy_tokens == config.block_size - prompt


class Elsewhere(Reading):
    """A fault that a person might make, in one of the answers."""

    fault: Callable[[Tensor, Tensor], Tensor] = staticmethod(lambda logits, lengths: logits)

    def logits(self, ids: Tensor, lengths: Tensor, target: Tensor | None = None) -> Tensor:
        return type(self).fault(super().logits(ids, lengths, target), lengths)


def of_padded_rows(logits: Tensor, lengths: Tensor) -> Tensor:
    return logits + 0.01 if len(set(lengths.tolist())) > 1 else logits


def of_the_last_place(logits: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat((logits[:, :-1], logits[:, -1:] + 0.01), dim=1)


def of_long_texts(logits: Tensor, lengths: Tensor) -> Tensor:
    return logits + 0.01 * (torch.arange(logits.shape[1]) >= 39)[:, None]


def of_single_tokens(logits: Tensor, lengths: Tensor) -> Tensor:
    return logits + 0.01 if logits.shape[1] == 1 else logits


def not_a_number(logits: Tensor, lengths: Tensor) -> Tensor:
    return torch.full_like(logits, torch.nan)


FAULTS = [of_padded_rows, of_the_last_place, of_long_texts, of_single_tokens, not_a_number]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_difference_of_logits_is_seen(fault: Callable[[Tensor, Tensor], Tensor]) -> None:
    peer = type("Wrong", (Elsewhere,), {"fault": staticmethod(fault)})
    result = certificate(DECODER, peer(random_peer(DECODER)))
    assert not result.passed
    wrong = [kind for kind, difference in result.differences.items() if not difference <= result.tolerance]
    assert wrong
    assert fault is not of_padded_rows or wrong == ["batch padded on the left"]
    assert fault is not of_single_tokens or wrong == ["one token"]


def test_what_is_computed_of_padding_means_nothing() -> None:
    def of_padding(logits: Tensor, lengths: Tensor) -> Tensor:
        width = logits.shape[1]
        return logits + 9 * (torch.arange(width) < width - lengths[:, None])[..., None]

    peer = type("Wrong", (Elsewhere,), {"fault": staticmethod(of_padding)})
    assert certificate(DECODER, peer(random_peer(DECODER))).passed


def test_a_difference_of_greedy_text_is_seen() -> None:
    class Forgetful(Reading):
        """Its cache loses what was before."""

        def greedy(self, ids: Tensor, n: int) -> Tensor:
            text = super().greedy(ids, n).clone()
            text[0, ids.shape[1] + 5 :] = (text[0, ids.shape[1] + 5 :] + 1) % SIZE
            return text

    result = certificate(DECODER, Forgetful(random_peer(DECODER)))
    assert (result.passed, result.greedy_equal, result.greedy_tokens) == (False, False, 5)
    assert set(result.differences.values()) == {0.0}


def test_a_text_that_ends_early_is_seen() -> None:
    class Short(Reading):
        def greedy(self, ids: Tensor, n: int) -> Tensor:
            return super().greedy(ids, n)[:, :-1]

    assert certificate(DECODER, Short(random_peer(DECODER))).greedy_equal is False


def test_two_tokens_that_are_equally_likely_are_no_difference() -> None:
    """Rounding decides between them, and may decide otherwise elsewhere."""
    ours = random_peer(DECODER)
    model, twin = ours._model, SIZE - 1
    assert isinstance(model, DecoderLM)
    texts: list[Tensor] = []

    class Otherwise(Reading):
        def greedy(self, ids: Tensor, n: int) -> Tensor:
            text = super().greedy(ids, n)
            texts.append(text)
            new = text[:, ids.shape[1] :]
            return torch.cat((ids, new.where(new != texts[0][0, -1], twin)), dim=1)

    comparison = PeerComparison(ours, Otherwise(ours), DECODER, TOKENIZER, 0)
    assert not comparison.certificate("hf").passed
    assert twin not in texts[0]
    with torch.no_grad():
        model.embedding.weight[twin] = model.embedding.weight[texts[0][0, -1]]
    result = comparison.certificate("hf")
    assert (result.passed, result.greedy_equal) == (True, True)
    assert result.greedy_tokens < 32


def test_a_difference_of_token_ids_is_seen() -> None:
    class Other(Reading):
        def tokenize(self, text: str) -> list[int] | None:
            return list(map(int, TOKENIZER.encode(text.replace("  ", " "))))

    result = certificate(DECODER, Other(random_peer(DECODER)))
    assert (result.passed, result.tokenizer_equal) == (False, False)
    nothing = certificate(DECODER, random_peer(DECODER))
    assert (nothing.passed, nothing.tokenizer_equal, nothing.tokenizer_characters) == (True, None, 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The default preset, tiny; no test changes it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "my.txt").write_text(some_text(900), encoding="utf-8")
    return train(folder / "my.txt", out=folder / "run", options=merge(tiny(), {"model": {"block_size": 32}}))


def test_for_transformers(run: Run) -> None:
    pytest.importorskip("transformers")
    done = export_run(run, "hf", "out")
    assert done.path == Path("out")
    assert done.certificate.peer.startswith("transformers ")
    assert max(done.certificate.differences.values()) < 1e-4
    assert done.certificate.tokenizer_equal
    assert json.loads(Path("out/certificate.json").read_text(encoding="utf-8")) == asdict(done.certificate)
    names = ["certificate.json", "config.json", "generation_config.json", "model.safetensors"]
    assert sorted(path.name for path in Path("out").iterdir()) == [*names, "tokenizer.json", "tokenizer_config.json"]


def test_a_translator_for_transformers() -> None:
    pytest.importorskip("transformers")
    needs = {"positions": "sinusoidal", "bias": True, "scale_embedding": True, "dropout": 0.0}
    translator = train(write_pairs(), out="run", options=tiny_translator(model=needs))
    result = export_run(translator, "hf", "out").certificate
    assert result.greedy_tokens == 31
    assert result.tokenizer_equal


@pytest.mark.parametrize("out", ["folder", "file.safetensors", "below/file.safetensors"])
def test_one_file_of_our_own_names(out: str, run: Run) -> None:
    done = export_run(run, "safetensors", out)
    where = Path(out) if out.endswith(".safetensors") else Path(out, "model.safetensors")
    assert done.path == where
    assert done.certificate_path == where.with_name("certificate.json" if out == "folder" else "file.certificate.json")
    assert json.loads(done.certificate_path.read_text(encoding="utf-8"))["passed"]
    back, state = load_file(where), run.model().state_dict()
    assert back.config == run.config.model
    assert all(torch.equal(back.state_dict()[name], tensor) for name, tensor in state.items())


def test_for_readers_of_gguf() -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    done = export_run(trained("run", {"model": {"head_dim": 128}}), "gguf", "my.gguf")
    assert done.certificate.tokenizer_equal
    assert done.certificate_path == Path("my.certificate.json")


def test_a_layout_that_the_reader_of_gguf_cannot_read_is_told_with_one_that_it_can(run: Run) -> None:
    """Its file is there for llama.cpp, compared; no certificate passes for what only a patched reader would open."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    done = export_run(run, "gguf", "my.gguf")
    assert Path("my.gguf").is_file()
    certificate = json.loads(Path("my.certificate.json").read_text(encoding="utf-8"))
    assert certificate["passed"] is False
    assert "model.head_dim = 128" in certificate["reason"]
    assert "preset llama" in certificate["reason"]
    assert certificate["unread"] == {"head_dim": run.config.model.head_dim}
    assert max(certificate["differences"].values()) < certificate["tolerance"]
    assert (certificate["greedy_equal"], certificate["tokenizer_equal"]) == (True, True)
    assert done.certificate.unread == certificate["unread"]


def test_a_wrong_file_is_an_error_in_spite_of_what_the_reader_skips(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    from clearhead.interop.gguf import saving

    monkeypatch.setattr(saving, "to_foreign", lambda link, state: 1.01 * to_foreign(link, state))
    with pytest.raises(ClearheadError, match=r"my\.gguf is written, but .* does not compute what .*; see"):
        export_run(run, "gguf", "my.gguf")
    assert json.loads(Path("my.certificate.json").read_text(encoding="utf-8"))["unread"] == {}


def test_one_that_fails_is_an_error_that_is_written_down(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = type("Wrong", (Elsewhere,), {"fault": staticmethod(not_a_number)})
    format = exporting.FORMATS["safetensors"]._replace(open=lambda path, content: wrong(OwnPeer(content.model)))
    monkeypatch.setitem(exporting.FORMATS, "safetensors", format)
    with pytest.raises(ClearheadError, match=r"disguise 1\.0 does not compute what .*; see out/certificate\.json") as e:
        export_run(run, "safetensors", "out")
    assert e.value.exit_code == 1
    saved = json.loads(Path("out/certificate.json").read_text(encoding="utf-8"))
    assert saved["passed"] is False
    assert set(saved["differences"].values()) == {None}, "JSON has no NaN"


def test_what_has_no_equal_says_what_stands_in_the_way() -> None:
    odd = trained("run", {"model": {"positions": "alibi", "norm_position": "post", "qk_norm": False}})
    for to in ("hf", "gguf"):
        with pytest.raises(UsageError, match="positions = 'alibi'"):
            export_run(odd, to, "out")
        assert not Path("out").exists()
    assert export_run(odd, "safetensors", "out").certificate.passed


@pytest.mark.parametrize("there", ["file", "folder", "a.safetensors"])
def test_nothing_is_written_over(there: str, run: Run) -> None:
    if there == "folder":
        Path(there).mkdir()
        Path(there, "mine").touch()
    else:
        Path(there).write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=f"there is something in {there} already"):
        export_run(run, "safetensors", there)
    Path("empty").mkdir()
    assert export_run(run, "safetensors", "empty")


def test_a_format_misspelt_is_guessed(run: Run) -> None:
    with pytest.raises(UsageError, match="no format 'onx'; did you mean 'onnx'"):
        export_run(run, "onx", "out")


ALONE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "clearhead":
            raise ImportError("this program must do without")
sys.meta_path.insert(0, Blocked())
import json, numpy, onnxruntime, torch, transformers
run, onnx, prompt, n = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
tokenizer = transformers.AutoTokenizer.from_pretrained(run)
model = transformers.AutoModelForCausalLM.from_pretrained(run)
ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
found = model.generate(ids, max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0)
texts = [tokenizer.decode(found[0])]
session = onnxruntime.InferenceSession(onnx + "/model.onnx")
outputs = [value.name for value in session.get_outputs()]
past = {i.name: numpy.zeros((1, i.shape[1], 0, i.shape[3]), numpy.float32)
        for i in session.get_inputs() if i.name.startswith("past_key_values")}
text = new = ids.numpy()
for _ in range(n):
    out = dict(zip(outputs, session.run(None, {"input_ids": new, "attention_mask": numpy.ones_like(text), **past})))
    new = out.pop("logits")[:, -1:].argmax(-1)
    past = {name.replace("present", "past_key_values"): value for name, value in out.items()}
    text = numpy.concatenate((text, new), 1)
texts.append(tokenizer.decode(text[0]))
print(json.dumps(texts))
"""


@pytest.mark.campaign
def test_plain_programs_write_the_same_text_without_this_library(run: Run) -> None:
    """The run itself by plain transformers, its export by plain onnxruntime, where `clearhead` cannot be imported."""
    for package in ("transformers", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    result = export_run(run, "onnx", "out").certificate
    assert result.peer.startswith("onnxruntime ")
    assert result.greedy_tokens == 24
    ours = generate(run, "the king", max_new_tokens=20, greedy=True)
    command = [sys.executable, "-I", "-c", ALONE, str(run.folder), "out", "the king", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [ours, ours]
