"""The tree of one sentence's beam search, and its finished hypotheses ranked by another length penalty."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from clearhead.config import TranslationConfig
from clearhead.inference.beam import BeamStep, Hypothesis, beam_search, length_penalty
from clearhead.inference.beam_backend import BeamBackend
from clearhead.models import EncoderDecoder

State = Literal["kept", "finished", "cut off"]


class BeamNode(NamedTuple):
    """A token that a search wrote.

    Attributes:
        step: counted from 0.
        parent: index of the node before it; None for the first token.
        token: its id.
        log_prob: of the whole hypothesis up to it, in nats.
        state: kept, and gone on from or given up later; finished, if the token is the end; cut off, if it is the last
            of a hypothesis at its greatest length.
    """

    step: int
    parent: int | None
    token: int
    log_prob: float
    state: State


@dataclass(frozen=True)
class BeamTree:
    """All hypotheses that a search kept or finished, as a tree.

    Attributes:
        nodes: step by step, and in each the likeliest first.
        end: the token that ends a translation.
    """

    nodes: tuple[BeamNode, ...]
    end: int

    def ids(self, index: int) -> list[int]:
        """The tokens up to a node, without the end."""
        ids, at = list[int](), index if index >= 0 else None
        while at is not None:
            if self.nodes[at].state != "finished":
                ids.append(self.nodes[at].token)
            at = self.nodes[at].parent
        return ids[::-1]

    def ranked(self, alpha: float) -> list[tuple[int, Hypothesis]]:
        """The translations by this length penalty, the best first: the node that each ends in, and its hypothesis.

        Those that were cut off come last. It is what `beam_search` returns with this penalty and an `n_best` of
        `beam_size`, where the penalty does not decide when to stop.
        """
        indices = range(len(self.nodes))
        groups = [[index for index in indices if self.nodes[index].state == state] for state in ("finished", "cut off")]
        finished, cut_off = ([(index, self._hypothesis(index, alpha)) for index in group] for group in groups)
        return sorted(finished, key=lambda entry: entry[1].score, reverse=True) + cut_off

    def _hypothesis(self, index: int, alpha: float) -> Hypothesis:
        node = self.nodes[index]
        return Hypothesis(self.ids(index), node.log_prob / length_penalty(node.step + 1, alpha))


def beam_tree(
    model: EncoderDecoder,
    source: Sequence[int],
    config: TranslationConfig,
    *,
    end: int,
    backend: BeamBackend | None = None,
) -> BeamTree:
    """Search for the translations of one sentence, and keep what the search did.

    Args:
        model, config, end, backend: as in `beam_search`; `n_best` is `beam_size`, so that the length penalty orders
            the translations and does not decide when to stop.
        source: ids of the sentence, its end token included.

    Raises:
        UsageError, ClearheadError: as in `beam_search`.
    """
    nodes, living, steps = list[BeamNode](), list[int | None]([None]), 0

    def keep(step: BeamStep) -> None:
        nonlocal living, steps
        alive = dict.fromkeys(step.kept[0].tolist())
        added = dict[int, int]()
        for index, (log_prob, parent, token) in enumerate(zip(*(part[0].tolist() for part in step[1:4]), strict=True)):
            is_finished = index < step.finished.shape[1] and bool(step.finished[0, index])
            if is_finished or (index in alive and log_prob > -math.inf):
                added[index] = len(nodes)
                nodes.append(BeamNode(steps, living[parent], token, log_prob, "finished" if is_finished else "kept"))
        # A hypothesis that is not possible keeps its place among the parents, though no node.
        living = [added.get(index) for index in alive]
        steps += 1

    complete = config.model_copy(update={"n_best": config.beam_size})
    [best] = beam_search(model, [source], complete, end=end, backend=backend, on_step=keep)
    finished = sum(node.state == "finished" for node in nodes)
    if len(best) > finished:  # the rest was cut off, and is what lives at the end
        for index in living:
            if index is not None:
                nodes[index] = nodes[index]._replace(state="cut off")
    return BeamTree(tuple(nodes), end)
