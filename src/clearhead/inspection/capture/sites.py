"""Where a model's attentions, feed-forwards and residual streams are, by the paths of their modules."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from clearhead.parts import Attention, Block, Stack
from clearhead.parts.feedforward import FeedForward

AttentionKind = Literal["self", "cross", "encoder"]  # "encoder": the self-attention of an encoder-decoder's encoder


@dataclass(frozen=True)
class BlockSite:
    """A block: its path, its layer, counted from 0, and whether it is in the encoder of an encoder-decoder."""

    name: str
    layer: int
    is_encoder: bool
    module: Block


@dataclass(frozen=True)
class StackSite:
    """A stack, and whether it is the encoder of an encoder-decoder."""

    name: str
    is_encoder: bool
    module: Stack

    @property
    def blocks(self) -> list[BlockSite]:
        """Its blocks, in order."""
        blocks = enumerate(_blocks_of(self.module))
        return [BlockSite(path(self.name, f"blocks.{layer}"), layer, self.is_encoder, block) for layer, block in blocks]


@dataclass(frozen=True)
class AttentionSite:
    """An attention: which kind it is, its layer, counted from 0, and its path."""

    kind: AttentionKind
    layer: int
    name: str
    module: Attention


@dataclass(frozen=True)
class FeedForwardSite:
    """A feed-forward: its layer, counted from 0, and its path."""

    is_encoder: bool
    layer: int
    name: str
    module: FeedForward


def stack_sites(model: nn.Module) -> list[StackSite]:
    """The stacks of a model, in the order of its modules."""
    stacks = [(name, module) for name, module in model.named_modules() if isinstance(module, Stack)]
    reads_memory = {name: any(block.cross_attention for block in _blocks_of(stack)) for name, stack in stacks}
    is_pair = any(reads_memory.values())
    return [StackSite(name, is_pair and not reads_memory[name], stack) for name, stack in stacks]


def main_stack(model: nn.Module) -> StackSite | None:
    """The stack whose output goes to the head; None if the model has none."""
    return next((site for site in stack_sites(model) if not site.is_encoder), None)


def block_sites(model: nn.Module) -> list[BlockSite]:
    """The blocks of a model's stacks in the order in which they compute; a block may also be the model itself."""
    if isinstance(model, Block):
        return [BlockSite("", 0, False, model)]
    return [block for stack in stack_sites(model) for block in stack.blocks]


def attention_sites(model: nn.Module) -> list[AttentionSite]:
    """The attentions of a model, in the order in which they compute; an attention may also be the model itself."""
    if isinstance(model, Attention):
        return [AttentionSite("self", 0, "", model)]
    return [site for block in block_sites(model) for site in _attentions_of(block)]


def _attentions_of(site: BlockSite) -> Iterator[AttentionSite]:
    own, cross = site.module.self_attention.part, site.module.cross_attention
    if isinstance(own, Attention):
        kind: AttentionKind = "encoder" if site.is_encoder else "self"
        yield AttentionSite(kind, site.layer, path(site.name, "self_attention.part"), own)
    if cross is not None and isinstance(cross.part, Attention):
        yield AttentionSite("cross", site.layer, path(site.name, "cross_attention.part"), cross.part)


def feedforward_sites(model: nn.Module) -> list[FeedForwardSite]:
    """The feed-forwards of a model, in the order in which they compute."""
    parts = ((site, site.module.feedforward.part) for site in block_sites(model))
    return [
        FeedForwardSite(site.is_encoder, site.layer, path(site.name, "feedforward.part"), part)
        for site, part in parts
        if isinstance(part, FeedForward)
    ]


def called_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Path and module of everything with a `forward`; lists of modules and positions have none and are never called."""
    return ((name, module) for name, module in model.named_modules() if type(module).forward is not nn.Module.forward)


def path(*names: str) -> str:
    """A module's path from the names of the modules around it; the model's own is empty."""
    return ".".join(filter(None, names))


def _blocks_of(stack: Stack) -> list[Block]:
    return [block for block in stack.blocks if isinstance(block, Block)]
