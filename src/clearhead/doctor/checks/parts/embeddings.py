"""What a model makes of ids before its first layer: tables of positions, of kinds of tokens, and how loud they are."""

import math
import re

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.names import POSITION_TABLE, SEGMENTS, parameters_of
from clearhead.doctor.checks.base import finding, model_check
from clearhead.doctor.checks.locations import place_of
from clearhead.doctor.checks.parts.effects import moves
from clearhead.doctor.probes.flow import ADD, MULTIPLY, Flow, factor, made_by, read_by
from clearhead.doctor.probes.freshness import freshness
from clearhead.doctor.probes.locations import owner_of
from clearhead.doctor.probes.tracing import ModuleCall
from clearhead.doctor.problems import message_of
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

FAINT = 1 / 3  # of the positions' size: tokens that are fainter are drowned by them
STILL = 1e-6  # how far a column of a table moves at least over all positions; the slowest usual wave moves 1e-5
FAST = 1.05  # step of a wave from one position to the next, of its own size; one that turns by a radian has 0.96
TURNS = re.compile(r"cos|sin(?!u)|rot|rope|freq", re.I)  # tables that rotate hold their columns twice
LENGTHS = re.compile(
    r"^(block_size|max_seq_len|max_length|max_len|max_position(_embedding)?s|n_positions|n_ctx|context_length)$"
)
LONGEST = 512  # tokens that are run to see that the last position is there
DECLARED = re.compile(r"scale_emb|emb\w*_(scale|multiplier)|scale_embedding")


@model_check(
    "E07",
    "embeddings",
    order=190,
    covers=("E03", "E07", "P03", "P09", "P10"),
    holds="embeddings have the right size, token types count, and every position has a row",
    needs=("finite", "deterministic"),
)
def embeddings(subject: Subject) -> list[Finding]:
    """Kinds of tokens count, positions are within their table and unlike each other, tokens are as loud as they."""
    return _kinds(subject) + _last_position(subject) + _waves(subject) + _loudness(subject)


def _kinds(subject: Subject) -> list[Finding]:
    """Token types that are given, and a table of them that nothing of it reads."""
    name = next((p.name for p in parameters_of(subject.model) if SEGMENTS.search(p.name)), None)
    tables = {n: m for n, m in subject.model.named_modules() if isinstance(m, nn.Embedding) and m.num_embeddings < 32}
    named = [n for n in tables if re.search(r"type|segment|kind", n)]
    if name is None or not named:
        return []
    inputs = subject.inputs(2)
    types = torch.zeros_like(inputs.ids)
    with subject.quiet():
        try:
            first, second = (subject.convention.logits(subject.model, inputs, **{name: t}) for t in (types, types + 1))
        except (IndexError, RuntimeError, TypeError):
            return []
    if not torch.equal(first, second):
        return []
    read = f"is read at one row, whatever {name} are" if moves(subject, [tables[named[0]].weight]) else "is never read"
    return [finding("E07", f"other {name} move no logit, and {named[0]} {read}", value=0.0,
                    where=owner_of(subject.model, f"{named[0]}.weight"))]  # fmt: skip


def _last_position(subject: Subject) -> list[Finding]:
    """A table of positions with as many rows as the model takes tokens must be read from its first row on."""
    for call in (call for call in subject.inside.calls if call.name == "embedding"):
        rows, table = _rows_read(call)
        module = call.module
        if rows is None or table is None or not isinstance(module, nn.Embedding) or module.padding_idx is not None:
            continue
        T, most = len(rows), len(table)
        counted = T > 2 and bool((rows.diff() == 1).all())
        if not counted or int(rows[0]) == 0 or not _takes(subject, most) or not T < most <= LONGEST:
            continue
        try:
            with subject.quiet():
                subject.run(subject.inputs(1, T=most))
        except (IndexError, RuntimeError) as error:
            message = message_of(error, 80)
            witness = (
                f"tokens 0 to {T - 1} read rows {int(rows[0])} to {int(rows[-1])} of {most}; row 0 is never read, and "
                f"{most} tokens, which it is meant to take, fail ({message})"
            )
            return [finding((("P10", 0.7), ("P03", 0.3)), witness, where=place_of(subject, call))]
    return []


def _rows_read(call: ModuleCall) -> tuple[Tensor | None, Tensor | None]:
    ids = next((t for t in read_by(call) if not t.is_floating_point()), None)
    table = next((t for t in read_by(call) if t.is_floating_point() and t.dim() == 2), None)
    return (None, None) if ids is None or not ids.numel() else (ids.reshape(-1, ids.shape[-1])[0], table)


def _takes(subject: Subject, n: int) -> bool:
    """Whether the model, its config or its argument says that it takes n tokens."""
    owners = [vars(m) for m in subject.original.modules()] + [
        vars(c) for m in subject.original.modules() if hasattr(c := getattr(m, "config", None), "__dict__")
    ]
    return any(value == n for settings in owners for name, value in settings.items() if LENGTHS.search(name))


