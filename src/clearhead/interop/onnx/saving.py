"""A model as .onnx files in float32, for batches and texts of any size."""

import copy
import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.export import Dim

from clearhead.errors import ClearheadError
from clearhead.files import adding_to
from clearhead.interop.extras import require
from clearhead.interop.hf.folder import NO_TOKENS, SpecialTokens
from clearhead.interop.onnx.graphs import GRAPHS, Graph
from clearhead.interop.onnx.plain import PlainAttention
from clearhead.models import LanguageModel

if TYPE_CHECKING:
    import onnx_ir

OPSET = 18  # of the operators' versions, one that runtimes have known since 2023
MAX_BYTES = 2**31 - 2**24  # of weights in one file: protobuf's bound, less some room for the graph
CONFIG, START = "clearhead.config", "clearhead.start"  # of what a file tells: options, and how targets begin
TALKERS = ("torch", "onnxscript", "onnx_ir")


def save_onnx(folder: Path, model: LanguageModel, tokens: SpecialTokens = NO_TOKENS) -> list[Path]:
    """Write the model's graphs into the folder; `graphs` says what they are called and what goes in and out.

    Args:
        folder: where.
        model: what; it stays as it is.
        tokens: of its tokenizer; a translation begins with the end token where the config names no other start.

    Returns:
        The files: one for each graph, and its weights in one beside it where they have 2 GB or more.

    Raises:
        UsageError: a package for it is missing.
        ClearheadError: the folder cannot be written.
    """
    require("onnx", "onnx", "onnxscript")
    plain = copy.deepcopy(model).to("cpu", torch.float32).eval()
    metadata = {CONFIG: json.dumps(model.config.model_dump())}
    start = tokens.end if model.config.decoder_start_id is None else model.config.decoder_start_id
    if start is not None:
        metadata[START] = str(start)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [path for graph in GRAPHS[model.config.architecture](plain) for path in _write(folder, graph, metadata)]
    except OSError as error:
        raise ClearheadError(f"the model cannot be written to {folder}: {error}") from None


def _write(folder: Path, graph: Graph, metadata: dict[str, str]) -> list[Path]:
    """Trace the graph and write it, in a temporary folder from which the files are then moved."""
    with _quietly():
        with PlainAttention():
            traced = torch.export.export(
                graph.module,
                tuple(value.example() for value in graph.inputs),
                dynamic_shapes=(tuple(dict.fromkeys(value.axes(), Dim.DYNAMIC) for value in graph.inputs),),
                strict=False,
            )
        program = torch.onnx.export(
            traced,
            dynamo=True,
            opset_version=OPSET,
            input_names=[value.name for value in graph.inputs],
            output_names=[value.name for value in graph.outputs],
            dynamic_shapes=(tuple(value.axes() for value in graph.inputs),),
            verbose=False,
            optimize=False,
        )
        assert program is not None
        _tidy(program.model)
    program.model.metadata_props.update(metadata)
    weights = sum(tensor.nbytes for tensor in graph.module.state_dict().values())
    with adding_to(folder) as temporary:
        program.save(temporary / graph.file, external_data=weights > MAX_BYTES)
        names = sorted((path.name for path in temporary.iterdir()), reverse=True)  # the weights first
    return [folder / name for name in names]


def _tidy(program: "onnx_ir.Model") -> None:
    """Compute beforehand what can be; and drop what the exporter notes of where in which file a value was traced."""
    from onnxscript.optimizer import optimize_ir

    optimize_ir(program, should_fold=_should_fold)
    graph = program.graph
    values = [value for node in graph for value in node.outputs]
    for thing in (graph, *graph, *graph.inputs, *graph.initializers.values(), *values):
        thing.metadata_props.clear()


def _should_fold(node: "onnx_ir.Node") -> bool | None:
    """Weights stay as they are, under their own names: a tied one would be stored twice if it were transposed."""
    return False if node.op_type == "Transpose" else None


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what the exporter says of its progress, and of what is old in itself."""
    loggers = [logging.getLogger(name) for name in TALKERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
