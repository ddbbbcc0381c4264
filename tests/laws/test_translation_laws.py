"""What a translator's logits may depend on: no padding, no later target, every source token."""

import pytest
import torch
from law_models import Choice, assert_same, name
from pair_models import END, PAD, PAIR_CHOICES, Side, influence, make_translator, padded, sentence, some_ids

from clearhead.config import TranslationConfig
from clearhead.inference.beam import beam_search
from clearhead.models import EncoderDecoder
from clearhead.parts import Attention, positions_from_lengths

every_choice = pytest.mark.parametrize("choice", PAIR_CHOICES, ids=name)
every_side = pytest.mark.parametrize("side", ["left", "right"])
LENGTHS, WIDTH = [9, 4, 1, 12], 12
TARGET_LENGTHS, TARGET_WIDTH = [3, 10, 7, 2], 10


def cross_attentions(model: EncoderDecoder) -> list[Attention]:
    modules = [module for name, module in model.decoder.named_modules() if name.endswith("cross_attention.part")]
    return [module for module in modules if isinstance(module, Attention)]


@every_choice
@every_side
@torch.inference_mode()
def test_padded_content_never_changes_a_bit(choice: Choice, side: Side) -> None:
    model = make_translator(**choice)
    positions = [positions_from_lengths(torch.tensor(lengths), width, side=side)
              for lengths, width in ((LENGTHS, WIDTH), (TARGET_LENGTHS, TARGET_WIDTH))]  # fmt: skip
    pair, changed = ([some_ids(*at.shape, seed=seed + n) for n, at in enumerate(positions)] for seed in (0, 2))
    changed = [b.where(at < 0, a) for a, b, at in zip(pair, changed, positions, strict=True)]
    assert not any(map(torch.equal, pair, changed))
    before, after = (
        model(*ids, source_positions=positions[0], target_positions=positions[1]) for ids in (pair, changed)
    )
    assert torch.equal(before[positions[1] >= 0], after[positions[1] >= 0])
    assert before.isfinite().all()


@every_choice
@every_side
@torch.inference_mode()
def test_padding_on_either_side_equals_none(choice: Choice, side: Side) -> None:
    model = make_translator(**choice)
    sources = [some_ids(length, seed=length) for length in LENGTHS]
    targets = [some_ids(length, seed=length) for length in TARGET_LENGTHS]
    source, target = padded(sources, WIDTH, side), padded(targets, TARGET_WIDTH, side)
    logits = model(source, target)  # the pad id says where padding is
    assert logits.isfinite().all()
    for row, (alone, written) in enumerate(zip(sources, targets, strict=True)):
        assert_same(logits[row, target[row] != PAD], model(alone[None], written[None])[0])


@every_choice
def test_gradients_are_finite_where_rows_are_padded(choice: Choice) -> None:
    model = make_translator(**choice)
    source = padded([some_ids(length) for length in LENGTHS], WIDTH, "right")
    target = padded([some_ids(length) for length in TARGET_LENGTHS], TARGET_WIDTH, "left")
    model(source, target)[target != PAD].square().sum().backward()
    for label, parameter in model.named_parameters():
        assert parameter.grad is not None, label
        assert parameter.grad.isfinite().all(), label


@every_choice
def test_a_logit_depends_on_no_later_target_and_on_all_before(choice: Choice) -> None:
    model = make_translator(**choice)
    moved = influence(model, model.embedding, (some_ids(1, 9), some_ids(1, 12, seed=1)))  # the target is embedded last
    assert (moved.triu(1) == 0).all()
    assert (moved[torch.ones(12, 12).tril().bool()] > 0).all()


@every_choice
@torch.inference_mode()
def test_a_later_target_never_changes_a_bit(choice: Choice) -> None:
    model, source, target = make_translator(**choice), some_ids(2, 9), some_ids(2, 12, seed=1)
    other = target.clone()
    other[:, 7] = (target[:, 7] - 1) % 9 + 2
    before, after = model(source, target), model(source, other)
    assert torch.equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(-1).all()


@every_choice
@torch.inference_mode()
def test_every_source_token_moves_all_of_the_memory_and_every_logit(choice: Choice) -> None:
    model, target = make_translator(**choice), some_ids(2, 5, seed=1)
    source = padded([some_ids(9), some_ids(6, seed=2)], 9, "right")
    before, memory = model(source, target), model.encode(source).states
    for row, column in (source != PAD).nonzero().tolist():  # the last one of all: a source read from left to right
        other = source.clone()
        other[row, column] = (source[row, column] - 1) % 9 + 2
        moved = (model(other, target) - before).abs().amax(-1) > 1e-9  # (B, T)
        assert moved[row].all()
        assert not moved[1 - row].any()
        moved = (model.encode(other).states - memory).abs().amax(-1) > 1e-9  # (B, T_src)
        assert moved[row][source[row] != PAD].all()