def _waves(subject: Subject) -> list[Finding]:
    """A fixed table of positions, most columns of which hold one number all the way, tells few positions apart."""
    for name, table in subject.fresh.named_buffers():
        flat = table.squeeze()
        if not POSITION_TABLE.search(name) or flat.dim() != 2 or not flat.is_floating_point() or min(flat.shape) < 8:
            continue
        if not flat.isfinite().all() or float(flat.abs().max()) > 1.001:
            continue
        owner = subject.fresh.get_submodule(name.rpartition(".")[0])
        others = [other.squeeze() for other in owner.buffers(recurse=False) if other.squeeze().shape == flat.shape]
        still = torch.stack([_stands_still(table) for table in (flat, *others)]).all(0).float().mean()
        if 0.25 <= float(still) < 1:
            witness = f"{float(still):.0%} of the columns of {name} hold one number at all {len(flat)} positions"
            where = owner_of(subject.model, name)
            return [finding("P09", witness, value=float(still), threshold=0.25, where=where, status="warn")]
        odd = None if TURNS.search(name) else _oddity(flat)
        if odd:
            witness, value = odd
            where = owner_of(subject.model, name)
            return [finding("P09", f"{name}: {witness}", value=value, threshold=0.25, where=where, status="warn")]
    return []


def _oddity(table: Tensor) -> tuple[str, float] | None:
    """What is odd about waves (positions, width) that are added to tokens, and in what share of the columns."""
    moving = table[:, ~_stands_still(table)]
    if moving.shape[1] < 8:
        return None
    same = (moving[:, :, None] == moving[:, None, :]).all(0).tril(-1)  # (width, width): equal to one before
    repeated = float(same.any(-1).float().mean())
    if repeated >= 0.25:
        return f"{repeated:.0%} of its columns repeat another, as where sines stand in the place of cosines", repeated
    step = moving.diff(dim=0).square().mean(0).sqrt() / moving.square().mean(0).sqrt()
    fast = float((step > FAST).float().mean())
    if fast >= 0.25:
        return f"{fast:.0%} of its waves turn by more than a radian from one position to the next", fast
    return None


def _stands_still(table: Tensor) -> Tensor:
    """For each column, whether it holds one number. A slow cosine does where its sine, in a table beside it, moves."""
    return (table.amax(0) - table.amin(0)) < STILL


def _loudness(subject: Subject) -> list[Finding]:
    """Tokens are multiplied by 1 or by the root of the width, and are not drowned by the positions."""
    if not freshness(subject.fresh, subject.spec.fresh)[0] or _declares_scale(subject):
        return []
    flow = Flow(subject.inside_fresh.calls)
    for index, call in enumerate(flow.calls):
        outputs = made_by(call)
        if call.name != "embedding" or len(outputs) != 1 or outputs[0].dim() != 3:
            continue
        rows, table = _rows_read(call)
        if (
            rows is None
            or table is None
            or len(table) not in (subject.calling.vocab_size, subject.calling.source_vocab_size)
        ):
            continue
        findings = _one_loudness(subject, flow, index)
        if findings:
            return findings
    return []


def _declares_scale(subject: Subject) -> bool:
    config = getattr(subject.original, "config", None)
    return hasattr(config, "__dict__") and any(DECLARED.search(name) for name in vars(config))


def _one_loudness(subject: Subject, flow: Flow, index: int) -> list[Finding]:
    call, width = flow.calls[index], made_by(flow.calls[index])[0].shape[-1]
    scale, at = 1.0, index
    for reader in flow.readers(at):
        if flow.calls[reader].name in MULTIPLY and factor(flow.calls[reader]) != 1:
            scale, at = scale * factor(flow.calls[reader]), reader
    where = place_of(subject, call)
    if abs(scale - 1) > 1e-3 and abs(scale / math.sqrt(width) - 1) > 1e-2:
        witness = f"embeddings are multiplied by {scale:g}; the root of their width is {math.sqrt(width):.3g}"
        return [finding("E03", witness, value=scale, threshold=math.sqrt(width), where=where, status="warn")]
    tokens = made_by(flow.calls[at])[0]
    for reader in flow.readers(at):
        added = flow.calls[reader]
        others = [t for t in read_by(added) if t is not tokens and t.is_floating_point()]
        if added.name not in ADD or len(others) != 1 or others[0].shape[-1] != width:
            continue
        if flow.comes_from(others[0], reader, tokens):  # a sublayer's branch, and no positions
            continue
        ratio = float(tokens.float().square().mean().sqrt() / others[0].float().square().mean().sqrt().clamp_min(1e-12))
        if ratio < FAINT:
            witness = f"fresh tokens are {ratio:.2g} times as large as the positions that are added to them"
            return [finding("E03", witness, value=ratio, threshold=FAINT, where=where, status="warn")]
    return []
