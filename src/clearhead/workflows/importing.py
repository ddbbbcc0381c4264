"""Import a trained Hugging Face model as a run."""

import shutil
from pathlib import Path

import torch

from clearhead import interop
from clearhead.options import has_arguments
from clearhead.training import Notice
from clearhead.workflows.events import Observer, command, ignore
from clearhead.workflows.pretrained import Pretrained, pretrained_from_folder
from clearhead.workflows.run import Run
from clearhead.workflows.runs.create import create
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.tasks import TASKS


@has_arguments()
def import_model(source: str | Path, *, out: str | Path | None = None, on_event: Observer = ignore) -> Run:
    """A Hugging Face folder, or a model of the hub by its name, as a run: to generate with, evaluate and train on.

    Args:
        source: a folder with config.json, model.safetensors (or several, with their index) and tokenizer.json; where
            there is none of that name, the hub's model is fetched, which needs the extra `hub`.
        out: the run's folder; by default a new one under `runs`.
        on_event: is told what a person should know.

    Raises:
        DataError: the folder is damaged, hostile, or of no family that is known; one sentence that names every fault.
        ClearheadError: one sentence on what else is wrong.
    """
    pretrained = pretrained_from_folder(interop.find_folder(str(source)), str(source))
    run, is_new = create(Path(out) if out else None, Path(source).expanduser().resolve().name)
    with run.locked():
        try:
            kind, tokenizer = TASKS[pretrained.config.objective], pretrained.tokenizers[1]
            kind.write_tokenizers(run.folder, pretrained.tokenizers)
            tokens = interop.SpecialTokens(end=tokenizer.end_of_document, pad=tokenizer.pad)
            run.save_model(pretrained.model, tokens, step=0)
            run.write_config(pretrained.config)
        except BaseException:
            if is_new and not run.has_begun:
                shutil.rmtree(run.folder, ignore_errors=True)
            raise
    for sentence in _notices(pretrained):
        on_event(Notice(sentence))
    return Run(run.folder)


def after_import(run: RunFolder) -> tuple[str, ...]:
    """What a person may want to do with an imported run: commands, ready to be pasted."""
    verb, *arguments = TASKS[run.config.objective].next_verbs[0]
    return (command(verb, run.folder, *(arguments or ["Once upon a time"])), command("train my.txt --from", run.folder))


def _notices(pretrained: Pretrained) -> list[str]:
    """What is odd and may be meant: a matrix of one number was never trained, or is a placeholder."""
    flat = [
        name
        for name, tensor in pretrained.model.named_parameters()
        if tensor.dim() > 1 and tensor.numel() > 1 and torch.equal(tensor, tensor.flatten()[0].expand_as(tensor))
    ]
    notices = [f"every number is the same in {', '.join(flat)}: was it ever trained?"] if flat else []
    generates = pretrained.config.objective != "masked"
    if generates and pretrained.tokenizers[1].end_of_document is None:
        notices.append(
            "no file of the folder names the token that ends a text, so texts end where `max_new_tokens` says"
        )
    return notices
