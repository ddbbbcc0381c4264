"""What writes text with a model follows the model's logits, and answers equal requests alike."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import SOUND, Causes, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.checks.generation.writers import TextWriter, Writing, writers_of
from clearhead.doctor.probes.tensors import first_true, is_same
from clearhead.doctor.state_guard import twin

ROWS = 8  # behind which tokens are written: enough of them to see which ones may be
PROMPT = 6  # tokens
NEW, FEW = 5, 3  # tokens; few where every one takes long, or where only what is drawn from is read
PLAIN: dict[str, object] = {"do_sample": True, "temperature": 1.0, "repetition_penalty": 1.0}
WHOLE: dict[str, object] = {"top_k": None, "top_p": 1.0}  # nothing is cut off
CUTS = {"top_k": (5, 3), "top_p": (0.8, 0.5)}
ALIKE = 0.98  # correlation of what is drawn from with the logits: less is not rounding
CLEAR = 1e-3  # of the logits' spread: how far the better token must lead
FORBIDDEN = 4  # tokens that may never be drawn, however likely: padding and other marks
ELSEWHERE = "the likelier token, which it writes elsewhere"
PROMPTS = "another prompt, behind which it does the same"
NOTHING = 1e-12  # a probability below it is none


class Fault(NamedTuple):
    """What is wrong with what was written."""

    causes: Causes | str
    what: str
    second: str = ""


class SampledToken(NamedTuple):
    """A token for each row."""

    p: Tensor  # (B, V), what it is drawn from
    all_logits: Tensor  # (B, n, V), of one call
    token: Tensor  # (B,)
    before: Tensor  # (B, n), the rows behind which it stands
    written: Tensor | None  # what the whole call writes, where that can be read

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


@model_check("K11", "generations", order=210, covers=("K01", "K02", "K06", "K08", "T08"), needs=(*SOUND, "caches"),
             of_tokens=True)  # fmt: skip
def generations(subject: Subject) -> list[Finding]:
    """What writes text takes the likeliest token or draws from the softmax of the logits, and answers alike."""
    if subject.shifts_its_rows or subject.convention.time_first:
        raise Skipped("its last logits do not predict a next token")
    reason, judged = "nothing of its own was found that writes tokens behind rows of ids", False
    for writer in islice(writers_of(subject), FEW):
        for one_by_one in (False, True):
            with attempt() as attempted:
                fault = _fault_of(replace(writer, one_by_one=one_by_one))
            if not attempted.failed:
                subject.journal.paths.append(f"what {writer.name}() writes")
                if fault:
                    witness = f"{writer.name}() {fault.what}"
                    return [finding(fault.causes, witness, where=writer.where, second=fault.second)]
                judged = True
                break
            reason = f"{writer.name}() cannot be followed ({attempted.sentence(80)})"
    if not judged:
        raise Skipped(reason)
    return []


def _fault_of(writer: TextWriter) -> Fault | None:
    """The first fault in what it writes; `Skipped` if nothing is known of that beforehand."""
    subject = writer.subject
    rows = FEW if writer.one_by_one else ROWS
    batches = [subject.inputs(rows, salt=salt, T=PROMPT) for salt in (17, 18)]
    first, again = _answers(writer, batches, seed=1)
    is_steady = is_same(first.tokens, again.tokens)
    if not is_steady and first.tokens is not None:  # it draws at random, or remembers
        anew, later = _answers(writer, batches, seed=0)
        if is_same(first.tokens, anew.tokens) and not is_same(anew.tokens, later.tokens):
            witness = "gives the same request with the same seed another answer after a different request"
            return Fault((("K06", 0.8), ("T08", 0.2)), witness)
    is_greedy = is_steady and (bool(writer.greedy) or not first.drew)
    fault = _of_the_likeliest(subject, batches[0], first) if is_greedy else None
    if fault:
        return fault
    writes: list[Write] = [cache(partial(_sampled, writer, batch)) for batch in batches]  # each is asked for often
    if not writes[0]():
        if not is_greedy:
            raise Skipped("it samples, and may take another token than the likeliest")
        return None
    for read in (_unlike, _tempered, _cut):
        with attempt():
            faults = [read(write, writer) for write in writes]  # a fault shows behind every prompt
            if all(faults):
                return faults[0]
    return None


def _answers(writer: TextWriter, batches: list[Inputs], seed: int) -> tuple[Writing, Writing]:
    """What a new copy first writes with seed 0, and what with this seed after another request."""
    subject, model = writer.subject, twin(writer.subject.model, writer.subject.device)
    new = FEW if subject.is_hurried else NEW
    first, _, again = (
        writer.write(model, batch, new, writer.greedy, seed=seed_)
        for batch, seed_ in ((batches[0], 0), (batches[1], 0), (batches[0], seed))
    )
    return first, again


def _of_the_likeliest(subject: Subject, inputs: Inputs, writing: Writing) -> Fault | None:
    """Whether a clearly less likely token was written; later, a search may take one for a likelier whole."""
    tokens = writing.tokens
    assert tokens is not None
    # some tokens are never written, such as padding, or not twice: those that stand behind another row may be
    written = torch.zeros(len(tokens), subject.calling.vocab_size, dtype=torch.bool)
    written[:, tokens.flatten()] = True
    for step, token in enumerate(tokens.unbind(1)):
        before = torch.cat([writing.before, tokens[:, :step]], dim=1)
        with attempt() as attempted:
            likelier = _likelier(subject, inputs, before, token) & written.scatter(1, before, False)
        if attempted.failed:  # it takes no longer rows
            return None
        if step > 0:  # a row that has ended is filled up
            likelier &= (tokens[:, step:] != token[:, None]).any(1, keepdim=True)
        if not likelier.any():
            continue
        row, better = first_true(likelier)
        number = "" if step == 0 else f" as number {step + 1}"
        what = f"writes token {int(token[row])}{number} although {better} is more likely, which it writes elsewhere"
        with attempt():
            if not _likelier(subject, inputs, torch.cat([before, before[:, -1:]], dim=1), token).any():
                what += "; it is the likeliest if the last token before it is read twice"
                return Fault((("K08", 0.9), ("K11", 0.1)), what)
        if step == 0:
            return Fault((("K11", 0.7), ("K08", 0.3)), what, ELSEWHERE)
        is_search = not _is_unlikely(subject, inputs, writing, written)
        return Fault((("K11", 0.5), ("K02", 0.3), ("K01", 0.2)), what, "" if is_search else ELSEWHERE)
    return None


def _likelier(subject: Subject, inputs: Inputs, before: Tensor, written: Tensor) -> Tensor:
    """(B, V), True for tokens that are clearly more likely after rows (B, T) than those that were written (B,)."""
    logits = _next(subject, inputs, before)
    return logits > logits.gather(1, written[:, None]) + CLEAR * float(logits.std())


def _next(subject: Subject, inputs: Inputs, before: Tensor) -> Tensor:
    """The logits (B, V) of what follows rows (B, T)."""
    return subject.run(replace(inputs, ids=before, labels=before))[:, -1]


def _is_unlikely(subject: Subject, inputs: Inputs, writing: Writing, allowed: Tensor) -> bool:
    """Whether what was written is as a whole less likely than what one gets from the likeliest tokens, in most rows."""
    assert writing.tokens is not None
    whole, totals = torch.cat([writing.before, writing.tokens], dim=1), []
    repeats = any(len(row.unique()) < len(row) for row in whole)
    for tokens in (writing.tokens, None):
        rows, total = writing.before, torch.zeros(len(writing.before))
        for step in range(writing.tokens.shape[1]):
            log_p = _next(subject, inputs, rows).log_softmax(-1)
            banned = ~(allowed if repeats else allowed.scatter(1, rows, False))
            best = log_p.masked_fill(banned, -torch.inf).argmax(1)
            token = best if tokens is None else tokens[:, step]
            total = total + log_p.gather(1, token[:, None])[:, 0]
            rows = torch.cat([rows, token[:, None]], dim=1)
        totals.append(total)
    behind = (totals[1] - totals[0])[(totals[1] - totals[0]).abs() > CLEAR]  # of rows that differ
    return bool(len(behind)) and float((behind > 0).double().mean()) > 0.5


def _sampled(writer: TextWriter, inputs: Inputs, **options: object) -> list[SampledToken]:
    """What it draws behind these rows (B, n), if it samples as it is told here and is told nothing else."""
    subject = writer.subject
    writing = writer.write(twin(subject.model, subject.device), inputs, FEW, PLAIN | options)
    rows, draws = writing.before, list[SampledToken]()
    for number, (p, token) in enumerate(writing.draws[:FEW]):
        all_logits = subject.run(replace(inputs, ids=rows, labels=rows))  # (B, n, V)
        if bool((p.diff(dim=1) <= 0).all()):  # sorted: a column is a rank
            order = all_logits[:, -1].argsort(1, descending=True)
            token = order.gather(1, token[:, None])[:, 0]
            p = torch.zeros_like(all_logits[:, -1]).scatter(1, order[:, : p.shape[1]], p)
        draws.append(SampledToken(p, all_logits, token, rows, writing.tokens))
        if writing.tokens is not None and not draws[0].is_lost and number < writing.tokens.shape[1]:
            token = writing.tokens[:, number]  # rows that have ended are filled up
        rows = torch.cat([rows, token[:, None]], dim=1)
    return draws


def _unlike(write: Write, writer: TextWriter) -> Fault | None:
    """Whether it draws from anything but the softmax of the last logits, or writes something else."""
    draws = write()
    for step, draw in enumerate(draws, 1):
        positions = range(draw.all_logits.shape[1])
        correlations = [draw.line(draw.all_logits[:, position])[1] for position in positions]
        if correlations[-1] < ALIKE:
            if max(correlations) > ALIKE:
                where = correlations.index(max(correlations))
                return Fault("K08", f"draws token {step} from the logits at position {where} of {len(positions)}")
            causes = (("K11", 0.7), ("K08", 0.3)) if step == 1 else (("K11", 0.5), ("K02", 0.3), ("K01", 0.2))
            correlation = f"their correlation is {correlations[-1]:.2f}"
            return Fault(causes, f"draws token {step} from what is no softmax of its logits: {correlation}", PROMPTS)
        if step == 1 and draw.is_lost and draw.written is not None:
            is_next = len(draws) > 1 and torch.equal(draw.written[:, 0], draws[1].token)
            others = "writes only those after it" if is_next else "writes others"
            return Fault("K11", f"draws a token for each row, and {others}", PROMPTS)
    return None


def _tempered(write: Write, writer: TextWriter) -> Fault | None:
    """Whether logits are divided by the temperature."""
    if "temperature" not in writer.options:
        return None
    cold, hot = (write(temperature=temperature)[0] for temperature in (0.5, 2.0))
    ratio = cold.line(cold.logits)[0] / hot.line(hot.logits)[0]
    if ratio > 2:
        return None
    same = "what it is at 2" if abs(ratio - 1) < 0.05 else "flatter probabilities than at 2"
    return Fault("K11", f"draws at temperature 0.5 from {same}", "the temperature that it takes")


def _cut(write: Write, writer: TextWriter) -> Fault | None:
    """Whether top_k leaves so many tokens, and top_p as many as reach that share, and the likeliest."""
    for option, value in _cuts(write, writer):
        draw = write(**WHOLE | {option: value})[0]
        counts, fewest, most = (draw.p > NOTHING).sum(1), torch.tensor(value), torch.tensor(value)
        if option == "top_p":
            shares = draw.logits.softmax(1).sort(1, descending=True).values.cumsum(1)  # (B, V)
            fewest = (shares <= value).sum(1)
            most = fewest + 2
        if ((counts < fewest) | (counts > most)).all():
            return Fault("K11", f"draws with {option}={value} from {int(counts[0])} tokens")
        if draw.passes_over or draw.is_lost:
            return Fault("K11", f"draws with {option}={value} from tokens that are not the likeliest")
    return None


def _cuts(write: Write, writer: TextWriter) -> Iterator[tuple[str, float]]:
    """The options by which it can leave unlikely tokens out; shares mean nothing where they are made in another way."""
    for option, values in CUTS.items():
        plain = write(**WHOLE)[0] if option in writer.options else None
        if plain is not None and (option == "top_k" or abs(plain.line(plain.logits)[0] - 1) <= 0.05):
            yield from ((option, value) for value in values)
