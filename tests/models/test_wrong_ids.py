"""Ids that no model can read are refused in one sentence, whichever model and however it is asked."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from wrong_ids import WRONG

from clearhead.config import ModelConfig
from clearhead.errors import InputError
from clearhead.models import build_model
from clearhead.parts import Embedding

SHAPE = {"vocab_size": 11, "block_size": 8, "n_layers": 1, "n_heads": 2, "d_model": 8, "d_ff": 8}
Ask = Callable[[Tensor], Tensor]


def asked(**options: object) -> Ask:
    return build_model(ModelConfig.read(SHAPE, options)).eval()


def translator() -> tuple[Ask, Ask]:
    model = asked(architecture="encoder_decoder", pad_id=0)
    other = torch.tensor([[2, 3]])
    return (lambda ids: model(ids, other)), (lambda ids: model(other, ids))  # type: ignore[call-arg]


ASKS: dict[str, Ask] = {
    "decoder": asked(),
    "ngrams": asked(embedding_ngrams=3, positions="rope"),
    "bigram": asked(architecture="bigram"),
    "encoder": asked(architecture="encoder", pad_id=0),
    "source": translator()[0],
    "target": translator()[1],
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("name", ASKS)
@torch.inference_mode()
def test_wrong_ids_are_one_sentence(name: str, kind: str) -> None:
    if (name, kind) == ("bigram", "too long"):
        return  # it looks at one token only
    ids, sentence = WRONG[kind]
    with pytest.raises(InputError, match=sentence) as error:
        ASKS[name](ids)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize("ids", [[[2, 3]], "ROMEO", None])
def test_what_is_no_tensor_is_one_sentence(name: str, ids: object) -> None:
    with pytest.raises(InputError, match=r"token ids are a tensor \(B, T\), not a (list|str|NoneType)"):
        ASKS[name](ids)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@torch.inference_mode()
def test_right_ids_are_read(name: str, kind: torch.dtype) -> None:
    assert ASKS[name](torch.tensor([[2, 3, 4]], dtype=kind)).shape == (1, 2 if name == "source" else 3, 11)


def test_a_compiled_graph_holds_the_lookup_alone() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def capture(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    torch.compile(Embedding(11, 8), backend=capture, fullgraph=True)(torch.tensor([[2, 3]]))
    [graph] = graphs
    calls = [node.target for node in graph.graph.nodes if node.op.startswith("call")]
    assert calls == [torch.nn.functional.embedding]
