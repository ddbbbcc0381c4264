"""Which engine is chosen, what is said of it, what happens where nothing can be compiled."""

import copy
import tomllib
from pathlib import Path

import pytest
import torch

from clearhead import files
from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.inference import engine, stream_ids
from clearhead.inference.decoder_backend import EagerDecoderBackend
from clearhead.models import BigramLM, CausalLM, DecoderLM
from clearhead.native import building, facade

PROMPT = [1, 2, 3]


def small(**options: object) -> DecoderLM:
    shape = {"vocab_size": 11, "block_size": 24, "n_layers": 2, "n_heads": 4, "d_model": 16}
    shape |= {"relative_buckets": 8, "relative_max_distance": 12}
    model = DecoderLM(ModelConfig.read(shape, options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)  # so that the likeliest token is so by far
    return model


def written(
    model: CausalLM, how: str, *, tokens: int = 12, rows: int = 1, weights: str = "float32"
) -> tuple[object, list[str]]:
    notices: list[str] = []
    config = SamplingConfig(greedy=True, max_new_tokens=tokens)
    settings = EngineConfig.read({"engine": how, "dtype": weights})
    prompts = [[*PROMPT, row] for row in range(rows)]
    columns = list(stream_ids(model, prompts, config, engine=settings, on_notice=notices.append))
    return columns, notices


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path))
    return tmp_path / "steps"


def test_a_short_text_never_asks_for_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facade, "library", None)  # not to be called
    assert written(small(), "auto") == written(small(), "eager")
    assert not written(small(), "auto")[1]


@pytest.mark.parametrize(("tokens", "built"), [(5_000, False), (50_000, True)])
def test_a_long_text_is_worth_compiling_for(monkeypatch: pytest.MonkeyPatch, tokens: int, built: bool) -> None:
    builds: list[bool] = []
    monkeypatch.setattr(facade, "library", lambda dtype, build, on_notice: builds.append(build))
    engine.Engine(small()).backend(tokens)
    assert builds == [built]


def test_compiling_is_announced_and_a_failure_leaves_the_plain_engine(
    monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    monkeypatch.setattr(building, "FLAGS", ("-no-such-flag",))
    columns, notices = written(small(), "native")
    assert columns == written(small(), "eager")[0]
    assert len(notices) == 2
    assert "a few seconds" in notices[0]
    assert "native engine not used" in notices[1]
    assert "no-such-flag" in notices[1]
    monkeypatch.setattr(building, "_run", None)  # not to be called again
    again, more = written(small(), "native")
    assert (again, more) == (columns, notices[1:])


def test_wrong_code_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: DecoderLM, weights: str, library: object) -> EagerDecoderBackend:
        twin = small()
        twin.load_state_dict({name: tensor * 1.1 for name, tensor in model.state_dict().items()})
        return EagerDecoderBackend(twin)

    monkeypatch.setattr(facade, "library", lambda dtype, build, on_notice: ())
    monkeypatch.setattr(engine, "NativeDecoderBackend", wrong)
    columns, notices = written(small(), "native")
    assert columns == written(small(), "eager")[0]
    assert len(notices) == 1
    assert "differs from PyTorch's" in notices[0]


def test_who_looks_into_a_model_is_told_by_a_kept_engine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facade, "library", lambda dtype, build, on_notice: ())
    monkeypatch.setattr(
        engine, "NativeDecoderBackend", lambda model, *options: EagerDecoderBackend(copy.deepcopy(model))
    )
    model, called = small(), list[torch.nn.Module]()
    kept = engine.Engine(model, EngineConfig(engine="native"))
    ids, cache = torch.tensor([[1]]), model.new_cache(1, 2)
    kept.backend(1).forward(ids, cache)
    model.stack.register_forward_hook(lambda module, *options: called.append(module))
    kept.backend(1).forward(ids, cache)
    assert called == [model.stack]


