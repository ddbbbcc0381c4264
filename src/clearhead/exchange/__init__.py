"""Weights and configs that travel: one table per family of foreign models, read in both directions."""

from clearhead.exchange.families import FAMILIES, family_of, obstacle
from clearhead.exchange.family import Entry, Family
from clearhead.exchange.folder import SpecialTokens, load, read_config, save
from clearhead.exchange.torch_layers import from_torch, to_torch
from clearhead.exchange.weights import Link, links, to_foreign, to_own

__all__ = [
    "FAMILIES",
    "Entry",
    "Family",
    "Link",
    "SpecialTokens",
    "family_of",
    "from_torch",
    "links",
    "load",
    "obstacle",
    "read_config",
    "save",
    "to_foreign",
    "to_own",
    "to_torch",
]
