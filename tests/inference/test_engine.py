"""Which engine is chosen, what is said of it, what happens where nothing can be compiled; as a campaign, compiling."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.inference import engine, generate_ids
from clearhead.inference.compiled import Step, building
from clearhead.inference.compiled.static import state_of
from clearhead.models import BigramLM, CausalLM, DecoderLM
from clearhead.parts import DecoderCache

PROMPT = [1, 2, 3]


def small(**options: object) -> DecoderLM:
    shape = {"vocab_size": 11, "block_size": 24, "n_layers": 2, "n_heads": 4, "d_model": 16}
    shape |= {"relative_buckets": 8, "relative_distance": 12}
    model = DecoderLM(ModelConfig.read(shape, options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)  # so that the likeliest token is so by far
    return model


def written(
    model: CausalLM, how: str, *, tokens: int = 12, rows: int = 1, weights: str = "full"
) -> tuple[object, list[str]]:
    notices: list[str] = []
    config = SamplingConfig(greedy=True, max_new_tokens=tokens)
    settings = EngineConfig.read({"engine": how, "weights": weights})
    prompts = [[*PROMPT, row] for row in range(rows)]
    columns = list(generate_ids(model, prompts, config, engine=settings, on_notice=notices.append))
    return columns, notices


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path))
    return tmp_path / "steps"


class Right:
    """In the place of a compiled step: the same step, not compiled."""

    def __init__(self, folder: Path, step: Step) -> None:
        self.step = step

    def logits(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        return self.step(ids, *state_of(cache, len(ids)))[0]  # type: ignore[no-any-return]


class Wrong(Right):
    """A compiled step that is not the model's."""

    def logits(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        return super().logits(ids, cache) + 0.1


def test_a_short_text_never_asks_for_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "folder_of", None)  # not to be called
    assert written(small(), "auto") == written(small(), "plain")
    assert not written(small(), "auto")[1]


@pytest.mark.parametrize(
    ("tokens", "found", "compiled"), [(9_999, False, False), (9_999, True, True), (999_999, False, True)]
)
def test_a_long_text_is_worth_it(
    monkeypatch: pytest.MonkeyPatch, kept: Path, tokens: int, found: bool, compiled: bool
) -> None:
    model, built = small(), list[Path]()
    monkeypatch.setattr(engine, "is_built", lambda folder: found)
    monkeypatch.setattr(engine, "build", lambda folder, step: built.append(folder))
    monkeypatch.setattr(engine, "CompiledStep", Wrong)
    chosen = engine.Engine(model, EngineConfig(), rows=1, tokens=tokens)
    assert (chosen._steps[True] is not None) == compiled
    assert len(built) == (compiled and not found)