def test_an_engine_that_is_kept_prepares_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[DecoderLM] = []

    def pack(model: DecoderLM, weights: str, library: object) -> EagerDecoderBackend:
        packed.append(model)
        return EagerDecoderBackend(model)

    monkeypatch.setattr(facade, "library", lambda dtype, build, on_notice: ())
    monkeypatch.setattr(engine, "NativeDecoderBackend", pack)
    model, config = small(), SamplingConfig(greedy=True, max_new_tokens=5)
    kept = engine.Engine(model, EngineConfig(engine="native", dtype="int8"))
    for _ in range(3):
        list(stream_ids(model, [PROMPT], config, engine=kept))
    assert packed == [kept.model]
    with pytest.raises(AssertionError, match="another model"):
        list(stream_ids(small(), [PROMPT], config, engine=kept))


def put(folder: Path, content: bytes) -> None:
    """A library of these bytes, whole."""
    folder.parent.mkdir(mode=0o700)
    unfinished = files.start_folder(folder)
    unfinished.chmod(0o700)
    (unfinished / building.FILE).write_bytes(content)
    (unfinished / building.FILE).chmod(0o600)
    files.finish_folder(unfinished, folder)


def test_a_file_that_is_no_library_is_thrown_away(kept: Path) -> None:
    folder = building.folder_of(torch.float32)
    put(folder, b"no library")
    columns, notices = written(small(), "native")
    assert columns == written(small(), "eager")[0]
    assert len(notices) == 1
    assert not folder.exists(), "the next process makes another"


def test_a_file_that_others_can_change_is_not_run(kept: Path) -> None:
    folder = kept / "x"
    put(folder, b"")
    assert building.is_built(folder)
    for path in (folder / building.FILE, folder, kept):
        path.chmod(0o777)
        assert not building.is_built(folder)
        path.chmod(0o700)


def test_nothing_is_compiled_into_a_folder_of_others(kept: Path) -> None:
    kept.mkdir()
    kept.chmod(0o777)
    columns, notices = written(small(), "native")
    assert columns == written(small(), "eager")[0]
    assert "others can write" in notices[1]


def test_what_must_differ_is_kept_apart(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [building.folder_of(dtype) for dtype in building.CPP_TYPES]
    monkeypatch.setattr(building, "FLAGS", ("-O0",))
    folders += [building.folder_of(dtype) for dtype in building.CPP_TYPES]
    assert len(set(folders)) == 4


def test_what_cannot_be_compiled_is_said() -> None:
    hooked, own = small(), small()
    hooked.stack.register_forward_hook(lambda *arguments: None)
    own.dropout = type("Mine", (torch.nn.Identity,), {"__module__": "mine"})()
    bigram = BigramLM(ModelConfig(architecture="bigram", vocab_size=11, block_size=8))
    reasons = {
        "it runs decoders": bigram,
        "float32 or float64, not in bfloat16": small().bfloat16(),
        "Stack has a forward hook": hooked,
        "Mine is not a part": own,
    }
    for reason, model in reasons.items():
        columns, notices = written(model, "native")
        assert columns == written(model, "eager")[0]
        assert len(notices) == 1
        assert reason in notices[0]


def test_without_a_compiler_the_plain_engine_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    columns, notices = written(small(), "native")
    assert columns == written(small(), "eager")[0]
    assert "no C++ compiler" in notices[0]


@pytest.mark.skipif(building.compiler() is None, reason="there is no C++ compiler")
def test_compiled_code_is_kept_and_writes_what_the_plain_engine_writes(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "FLAGS", (*building.FLAGS, "-O0"))  # sooner compiled
    for choice in ({"positions": "rope", "sliding_window": 9}, {"positions": "learned", "bias": True}):
        model = small(**choice, block_size=32)
        for rows in (1, 3):
            columns, notices = written(model, "native", tokens=60, rows=rows)
            assert columns == written(model, "eager", tokens=60, rows=rows)[0]
            assert len([notice for notice in notices if "compil" in notice]) == (
                rows == 1 and "sliding_window" in choice
            )
    assert len(list(kept.iterdir())) == 1


def test_everything_that_is_compiled_is_part_of_the_package() -> None:
    folder = Path(building.__file__).parent
    listed = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = [pattern for pattern in listed["package-data"]["clearhead"] if "native" in pattern]
    packaged = {path for pattern in patterns for path in folder.parent.glob(pattern)}
    assert packaged == {path for path in folder.iterdir() if path.suffix not in (".py", "")}
