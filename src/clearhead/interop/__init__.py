"""Weights and configs that travel: one table per family of foreign models, read in both directions.

What needs torch loads it when it is touched: a folder's headers are judged before that.
"""

from clearhead.lazy import attach

TYPE_CHECKING = False  # as `typing` has it, which takes a while to load
if TYPE_CHECKING:  # what type checkers and editors see; below is the same, loaded when it is first touched
    from clearhead.interop.headers import in_short as in_short
    from clearhead.interop.headers import read_headers as read_headers
    from clearhead.interop.hf.configs import check as check
    from clearhead.interop.hf.configs import read_config as read_config
    from clearhead.interop.hf.families import FAMILIES as FAMILIES
    from clearhead.interop.hf.families import family_of as family_of
    from clearhead.interop.hf.families import obstacle as obstacle
    from clearhead.interop.hf.family import Entry as Entry
    from clearhead.interop.hf.family import Family as Family
    from clearhead.interop.hf.folder import SpecialTokens as SpecialTokens
    from clearhead.interop.hf.folder import load as load
    from clearhead.interop.hf.folder import read_tokens as read_tokens
    from clearhead.interop.hf.folder import save as save
    from clearhead.interop.hf.hub import find_folder as find_folder
    from clearhead.interop.hf.key_map import Link as Link
    from clearhead.interop.hf.key_map import links as links
    from clearhead.interop.hf.weights import to_foreign as to_foreign
    from clearhead.interop.hf.weights import to_own as to_own
    from clearhead.interop.peer import CannotOpenError as CannotOpenError
    from clearhead.interop.peer import Peer as Peer
    from clearhead.interop.single_file import load_file as load_file
    from clearhead.interop.single_file import save_file as save_file
    from clearhead.interop.torch_layers.decoder_layer import TransformerDecoderLayer as TransformerDecoderLayer
    from clearhead.interop.torch_layers.weights import from_torch as from_torch
    from clearhead.interop.torch_layers.weights import to_torch as to_torch
    from clearhead.interop.verify import OwnPeer as OwnPeer
    from clearhead.interop.verify import open_own as open_own
    from clearhead.interop.verify import open_transformers as open_transformers
    from clearhead.interop.verify import require_transformers as require_transformers

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "headers": ("in_short", "read_headers"),
        "hf.configs": ("check", "read_config"),
        "hf.families": ("FAMILIES", "family_of", "obstacle"),
        "hf.family": ("Entry", "Family"),
        "hf.folder": ("SpecialTokens", "load", "read_tokens", "save"),
        "hf.hub": ("find_folder",),
        "hf.key_map": ("Link", "links"),
        "hf.weights": ("to_foreign", "to_own"),
        "peer": ("CannotOpenError", "Peer"),
        "single_file": ("load_file", "save_file"),
        "torch_layers.decoder_layer": ("TransformerDecoderLayer",),
        "torch_layers.weights": ("from_torch", "to_torch"),
        "verify": ("OwnPeer", "open_own", "open_transformers", "require_transformers"),
    },
)
