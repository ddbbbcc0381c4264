"""Other tools that test models, each used as its own documentation says, with the batch and the loss that it wants.

A tool's word on one model is a list of complaints. A check that cannot be made on the healthy host, because the tool
knows no such models, is none.
"""

import io
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import torch.nn.functional as F
from batches import Batch, TokensToLogits
from torch import Tensor, nn

Factory = Callable[[], nn.Module]
STEPS = 150  # of training at most, where a tool lets one choose
RATE = 1e-2
MANY = 8  # times the batch, for a check that wants as many rows as there are tokens


@dataclass(frozen=True)
class Complaint:
    """A check that was not passed: 'fail', 'warn', or 'crash' where the model or the tool raised something else."""

    check: str
    status: str


@dataclass(frozen=True)
class Tool:
    """Its name on the package index, and how a model is given to it."""

    name: str
    examine: Callable[[Factory, Batch, str], list[Complaint]]

    @property
    def version(self) -> str | None:
        """None where it is not installed."""
        try:
            return version(self.name)
        except PackageNotFoundError:
            return None


def seeded(factory: Factory) -> nn.Module:
    torch.manual_seed(0)
    return factory()


def complaints(checks: Mapping[str, Callable[[], object]]) -> list[Complaint]:
    """Every check by itself, so that one that fails hides no other."""
    failures = []
    for name, check in checks.items():
        torch.manual_seed(0)
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                check()
        except AssertionError:
            failures.append(Complaint(name, "fail"))
        except Exception:
            failures.append(Complaint(name, "crash"))
    return failures


def by_torchtest2(factory: Factory, batch: Batch, kind: str) -> list[Complaint]:
    """`check_model` with everything that it can use: inputs by name, the loss, the optimizer."""
    check_model = import_module("torchtest2").check_model
    model = seeded(factory)
    report = check_model(
        model,
        batch.inputs,
        loss_fn=batch.loss,
        optimizer=torch.optim.Adam(model.parameters(), lr=RATE),
        overfit_steps=STEPS,
        batch_dim=batch.batch_axis,
        output_batch_dim=batch.batch_axis,
    )
    results = [*report.failures, *report.warnings]
    return [Complaint(result.name, result.status.value.lower()) for result in results]


def by_pytest_torch(factory: Factory, batch: Batch, kind: str) -> list[Complaint]:
    """The inference contract, and every helper that fits a model of tokens."""
    tool = import_module("pytest_torch")
    model = seeded(factory).eval()
    inputs = batch.inputs
    checks: dict[str, Callable[[], object]] = {
        "gradients finite": lambda: tool.assert_gradients_finite(seeded(factory), inputs, batch.loss),
        "all parameters receive gradient": lambda: tool.assert_all_params_receive_grad(
            seeded(factory), inputs, batch.loss
        ),
        "overfits one batch": lambda: tool.assert_overfits_one_batch(
            seeded(factory), inputs, batch.loss, steps=STEPS, lr=RATE, max_final_ratio=0.2
        ),
        "checkpoint round trip": lambda: tool.assert_checkpoint_roundtrip(
            factory, batch.only_tokens, model=seeded(factory)
        ),
    }
    for name in batch.padding:
        keys = {"ids_key": name, "mask_key": batch.mask or "attention_mask"}
        inputs_of_check = batch.inputs if batch.source and name == batch.tokens else batch.only_tokens
        checks[f"padding of {name}"] = partial(
            tool.assert_padding_invariant, WithoutCache(model), inputs_of_check, **keys
        )
    if batch.mask:
        checks["mask"] = partial(
            tool.assert_mask_invariant, model, batch.only_tokens, ids_key=batch.tokens, mask_key=batch.mask
        )
    if kind == "cached":
        checks["streaming"] = partial(_streaming, tool, model, batch)
    return [*_contract(tool, model, batch), *complaints(checks)]


