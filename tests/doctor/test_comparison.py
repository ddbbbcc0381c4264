"""Two models with equal weights: the first module that differs, on whatever path it does."""

import json
import re
from pathlib import Path

import pytest
import torch
from doctor_helpers import HOSTS, NAMES, made, write
from torch import Tensor, nn

from clearhead.doctor import Comparison, compare
from clearhead.errors import DataError

MASKING = '        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))\n'
Change = tuple[str, str]


def pair(folder: Path, host: str, *changes: Change) -> tuple[nn.Module, nn.Module]:
    """A host, and the same with changes and with other weights."""
    healthy, changed = made(write(folder, host)), made(write(folder, host, *changes))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    return healthy, changed


def renamed(folder: Path, host: str, names: dict[str, str], *changes: Change) -> nn.Module:
    """A host in other words."""
    code = (HOSTS / f"{host}.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert code.count(old) == 1
        code = code.replace(old, new)
    for old, new in names.items():
        code = re.sub(rf"\b{old}\b", new, code)
    path = folder / f"{host}_renamed.py"
    path.write_text(code, encoding="utf-8")
    return made(path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("host", NAMES)
def test_a_model_equals_itself_whatever_its_weights(host: str, tmp_path: Path) -> None:
    found = compare(*pair(tmp_path, host))
    assert found.equal, str(found)
    assert found.weights.first_different is not None
    assert found.weights.notes == ()
    assert str(found) == found.summary
    for path in ("the weights as they are", "noise on every weight", "train()", "rows of", "gradients"):
        assert path in found.text(verbose=True)


PLANTED = [
    ("gpt", "blocks.0.mlp", "F.gelu(self.fc1(x))", 'F.gelu(self.fc1(x), approximate="tanh")'),
    ("gpt", "blocks.0.ln1", "self.ln1 = nn.LayerNorm(D)", "self.ln1 = nn.LayerNorm(D, eps=1e-6)"),
    ("gpt", "blocks.0.attn", MASKING, ""),
    ("gpt", "blocks.0.attn", "math.sqrt(k.size(-1))", "k.size(-1)"),
    ("gpt", "blocks.0", "x = x + self.attn(self.ln1(x))", "x = self.attn(self.ln1(x))"),
    ("gpt", "", "x = self.tok(idx) + self.pos", "x = self.tok(idx) * 2 + self.pos"),
    ("gpt", "", "self.head(self.ln_f(x))", "self.head(x)"),
    ("llama", "layers.0.attention_norm", "1e-6", "1e-5"),
    ("llama", "layers.0.attention", "10000 **", "50000 **"),
    ("llama", "layers.0.attention", "k = k.repeat_interleave(H // KV, dim=1)", "k = k.repeat(1, H // KV, 1, 1)"),
    ("llama", "layers.0.ffn", "F.silu(self.gate(x)) * self.up(x)", "F.silu(self.up(x)) * self.gate(x)"),
    ("bert", "layers.0", "self.norm1(x + y)", "self.norm1(y)"),
    ("time_first", "", "self.embedding(src) * math.sqrt(D)", "self.embedding(src)"),
    ("translator", "decoder.0", "self.cross(x, memory, src_mask)", "self.cross(x, x, tgt_mask)"),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("host", "module", "old", "new"), PLANTED, ids=lambda text: text[:24])
def test_the_first_module_that_differs_is_named(host: str, module: str, old: str, new: str, tmp_path: Path) -> None:
    found = compare(*pair(tmp_path, host, (old, new)))
    assert found.first is not None
    assert found.first.what == "output"
    assert (found.first.a.module, found.first.b.module) == (module, module), str(found)
    assert "confirmed in float64" in found.first.path
    assert found.first.difference > found.first.threshold > found.first.noise_floor
    assert found.first.growth[-1].a == "logits"


def test_the_line_is_that_of_the_first_call_with_other_inputs(tmp_path: Path) -> None:
    healthy, changed = pair(
        tmp_path, "gpt", ("        x = x + self.attn(self.ln1(x))\n", "        x = self.attn(self.ln1(x))\n")
    )
    first = compare(healthy, changed).first
    assert first is not None
    assert "blocks.0.attn; then the input of blocks.0.ln2 differs" in first.agreed
    assert first.b.file is not None
    assert first.b.line is not None
    assert "self.mlp(self.ln2(x))" in Path(first.b.file).read_text(encoding="utf-8").splitlines()[first.b.line - 1]


PATHS = [
    ("llama", "attn_mask=mask", "attn_mask=None if self.training else mask", "train() without dropout", "output"),
    ("llama", ".tril(L - T)", ".tril(L - T) | (L > 20)", "rows of 37 tokens", "output"),
    ("gpt", "return self.proj(y)", "return self.proj(y.detach())", "gradients of", "gradient"),
    ("bert", "attention_mask == 0", "attention_mask > 1", "padding in front", "output"),
    ("gpt", "self.ln_f = nn.LayerNorm(D)", "self.ln_f = nn.LayerNorm(D)\n        self.ln_f.register_forward_hook("
     "lambda module, given, made: made - torch.tanh(module.bias))", "noise on every weight", "output"),
]  # fmt: skip


@pytest.mark.parametrize(("host", "old", "new", "path", "what"), PATHS, ids=lambda text: text[:24])
def test_a_difference_on_one_path_alone_is_found(
    host: str, old: str, new: str, path: str, what: str, tmp_path: Path
) -> None:
    healthy = made(write(tmp_path, host))
    found = compare(healthy, made(write(tmp_path, host, (old, new))))
    assert found.first is not None, str(found)
    assert found.first.path.startswith(path), str(found)
    assert found.first.what == what
    assert found.weights.first_different is None


OTHER_WORDS = {
    "tok": "wte", "pos": "wpe", "blocks": "h", "ln1": "norm_a", "ln2": "norm_b", "attn": "attention", "fc1": "up",
    "fc2": "down", "mlp": "ffn", "ln_f": "last_norm", "head": "lm_head", "proj": "out",
}  # fmt: skip


def test_other_names_are_matched_by_shape_and_order(tmp_path: Path) -> None:
    a, b = made(write(tmp_path, "gpt")), renamed(tmp_path, "gpt", OTHER_WORDS)
    with torch.no_grad():
        for parameter in b.parameters():
            parameter.add_(torch.rand(parameter.shape))
    found = compare(a, b)
    assert found.equal, str(found)
    assert ("blocks.1.attn.qkv.weight", "h.1.attention.qkv.weight") in found.weights.renamed
    assert "by shape and order" in found.weights.sentence


def test_other_names_of_equal_values_are_matched_by_value(tmp_path: Path) -> None:
    a = made(write(tmp_path, "gpt"))
    b = renamed(tmp_path, "gpt", OTHER_WORDS, ("F.gelu(self.fc1(x))", "F.relu(self.fc1(x))"))
    found = compare(a, b)
    assert dict(found.weights.matched)["value"] >= 14
    assert found.first is not None
    assert (found.first.a.module, found.first.b.module) == ("blocks.0.mlp", "h.0.ffn")
    assert found.first.growth[0].names == "blocks.0.mlp = h.0.ffn" or "blocks.0 = h.0" in str(found)


class Heads(nn.Module):
    """One attention, whose maps are made in an order of choice."""

    def __init__(self, order: str = "qkv", *, turned: bool = False) -> None:
        super().__init__()
        self.names = {name: name for name in order}
        self.table = nn.Embedding(20, 8)
        for name in order:
            setattr(self, name, Turned(8, 8) if turned else nn.Linear(8, 8))
        self.wide = Turned(8, 20) if turned else nn.Linear(8, 20)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids) + torch.arange(ids.shape[1])[:, None] / 10
        q, k, v = (getattr(self, self.names[role])(x) for role in "qkv")
        made: Tensor = self.wide(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return made


class Turned(nn.Module):
    def __init__(self, width: int, made: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width, made)), nn.Parameter(torch.randn(made))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def test_roles_are_read_where_shape_and_order_would_mislead() -> None:
    class Named(Heads):
        def __init__(self) -> None:
            super().__init__("kqv")
            self.wk, self.wq, self.wv = self.k, self.q, self.v
            del self.k, self.q, self.v
            self.names = {"q": "wq", "k": "wk", "v": "wv"}

        def forward(self, ids: Tensor) -> Tensor:
            self.get_submodule("wk")(self.table(ids))  # used first
            return super().forward(ids)

    found = compare(Heads(), Named())
    assert found.equal, str(found)
    assert {("q.weight", "wq.weight"), ("k.weight", "wk.weight")} <= {*found.weights.renamed}


def test_weights_that_are_stored_the_other_way_round_are_turned() -> None:
    found = compare(Heads(), Heads(turned=True))
    assert found.equal, str(found)


LOOSE = ("self.head.weight = self.tok.weight", "self.head.weight = nn.Parameter(torch.randn(V, D))")
BLOCKS = "nn.ModuleList([Block() for _ in range(LAYERS)])"
TIES = {
    "the head": ((LOOSE,), "head.weight"),
    "one layer for all": (((BLOCKS, "nn.ModuleList([Block()] * LAYERS)"),), "blocks.1."),
    "one norm for two": ((("self.ln2 = nn.LayerNorm(D)", "self.ln2 = self.ln1"),), "blocks.0.ln2.weight"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", TIES)
def test_a_tie_in_one_of_them_is_a_difference(what: str, tmp_path: Path) -> None:
    changes, name = TIES[what]
    good, other = made(write(tmp_path, "gpt")), made(write(tmp_path, "gpt", *changes))
    for a, b in ((good, other), (other, good)):
        found = compare(a, b)
        assert found.first is not None, str(found)
        assert found.first.what == "sharing"
        tied = "A" if (a is good) == (what == "the head") else "B"
        assert str(found).startswith(f"A and B differ: {tied} holds "), str(found)
        assert name in found.summary
        assert "in one tensor" in found.summary
    again = made(write(tmp_path, "gpt", *changes))
    assert compare(other, again).equal


def test_ties_of_other_weights_are_a_difference_though_there_are_as_many() -> None:
    class Three(nn.Module):
        def __init__(self, first: int, second: int) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 8)
            self.maps = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
            self.maps[second].weight = self.maps[first].weight
            self.head = nn.Linear(8, 20)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.table(ids)
            for part in self.maps:
                x = x + part(x)
            made: Tensor = self.head(x)
            return made

    found = compare(Three(0, 1), Three(1, 2), kind="causal")
    assert found.first is not None
    assert found.first.what == "sharing", str(found)


def test_weights_without_a_counterpart_are_a_sentence(tmp_path: Path) -> None:
    a, b = pair(tmp_path, "gpt", ("self.fc1 = nn.Linear(D, 4 * D)", "self.fc1 = nn.Linear(D, 4 * D, bias=False)"))
    with pytest.raises(DataError, match=r"blocks\.0\.mlp\.fc1\.bias \(96,\) of A and 2 more has no counterpart"):
        compare(a, b)
    with pytest.raises(DataError, match="reads a source"):
        compare(made(write(tmp_path, "translator")), a)


def test_time_first_equals_batch_first(tmp_path: Path) -> None:
    a = made(write(tmp_path, "time_first"))
    changes = (
        ("2, enable_nested_tensor=False", "2, enable_nested_tensor=False"),
        ("nn.TransformerEncoderLayer(D, 3, 48, 0.1)", "nn.TransformerEncoderLayer(D, 3, 48, 0.1, batch_first=True)"),
        ("generate_square_subsequent_mask(len(src))", "generate_square_subsequent_mask(src.size(1))"),
        ("self.pe[: x.size(0)]", "self.pe[: x.size(1)].transpose(0, 1)"),
    )
    assert compare(a, made(write(tmp_path, "time_first", *changes))).equal
    scaled = (*changes, ("self.embedding(src) * math.sqrt(D)", "self.embedding(src)"))
    first = compare(a, made(write(tmp_path, "time_first", *scaled))).first
    assert first is not None
    assert first.a.module == ""
    assert first.agreed.startswith("embedding; then")


def test_neither_model_is_changed(tmp_path: Path) -> None:
    models = pair(tmp_path, "gpt")
    before = [{name: tensor.clone() for name, tensor in model.state_dict().items()} for model in models]
    compare(*models)
    for model, kept in zip(models, before, strict=True):
        assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())
        assert all(module.training and not module._forward_hooks for module in model.modules())
        assert all(parameter.grad is None for parameter in model.parameters())


def test_a_comparison_goes_through_json_unchanged(tmp_path: Path) -> None:
    for found in (compare(*pair(tmp_path, "gpt")), compare(*pair(tmp_path, "gpt", (MASKING, "")))):
        told = json.loads(json.dumps(found.as_json()))
        assert set(told) == {"a", "b", "verdict", "summary", "first", "weights", "paths", "seconds"}
        assert json.loads(json.dumps(Comparison.from_json(told).as_json())) == told
        assert str(Comparison.from_json(told)).splitlines()[1:] == str(found).splitlines()[1:]


def test_as_a_person_reads_it(tmp_path: Path) -> None:
    text = str(compare(*pair(tmp_path, "gpt", (MASKING, "")), names=("mine", "theirs")))
    first, second, *_ = text.splitlines()
    assert first.startswith("mine and theirs differ: blocks.0.attn computes something else from the same input (")
    assert second.startswith("DIFFERENT  blocks.0.attn  eval()")
    assert re.search(r"in A +blocks\.0\.attn \(CausalSelfAttention\) .*gpt_\d+\.py:\d+", text)
    assert "blocks.0.attn.qkv; then the input of blocks.0.attn.proj differs" in text
    assert "blocks.1" in text
