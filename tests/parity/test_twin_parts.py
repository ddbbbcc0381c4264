"""What the twin's models are made of and random models hardly reach: far distances, many heads, unusual rows."""

import random

import numpy as np
import pytest
import torch

from clearhead import reference
from clearhead.config import ModelConfig
from clearhead.models import make_positions
from clearhead.parts import attention_mask, positions_of
from clearhead.parts.masks import as_tensor
from clearhead.parts.positions import alibi_slopes, relative_position_buckets
from clearhead.reference.positions import relative_bucket, slopes

CPU = torch.device("cpu")


@pytest.mark.parametrize("n_heads", range(1, 41))
def test_slopes(n_heads: int) -> None:
    np.testing.assert_allclose(slopes(n_heads), alibi_slopes(n_heads).numpy(), rtol=1e-15)


@pytest.mark.parametrize(("n_buckets", "distance"), [(32, 128), (32, 20), (4, 3), (16, 77), (64, 1000), (10, 50)])
@pytest.mark.parametrize("causal", [False, True])
def test_classes_of_distance(n_buckets: int, distance: int, causal: bool) -> None:
    back = torch.arange(-2 * distance, 2 * distance)
    buckets = relative_position_buckets(back, n_buckets, distance, causal=causal).tolist()
    config = ModelConfig(n_heads=1, d_model=2, positions="relative", relative_buckets=n_buckets)
    config = config.model_copy(update={"relative_max_distance": distance})
    table = {"weight": np.arange(n_buckets, dtype=np.float64)[:, np.newaxis]}  # (n_buckets, 1): each class's own number
    positions = back.numpy()[np.newaxis] + 2 * distance  # (1, T_q), queries so far from one key
    expected = reference.BIASED["relative"](positions, np.array([[2 * distance]]), table, config, causal=causal)
    assert buckets == expected[0, 0, :, 0].tolist()


def test_classes_of_distance_begin_where_the_powers_do() -> None:
    """T5's 32 classes of one direction: 16 exact ones, then 16 up to 128, in steps of 8^(1/16)."""
    starts = [next(d for d in range(200) if relative_bucket(d, 32, 128) == k) for k in range(32)]
    assert starts[:17] == list(range(17))
    assert starts[17:] == [int(np.ceil(16 * 8 ** (i / 16))) for i in range(1, 16)]


@pytest.mark.parametrize("kind", ["sinusoidal", "rope", "alibi"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_fixed_positions_are_as_precise_as_the_model(kind: str, fraction: float) -> None:
    """Whatever type the model had before."""
    config = ModelConfig.read(
        {"n_heads": 3, "d_model": 24, "block_size": 900, "positions": kind, "partial_rotary_factor": fraction}
    )
    part = make_positions(config, causal=True).bfloat16().float().double()
    position_rows = np.array([[0, 3, 899]])
    positions = torch.from_numpy(position_rows)
    x = np.random.default_rng(0).standard_normal((1, 3, 24))
    heads = np.random.default_rng(1).standard_normal((1, 3, 3, 8))
    if kind == "sinusoidal":
        expected, actual = (
            x + reference.ADDED[kind](position_rows, {}, config),
            part.add(torch.from_numpy(x), positions),
        )
    elif kind == "rope":
        rotate = part.rotate(positions, CPU)
        assert rotate is not None
        expected, actual = (
            reference.apply_rotary(heads, reference.ROTATED[kind](position_rows, config)),
            rotate(torch.from_numpy(heads)),
        )
    else:
        bias = part.bias(positions, positions, CPU)
        assert bias is not None
        expected, actual = reference.BIASED[kind](position_rows, position_rows, {}, config, causal=True), bias
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["sinusoidal", "rope", "alibi"])
def test_fixed_positions_are_never_less_precise_than_float32(kind: str) -> None:
    part = make_positions(ModelConfig.read({"positions": kind}), causal=True)
    assert {buffer.dtype for buffer in part.bfloat16().buffers()} == {torch.float32}
    assert not part.state_dict()


@pytest.mark.parametrize("seed", range(50))
def test_positions_and_masks(seed: int) -> None:
    draw = random.Random(seed)
    pad, start = draw.choice((None, 0, 1)), draw.choice((None, 0, 1))
    rows = [[draw.randint(0, 3) for _ in range(6)] for _ in range(4)]
    if pad is not None:  # a padded row has its padding on one side, and maybe its start on the other side of that
        rows = [[token if token != pad else 2 for token in row] for row in rows]
        for row in rows:
            n, left = draw.randint(0, 6), draw.random() < 0.5
            row[:] = [pad] * n + row[n:] if left else row[: 6 - n] + [pad] * n
    ids = np.array(rows)
    position_rows = reference.positions_of(ids, pad, start)
    positions = positions_of(torch.from_numpy(ids), pad, start_id=start)
    assert as_tensor(positions).expand(4, 6).tolist() == position_rows.tolist()

    causal, window = draw.random() < 0.5, draw.choice((None, 1, 2, 9))
    window = window if causal else None
    documents = np.sort(np.array([draw.choices(range(2), k=6) for _ in range(4)])) if draw.random() < 0.5 else None
    allowed = reference.may_attend(position_rows, position_rows, causal=causal, window=window, documents=documents)
    mask = attention_mask(
        torch.from_numpy(position_rows),
        torch.from_numpy(position_rows),
        causal=causal,
        window=window,
        documents=None if documents is None else torch.from_numpy(documents),
    )
    assert isinstance(mask, torch.Tensor)
    assert mask.expand(4, 1, 6, 6)[:, 0].tolist() == allowed.tolist()
