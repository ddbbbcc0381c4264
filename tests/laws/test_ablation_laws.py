"""The loss without a part is the loss of a model whose part writes zero, or its mean, by its weights."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from law_models import CHOICES, Choice, make_model, name, random_ids
from pair_models import ENCODER_CHOICES, PAD, PAIR_CHOICES, make_encoder, make_translator, padded, some_ids
from torch import Tensor

from clearhead.data import IGNORED
from clearhead.errors import DataError, UsageError
from clearhead.inference import evaluate
from clearhead.inspection import (
    ablate,
    at_heads,
    at_positions,
    attention_sites,
    intervene,
    mean_activations,
    record,
    without_head,
)
from clearhead.inspection.heads.ablation import ablations, writers
from clearhead.inspection.heads.ablation_table import Ablation, AblationTable
from clearhead.models import BigramLM, LanguageModel

Make = Callable[[], LanguageModel]
MAKERS: list[tuple[str, Callable[..., LanguageModel], list[Choice]]] = [
    ("decoder", make_model, CHOICES),
    ("encoder", make_encoder, ENCODER_CHOICES),
    ("pair", make_translator, PAIR_CHOICES),
]
MODELS = [
    pytest.param(partial(make, **choice), kind, id=f"{kind}-{name(choice)}")
    for kind, make, choices in MAKERS
    for choice in choices
]


def batches_for(kind: str) -> list[list[Tensor]]:
    """Two batches of unlike shape; those of a translator have padding on both sides."""
    if kind == "decoder":
        return [[random_ids(3, 7, seed=seed), random_ids(3, 7, seed=9)] for seed in (0, 1)]
    if kind == "encoder":
        inputs = padded([some_ids(8), some_ids(5, seed=1)], 8, "right")
        return [[inputs, some_ids(2, 8, seed=2).masked_fill(inputs == PAD, IGNORED)]]
    batches = []
    for width in (6, 4):
        source = padded([some_ids(width), some_ids(width - 2, seed=1)], width, "right")
        target = padded([some_ids(3, seed=2), some_ids(width, seed=3)], width, "right")
        batches.append([source, target, target.masked_fill(target == PAD, IGNORED).roll(1, 1)])
    return batches


@contextmanager
def zeroed(parameter: Tensor, columns: slice = slice(None)) -> Iterator[None]:
    """Inside the `with`, these columns of a weight, or all of a bias, are zero."""
    kept = parameter.detach().clone()
    with torch.no_grad():
        parameter[..., columns] = 0
        yield
        parameter.copy_(kept)


def without_weights(model: Any, entry: Ablation) -> AbstractContextManager[object]:
    """Inside the `with`, the maps of a part that write to the residual stream are zero."""
    stack = model.encoder if entry.kind == "encoder" else (model.decoder if hasattr(model, "decoder") else model.stack)
    block, zeros = stack.blocks[entry.layer], ExitStack()
    cross = block.cross_attention
    attention = (cross if entry.kind == "cross" else block.self_attention).part
    if entry.head is not None:
        K = attention.head_dim
        return zeroed(attention.output.weight, slice(entry.head * K, (entry.head + 1) * K))
    outputs = {"attention": [attention.output], "feedforward": [block.feedforward.part.down]}
    outputs["block"] = [*outputs["attention"], *outputs["feedforward"], *([cross.part.output] if cross else [])]
    for linear in outputs[entry.part]:
        zeros.enter_context(zeroed(linear.weight))
        if linear.bias is not None:
            zeros.enter_context(zeroed(linear.bias))
    return zeros


@pytest.mark.parametrize(("make", "kind"), MODELS)
def test_a_model_without_a_part_is_the_model_without_its_weights(make: Make, kind: str) -> None:
    model = make()
    *inputs, _ = batches_for(kind)[0]
    with torch.no_grad():
        whole = model(*inputs)
        for entry, edits in ablations(model):
            if entry.head in (None, 1):
                with intervene(model, edits):
                    actual = model(*inputs)
                with without_weights(model, entry):
                    torch.testing.assert_close(actual, model(*inputs), rtol=0, atol=1e-10)
                assert not torch.allclose(actual, whole, atol=1e-4), f"{entry.name} matters"


@pytest.mark.parametrize("kind", ["decoder", "encoder", "pair"])
def test_the_losses_are_those_of_evaluate(kind: str) -> None:
    model, batches = {name: make() for name, make, _ in MAKERS}[kind], batches_for(kind)
    table, whole = ablate(model, batches), evaluate(model, batches)
    assert table.loss == pytest.approx(whole.loss, abs=1e-6)
    assert table.tokens == whole.tokens
    heads = sum(site.module.n_heads for site in attention_sites(model))
    layers = model.config.n_layers + (model.config.n_encoder_layers if kind == "pair" else 0)
    assert len(table.ablations) == heads + len(attention_sites(model)) + 2 * layers
    for entry in table.ablations:
        with without_weights(model, entry):
            assert entry.loss == pytest.approx(evaluate(model, batches).loss, abs=1e-6), entry.name
        assert entry.change == pytest.approx(entry.loss - table.loss, abs=1e-6)


@pytest.mark.parametrize(("make", "kind"), MODELS)
def test_a_mean_is_over_all_tokens_but_padding(make: Make, kind: str) -> None:
    model, batches = make(), batches_for(kind)
    means = mean_activations(model, batches)
    written: dict[str, list[Tensor]] = {activation: [] for activation in means}
    for *inputs, _ in batches:
        with torch.no_grad(), record(model, list(means)) as trace:
            model(*inputs)
        for activation, vectors in written.items():
            value = trace.tensor(activation)  # (B, T, D) or (B, H, T, K)
            ids = inputs[0] if activation.startswith("encoder.") else inputs[-1]
            is_token = ids != PAD if kind != "decoder" else torch.ones_like(ids, dtype=torch.bool)
            vectors.append(value.transpose(1, 2)[is_token] if value.dim() == 4 else value[is_token])
    for activation, vectors in written.items():
        expected = torch.cat(vectors).mean(0)  # (D,) or (H, K)
        actual = means[activation]
        torch.testing.assert_close(actual.squeeze(-2) if actual.dim() == 3 else actual, expected, rtol=0, atol=1e-12)


def test_a_start_token_with_the_id_of_padding_is_a_token() -> None:
    model = make_translator(decoder_start_id=PAD)
    source = padded([some_ids(6), some_ids(4, seed=1)], 6, "right")
    target = torch.tensor([[PAD, 5, 6, 7], [PAD, 8, PAD, PAD]])
    activation = "decoder.blocks.0.feedforward.part"
    with torch.no_grad(), record(model, [activation]) as trace:
        model(source, target)
    written = trace.tensor(activation)
    expected = torch.cat([written[0], written[1, :2]]).mean(0)  # (D,)
    actual = mean_activations(model, [[source, target, target]])[activation]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_the_verdict_names_the_largest_change_of_either_sign() -> None:
    parts = (("head", 0, -0.5), ("head", 1, 0.1), ("block", None, 0.2), ("block", None, -0.3))
    entries = [Ablation(part, "self", 0, head, change=change) for part, head, change in parts]  # type: ignore[arg-type]
    verdict = AblationTable(2.0, 8, tuple(entries)).verdict
    assert "layer 0 head 0 among the heads (-0.5000)" in verdict
    assert "(-0.3000)" in verdict


def test_a_mean_ablation_puts_the_mean_in_place() -> None:
    model, batches = make_model(), batches_for("decoder")
    means = mean_activations(model, batches)
    table = ablate(model, batches, mean=True)
    [entry] = [entry for entry in table.ablations if (entry.layer, entry.head) == (1, 2)]
    activation = "stack.blocks.1.self_attention.part.mixed"

    def put(mixed: Tensor) -> Tensor:
        mixed = mixed.clone()
        mixed[:, 2] = means[activation][2]
        return mixed

    with intervene(model, {activation: put}):
        assert entry.loss == pytest.approx(evaluate(model, batches).loss, abs=1e-6)
    assert entry.loss != pytest.approx(ablate(model, batches).ablations[7].loss, abs=1e-4)
    rows = [[rows[index : index + 1] for rows in batch] for batch in batches for index in range(3)]
    one_by_one = ablate(model, rows, mean=True)
    for alone, together in zip(one_by_one.ablations, table.ablations, strict=True):
        assert alone.change == pytest.approx(together.change, abs=1e-6), "however the tokens are batched"


def test_the_standard_error_is_that_of_a_mean_over_rows() -> None:
    before, after, counts = torch.zeros(4), torch.tensor([1.0, 2.0, 3.0, 6.0]), torch.full((4,), 2)
    entry = Ablation("head", "self", 0, 0).measured(before, after, counts)
    per_token = after / 2
    assert entry.change == pytest.approx(per_token.mean().item())
    assert entry.standard_error == pytest.approx((per_token.std() / 2).item())
    assert Ablation("head", "self", 0, 0).measured(before[:1], after[:1], counts[:1]).standard_error is None


def test_blocks_of_two_digits_are_not_taken_for_others() -> None:
    model = make_model(n_layers=11)
    assert [len(names) for names in writers(model).values()] == [2] * 11


def test_an_edit_of_positions_or_heads_leaves_the_others() -> None:
    model, ids = make_model(), random_ids(2, 6)
    with torch.no_grad(), record(model) as before:
        model(ids)
    part, mixed = "stack.blocks.0.feedforward.part", "stack.blocks.1.self_attention.part.mixed"
    with torch.no_grad(), intervene(model, {part: at_positions(3.0, 4, -1)}), record(model) as trace:
        model(ids)
    assert (trace[part][:, 4:] == 3).all()
    assert torch.equal(trace.tensor(part)[:, :4], before.tensor(part)[:, :4])
    assert torch.equal(trace.tensor("output")[:, :4], before.tensor("output")[:, :4])
    assert not torch.equal(trace.tensor("output")[:, 4], before.tensor("output")[:, 4])
    with torch.no_grad(), intervene(model, {mixed: at_heads(lambda x: 2 * x, 1, 3)}), record(model) as trace:
        model(ids)
    factors = torch.tensor([1, 2, 1, 2], dtype=torch.float64).view(4, 1, 1)
    assert torch.equal(trace.tensor(mixed), factors * before.tensor(mixed))
    [site] = attention_sites(model)[1:]
    with (
        pytest.raises(UsageError, match="number 4 cannot be edited: there are 4"),
        intervene(model, without_head(site, 4)),
    ):
        model(ids)


def test_the_model_is_left_as_it_was_and_progress_counts_the_losses() -> None:
    model = make_translator(dropout=0.5).train()
    steps: list[tuple[int, int]] = []
    table = ablate(model, batches_for("pair"), on_progress=lambda done, total: steps.append((done, total)))
    assert all(module.training for module in model.modules())
    assert steps == [(done, len(table.ablations)) for done in range(1, len(table.ablations) + 1)]
    means = mean_activations(model, batches_for("pair"))
    assert all(module.training for module in model.modules())
    assert table.loss == ablate(model.eval(), batches_for("pair")).loss
    assert all(torch.equal(means[name], mean) for name, mean in mean_activations(model, batches_for("pair")).items())


def test_the_views_hold_the_numbers() -> None:
    table = ablate(make_translator(n_encoder_layers=1), batches_for("pair"), bytes_per_token=2.0)
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert len(rows) == len(table.ablations) == 4 * 5 + 5 + 2 * 3
    assert float(rows[0]["change"]) == table.ablations[0].change
    assert float(rows[0]["change_bits_per_byte"]) == pytest.approx(table.ablations[0].change / 2 / 0.6931471805599453)
    assert [grid.rows for grid in table.grids()] == [
        ["encoder layer 0"],
        ["layer 0", "layer 1"],
        ["cross-attention layer 0", "cross-attention layer 1"],
    ]
    changes = sorted(cell for grid in table.grids() for row in grid.cells for cell in row if cell is not None)
    assert changes == sorted(entry.change for entry in table.ablations)
    assert table.svg().count("<rect") == len(table.ablations)
    assert table.html().count("<tr>") == len(table.ablations) + 1
    assert json.loads(json.dumps(table.as_dict()))["replacement"] == "zero"
    assert table.of("head")[0].change == max(entry.change for entry in table.ablations if entry.part == "head")


def test_what_cannot_be_ablated_is_one_sentence() -> None:
    model = make_model()
    with pytest.raises(UsageError, match="no attention"):
        ablate(BigramLM(model.config), batches_for("decoder"))
    ids = random_ids(1, 4)
    for batches in ([], [[ids, torch.full_like(ids, IGNORED)]]):
        with pytest.raises(DataError, match="nothing to evaluate"):
            ablate(model, batches)