class WithoutCache(nn.Module):
    """A model that returns a cache as well, which is as long as its input and no answer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Any:
        output = self.model(**inputs)
        has_cache = isinstance(output, tuple) and len(output) > 1 and isinstance(output[1], dict)
        return output[0] if has_cache else output


def _contract(tool: Any, model: nn.Module, batch: Batch) -> list[Complaint]:
    """It knows batches along the first axis only."""
    inputs: Any = batch.only_tokens
    if batch.batch_axis:
        model, inputs = TokensToLogits(model, batch).eval(), _tokens_of(batch)
    try:
        report = tool.check_inference_contract(model, inputs, raise_on_failure=False)
    except Exception:
        return [Complaint("contract", "crash")]
    return [Complaint(f"contract: {result.name}", "fail") for result in report.failures]


def _streaming(tool: Any, model: nn.Module, batch: Batch) -> None:
    def full(ids: Tensor) -> Tensor:
        return batch.logits(model(ids))

    def in_pieces(ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = model(ids, state)
        return logits, state

    tool.assert_streaming_equivalent(
        full, in_pieces, batch.inputs[batch.tokens], chunk_sizes=[1, 3], init_state=lambda: None
    )


def by_checklist(factory: Factory, batch: Batch, kind: str) -> list[Complaint]:
    """Each assertion of its list for causal language models; a source, if there is one, is held fast."""
    tool = import_module("neural_net_checklist.torch_diagnostics")
    tokens, targets, vocab_size = _tokens_of(batch), batch.targets, _vocab_size(factory, batch)

    def make() -> nn.Module:
        return TokensToLogits(factory(), batch)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=batch.ignored)

    def overfit() -> None:
        model = make()
        train = partial(tool.train_batch, optimizer=torch.optim.Adam(model.parameters(), lr=RATE))
        tool.assert_overfit_to_batch(
            model, (tokens, targets), train_batch_fn=train, threshold=1.0, max_steps=STEPS, loss_fn=loss
        )

    table = _table_of(make(), tokens)
    one_hot = F.one_hot(tokens, vocab_size).float(), targets
    make_from_one_hot = tool.replace_input_embedding_layer(make, table) if table else make
    checks: dict[str, Callable[[], object]] = {
        "loss at initialization": lambda: tool.assert_balanced_classification_cross_entropy_loss_at_init(
            make(), (tokens.repeat(MANY, 1), targets.repeat(MANY, 1)), num_classes=vocab_size, loss_fn=loss
        ),
        "calibrated at initialization": lambda: tool.assert_balanced_classification_cross_entropy_init_calibrated(
            make(), (tokens, targets), num_classes=vocab_size
        ),
        "forward batch independence": lambda: tool.assert_forward_batch_independence(
            lambda: seeded(make), (tokens, targets)
        ),
        "non-zero gradients": lambda: tool.assert_non_zero_gradients(make(), (tokens, targets)),
        "backward batch independence": lambda: tool.assert_backward_batch_independence(make_from_one_hot, one_hot),
        "input independent baseline": lambda: tool.assert_input_independent_baseline_worse(
            make, (tokens, targets), loss_fn=loss, max_steps=STEPS // 2
        ),
        "overfit": overfit,
    }
    if kind != "bidirectional":
        checks["forward causal"] = lambda: tool.assert_forward_causal_property(make, (tokens, targets))
        checks["backward causal"] = lambda: tool.assert_backward_causal_property(make_from_one_hot, one_hot)
    return complaints(checks)


def _tokens_of(batch: Batch) -> Tensor:
    tokens = batch.inputs[batch.tokens]
    return tokens.T.contiguous() if batch.batch_axis else tokens


def _vocab_size(factory: Factory, batch: Batch) -> int:
    with torch.no_grad():
        return int(TokensToLogits(factory(), batch).eval()(_tokens_of(batch)).shape[-1])


def _table_of(model: nn.Module, tokens: Tensor) -> str | None:
    """The path of the embedding that reads the tokens."""
    paths: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            if (
                arguments
                and arguments[0].shape in (tokens.shape, tokens.T.shape)
                and arguments[0].numel() == tokens.numel()
            ):
                paths.append(name)

        return hook

    tables = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    handles = [module.register_forward_hook(look(name)) for name, module in tables]
    with torch.no_grad():
        model.eval()(tokens)
    for handle in handles:
        handle.remove()
    return paths[0] if paths else None


TOOLS = (
    Tool("torchtest2", by_torchtest2),
    Tool("pytest-torch", by_pytest_torch),
    Tool("neural_net_checklist", by_checklist),
)
