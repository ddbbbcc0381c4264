"""Weights and configs that travel: one table per family of foreign models, read in both directions.

What needs torch loads it when it is touched: a folder's headers are judged before that.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; below is the same
    from clearhead.exchange.configs import check as check
    from clearhead.exchange.configs import read_config as read_config
    from clearhead.exchange.families import FAMILIES as FAMILIES
    from clearhead.exchange.families import family_of as family_of
    from clearhead.exchange.families import obstacle as obstacle
    from clearhead.exchange.family import Entry as Entry
    from clearhead.exchange.family import Family as Family
    from clearhead.exchange.folder import SpecialTokens as SpecialTokens
    from clearhead.exchange.folder import load as load
    from clearhead.exchange.folder import read_tokens as read_tokens
    from clearhead.exchange.folder import save as save
    from clearhead.exchange.headers import examine as examine
    from clearhead.exchange.headers import in_short as in_short
    from clearhead.exchange.hub import find_folder as find_folder
    from clearhead.exchange.peer import CannotOpenError as CannotOpenError
    from clearhead.exchange.peer import Peer as Peer
    from clearhead.exchange.peers import OwnPeer as OwnPeer
    from clearhead.exchange.peers import open_own as open_own
    from clearhead.exchange.peers import open_transformers as open_transformers
    from clearhead.exchange.peers import require_transformers as require_transformers
    from clearhead.exchange.single import load_file as load_file
    from clearhead.exchange.single import save_file as save_file
    from clearhead.exchange.tables import Link as Link
    from clearhead.exchange.tables import links as links
    from clearhead.exchange.torch_layers import from_torch as from_torch
    from clearhead.exchange.torch_layers import to_torch as to_torch
    from clearhead.exchange.weights import to_foreign as to_foreign
    from clearhead.exchange.weights import to_own as to_own

_FILE_OF = {
    "FAMILIES": "families",
    "CannotOpenError": "peer",
    "Entry": "family",
    "Family": "family",
    "Link": "tables",
    "OwnPeer": "peers",
    "Peer": "peer",
    "SpecialTokens": "folder",
    "check": "configs",
    "examine": "headers",
    "family_of": "families",
    "find_folder": "hub",
    "from_torch": "torch_layers",
    "in_short": "headers",
    "links": "tables",
    "load": "folder",
    "load_file": "single",
    "obstacle": "families",
    "open_own": "peers",
    "open_transformers": "peers",
    "read_config": "configs",
    "read_tokens": "folder",
    "require_transformers": "peers",
    "save": "folder",
    "save_file": "single",
    "to_foreign": "weights",
    "to_own": "weights",
    "to_torch": "torch_layers",
}

__all__ = sorted(_FILE_OF)


def __getattr__(name: str) -> Any:
    if name in _FILE_OF:
        return getattr(import_module(f"clearhead.exchange.{_FILE_OF[name]}"), name)
    raise AttributeError(f"module 'clearhead.exchange' has no attribute '{name}'")