def test_compiling_is_announced_and_a_failure_leaves_the_plain_engine(
    monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    def broken(folder: Path, step: Step) -> None:
        raise RuntimeError("g++: internal error\nmore of it")

    monkeypatch.setattr(engine, "build", broken)
    columns, notices = written(small(), "compiled")
    assert columns == written(small(), "plain")[0]
    assert len(notices) == 2
    assert "a minute or so" in notices[0]
    assert notices[1] == "the text is written without a compiled step: g++: internal error"


def test_wrong_code_is_not_used(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    monkeypatch.setattr(engine, "is_built", lambda folder: True)
    monkeypatch.setattr(engine, "CompiledStep", Wrong)
    columns, notices = written(small(), "compiled")
    assert columns == written(small(), "plain")[0]
    assert len(notices) == 1
    assert "not the model's" in notices[0]


def test_a_row_that_is_left_alone_is_not_compiled_for_in_the_middle_of_its_text(
    monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    built: list[Path] = []
    monkeypatch.setattr(engine, "build", lambda folder, step: built.append(folder))
    monkeypatch.setattr(engine, "CompiledStep", Right)
    finished: set[int] = set()
    config, how = SamplingConfig(greedy=True, max_new_tokens=20), EngineConfig(engine="compiled")
    for column in generate_ids(small(), [PROMPT] * 4, config, finished=finished, engine=how):
        finished |= {0, 1, 2} & set(column)
    assert built == [building.folder_of(small(), "full", one_row=False)]


def test_a_damaged_file_is_no_step(kept: Path) -> None:
    folder = building.folder_of(small(), "full", one_row=True)
    for path in (kept, folder):
        path.mkdir(mode=0o700)
    (folder / building.FILE).write_bytes(b"cut off")
    assert not building.is_built(folder)
    (folder / "facts.json").write_text("{}", encoding="utf-8")
    (folder / building.FILE).chmod(0o600)
    columns, notices = written(small(), "compiled")
    assert columns == written(small(), "plain")[0]
    assert len(notices) == 1


def test_a_file_that_others_can_change_is_not_run(kept: Path) -> None:
    folder = kept / "x"
    for path in (kept, folder):
        path.mkdir(mode=0o700)
    for name in ("facts.json", building.FILE):
        (folder / name).write_text("{}", encoding="utf-8")
        (folder / name).chmod(0o600)
    assert building.is_built(folder)
    for path in (folder / building.FILE, folder, kept):
        path.chmod(0o777)
        assert not building.is_built(folder)
        path.chmod(0o700)


def test_nothing_is_compiled_into_a_folder_of_others(kept: Path) -> None:
    kept.mkdir()
    kept.chmod(0o777)
    columns, notices = written(small(), "compiled")
    assert columns == written(small(), "plain")[0]
    assert "others can write" in notices[1]


def test_what_must_differ_is_kept_apart_and_what_need_not_is_shared(kept: Path) -> None:
    folders = {
        building.folder_of(model, weights, one_row=True)
        for model in (small(), small(positions="rope"), small(n_kv_heads=2))
        for weights in ("full", "int8")
    }
    assert len(folders) == 6
    assert building.folder_of(small(), "int8", one_row=False) not in folders
    assert building.folder_of(small(), "int8", one_row=False) == building.folder_of(small(), "full", one_row=False)
    other = DecoderLM(small().config, seed=9)
    assert building.folder_of(other, "full", one_row=True) in folders


def test_what_cannot_be_compiled_is_said() -> None:
    hooked, own = small(), small()
    hooked.stack.register_forward_hook(lambda *given: None)
    own.dropout = type("Mine", (torch.nn.Identity,), {"__module__": "mine"})()
    bigram = BigramLM(ModelConfig(architecture="bigram", vocab_size=11, block_size=8))
    reasons = {
        "only a decoder": bigram,
        "not float32": small().double(),
        "hooked onto Stack": hooked,
        "Mine is not a part": own,
    }
    for reason, model in reasons.items():
        columns, notices = written(model, "compiled")
        assert columns == written(model, "plain")[0]
        assert len(notices) == 1
        assert reason in notices[0]


def test_without_a_compiler_the_plain_engine_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    columns, notices = written(small(), "compiled")
    assert columns == written(small(), "plain")[0]
    assert "no C++ compiler" in notices[0]


COMPILED = [
    {"positions": "rope", "embedding_ngrams": 3, "logit_ngrams": 2, "window": 9},
    {"positions": "rope", "n_kv_heads": 2, "qk_norm": True, "norm": "rmsnorm", "feedforward": "swiglu", "tied": False},
    {"positions": "rope", "window": 5, "residual": "parallel", "bias": True},
    {"positions": "alibi", "n_kv_heads": 1, "norm_place": "post"},
    {"positions": "learned", "bias": True, "feedforward": "gelu_tanh"},
    {"positions": "relative", "scale_scores": False, "scale_head": True, "norm": "rmsnorm_plus_one"},
    {"positions": "sinusoidal", "window": 7, "head_transform": True, "head_bias": True},
]


@pytest.mark.campaign
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("choice", COMPILED, ids=lambda choice: choice["positions"])
def test_compiled_code_writes_what_the_plain_engine_writes(choice: dict[str, object], rows: int, kept: Path) -> None:
    model = small(**choice, block_size=32)
    for weights in ("full", "int8") if rows == 1 else ("full",):
        for again in (False, True):
            columns, notices = written(model, "compiled", tokens=100, rows=rows, weights=weights)
            assert columns == written(model, "plain", tokens=100, rows=rows, weights=weights)[0]
            assert len([said for said in notices if "compil" in said]) == (not again)
