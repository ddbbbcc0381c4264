"""The files of an export, computed by onnxruntime."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.errors import DataError
from clearhead.interop.extras import require
from clearhead.interop.onnx.graphs import DECODER, ENCODER, MODEL, SEGMENTS
from clearhead.interop.onnx.saving import CONFIG, START
from clearhead.interop.peer import Peer
from clearhead.parts import positions_from_lengths

Array = NDArray[np.generic]
ERRORS_ONLY = 3


def open_onnx(folder: Path) -> Peer:
    """The model that `save_onnx` wrote into the folder.

    Raises:
        UsageError: onnxruntime is missing.
        DataError: the folder holds no such files, or they cannot be read.
    """
    require("onnx", "onnxruntime")
    last = Session(folder / (DECODER if (folder / DECODER).is_file() else MODEL))
    return PEERS[json.loads(last.metadata[CONFIG])["architecture"]](folder, last)


class Session:
    """One file, and what it was told when it was written."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self.name = f"onnxruntime {onnxruntime.__version__}"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = ERRORS_ONLY
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library's own have no base of their own
            raise DataError(f"{path} cannot be read by {self.name}: {str(error).splitlines()[0]}") from None
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.inputs = {value.name: value.shape for value in self._session.get_inputs()}
        self._outputs = [value.name for value in self._session.get_outputs()]

    def run(self, **inputs: Array) -> dict[str, Array]:
        """The outputs by their names."""
        return dict(zip(self._outputs, self._session.run(None, inputs), strict=True))

    def without_past(self, batch_size: int) -> dict[str, Array]:
        """The past of a first call: no columns, no tokens."""
        past = {name: shape for name, shape in self.inputs.items() if name.startswith("past_key_values")}
        return {
            name: np.zeros((batch_size, shape[1]), dtype=np.int64)  # (B, n - 1)
            if name.endswith(".tokens")
            else np.zeros((batch_size, shape[1], 0, shape[3]), dtype=np.float32)  # (B, H_kv, 0, K)
            for name, shape in past.items()
        }


def as_past(outputs: Mapping[str, Array]) -> dict[str, Array]:
    """What a call put out, under the names of the next one's past."""
    return {name.replace("present", "past_key_values"): value for name, value in outputs.items() if name != "logits"}


class OnnxDecoder:
    """Goes on with texts."""

    def __init__(self, folder: Path, session: Session) -> None:
        self.name, self._session = session.name, session

    def logits(self, ids: Tensor, lengths: Tensor, target: Tensor | None = None) -> Tensor:
        assert target is None
        mask = _mask(lengths, ids.shape[1], "left")
        past = self._session.without_past(len(ids))
        return torch.from_numpy(self._session.run(input_ids=ids.numpy(), attention_mask=mask, **past)["logits"])

    def greedy(self, ids: Tensor, n: int) -> Tensor:
        text, new, past = ids.numpy(), ids.numpy(), self._session.without_past(1)
        for _ in range(n):
            outputs = self._session.run(input_ids=new, attention_mask=np.ones_like(text), **past)
            new, past = _likeliest(outputs), as_past(outputs)
            text = np.concatenate((text, new), axis=1)
        return torch.from_numpy(text)

    def tokenize(self, text: str) -> None:
        return None


class Encoder:
    """Fills in."""

    def __init__(self, folder: Path, session: Session) -> None:
        self.name, self._session = session.name, session

    def logits(self, ids: Tensor, lengths: Tensor, target: Tensor | None = None) -> Tensor:
        assert target is None
        inputs = {"input_ids": ids.numpy(), "attention_mask": _mask(lengths, ids.shape[1], "right")}
        if SEGMENTS in self._session.inputs:
            inputs[SEGMENTS] = np.zeros_like(inputs["input_ids"])
        return torch.from_numpy(self._session.run(**inputs)["logits"])

    def greedy(self, ids: Tensor, n: int) -> Tensor:
        raise AssertionError("an encoder cannot continue a text")

    def tokenize(self, text: str) -> None:
        return None


class Translator:
    """Reads a source once, then writes."""

    def __init__(self, folder: Path, session: Session) -> None:
        self.name, self._decoder = session.name, session
        self._encoder = Session(folder / ENCODER)

    def logits(self, ids: Tensor, lengths: Tensor, target: Tensor | None = None) -> Tensor:
        assert target is not None
        memory, past = self._read(ids, lengths), self._decoder.without_past(len(ids))
        return torch.from_numpy(self._decoder.run(input_ids=target.numpy(), **memory, **past)["logits"])

    def greedy(self, ids: Tensor, n: int) -> Tensor:
        assert START in self._decoder.metadata, "save_onnx was not told what a translation begins with"
        memory, past = self._read(ids, torch.tensor([ids.shape[1]])), self._decoder.without_past(1)
        text = new = np.array([[int(self._decoder.metadata[START])]])
        for _ in range(n):
            outputs = self._decoder.run(input_ids=new, **memory, **past)
            new, past = _likeliest(outputs), as_past(outputs)
            text = np.concatenate((text, new), axis=1)
        return torch.from_numpy(text)

    def tokenize(self, text: str) -> None:
        return None

    def _read(self, source: Tensor, lengths: Tensor) -> dict[str, Array]:
        mask = _mask(lengths, source.shape[1], "right")
        states = self._encoder.run(input_ids=source.numpy(), attention_mask=mask)["last_hidden_state"]
        return {"encoder_hidden_states": states, "encoder_attention_mask": mask}


PEERS: dict[str, Callable[[Path, Session], Peer]] = {
    "decoder": OnnxDecoder,
    "bigram": OnnxDecoder,
    "encoder": Encoder,
    "encoder_decoder": Translator,
}


def _mask(lengths: Tensor, width: int, side: Literal["left", "right"]) -> Array:
    return (positions_from_lengths(lengths, width, side) >= 0).long().numpy()


def _likeliest(outputs: Mapping[str, Array]) -> Array:
    return np.asarray(outputs["logits"][:, -1:].argmax(axis=-1))  # (1, T, V) -> (1, 1)
