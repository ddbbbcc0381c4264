"""Export a run for another program, with a certificate that both compute the same."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from clearhead import interop
from clearhead.errors import ClearheadError, UsageError
from clearhead.files import write_json
from clearhead.interop import Peer, SpecialTokens
from clearhead.models import LanguageModel
from clearhead.options import has_arguments
from clearhead.suggestions import did_you_mean
from clearhead.workflows.certificate import Certificate, PeerComparison, not_opened
from clearhead.workflows.hardware import enough_memory
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.tasks import TASKS

CERTIFICATE = "certificate.json"


class Exported(NamedTuple):
    """What was written, what it was compared with, and where that is said."""

    path: Path
    certificate: Certificate
    certificate_path: Path


@dataclass(frozen=True)
class _Content:
    """What an export holds."""

    run: RunFolder
    model: LanguageModel
    tokens: SpecialTokens

    @property
    def start(self) -> int:
        """The token that a translation begins with; of no meaning for others."""
        start = (
            self.model.config.decoder_start_id if self.model.config.decoder_start_id is not None else self.tokens.end
        )
        return start or 0

    def write_tokenizers(self, folder: Path) -> None:
        TASKS[self.run.config.objective].write_tokenizers(folder, self.run.tokenizers)


class _Format(NamedTuple):
    """How a format is written, and opened by another program.

    `suffix` is that of its file where it is one file. Of settings that the program is known to skip in the file,
    `advice` is a sentence, `unread` has the values, and `open_with` opens the file with them.
    """

    check: Callable[[_Content], None]
    write: Callable[[Path, _Content], object]
    open: Callable[[Path, _Content], Peer]
    suffix: str | None = None
    advice: Callable[[_Content], str] = lambda content: ""
    unread: Callable[[_Content], Mapping[str, int]] = lambda content: {}
    open_with: Callable[[Path, Mapping[str, int]], Peer] | None = None


def _check_hf(content: _Content) -> None:
    interop.require_transformers()
    reason = interop.obstacle(content.model.config)
    if reason:
        raise UsageError(f"{content.run.folder} has no Hugging Face equivalent, because of {reason}")


def _write_hf(folder: Path, content: _Content) -> None:
    interop.save(folder, content.model, content.tokens)
    content.write_tokenizers(folder)


def _write_onnx(folder: Path, content: _Content) -> None:
    from clearhead.interop.onnx import save_onnx

    save_onnx(folder, content.model, content.tokens)
    content.write_tokenizers(folder)


def _open_onnx(folder: Path, content: _Content) -> Peer:
    from clearhead.interop.onnx import open_onnx

    return open_onnx(folder)


def _write_gguf(path: Path, content: _Content) -> None:
    from clearhead.interop.gguf import save_gguf

    save_gguf(path, content.model, content.run.folder / "tokenizer.json", content.tokens)


def _open_gguf(path: Path, content: _Content) -> Peer:
    from clearhead.interop.gguf import open_gguf

    return open_gguf(path)


def _advise_gguf(content: _Content) -> str:
    from clearhead.interop.gguf import reader_advice

    return reader_advice(content.model.config)


def _unread_gguf(content: _Content) -> Mapping[str, int]:
    from clearhead.interop.gguf import unread_settings

    return unread_settings(content.model.config)


def _open_gguf_with(path: Path, unread: Mapping[str, int]) -> Peer:
    from clearhead.interop.gguf import open_gguf

    return open_gguf(path, unread)


def _check_nothing(content: _Content) -> None:
    """The writer itself checks."""


FORMATS = {
    "hf": _Format(_check_hf, _write_hf, lambda path, content: interop.open_transformers(path)),
    "onnx": _Format(_check_nothing, _write_onnx, _open_onnx),
    "gguf": _Format(_check_nothing, _write_gguf, _open_gguf, ".gguf", _advise_gguf, _unread_gguf, _open_gguf_with),
    "safetensors": _Format(
        _check_nothing,
        lambda path, content: interop.save_file(path, content.model),
        lambda path, content: interop.open_own(path, start=content.start),
        ".safetensors",
    ),
}


@has_arguments()
def export(run: str | Path | RunFolder | None, to: str, out: str | Path) -> Exported:
    """Write the run's model in another program's format, then compare what that program makes of it.

    Args:
        run: a folder, a name, or None for the newest.
        to: hf, onnx, gguf or safetensors.
        out: a folder; gguf and safetensors are one file, model.gguf in it, or the file of that name itself.

    Returns:
        Where it is, and its certificate, which is saved beside it, also where it failed.

    Raises:
        UsageError: there is no such format, or it cannot hold the model or the tokenizer; or a package is missing.
        ClearheadError: it cannot be written; or it is written, and the other program computes something else, or cannot
            open it for a reason other than settings that it is known to skip.
    """
    if to not in FORMATS:
        raise UsageError(f"there is no format '{to}'{did_you_mean(to, FORMATS)} (formats: {', '.join(FORMATS)})")
    format, out = FORMATS[to], Path(out)
    path, where = _places(out, format.suffix)
    opened = open_folder(run)
    tokenizer = opened.tokenizer
    content = _Content(opened, opened.model(), SpecialTokens(end=tokenizer.end_of_document, pad=tokenizer.pad))
    format.check(content)
    is_new = not out.exists()
    with enough_memory("the model needs a machine with more"):
        try:
            format.write(path, content)
            certificate = _certificate(to, path, content)
        except BaseException as error:
            if is_new:
                _remove(out)
            if isinstance(error, OSError):
                raise ClearheadError(f"the export cannot be written to {out}: {error}") from None
            raise
    try:
        write_json(where, {key: _finite(value) for key, value in asdict(certificate).items()})
    except OSError as error:
        raise ClearheadError(f"the certificate cannot be written to {where}: {error}") from None
    if not certificate.passed and not certificate.unread:
        fault = f"does not compute what {opened.folder} computes"
        if certificate.reason:
            fault = f"cannot open it: {certificate.reason}"
        raise ClearheadError(f"{path} is written, but {certificate.peer} {fault}; see {where}")
    return Exported(path, certificate, where)


def _certificate(to: str, path: Path, content: _Content) -> Certificate:
    """What the other program makes of the export, as its makers ship it, or else with the settings that it skips."""
    format = FORMATS[to]
    try:
        return _compare(to, format.open(path, content), content)
    except interop.CannotOpenError as error:
        unread = format.unread(content)
        if format.open_with is None or not unread:
            return not_opened(to, error.peer, error.reason)
    certificate = _compare(to, format.open_with(path, unread), content)
    if not certificate.passed:
        return certificate
    return replace(certificate, passed=False, reason=format.advice(content), unread=unread)


def _compare(to: str, peer: Peer, content: _Content) -> Certificate:
    own, config = interop.OwnPeer(content.model, start=content.start), content.model.config
    return PeerComparison(own, peer, config, content.run.tokenizers[0], content.start).certificate(to)


def _places(out: Path, suffix: str | None) -> tuple[Path, Path]:
    """Where the export and its certificate go.

    Raises:
        UsageError: something is there already.
    """
    path, where = out, out / CERTIFICATE
    if suffix is not None:
        is_file = out.suffix == suffix
        path = out if is_file else out / f"model{suffix}"
        where = out.with_suffix(f".{CERTIFICATE}") if is_file else where
    if (out.is_dir() and any(out.iterdir())) or (out.exists() and not out.is_dir()):
        raise UsageError(f"there is something in {out} already; choose another place to export to")
    return path, where


def _remove(out: Path) -> None:
    """Remove an unfinished export."""
    if out.is_dir():
        shutil.rmtree(out, ignore_errors=True)
    else:
        out.unlink(missing_ok=True)


def _finite(value: object) -> object:
    """JSON has no NaN; a difference that is none is told as null."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not abs(value) < float("inf") else value
