"""ONNX: a model as graphs that run without Python or torch."""

from clearhead.exchange.onnx.running import open_onnx
from clearhead.exchange.onnx.saving import save_onnx

__all__ = ["open_onnx", "save_onnx"]
