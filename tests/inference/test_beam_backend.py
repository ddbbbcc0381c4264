"""Who reads for a beam search: when it is native code, what is said of that, and what happens where there is none."""

import copy

import pytest
import torch
from small_translators import END, random_translator, sources
from torch import Tensor

from clearhead.config import TranslationConfig
from clearhead.inference import beam_backend, beam_search
from clearhead.inference.beam_backend import BeamBackend, Continuations, EagerBeamBackend
from clearhead.inference.translation_backend import choose_search
from clearhead.models import EncoderDecoder
from clearhead.native import UnknownPartError, facade


def backend(model: EncoderDecoder, sentences: int = 1, **options: object) -> tuple[BeamBackend, list[str]]:
    notices: list[str] = []
    return beam_backend.choose_beam_backend(model, TranslationConfig.read(options), sentences, notices.append), notices


@pytest.mark.parametrize(
    ("sentences", "engine", "expected"),
    [
        (1, "eager", []),
        (5000, "eager", []),
        (1, "auto", []),
        (2, "auto", [False]),
        (5000, "auto", [True]),
        (5000, "ctranslate2", [True]),
        (1, "native", [True]),
    ],
)
def test_it_is_compiled_where_that_saves_time_or_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, sentences: int, engine: str, expected: list[bool]
) -> None:
    built: list[bool] = []
    monkeypatch.setattr(facade, "library", lambda dtype, build, on_notice: built.append(build))
    chosen, notices = backend(random_translator(9, n_layers=1), sentences, engine=engine, batch_size=1)
    assert isinstance(chosen, EagerBeamBackend)
    assert (built, notices) == (expected, [])


@pytest.mark.parametrize("error", [OSError, RuntimeError, UnknownPartError])
@pytest.mark.parametrize("engine", ["auto", "native"])
def test_a_failure_leaves_the_models_own_call(
    monkeypatch: pytest.MonkeyPatch, engine: str, error: type[Exception]
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error("no such thing here")

    monkeypatch.setattr(facade, "library", fail)
    chosen, notices = backend(random_translator(9), 5000, engine=engine)
    assert isinstance(chosen, EagerBeamBackend)
    quiet = engine == "auto" and error is UnknownPartError
    assert notices == ([] if quiet else ["native engine not used: no such thing here"])


def test_autocast_is_the_models_own_calls() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        chosen, notices = backend(random_translator(9).float(), engine="native")
    assert isinstance(chosen, EagerBeamBackend)
    assert "autocast is on" in notices[0]


def test_a_model_that_is_watched_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facade, "library", None)  # not to be called
    model = random_translator(9)
    model.decoder.register_forward_hook(lambda module, *arguments: None)
    chosen, [notice] = backend(model, engine="native")
    assert isinstance(chosen, EagerBeamBackend)
    assert "Stack has a forward hook" in notice


class Wrong(EagerBeamBackend):
    """A model whose weights are off, or who misses what is likeliest."""

    def __init__(self, model: EncoderDecoder, weights: bool) -> None:
        super().__init__(copy.deepcopy(model))
        self.weights = weights
        for parameter in self.model.parameters() if weights else ():
            parameter.detach().mul_(1.1)

    def top_continuations(self, logits: Tensor, before: Tensor, n: int) -> Continuations:
        continuations = super().top_continuations(logits, before, n + 1)
        return (
            super().top_continuations(logits, before, n)
            if self.weights
            else Continuations(*(column[:, 1:] for column in continuations))
        )


@pytest.mark.parametrize("weights", [True, False])
def test_wrong_code_is_not_used(monkeypatch: pytest.MonkeyPatch, weights: bool) -> None:
    monkeypatch.setattr(facade, "library", lambda dtype, build, on_notice: ())
    monkeypatch.setattr(beam_backend, "NativeBeamBackend", lambda model, library: Wrong(model, weights))
    chosen, [notice] = backend(random_translator(9), engine="native")
    assert type(chosen) is EagerBeamBackend
    assert "differs from PyTorch's" in notice


def test_the_search_asks_who_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts, config = random_translator(9), sources(3, 6, vocab_size=9), TranslationConfig(engine="native")
    read: list[int] = []

    class Counting(EagerBeamBackend):
        def forward(self, tokens: Tensor, *others: object) -> Tensor:
            read.append(tokens.shape[1])
            return super().forward(tokens, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(facade, "library", lambda dtype, build, on_notice: ())
    monkeypatch.setattr(beam_backend, "NativeBeamBackend", lambda model, library: Counting(model))
    search = choose_search(model, config, end=END, sentences=2)
    read.clear()
    assert search(texts) == beam_search(model, texts, config, end=END)
    assert read[:2] == [1, 5]


def test_a_wide_model_and_the_shortest_block_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facade, "library", lambda dtype, build, on_notice: ())
    monkeypatch.setattr(beam_backend, "NativeBeamBackend", lambda model, library: EagerBeamBackend(model))
    for options in ({"block_size": 1, "positions": "learned"}, {"decoder_start_id": 0}, {"source_vocab_size": 3}):
        model = random_translator(5, **options)
        for translator in (model, model.to(torch.float32)):
            assert backend(translator, engine="native")[1] == []
