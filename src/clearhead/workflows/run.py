"""A run as people use it: its folder, and the verbs that work on it."""

from pathlib import Path

from clearhead.workflows.evaluating import Score, TranslationScore, evaluate
from clearhead.workflows.filling import fill
from clearhead.workflows.generating import generate
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.translating import translate


class Run(RunFolder):
    """A training run on disk; its folder is also a Hugging Face folder where the architecture has an equivalent."""

    def generate(self, prompt: str = "", **options: object) -> str:
        """One text that begins with `prompt`; options as in `SamplingConfig`."""
        return generate(self, [prompt], options)[0][0]

    def translate(self, sentence: str, **options: object) -> str:
        """The best translation of a sentence; options as in `TranslationConfig`."""
        return translate(self, [sentence], options)[0][0].text

    def fill(self, text: str) -> str:
        """The text with its [MASK]s filled in."""
        return fill(self, text).text

    def evaluate(self, source: str | None = None, target: str | None = None) -> Score | TranslationScore:
        """How well it does on a text or on sentence pairs, or on what it held out."""
        return evaluate(self, source, target)


def load(run: str | Path | RunFolder | None = None) -> Run:
    """A run by its folder or its name under `runs`; without either, the one that was written to last.

    Raises:
        DataError: there is no such run.
    """
    return Run(open_folder(run).folder)
