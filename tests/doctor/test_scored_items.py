"""Models that give one number for each token, as recommenders score an item that was chosen and one that was not."""

import pytest
import torch
from causal_helpers import CausalModel, D, V, triangle
from torch import Tensor, nn

from clearhead.doctor import Spec, check
from clearhead.doctor.calling.search import find_convention
from clearhead.doctor.state_guard import perturbed


class Recommender(CausalModel):
    """`hides`: an item sees those before it alone."""

    def __init__(self, *, hides: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hides = hides

    def hidden(self, ids: Tensor, allowed: Tensor | None = None) -> Tensor:
        x, T = self.tokens(ids) + self.places(torch.arange(ids.shape[1])), ids.shape[1]
        for block in self.blocks:
            x = block(x, triangle(T) if self.hides else torch.ones_like(triangle(T)))
        return self.norm(x)  # type: ignore[no-any-return]

    def forward(self, seq: Tensor, pos: Tensor, neg: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = self.hidden(seq)
        return (x * self.tokens(pos)).sum(-1), (x * self.tokens(neg)).sum(-1)


def test_one_number_for_each_token_is_of_tokens() -> None:
    known = find_convention(perturbed(Recommender(), 0), Spec())
    assert known.convention.sentence == "model(ids, pos=ones like ids, neg=zeros like ids)[0]"


class OfUsers(Recommender):
    def forward(self, user_ids: Tensor, log_seqs: Tensor, pos_seqs: Tensor, neg_seqs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(log_seqs, pos_seqs, neg_seqs)


def test_a_user_is_of_the_whole_row() -> None:
    known = find_convention(perturbed(OfUsers(), 0), Spec())
    assert known.convention.sentence.startswith("model(user_ids=zeros (B), ids, pos_seqs=ones like ids, neg_seqs=")


@pytest.mark.parametrize(("hides", "ids"), [(True, []), (False, ["M01"])])
def test_scores_of_items_may_not_look_ahead(hides: bool, ids: list[str]) -> None:
    report = check(Recommender(hides=hides), Spec(kind="causal"))
    assert [finding.id for finding in report.findings if finding.status == "fail"] == ids, str(report)


class OfRows(nn.Module):
    """As many classes as rows have tokens at first."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(V, D), nn.Linear(D, classes)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("classes", [5, *range(8, 16)])
def test_classes_of_a_row_are_not_tokens_by_their_number(classes: int) -> None:
    assert find_convention(perturbed(OfRows(classes), 0), Spec()).convention.gives == "rows"
