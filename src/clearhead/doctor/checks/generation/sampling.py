"""What a model's own `generate` draws its tokens from: the softmax of its logits, cut off where that was asked for."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import SOUND, Causes, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.checks.generation.generations import called, new_tokens, options_of, place_of_writer, writer_of
from clearhead.doctor.probes.tracing import quiet, recorded_ops
from clearhead.doctor.state_guard import twin

PROMPT, NEW = 6, 3  # tokens
PLAIN: dict[str, object] = {"do_sample": True, "temperature": 1.0, "repetition_penalty": 1.0}
WHOLE: dict[str, object] = {"top_k": None, "top_p": 1.0}  # nothing is cut off
ALIKE = 0.98  # correlation of what is drawn from with the logits: less is not rounding
CLEAR = 1e-3  # of the logits' spread: a token that leads by less may be left out instead of its neighbor
FORBIDDEN = 4  # tokens that may never be drawn, however likely: padding and other marks
NOTHING = 1e-12  # a probability below it is none
Options = dict[str, Any]
Reading = tuple[Causes | str, str]  # the fault, and what was seen


class SampledToken(NamedTuple):
    """A token for each row: what it is drawn from (B, V), the logits of one call (B, n, V), and the token (B,).

    `before`: the rows (B, n) behind which it stands. `written`: what the whole call writes, where that can be read.
    """

    p: Tensor
    all_logits: Tensor
    token: Tensor
    before: Tensor
    written: Tensor | None

    @property
    def logits(self) -> Tensor:
        """(B, V), behind the last token."""
        return self.all_logits[:, -1]

    @property
    def counted(self) -> Tensor:
        """(B, V), True for tokens that can be drawn and were not there before: those are often made less likely."""
        return (self.p > NOTHING).scatter(1, self.before, False)

    def line(self, logits: Tensor) -> tuple[float, float]:
        """The logarithms of the probabilities over logits (B, V), row by row: the slope, and the correlation.

        If a row has too few tokens to tell, it does not count; without any other both are 1.
        """
        where = self.counted & (self.counted.sum(1, keepdim=True) > 2)
        if not where.any():
            return 1.0, 1.0
        x, y = (_centered(values.double(), where) for values in (logits, self.p.clamp_min(NOTHING).log()))
        covariance = float((x * y).sum())
        return covariance / float((x * x).sum().clamp_min(1e-30)), covariance / float(x.norm() * y.norm() + 1e-30)

    @property
    def is_lost(self) -> bool:
        """Whether most rows do not go on with it, if it is the first that was drawn for them."""
        if self.written is None:
            return False
        return float((self.written[:, 0] == self.token).double().mean()) < 0.5

    @property
    def passes_over(self) -> bool:
        """Whether many tokens cannot be drawn that are clearly more likely than some that can."""
        worst = self.logits.masked_fill(~self.counted, torch.inf).amin(1, keepdim=True)
        better = (self.p <= NOTHING) & (self.logits > worst + CLEAR * float(self.logits.std()))
        return int(better.scatter(1, self.before, False).any(0).sum()) > FORBIDDEN


Write = Callable[..., list[SampledToken]]  # options -> what is drawn with them


def _centered(values: Tensor, where: Tensor) -> Tensor:
    mean = (values * where).sum(1, keepdim=True) / where.sum(1, keepdim=True).clamp_min(1)
    return (values - mean) * where


@model_check("K11", "samplings", order=211, covers=("K01", "K02", "K08"), needs=(*SOUND, "caches"), of_tokens=True)
def samplings(subject: Subject) -> list[Finding]:
    """`generate` draws from the softmax of its logits, and temperature, top_k and top_p do what they say."""
    name, method = writer_of(subject)
    options = options_of(method)
    writers = [partial(_draws, subject, rows, name) for rows in _prompts(subject, name)]
    subject.journal.paths.append(f"what {name}() draws from")
    for read in (_unlike, _tempered, _cut_at_k, _cut_at_p):
        with attempt():
            first, second = (read(write, options) for write in writers)  # a fault shows behind every prompt
            if first and second:
                return [finding(first[0], f"{name}() draws {first[1]}", where=place_of_writer(subject, method))]
    return []


def _prompts(subject: Subject, name: str) -> list[Tensor]:
    """Two batches behind which it draws tokens: of many rows, or of one if it takes no more.

    Raises:
        Skipped: it draws none.
    """
    for rows in (8, 1):
        prompts = [subject.inputs(rows, salt=salt).ids[:, :PROMPT].contiguous() for salt in (17, 18)]
        with attempt() as attempted:
            if _draws(subject, prompts[0], name):
                return prompts
    raise Skipped(f"{name}() draws no tokens from probabilities ({attempted.kind})")


def _draws(subject: Subject, rows: Tensor, name: str, **options: object) -> list[SampledToken]:
    """What it draws behind these rows (B, n), if it samples as it is told here and is told nothing else."""
    model = twin(subject.model, subject.device)
    known = options_of(getattr(type(model), name))
    options = {key: value for key, value in (PLAIN | options).items() if key in known}
    with quiet(), recorded_ops(lambda op: op == "multinomial") as ops:
        returned = called(getattr(model, name), rows.to(subject.device), NEW, 0, options)
    written, draws = new_tokens(returned, rows), []
    for call in ops.calls:
        p, index = call.inputs[0].reshape(len(rows), -1).float(), call.options["result"].cpu().reshape(len(rows), -1)
        all_logits = subject.run(Inputs(rows))  # (B, n, V)
        if bool((p.diff(dim=1) <= 0).all()):  # sorted: the index is a rank
            order = all_logits[:, -1].argsort(1, descending=True)
            index, p = order.gather(1, index), torch.zeros_like(all_logits[:, -1]).scatter(1, order[:, : p.shape[1]], p)
        draws.append(SampledToken(p / p.sum(1, keepdim=True), all_logits, index[:, 0], rows, written))
        if written is not None and not draws[0].is_lost and len(draws) <= written.shape[1]:
            index = written[:, len(draws) - 1, None]  # rows that have ended are filled up
        rows = torch.cat([rows, index[:, :1]], dim=1)
    return draws


def _unlike(write: Write, options: Options) -> Reading | None:
    """Whether it draws from anything but the softmax of the last logits, or writes something else."""
    draws = write()
    for step, draw in enumerate(draws, 1):
        positions = range(draw.all_logits.shape[1])
        correlations = [draw.line(draw.all_logits[:, position])[1] for position in positions]
        if correlations[-1] < ALIKE:
            if max(correlations) > ALIKE:
                where = correlations.index(max(correlations))
                return "K08", f"token {step} from the logits at position {where} of {len(positions)}"
            causes = (("K11", 0.7), ("K08", 0.3)) if step == 1 else (("K11", 0.5), ("K02", 0.3), ("K01", 0.2))
            correlation = f"their correlation is {correlations[-1]:.2f}"
            return causes, f"token {step} from what is no softmax of its logits: {correlation}"
        if step == 1 and draw.is_lost and draw.written is not None:
            is_next = len(draws) > 1 and torch.equal(draw.written[:, 0], draws[1].token)
            return "K11", f"a token for each row, and {'writes only those after it' if is_next else 'writes others'}"
    return None


def _tempered(write: Write, options: Options) -> Reading | None:
    """Whether logits are divided by the temperature."""
    if "temperature" not in options:
        return None
    cold, hot = (write(temperature=temperature)[0] for temperature in (0.5, 2.0))
    ratio = cold.line(cold.logits)[0] / hot.line(hot.logits)[0]
    if ratio > 2:
        return None
    is_same = abs(ratio - 1) < 0.05
    return "K11", "at temperature 0.5 from " + ("what it is at 2" if is_same else "flatter probabilities than at 2")


def _cut_at_k(write: Write, options: Options) -> Reading | None:
    """Whether top_k leaves so many tokens, and the likeliest."""
    for k in (5, 3) if "top_k" in options else ():
        draw = write(top_k=k, top_p=1.0)[0]
        counts = (draw.p > NOTHING).sum(1)
        if (counts != k).all():
            return "K11", f"with top_k={k} from {int(counts[0])} tokens"
        if draw.passes_over or draw.is_lost:
            return "K11", f"with top_k={k} from tokens that are not the likeliest"
    return None


def _cut_at_p(write: Write, options: Options) -> Reading | None:
    """Whether top_p leaves the likeliest tokens, as many as reach that share."""
    plain = write(**WHOLE)[0] if "top_p" in options else None
    if plain is None or abs(plain.line(plain.logits)[0] - 1) > 0.05:  # its probabilities are made in another way
        return None
    shares = plain.logits.softmax(1).sort(1, descending=True).values.cumsum(1)  # (B, V)
    for top_p in (0.8, 0.5):
        draw, fewest = write(**WHOLE | {"top_p": top_p})[0], (shares <= top_p).sum(1)
        counts = (draw.p > NOTHING).sum(1)
        if ((counts < fewest) | (counts > fewest + 2)).all():
            return (
                "K11",
                f"with top_p={top_p} from {int(counts[0])} tokens, where {int(fewest[0]) + 1} reach that share",
            )
        if draw.passes_over or draw.is_lost:
            return "K11", f"with top_p={top_p} from tokens that are not the likeliest"
    return None
