"""ONNX: a model as graphs that run without Python or torch."""

from clearhead.interop.onnx.running import open_onnx
from clearhead.interop.onnx.saving import save_onnx

__all__ = ["open_onnx", "save_onnx"]
