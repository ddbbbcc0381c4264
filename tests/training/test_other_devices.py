"""What a GPU does, seen without one: on the "meta" device, as there, nothing is taken that is for a processor only.

No number exists on it, so a step that asked for one, for which a GPU would have to be waited for, would fail.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clearhead.config import RunConfig
from clearhead.config.presets import DEFAULTS, PRESETS
from clearhead.models import LanguageModel, build_model
from clearhead.training import Processes, build_optimizer
from clearhead.training.loop import clip_gradient
from clearhead.training.loss import backward, make_loss_fn
from clearhead.training.muon import Muon
from clearhead.training.train_step import to_device

ELSEWHERE = torch.device("meta")
NEXT_TOKEN = [*(name for _, name in DEFAULTS["causal"]), "ngram-tables", "nanogpt-baby", "llama"]


class OnTheProcessor(TorchDispatchMode):
    """Notes every operation that takes or makes a tensor there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        touched = tree_leaves((args, kwargs, output))
        if any(isinstance(leaf, Tensor) and leaf.device.type == "cpu" for leaf in touched):
            self.operations.append(str(function))
        return output


def model_and_config(name: str) -> tuple[LanguageModel, RunConfig]:
    options = {"model": {"n_layers": 2, "vocab_size": 65}}
    config = RunConfig.read(PRESETS[name].options, options)
    return build_model(config.model).to(ELSEWHERE).train(), config


def ids_elsewhere() -> Tensor:
    return torch.zeros(4, 16, dtype=torch.int64, device=ELSEWHERE)


@pytest.mark.parametrize("name", NEXT_TOKEN)
def test_a_step_is_queued_without_waiting(name: str) -> None:
    """Forward, loss, backward, clipping and the optimizers ask for no number."""
    model, config = model_and_config(name)
    optimizer = build_optimizer(model, config.train)
    ids = ids_elsewhere()
    with OnTheProcessor() as on_cpu:
        loss = backward(make_loss_fn(model), (ids, ids), tokens=64, parts=2)
        loss_and_norm = clip_gradient(model, config.train.max_grad_norm, loss, Processes())
    assert not on_cpu.operations, "a CUDA graph cannot hold what is on the processor"
    optimizer.step(0.01)
    assert loss_and_norm.device == ELSEWHERE
    with pytest.raises(NotImplementedError, match="meta"):
        loss_and_norm.tolist()  # the one thing that the loop asks for, once a step


@pytest.mark.parametrize("name", NEXT_TOKEN)
def test_attention_is_what_the_flash_kernel_can_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No matrix of scores, no mask but "causal", and in bfloat16 all of query, key and value."""
    fused, calls = F.scaled_dot_product_attention, list[tuple[set[torch.dtype], Any, bool]]()

    def watched(
        query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Any, is_causal: bool, **options: Any
    ) -> Tensor:
        calls.append(({part.dtype for part in (query, key, value)}, attn_mask, is_causal))
        return fused(query, key, value, attn_mask=attn_mask, is_causal=is_causal, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    model, config = model_and_config(name)
    model.bfloat16()(ids_elsewhere())
    assert calls == [({torch.bfloat16}, None, True)] * config.model.n_layers


def test_a_gpus_copies_are_made_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """From pinned memory; what is on the device already stays."""
    calls: list[tuple[str, Any]] = []

    class Watched:
        device = torch.device("cpu")

        def pin_memory(self) -> "Watched":
            calls.append(("pin", None))
            return self

        def to(self, device: torch.device, **options: Any) -> "Watched":
            calls.append(("to", (device.type, options)))
            return self

    to_device(Watched(), torch.device("cuda"))  # type: ignore[arg-type]
    assert calls == [("pin", None), ("to", ("cuda", {"non_blocking": True}))]
    tensor = torch.ones(2)
    assert to_device(tensor, torch.device("cpu")) is tensor


def test_muon_moves_matrices_of_one_shape_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many blocks there are, as few products: a GPU is fed by one thread."""
    products: list[int] = []
    together = torch.baddbmm

    def watched(*args: Any, **options: Any) -> Tensor:
        products.append(1)
        return together(*args, **options)

    monkeypatch.setattr(torch, "baddbmm", watched)
    counts = []
    for n_layers in (1, 4):
        config = RunConfig.read(PRESETS["small"].options, {"model": {"n_layers": n_layers, "vocab_size": 65}})
        model = build_model(config.model)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        products.clear()
        build_optimizer(model, config.train).step(0.01)
        counts.append(len(products))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("able", [False, True])
def test_muon_multiplies_in_bfloat16_where_the_hardware_does(able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.training.optimizers.has_bfloat16", lambda _: able)
    config = RunConfig.read(PRESETS["small"].options, {"model": {"n_layers": 1, "vocab_size": 65}})
    built = build_optimizer(build_model(config.model), config.train)
    (muon,) = (member for member in getattr(built, "members", ()) if isinstance(member, Muon))
    assert muon.precision == (torch.bfloat16 if able else torch.float32)
