"""`clearhead ablate`: numbers on the terminal, in files and as JSON; translators and masked models as well."""

import re
from pathlib import Path

import pytest
from command_helpers import TINY, Caller, text

from clearhead import cli
from clearhead.config import ModelConfig
from clearhead.models import DecoderLM
from clearhead.workflows import ablate, ablating, evaluate, load

KEYS = {"loss", "bits_per_byte", "tokens", "replacement", "ablations"}
PART_KEYS = {"part", "kind", "layer", "head", "loss", "change", "standard_error"}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a trained run, which no test changes."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "my.txt").write_text(text(900), encoding="utf-8")
    assert cli.run(["train", str(folder / "my.txt"), "--out", str(folder / "run"), *TINY]) == 0
    return str(folder / "run")


def test_the_table_has_a_row_for_each_layer_and_is_written_to_files(call: Caller, run: str) -> None:
    code, out, err = call("ablate", run, "--report", "a.html", "--csv", "a.csv", "--svg", "a.svg")
    assert (code, err) == (0, "")
    config = load(run).config.model
    assert out.count("\nlayer ") == config.n_layers
    assert all(column in out for column in ("head 0", "attention", "feed-forward", "block"))
    n_parts = config.n_layers * (config.n_heads + 3)
    assert len(Path("a.csv").read_text(encoding="utf-8").splitlines()) == 1 + n_parts
    assert Path("a.svg").read_text(encoding="utf-8").count("<rect") == n_parts
    assert "Loss without each part" in Path("a.html").read_text(encoding="utf-8")
    whole = evaluate(run)
    table = call("ablate", run, "--json").json
    assert table.keys() == KEYS
    assert table["ablations"][0].keys() == PART_KEYS | {"change_bits_per_byte"}
    assert table["loss"] == pytest.approx(whole.loss)
    assert table["tokens"] == whole.tokens  # type: ignore[union-attr]
    assert table["bits_per_byte"] == pytest.approx(whole.bits_per_byte, rel=0.02)  # type: ignore[union-attr]


def test_the_documentation_has_every_key() -> None:
    """And no other: the row of the table is read."""
    rows = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8").splitlines()
    [row] = [row for row in rows if row.startswith("| `ablate` | `loss`")]
    values = {"zero", "mean", *("head", "attention", "feedforward", "block"), *("self", "cross", "encoder")} - {"head"}
    assert set(re.findall("`([a-z_]+)`", row)) - values == KEYS | PART_KEYS | {"change_bits_per_byte", "ablate"}


def test_another_text_another_replacement_and_fewer_tokens(call: Caller, run: str) -> None:
    Path("other.txt").write_text(text(600), encoding="utf-8")
    zero = call("ablate", run, "--text", "other.txt", "--json").json
    assert zero["loss"] == pytest.approx(evaluate(run, "other.txt").loss)
    mean = call("ablate", run, "--text", "other.txt", "--mean", "--json").json
    assert (zero["replacement"], mean["replacement"]) == ("zero", "mean")
    assert zero["loss"] == mean["loss"]
    assert zero["ablations"] != mean["ablations"]
    few = call("ablate", run, "--text", "other.txt", "--tokens", "5", "--json").json
    assert few["tokens"] == 5
    assert call("ablate", run, "--tokens", "0").err == "clearhead: --tokens is at least 1, not 0\n"


def test_a_large_model_predicts_fewer_tokens() -> None:
    config = {"vocab_size": 65, "n_layers": 2, "n_heads": 2}
    tokens = [ablating.affordable_tokens(DecoderLM(ModelConfig(**config, d_model=width))) for width in (16, 256, 1024)]
    assert tokens[0] == ablating.MOST
    assert ablating.MOST > tokens[1] > tokens[2] > ablating.FEWEST


@pytest.mark.parametrize("objective", ["masked", "seq2seq"])
def test_other_models_than_decoders(objective: str, call: Caller) -> None:
    if objective == "seq2seq":
        Path("a.tsv").write_text("".join(f"{n} {n + 1}\t{n} und {n + 1}\n" for n in range(80)), encoding="utf-8")
        source = "a.tsv"
    else:
        Path("a.txt").write_text(text(900), encoding="utf-8")
        source = "a.txt"
    options = ("--objective", objective, "--model.n_heads", "2", "--model.d_model", "16", "--model.n_layers", "1")
    quick = ("--train.steps", "2", "--train.batch_size", "2", "--model.block_size", "32")
    assert call("train", source, "--out", "run", *options, *quick).code == 0
    table = call("ablate", "run", "--json").json
    assert table["bits_per_byte"] is None
    assert table["ablations"][0].keys() == PART_KEYS
    kinds = {part["kind"] for part in table["ablations"]}
    assert kinds == ({"self", "cross", "encoder"} if objective == "seq2seq" else {"self"})
    assert table["loss"] == pytest.approx(evaluate("run").loss, rel=1e-5)
    assert ablate("run", source).tokens > 0
