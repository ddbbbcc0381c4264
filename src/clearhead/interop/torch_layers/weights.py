"""Weights to and from the layers of `torch.nn`: one table, read in both directions.

| ours | theirs |
|---|---|
| `Attention` | `nn.MultiheadAttention` |
| `Block` | `nn.TransformerEncoderLayer`, and with cross-attention `nn.TransformerDecoderLayer` |
| `Stack` | `nn.TransformerEncoder`, and with cross-attention `nn.TransformerDecoder` |
| `nn.ModuleDict({"encoder": stack, "decoder": stack})` | `nn.Transformer` |

A state dict holds weights, not what is computed with them. Whoever builds the other side gives it the same number of
heads, place of norms (`norm_first`), activation, epsilon and dropout, and `batch_first=True`. A gelu is the exact one.
"""

from collections.abc import Mapping
from itertools import count

import torch
from torch import Tensor

from clearhead.errors import DataError
from clearhead.interop.hf.family import Entry
from clearhead.interop.hf.key_map import KINDS, Link, names_of
from clearhead.interop.hf.weights import to_foreign, to_own

Entries = tuple[Entry, ...]
State = Mapping[str, Tensor]
Names = tuple[tuple[str, ...], str]  # ours, and theirs


def _within(entries: Entries, own: str, foreign: str) -> Entries:
    """The same entries for a module inside of another."""

    def modules(entry: Entry) -> str | tuple[str, ...]:
        return f"{own}.{entry.own}" if isinstance(entry.own, str) else tuple(f"{own}.{name}" for name in entry.own)

    return tuple(entry._replace(own=modules(entry), foreign=f"{foreign}.{entry.foreign}") for entry in entries)


ATTENTION = (
    Entry(("query", "key", "value"), "in_proj", joint="_"),
    Entry("output", "out_proj"),
)
SELF_ATTENTION = (
    *_within(ATTENTION, "self_attention.part", "self_attn"),
    Entry("self_attention.norm", "norm1"),
)
CROSS_ATTENTION = (
    *_within(ATTENTION, "cross_attention.part", "multihead_attn"),
    Entry("cross_attention.norm", "norm2"),
)
FEEDFORWARD = (
    Entry("feedforward.part.up", "linear1"),
    Entry("feedforward.part.down", "linear2"),
)
ENCODER_LAYER = (*SELF_ATTENTION, *FEEDFORWARD, Entry("feedforward.norm", "norm2"))
DECODER_LAYER = (*SELF_ATTENTION, *CROSS_ATTENTION, *FEEDFORWARD, Entry("feedforward.norm", "norm3"))
ENCODER = _within(ENCODER_LAYER, "blocks.N", "layers.N")
DECODER = _within(DECODER_LAYER, "blocks.N", "layers.N")
FINAL_NORM = Entry("norm", "norm")


def _transformer(encoder: Entries, decoder: Entries) -> Entries:
    return (*_within(encoder, "encoder", "encoder"), *_within(decoder, "decoder", "decoder"))


MODULES: dict[str, Entries] = {
    "nn.MultiheadAttention": ATTENTION,
    "nn.TransformerEncoderLayer": ENCODER_LAYER,
    "nn.TransformerDecoderLayer": DECODER_LAYER,
    "nn.TransformerEncoder": (*ENCODER, FINAL_NORM),
    "nn.TransformerDecoder": (*DECODER, FINAL_NORM),
    "nn.Transformer": _transformer((*ENCODER, FINAL_NORM), (*DECODER, FINAL_NORM)),
    "nn.TransformerEncoder with norm=None": ENCODER,
    "nn.TransformerDecoder with norm=None": DECODER,
    "nn.Transformer with a custom_encoder and a custom_decoder that have norm=None": _transformer(ENCODER, DECODER),
}


