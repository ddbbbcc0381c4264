"""The layers of `torch.nn`: their weights as ours, and one of them built of our parts, to stand in its place."""

from clearhead.interop.torch_layers.decoder_layer import TransformerDecoderLayer
from clearhead.interop.torch_layers.weights import from_torch, to_torch

__all__ = ["TransformerDecoderLayer", "from_torch", "to_torch"]
