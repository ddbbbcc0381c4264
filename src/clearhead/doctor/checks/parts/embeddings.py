"""What a model makes of ids before its first layer: positions, token types, and sizes; and the loss it starts with."""

import math
import re

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.calling.names import SEGMENTS, parameters_of
from clearhead.doctor.calling.settings import settings_of
from clearhead.doctor.checks.base import STEADY, Finding, Skipped, Status, Subject, Where, finding, model_check
from clearhead.doctor.checks.parts.effects import moves
from clearhead.doctor.checks.parts.waves import waves
from clearhead.doctor.probes.flow import ADD, MULTIPLY, Flow, factor, made_by, read_by
from clearhead.doctor.probes.freshness import freshness
from clearhead.doctor.probes.locations import owner_of
from clearhead.doctor.probes.tracing import ModuleCall
from clearhead.doctor.problems import attempt, message_of

FAINT = 1 / 3  # of the positions' size: they drown smaller tokens
LOUD = 5  # times the positions' size, for tokens that were multiplied: N(0, 1) times the root of a width of 16 is 5.7
LENGTHS = re.compile(
    r"^(block_size|max_seq_len|max_length|max_len|max_position(_embedding)?s|n_positions|n_ctx|context_length)$"
)
MAX_TOKENS = 512  # tokens that are run to see whether the last position exists
DECLARED = re.compile(r"scale_emb|emb\w*_(scale|multiplier)|scale_embedding")
ODD = 1.0  # nats from ln V; over 120 architectures fresh models stay within 0.8
ABSURD = 2.0  # nats above ln V, from where a fresh model is not undecided but wrong


@model_check("E07", "embeddings", order=190, covers=("E03", "P03", "P09", "P10"), needs=STEADY)
def embeddings(subject: Subject) -> list[Finding]:
    """Tokens and positions are embedded in comparable sizes, token types count, and every position has its own row."""
    return _token_types(subject) + _last_position(subject) + waves(subject) + _sizes(subject)


def _token_types(subject: Subject) -> list[Finding]:
    """Token types move logits, if the model takes them and has a table for them."""
    name = next((p.name for p in parameters_of(subject.model) if SEGMENTS.search(p.name)), None)
    tables = {n: m for n, m in subject.model.named_modules() if isinstance(m, nn.Embedding) and m.num_embeddings < 32}
    table = next((n for n in tables if re.search(r"type|segment|kind", n)), None)
    if name is None or table is None:
        return []
    inputs = subject.inputs(2)
    types = torch.zeros_like(inputs.ids)
    with attempt() as attempted:
        first, second = (subject.run(inputs, {name: t}) for t in (types, types + 1))
    if attempted.failed:
        subject.journal.untried(f"other {name}", attempted)
        return []
    if not torch.equal(first, second):
        return []
    read = f"is read at one row, whatever {name} are" if moves(subject, [tables[table].weight]) else "is never read"
    where = owner_of(subject.model, f"{table}.weight")
    return [finding("E07", f"other {name} move no logit, and {table} {read}", value=0.0, where=where, against=name)]


def _last_position(subject: Subject) -> list[Finding]:
    """A table of positions with as many rows as the model takes tokens must be read from its first row on."""
    for call in (call for call in subject.inside.calls if call.name == "embedding"):
        rows, table = _rows_read(call)
        module = call.module
        if rows is None or table is None or not isinstance(module, nn.Embedding) or module.padding_idx is not None:
            continue
        T, most = len(rows), len(table)
        counted = T > 2 and bool((rows.diff() == 1).all())
        limit = _takes(subject, most)
        if not counted or int(rows[0]) == 0 or limit is None or not T < most <= MAX_TOKENS:
            continue
        with attempt() as attempted:
            subject.run(subject.inputs(1, T=most))
        if isinstance(attempted.error, (IndexError, RuntimeError)):
            witness = (
                f"tokens 0 to {T - 1} read rows {int(rows[0])} to {int(rows[-1])} of {most}: row 0 is never read, and "
                f"{most} tokens, as many as it should take, fail ({message_of(attempted.error, 80)})"
            )
            against = "" if "pos" in limit else f"its own {limit}"  # which may count positions, and not tokens
            return [finding((("P10", 0.7), ("P03", 0.3)), witness, where=subject.place_of(call), against=against)]
    return []


def _rows_read(call: ModuleCall) -> tuple[Tensor | None, Tensor | None]:
    ids = next((t for t in read_by(call) if not t.is_floating_point()), None)
    table = next((t for t in read_by(call) if t.is_floating_point() and t.dim() == 2), None)
    return (None, None) if ids is None or not ids.numel() else (ids.reshape(-1, ids.shape[-1])[0], table)