def from_torch(state: State) -> dict[str, Tensor]:
    """Weights of a `torch.nn` module under our names: `block.load_state_dict(from_torch(layer.state_dict()))`.

    `nn.Transformer` by itself ends both stacks with a norm wherever its norms stand; a model of ours does so only where
    it is pre-norm. A post-norm model therefore reads an `nn.Transformer` whose stacks were built with `norm=None`.

    Args:
        state: of any module in the table above. Torch's `bias=False` also takes the biases of the norms, which ours
            always have: here they are zero.

    Returns:
        The same numbers, copied: in_proj_weight (3 * D, D) as query, key and value (D, D) each, all others as they are.

    Raises:
        DataError: names are missing or left over, or a shape cannot be; all of them are listed.
    """
    own: dict[str, Tensor] = {}
    impossible: list[str] = []
    for names, foreign in _names(
        state, is_foreign=True, advice="pass the state dict of one such module, with no prefix"
    ):
        stacked, parts = state[foreign], len(names)
        if parts > 1 and (not stacked.dim() or len(stacked) % parts):
            impossible.append(f"{foreign} of shape {list(stacked.shape)} cannot be cut into {parts} equal parts")
            continue
        shape = (len(stacked) // parts, *stacked.shape[1:])
        own |= to_own(Link(names, (shape,) * parts, foreign), stacked)
    if impossible:
        raise DataError(f"{', '.join(impossible)}; pass a state dict as torch.nn makes it")
    for name in [name for name in own if name.endswith("norm.weight")]:
        own.setdefault(f"{name.removesuffix('weight')}bias", torch.zeros_like(own[name]))
    return {name: tensor.clone() for name, tensor in own.items()}


def to_torch(state: State) -> dict[str, Tensor]:
    """The reverse of `from_torch`: `layer.load_state_dict(to_torch(block.state_dict()))`.

    The embedding and the head are no part of `nn.Transformer`. Of a whole model, pass the stacks: `model.stack`, or
    `nn.ModuleDict({"encoder": model.encoder, "decoder": model.decoder})`.

    Args:
        state: of attention, a block, a stack, or an encoder and a decoder; with LayerNorm and a feed-forward without
            a gate. Without biases it fits torch's `bias=False`, which has none in the norms either.

    Returns:
        The same numbers, copied.

    Raises:
        DataError: names are missing or left over, torch's attention has no such shape, or a norm has a bias that is not
            zero where the maps have none; all of them are listed.
    """
    biased = _has_biases(state)
    foreign: dict[str, Tensor] = {}
    impossible: list[str] = []
    advice = "torch.nn has LayerNorm, and feed-forwards without a gate; of a model, pass the stacks alone"
    for own, name in _names(state, is_foreign=False, advice=advice):
        shapes = tuple(tuple(state[part].shape) for part in own)
        if len(set(shapes)) > 1:
            listed = ", ".join(f"{part} {list(shape)}" for part, shape in zip(own, shapes, strict=True))
            impossible.append(f"shapes differ ({listed})")
        elif biased or not name.endswith("bias"):
            foreign[name] = to_foreign(Link(own, shapes, name), state)
        elif state[own[0]].any():
            impossible.append(f"{own[0]} is not zero, where no map has a bias")
    if impossible:
        listed = ", ".join(impossible)
        raise DataError(f"torch.nn has no such module: {listed}; build ours with n_kv_heads = n_heads and bias = true")
    return foreign


def _has_biases(state: State) -> bool:
    """Whether any linear map has a bias. The weight of a map is a matrix, that of a norm a vector."""
    weights = {name: state.get(f"{name.removesuffix('bias')}weight") for name in state if name.endswith("bias")}
    return any(weight is not None and weight.dim() == 2 for weight in weights.values())


def _names(state: State, *, is_foreign: bool, advice: str) -> list[Names]:
    """The names of every tensor of the module that the state dict, in our names or theirs, comes nearest to.

    Raises:
        DataError: it does not hold exactly that module's tensors.
    """

    def differences(module: str) -> list[str]:
        there = [name for own, foreign in tables[module] for name in ((foreign,) if is_foreign else own)]
        missing = [f"{name} is missing" for name in there if name not in state]
        return missing + [f"{name} is left over" for name in sorted(set(state) - set(there))]

    tables = {module: _spell_out(entries, state, is_foreign) for module, entries in MODULES.items()}
    nearest = min(tables, key=lambda module: len(differences(module)))
    if faults := differences(nearest):
        raise DataError(f"the state dict does not fit {nearest}, which comes nearest: {', '.join(faults)}; {advice}")
    return tables[nearest]


def _spell_out(entries: Entries, state: State, is_foreign: bool) -> list[Names]:
    """The names of every tensor that such a module has, for as many blocks as the state dict has, and at least one."""
    numbered = {name[:end] for name in state for end, letter in enumerate(name) if letter == "."}
    biased = _has_biases(state)

    def blocks(entry: Entry) -> int:
        modules = (entry.foreign, *((entry.own,) if isinstance(entry.own, str) else entry.own))
        before = [module.partition(".N.")[0] for module in modules if ".N." in module]
        return next(n for n in count(1) if not any(f"{stack}.{n}" in numbered for stack in before))

    def has(entry: Entry, kind: str, layer: int) -> bool:
        """Without biases in the maps, our norms have some nevertheless, and theirs may have."""
        if kind == "weight" or biased:
            return True
        own, foreign = names_of(entry, kind, layer)
        return own[0].endswith("norm.bias") and (not is_foreign or foreign in state)

    return [
        names_of(entry, kind, layer)
        for entry in entries
        for layer in range(blocks(entry))
        for kind in KINDS
        if has(entry, kind, layer)
    ]
