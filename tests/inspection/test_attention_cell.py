"""One weight of one head, written out: the numbers of a cell are those of the whole map."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.errors import UsageError
from clearhead.inspection import attention_cell, attention_sites, record, without_heads
from clearhead.inspection.capture.intervention import intervene
from clearhead.models import LanguageModel, build_model

SHAPE = {"vocab_size": 17, "block_size": 12, "n_layers": 2, "n_heads": 4, "d_model": 16, "d_ff": 24}
CONFIGS: dict[str, dict[str, object]] = {
    "rotary and groups": {"positions": "rope", "n_kv_heads": 2},
    "bias of positions": {"positions": "alibi"},
    "soft cap and norms": {"attention_softcap": 2.0, "qk_norm": True},
    "window": {"sliding_window": 3, "scale_attention": False},
    "translator": {"architecture": "encoder_decoder", "pad_id": 0},
}


def model_and_inputs(name: str) -> tuple[LanguageModel, Sequence[Tensor]]:
    config = ModelConfig.read(SHAPE, CONFIGS[name])
    ids = torch.arange(1, 8)[None]
    return build_model(config, seed=1), (ids + 2, ids) if name == "translator" else (ids,)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_cell_is_what_the_map_has(name: str) -> None:
    model, inputs = model_and_inputs(name)
    with torch.no_grad(), record(model) as trace:
        model.body(*inputs)
    for site in attention_sites(model):
        weights = trace.tensor(f"{site.name}.attention")[0]
        for query, key in ((0, 0), (3, 1), (5, 5), (2, 6)):
            cell = attention_cell(model, inputs, site.kind, site.layer, 3, query, key)
            product = sum(a * b for a, b in zip(cell.q, cell.k, strict=True))
            assert cell.product == pytest.approx(product, abs=1e-6)
            assert cell.weight == pytest.approx(float(weights[3, query, key]), abs=1e-6)
            if cell.score is None or cell.log_total is None:
                assert cell.weight == 0
                continue
            scaled = product * cell.scale
            capped = scaled if cell.softcap is None else cell.softcap * math.tanh(scaled / cell.softcap)
            assert capped + cell.bias == pytest.approx(cell.score, abs=1e-5)
            assert math.exp(cell.score - cell.log_total) == pytest.approx(cell.weight, abs=1e-6)
            if name != "bias of positions":
                assert abs(cell.bias) < 1e-5


@pytest.mark.parametrize("change", [{"layer": 2}, {"head": 4}, {"query": 7}, {"key": -1}, {"of": "cross"}])
def test_what_is_not_there_is_refused(change: dict[str, object]) -> None:
    model, inputs = model_and_inputs("window")
    cell_at: dict[str, object] = {"of": "self", "layer": 0, "head": 0, "query": 0, "key": 0}
    with pytest.raises(UsageError):
        attention_cell(model, inputs, **{**cell_at, **change})  # type: ignore[arg-type]


def test_heads_together_are_each_without() -> None:
    model, inputs = model_and_inputs("rotary and groups")
    heads = [("self", 0, 1), ("self", 0, 3), ("self", 1, 2)]
    with torch.no_grad(), record(model, "*.mixed") as trace, intervene(model, without_heads(model, heads)):  # type: ignore[arg-type]
        model.body(*inputs)
    silent = {
        (layer, head)
        for layer, site in enumerate(attention_sites(model))
        for head in range(4)
        if not trace.tensor(f"{site.name}.mixed")[0, head].any()
    }
    assert silent == {(layer, head) for _, layer, head in heads}
    with pytest.raises(UsageError, match="no head 4"):
        without_heads(model, [("self", 0, 4)])