def _takes(subject: Subject, n: int) -> str | None:
    """The setting of the model that says that it takes n tokens."""
    owners = (settings for m in subject.original.modules() for settings in (vars(m), settings_of(m)))
    named = ((name, value) for settings in owners for name, value in settings.items() if LENGTHS.search(name))
    return next((name for name, value in named if value == n), None)


def _sizes(subject: Subject) -> list[Finding]:
    """Tokens are multiplied by 1 or by the root of the width, and are not drowned by the positions."""
    is_declared = any(DECLARED.search(name) for name in subject.settings)
    if is_declared or not freshness(subject.fresh, subject.spec.fresh)[0]:
        return []
    flow = subject.inside_fresh.flow
    for index, call in enumerate(flow.calls):
        outputs = made_by(call)
        if call.name != "embedding" or len(outputs) != 1 or outputs[0].dim() != 3:
            continue
        rows, table = _rows_read(call)
        vocabularies = (subject.calling.vocab_size, subject.calling.source_vocab_size)
        is_of_tokens = rows is not None and table is not None and len(table) in vocabularies
        if is_of_tokens and (findings := _size(subject, flow, index)):
            return findings
    return []


def _size(subject: Subject, flow: Flow, index: int) -> list[Finding]:
    call, root = flow.calls[index], math.sqrt(made_by(flow.calls[index])[0].shape[-1])
    scale, at = 1.0, index
    for reader in flow.readers(at):
        if flow.calls[reader].name in MULTIPLY and factor(flow.calls[reader]) != 1:
            scale, at = scale * factor(flow.calls[reader]), reader
    where = subject.place_of(call)
    ratio = _drowned(flow, at)
    if abs(scale - 1) > 1e-3 and abs(scale / root - 1) > 1e-2:
        witness = f"embeddings are multiplied by {scale:g}; the root of their width is {root:.3g}"
        return [finding("E03", witness, value=scale, threshold=root, where=where)]
    if ratio < FAINT:
        witness = f"fresh token embeddings are {ratio:.2g} times as large as the positions added to them"
        return [finding("E03", witness, value=ratio, threshold=FAINT, where=where)]
    if scale > 1 and ratio > LOUD:
        witness = f"fresh token embeddings, multiplied by {scale:.3g}, are {ratio:.2g} times as large as the positions"
        return [finding("E03", witness, value=ratio, threshold=LOUD, where=where)]
    return []


def _drowned(flow: Flow, at: int) -> float:
    """How large tokens are in comparison with the positions that are added to them first; 1 if there are none."""
    tokens = made_by(flow.calls[at])[0]
    for reader in flow.readers(at):
        added = flow.calls[reader]
        others = [t for t in read_by(added) if t is not tokens and t.is_floating_point()]
        if added.name not in ADD or len(others) != 1 or others[0].shape[-1] != tokens.shape[-1]:
            continue
        if flow.comes_from(others[0], reader, tokens):  # the branch of a sublayer, and not positions
            continue
        return float(tokens.float().square().mean().sqrt() / others[0].float().square().mean().sqrt().clamp_min(1e-12))
    return 1.0


@model_check("E04", "fresh loss", order=330, needs=("finite",), of_tokens=True)
def fresh_loss(subject: Subject) -> list[Finding]:
    """The loss of a fresh model is near ln V: it gives every token about the same probability."""
    is_fresh, reason = freshness(subject.fresh, subject.spec.fresh)
    if not is_fresh:
        raise Skipped(reason)
    V, inputs, targets = subject.calling.vocab_size, subject.inputs(4, salt=12), subject.inputs(4, salt=13).ids
    logits = subject.run(inputs, model=subject.fresh).float()
    if logits.shape[-1] < V or V < 4:
        raise Skipped("its outputs are not logits over the vocabulary")
    loss, even = float(F.cross_entropy(logits.flatten(0, 1), targets.flatten())), math.log(logits.shape[-1])
    if abs(loss - even) <= ODD:
        return []
    uniform = f"uniform probabilities over {logits.shape[-1]} tokens give {even:.2f}"
    witness = f"its loss on random targets is {loss:.2f}; {uniform}"
    status: Status = "fail" if loss - even > ABSURD and freshness(subject.fresh)[0] else "warn"
    return [finding("E04", witness, value=loss - even, threshold=ODD, where=_head(subject), status=status)]


def _head(subject: Subject) -> Where:
    """Whose weights make the logits."""
    named = {id(parameter): name for name, parameter in subject.fresh.named_parameters()}
    for call in reversed(subject.inside_fresh.calls):
        for part in call.options["args"]:
            if isinstance(part, Tensor) and id(part) in named and part.dim() == 2:
                return owner_of(subject.fresh, named[id(part)])
    return Where()
