"""Who searches: when it is CTranslate2, what is said of that, and what becomes of what it found."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_translators import END, PAD, random_translator, sources

from clearhead.config import TranslationConfig
from clearhead.errors import ClearheadError, UsageError
from clearhead.inference import translation_backend
from clearhead.inference.beam import Hypothesis, beam_search, length_penalty
from clearhead.inference.translation_backend import MANY, CTranslate2Search, choose_search
from clearhead.interop import extras
from clearhead.interop.ctranslate2 import save_ctranslate2
from clearhead.models import EncoderDecoder

KNOWN: dict[str, Any] = {"positions": "learned", "norm": "layernorm", "feedforward": "relu"}


@pytest.fixture(autouse=True)
def nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """As if CTranslate2 were there, and found what `results` says, or failed as `failure` says."""
    record: dict[str, Any] = {"results": []}

    class Translator:
        def __init__(self, folder: str, **options: Any) -> None:
            record["options"] = options

        def translate_batch(self, texts: list[list[str]], **options: Any) -> list[Any]:
            record["batch"] = texts, options
            if "failure" in record:
                raise record["failure"]
            pairs = [zip(*hypotheses, strict=True) for hypotheses in record["results"]]
            return [
                SimpleNamespace(hypotheses=[ids.split() for ids in written], scores=list(scores))
                for written, scores in pairs
            ]

    monkeypatch.setattr(translation_backend, "find_spec", lambda name: name == "ctranslate2")
    monkeypatch.setattr(translation_backend, "import_module", lambda name: SimpleNamespace(Translator=Translator))
    monkeypatch.setattr(
        translation_backend, "save_ctranslate2", lambda folder, model, end: record.update(saved=(model, end))
    )
    return record


def chosen(model: EncoderDecoder, sentences: int = MANY, **options: Any) -> tuple[bool, str]:
    """Whether CTranslate2 searches, and what is said."""
    notices: list[str] = []
    config = TranslationConfig.read(options)
    search = choose_search(model, config, end=END, sentences=sentences, on_notice=notices.append)
    return isinstance(search, CTranslate2Search), " ".join(notices)


def test_it_is_chosen_where_it_is_installed_and_pays(installed: dict[str, Any]) -> None:
    model = random_translator(9, **KNOWN).float()
    is_chosen, notices = chosen(model)
    assert is_chosen
    assert "CTranslate2" in notices
    assert "engine eager" in notices
    assert "--" not in notices
    assert installed["saved"] == (model, END)
    assert installed["options"]["compute_type"] == "float32"
    assert chosen(model, sentences=MANY - 1) == (False, "")
    assert chosen(model, engine="eager") == (False, "")
    assert chosen(model, sentences=1, engine="ctranslate2") == (True, "")
    assert chosen(model, sentences=1, engine="ctranslate2-int8") == (True, "")
    assert installed["options"]["compute_type"] == "int8"


def test_one_that_is_not_installed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation_backend, "find_spec", lambda name: None)
    model, texts = random_translator(9, **KNOWN).float(), sources(3, 6, vocab_size=9)
    is_chosen, notices = chosen(model, engine="ctranslate2")
    assert not is_chosen
    assert "pip install 'clearhead[ctranslate2]'" in notices
    assert chosen(model) == (False, "")
    config = TranslationConfig(engine="ctranslate2")
    search = choose_search(model, config, end=END, sentences=2)
    assert search(texts) == beam_search(model, texts, config, end=END)


@pytest.mark.sampled
@pytest.mark.parametrize("engine", ["auto", "ctranslate2"])
@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError, ValueError])
@pytest.mark.parametrize("failing", ["import_module", "TemporaryDirectory", "save_ctranslate2", "Translator"])
def test_one_that_fails_stops_nobody(
    installed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, failing: str, error: type[Exception], engine: str
) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise error("no such thing here")

    if failing == "Translator":
        monkeypatch.setattr(translation_backend, "import_module", lambda name: SimpleNamespace(Translator=fail))
    else:
        monkeypatch.setattr(translation_backend, failing, fail)
    model, texts, notices = random_translator(9, **KNOWN).float(), sources(3, 6, vocab_size=9), list[str]()
    config = TranslationConfig.read({"engine": engine})
    search = choose_search(model, config, end=END, sentences=MANY, on_notice=notices.append)
    assert search(texts) == beam_search(model, texts, config, end=END)
    [notice] = notices
    assert "CTranslate2 not used" in notice
    assert "no such thing here" in notice


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, ValueError])
def test_one_that_fails_on_the_way_has_the_rest_searched_for_here(
    installed: dict[str, Any], error: type[Exception]
) -> None:
    model, texts, notices = random_translator(9, **KNOWN).float(), sources(3, 6, vocab_size=9), list[str]()
    config = TranslationConfig()
    expected = beam_search(model, texts, config, end=END)
    search = choose_search(model, config, end=END, sentences=MANY, on_notice=notices.append)
    installed["results"] = [[("4 1", -0.1)], [("5 1", -0.1)]]
    assert [[best.ids for best in hypotheses] for hypotheses in search(texts)] == [[[4]], [[5]]]
    installed["failure"] = error("no such thing here")
    del notices[:]
    assert search(texts) == expected
    del installed["failure"], installed["batch"]
    assert search(texts) == expected
    assert "batch" not in installed
    [notice] = notices
    assert "no such thing here" in notice


@pytest.mark.parametrize("engine", ["ctranslate2", "ctranslate2-int8"])
def test_one_that_was_asked_for_and_fails_on_the_way_is_an_error(installed: dict[str, Any], engine: str) -> None:
    config, model = TranslationConfig.read({"engine": engine}), random_translator(9, **KNOWN).float()
    search = choose_search(model, config, end=END, sentences=1)
    installed["failure"] = RuntimeError("no such thing here")
    with pytest.raises(ClearheadError, match="no such thing here; engine eager"):
        search(sources(3, vocab_size=9))


@pytest.mark.parametrize(
    ("options", "search_options", "reason"),
    [
        ({"positions": "rope"}, {}, "positions rope"),
        ({"norm": "rmsnorm"}, {}, "norm rmsnorm"),
        ({"feedforward": "swiglu"}, {}, "feedforward swiglu"),
        ({"n_kv_heads": 1}, {}, "heads"),
        ({"scale_logits": True, "qk_norm": True}, {}, "qk_norm True and scale_logits True"),
        ({}, {"n_best": 2}, "n_best > 1"),
    ],
)
def test_what_it_cannot_find_our_own_search_finds(
    installed: dict[str, Any], options: dict[str, Any], search_options: dict[str, Any], reason: str
) -> None:
    model = random_translator(9, **{**KNOWN, **options}).float()
    is_chosen, notices = chosen(model, engine="ctranslate2", **search_options)
    assert not is_chosen
    assert reason in notices
    assert chosen(model, **search_options) == (False, "")


def test_models_that_are_watched_or_wide_stay_here(installed: dict[str, Any]) -> None:
    wide, watched = random_translator(9, **KNOWN), random_translator(9, **KNOWN).float()
    assert "float32" in chosen(wide, engine="ctranslate2")[1]
    hook = watched.decoder.register_forward_pre_hook(lambda module, args: None)
    assert "Stack has a forward hook" in chosen(watched, engine="ctranslate2")[1]
    hook.remove()
    assert chosen(watched, engine="ctranslate2") == (True, "")


def test_the_best_of_what_counts_is_taken(installed: dict[str, Any]) -> None:
    model, texts = random_translator(9, **KNOWN).float(), sources(3, 2, 4, 5, vocab_size=9)
    config = TranslationConfig(engine="ctranslate2", beam_size=3, length_penalty=1.0, max_new_tokens=4)
    installed["results"] = [
        [("4 1", -3.0), ("4 5 6 1", -3.5), ("4 5 6 7", -1.0)],  # the last one has no end
        [("4 5 6 7 1", -1.0), ("4 1", -3.0)],  # the first is too long
        [("4 5 6 7", -1.0)],
        [("4 1", -3.0), ("5 1", -3.1), ("4 5 6 1", -3.6)],  # a fourth could be as good, not better
    ]
    translations = choose_search(model, config, end=END, sentences=4)(texts)
    rows, options = installed["batch"]
    assert rows == [[str(token) for token in text] for text in texts]
    assert options["suppress_sequences"] == [[str(PAD)]]
    assert translations[0] == [Hypothesis([4, 5, 6], -3.5 / length_penalty(4, 1.0))]
    assert translations[1] == [Hypothesis([4], -3.0 / length_penalty(2, 1.0))]
    assert translations[2:3] == beam_search(model, texts[2:3], config, end=END)
    assert translations[3] == [Hypothesis([4, 5, 6], -3.6 / length_penalty(4, 1.0))]
    installed["results"] = [[("4 1", -3.0), ("5 1", -3.1), ("4 5 6 2", -3.6)]]
    assert choose_search(model, config, end=END, sentences=1)(texts[:1]) == beam_search(
        model, texts[:1], config, end=END
    )


def test_without_it_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"clearhead\[ctranslate2\]"):
        save_ctranslate2(tmp_path / "made", random_translator(9, **KNOWN), end=END)
    assert not (tmp_path / "made").exists()