@every_choice
@pytest.mark.parametrize("chunks", [(1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 4, 5)], ids=["steps", "chunks"])
@torch.inference_mode()
def test_cached_equals_at_once(choice: Choice, chunks: tuple[int, ...]) -> None:
    model, target = make_translator(**choice), some_ids(3, 10, seed=1)
    source = padded([some_ids(9), some_ids(6, seed=2), some_ids(1, seed=3)], 9, "right")
    memory, cache = model.encode(source), model.new_cache(3, 12)
    states = [model.decode(chunk, memory, cache=cache) for chunk in target.tensor_split(chunks, dim=1)]
    assert_same(model.head(torch.cat(states, dim=1)), model(source, target))


@every_choice
@torch.inference_mode()
def test_texts_that_begin_alike_are_read_side_by_side(choice: Choice) -> None:
    """In one row: five tokens that they share, then the tokens of the one beside those of the other."""
    model, source = make_translator(**choice), padded([some_ids(9), some_ids(6, seed=2)], 9, "right")
    shared, two = some_ids(2, 5, seed=1), some_ids(2, 2, 4, seed=3)  # (B, text, T)
    memory, cache = model.encode(source), model.new_cache(2, 13)
    model.decode(shared, memory, cache=cache)
    states, own = list[torch.Tensor](), torch.eye(2, dtype=torch.bool).expand(2, -1, -1)
    for step in range(4):
        tree_mask = torch.cat((torch.ones(2, 2, 5, dtype=torch.bool), *[own] * (step + 1)), dim=2)
        positions = torch.full((2, 2), 5 + step)
        states.append(model.decode(two[:, :, step], memory, positions=positions, cache=cache, tree_mask=tree_mask))
    together = torch.stack(states, dim=2)  # (B, text, T, D)
    for text in (0, 1):
        alone = model(source, torch.cat((shared, two[:, text]), dim=1))[:, 5:]
        assert_same(model.head(together[:, text]), alone)


@every_choice
@torch.inference_mode()
def test_reordered_rows_take_cache_and_memory_along(choice: Choice) -> None:
    model, target, order = make_translator(**choice), some_ids(3, 10, seed=1), torch.tensor([2, 0, 0, 1])
    source = padded([some_ids(9), some_ids(6, seed=2), some_ids(1, seed=3)], 9, "right")
    memory, cache = model.encode(source), model.new_cache(3, 10)
    model.decode(target[:, :6], memory, cache=cache)
    cache.reorder(order)
    after = model.head(model.decode(target[order, 6:], memory.select(order), cache=cache))
    assert_same(after, model(source, target)[order, 6:])


@every_choice
@torch.inference_mode()
def test_the_order_of_the_source_matters_unless_there_are_no_positions(choice: Choice) -> None:
    model, target = make_translator(**choice), some_ids(1, 5, seed=1)
    source = torch.tensor([[2, 3, 4, 5, 6, 7, END]])
    swapped = torch.tensor([[2, 6, 4, 5, 3, 7, END]])
    before, after = model(source, target), model(swapped, target)
    if choice["positions"] == "none":
        assert_same(after, before)
    else:
        assert ((after - before).abs().amax(-1) > 1e-6).all()


@every_choice
def test_a_search_reads_each_sentence_once(choice: Choice) -> None:
    model, rows = make_translator(**choice), dict[str, list[int]]()
    watched = {f"cross {n} {part}": getattr(module, part)
               for n, module in enumerate(cross_attentions(model)) for part in ("key", "value")}  # fmt: skip
    for label, module in (watched | {"encoder": model.encoder}).items():
        lengths = rows.setdefault(label, [])
        module.register_forward_hook(lambda _, args, __, lengths=lengths: lengths.append(len(args[0])))
    config = TranslationConfig(beam_size=4, max_new_tokens=6)
    beam_search(model, [sentence(5), sentence(8), sentence(8, seed=1)], config, end=END)
    assert len(rows) == 2 * model.config.n_layers + 1
    assert all(lengths == [3] for lengths in rows.values()), rows


@torch.inference_mode()
def test_a_cache_that_was_reset_reads_another_source() -> None:
    model, target = make_translator(), some_ids(2, 5, seed=1)
    cache = model.new_cache(2, 5)
    model.decode(target, model.encode(some_ids(2, 9)), cache=cache)
    cache.reset()
    source = some_ids(2, 6, seed=2)
    assert_same(model.head(model.decode(target, model.encode(source), cache=cache)), model(source, target))


@torch.inference_mode()
def test_a_decoder_that_fails_leaves_the_cache_as_it_was() -> None:
    model, source, target = make_translator(), some_ids(2, 9), some_ids(2, 6, seed=1)
    cache = model.new_cache(2, 6)
    for block in model.decoder.blocks:
        failing = block.register_forward_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            model.decode(target, model.encode(some_ids(2, 9, seed=2)), cache=cache)
        failing.remove()
    assert_same(model.head(model.decode(target, model.encode(source), cache=cache)), model(source, target))


def fail(*inputs: object) -> None:
    raise KeyboardInterrupt
