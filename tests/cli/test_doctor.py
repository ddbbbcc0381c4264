"""The doctor as a person calls it: exit codes, one JSON object, and targets that misbehave.

What is said is the same wherever an examination is made: but for targets that misbehave and one of each verdict, it is
made in this process, which has loaded torch already.
"""

import json
import os
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from command_helpers import TINY, Caller, write_text
from doctor_caller import examined_here

HOSTS = Path(__file__).parents[1] / "doctor" / "hosts"
MASKING = '        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))\n'


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture
def call_here(call: Caller) -> Iterator[Caller]:
    """The same, without a process of the examination's own."""
    with examined_here():
        yield call


def host(name: str, old: str = "", new: str = "") -> str:
    code = (HOSTS / f"{name}.py").read_text(encoding="utf-8")
    assert not old or code.count(old) == 1
    Path("mine.py").write_text(code.replace(old, new) if old else code, encoding="utf-8")
    return "mine.py:build"


def test_a_fault_is_told_and_ends_with_four(call: Caller) -> None:
    done = call("doctor", host("gpt", MASKING, ""), "--json")
    assert done.code == 4
    report = done.json
    assert report["verdict"] == "faulty"
    assert report["findings"][0]["id"] == "M01"
    assert report["findings"][0]["where"]["module"] == "blocks.0.attn"
    assert Path(report["findings"][0]["where"]["file"]).name == "mine.py"
    assert done.err == "", "what the object says is not said again"
    assert "FAIL M01" in call("doctor", "mine.py:build").out


def test_a_healthy_model_ends_with_zero(call: Caller) -> None:
    Path("talks.py").write_text("print('hello')\n" + (HOSTS / "gpt.py").read_text(encoding="utf-8"), encoding="utf-8")
    done = call("doctor", "talks.py", "--json")
    assert done.code == 0, done.err
    assert done.json["verdict"] == "healthy"


def test_a_run_of_ours_is_examined(call_here: Caller) -> None:
    write_text()
    assert call_here("train", "my.txt", *TINY).code == 0
    done = call_here("doctor", "--json")
    assert done.code == 0, done.err
    assert done.json["kind"] == "causal"


BAD = {
    "syntax.py": ("def build(:\n", "cannot be imported (SyntaxError"),
    "leaves.py": ("import os\n\ndef build():\n    os._exit(7)\n", "ended the process with code 7"),
    "dies.py": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
        "was killed by SIGKILL, most likely because memory",
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", BAD)
def test_targets_that_misbehave_get_a_sentence(name: str, call: Caller) -> None:
    code, message = BAD[name]
    Path(name).write_text(code, encoding="utf-8")
    done = call("doctor", f"{name}:build")
    assert done.code == 3, done
    assert message in done.err
    assert "Traceback" not in done.err


NASTY = """
import os, signal, subprocess, sys, threading, time
import torch
print("much " * 100_000, file=sys.stderr)
print("more " * 100_000)
os.chdir("/")
os.environ.clear()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(False)
torch.use_deterministic_algorithms(True)
subprocess.Popen(["/bin/sleep", "600"])  # holds on to everything that was said
subprocess.Popen(["/bin/sleep", "5"], start_new_session=True, stdout=subprocess.DEVNULL)
threading.Thread(target=time.sleep, args=(600,)).start()
if os.fork() == 0:
    time.sleep(600)
sys.path.clear()
"""


@pytest.mark.campaign
@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_what_a_target_does_to_its_process_is_of_no_consequence(call: Caller) -> None:
    Path("nasty.py").write_text(NASTY + (HOSTS / "gpt.py").read_text(encoding="utf-8"), encoding="utf-8")
    done = call("doctor", "nasty.py:build", "--timeout", "100", "--json")
    assert done.code == 0, done.err
    assert done.json["verdict"] == "healthy"


def test_a_target_that_hangs_is_ended(call: Caller) -> None:
    Path("slow.py").write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    done = call("doctor", "slow.py", "--timeout", "1", "--json")
    assert done.code == 3
    assert "took more than 1 second;" in done.json["error"]


def test_the_catalogue_is_listed_and_explained(call: Caller) -> None:
    assert "M01  future tokens reach past positions" in call("doctor", "list").out
    assert call("doctor", "explain", "m01", "--json").json["id"] == "M01"
    assert "did you mean 'M01'?" in call("doctor", "explain", "M-01").err
    assert "did you mean" not in call("doctor", "explain", "M0").err, "there are nine that begin so"


def test_a_loss_is_examined(call_here: Caller) -> None:
    Path("losses.py").write_text(
        "import torch.nn.functional as F\n\n"
        "def wrong(logits, ids):\n    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())\n",
        encoding="utf-8",
    )
    wrong = call_here("doctor", "loss", "losses.py:wrong", "--json")
    assert wrong.code == 4
    assert [finding["id"] for finding in wrong.json["findings"]] == ["D01"]


def test_two_models_are_compared(call_here: Caller) -> None:
    path = Path("theirs.py")
    path.write_text((HOSTS / "gpt.py").read_text(encoding="utf-8"), encoding="utf-8")
    same = call_here("doctor", "compare", host("gpt"), "theirs.py", "--json")
    assert same.code == 0, same.err
    assert same.json["verdict"] == "equal"
    done = call_here("doctor", "compare", host("gpt", MASKING, ""), "theirs.py", "--json")
    assert done.code == 4, done.err
    assert done.json["first"]["a"]["module"] == "blocks.0.attn"
    assert Path(done.json["first"]["b"]["file"]).name == "theirs.py"
    assert "mine.py:build and theirs.py differ" in call_here("doctor", "compare", "mine.py:build", "theirs.py").out
    shutil.copy(HOSTS / "bert.py", "theirs.py")
    other = call_here("doctor", "compare", "mine.py", "theirs.py", "--json")
    assert other.code == 3
    assert "no counterpart" in other.json["error"]


def test_a_symptom_is_answered_first(call_here: Caller) -> None:
    done = call_here("doctor", "--symptom", "good loss bad text", host("gpt", MASKING, ""), "--json")
    assert done.code == 4, done.err
    symptom = done.json["symptom"]
    assert symptom["verdict"] == "the loss is good and the text is not: M01, future tokens reach past positions"
    shown = call_here("doctor", "--symptom", "good loss bad text", "mine.py:build").out
    assert shown.splitlines()[1].startswith("  M01: yes, changing token")
    assert done.json["findings"][0]["id"] == "M01"
    assert "repeats " in call_here("doctor", "symptoms").out


TRIANGLE = ("torch.tril(torch.ones(BLOCK, BLOCK))", "torch.triu(torch.ones(BLOCK, BLOCK))")
NAN = ("        x = self.tok(idx) +", "        x = float('nan') * self.tok(idx) +")
NARROWED = [
    (["--symptom", "repeats"], TRIANGLE, "M04"),
    (["--symptom", "good-loss-bad-text"], TRIANGLE, "M04"),
    (["--only", "M01"], TRIANGLE, "M04"),
    (["--only", "M01,K01"], TRIANGLE, "M04"),
    (["--symptom", "nan"], NAN, "M14"),
    (["--only", "M01"], NAN, "M14"),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("argv", "change", "id"), NARROWED, ids=str)
def test_a_narrowed_examination_does_not_deny_what_the_whole_one_finds(
    argv: list[str], change: tuple[str, str], id: str, call_here: Caller
) -> None:
    done = call_here("doctor", *argv, host("gpt", *change), "--json")
    assert done.code == 4, done.err
    assert done.json["verdict"] == "faulty"
    assert id in [cause["id"] for finding in done.json["findings"] for cause in finding["causes"]]
    shown = call_here("doctor", *argv, "mine.py:build").out
    assert "faulty" in shown
    for denial in ("not M", "healthy", "each logit depends on the tokens that it should", "every logit is a number"):
        assert denial not in shown
    assert not [cause for cause in done.json.get("symptom", {"causes": []})["causes"] if cause["answer"] == "no"]


def test_one_fault_alone_is_looked_for(call_here: Caller) -> None:
    done = call_here("doctor", host("gpt"), "--only", "M01")
    assert done.code == 0
    assert "was examined in part, and no fault was found there; only M01 was looked for" in done.out
    assert "healthy" not in done.out
    assert call_here("doctor", "mine.py", "--only", "K01").code == 3


ENCODER = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(31, 16), nn.Embedding(64, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last, self.head = nn.LayerNorm(16), nn.Linear(16, 31)
        for layer in self.body.layers:
            nn.init.normal_(layer.linear1.weight, std=0.1)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, ids):
        return self.head(self.last(self.body(self.table(ids) + self.places(torch.arange(ids.shape[1])))))
"""


def test_the_first_line_says_what_the_model_was_taken_for(call_here: Caller) -> None:
    Path("mine.py").write_text(ENCODER, encoding="utf-8")
    assumption = "as causal (--kind causal) its dependencies would be a fault"
    reason = "assumed to be bidirectional because every token reaches every position: "
    first = call_here("doctor", "mine.py:Model").out.splitlines()[0]
    assert reason + assumption in first
    summary = call_here("doctor", "mine.py:Model", "--json").json["summary"]
    assert summary.rpartition(" (")[0] == first.rpartition(" (")[0], "but for the seconds"
    assert "(bidirectional)" in call_here("doctor", "mine.py:Model", "--kind", "bidirectional").out.splitlines()[0]
    causal = call_here("doctor", "mine.py:Model", "--kind", "causal")
    assert causal.code == 4
    assert "assumed" not in causal.out.splitlines()[0]


def test_the_verdict_comes_first_and_details_when_they_are_asked_for(call_here: Caller) -> None:
    short = call_here("doctor", host("gpt")).out.splitlines()
    assert len(short) == 1
    assert short[0].startswith("mine.py:build is healthy")
    for flag in ("-v", "--verbose"):
        long = call_here("doctor", "mine.py:build", flag).out
        assert long.startswith("mine.py:build is healthy")
        for label in ("assumed", "paths", "passed", "skipped"):
            assert f"\n  {label:<10}" in long
    faulty = call_here("doctor", host("gpt", MASKING, "")).out.splitlines()
    assert faulty[0].startswith("mine.py:build is faulty: 1 fault")
    assert faulty[1].startswith("FAIL M01")


TRAINED = """
optimizer = torch.optim.AdamW((model := GPT()).parameters(), lr=3e-2)
for step in range(12):
    ids = torch.arange(9).repeat(4, 1)
    optimizer.zero_grad()
    F.cross_entropy(model(ids)[0].flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
"""


@pytest.mark.campaign
def test_of_a_model_that_trains_when_it_is_imported_no_fresh_loss_is_expected(call_here: Caller) -> None:
    host("gpt")
    with Path("mine.py").open("a", encoding="utf-8") as file:
        file.write(TRAINED)
    done = call_here("doctor", "mine.py:model", "--json")
    assert done.code == 0, done.err
    assert not done.json["findings"]
    (fresh,) = [check for check in done.json["checks"] if check["name"] == "fresh loss"]
    assert fresh["status"] == "skip"
    assert fresh["note"].endswith("is not constant any more")


def test_one_layer_for_all_is_not_equal_to_layers_of_their_own(call_here: Caller) -> None:
    shutil.copy(HOSTS / "gpt.py", "theirs.py")
    done = call_here(
        "doctor", "compare", host("gpt", "[Block() for _ in range(LAYERS)]", "[Block()] * LAYERS"), "theirs.py"
    )
    assert done.code == 4, done.out
    assert done.out.splitlines()[0].startswith("mine.py:build and theirs.py differ: A holds blocks.0.")


def test_of_a_run_the_losses_speak_too(call_here: Caller) -> None:
    write_text()
    assert call_here("train", "my.txt", *TINY).code == 0
    done = call_here("doctor", "--symptom", "repeats", "--json")
    assert done.code == 0, done.err
    assert any("the loss" in sign and "in 4 steps" in sign for sign in done.json["symptom"]["signs"])


SCRIPT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, required=True)
given = parser.parse_args()
print("said by it")
model = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20))
optimizer = torch.optim.SGD(model.parameters(), lr=given.rate)
for step in range(100):
    ids = torch.randint(0, 20, (4, 9))
    loss = torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
"""


def test_a_training_script_is_watched_and_its_words_reach_it(call: Caller) -> None:
    Path("train.py").write_text(SCRIPT, encoding="utf-8")
    done = call("doctor", "train", "train.py", "--json", "--", "--rate", "0.5")
    assert done.code == 4, done.err
    assert [finding["id"] for finding in done.json["findings"]] == ["T01"]
    assert done.json["findings"][0]["repro"] == "clearhead doctor train train.py -- --rate 0.5"
    assert "2 steps of SGD at 0.5, 0.5" in done.json["paths"]
    shown = call("doctor", "train", "train.py", "--", "--rate", "0.5")
    assert "FAIL T01  gradients are not cleared" in shown.out
    assert "said by it" not in shown.out + shown.err
    assert "said by it" not in done.out + done.err


USAGE = [
    (["doctor", "mine.py", "more"], "one argument too many"),
    (["doctor", "mine.py", "--kind", "casual"], "kind 'casual' is none of causal, bidirectional, seq2seq"),
    (["doctor", "mine.py", "--only", "M1"], "there is no check 'M1'"),
    (["doctor", "mine.py", "--allow", "M01"], "--allow takes ID=REASON"),
    (["doctor", "mine.py", "--timeout", "soon"], "--timeout takes a number"),
    (["doctor", "mine.py", "--seed", "-1"], "--seed takes a number"),
    (["doctor", "mine.py", "--set", "a=1"], "--set is for hf:NAME only"),
    (["doctor", "explain"], "explain what?"),
    (["doctor", "explain", "M01", "M02"], "'M02' is one argument too many"),
    (["doctor", "compare", "mine.py"], "compare takes two models"),
    (["doctor", "compare", "mine.py", "mine.py", "mine.py"], "compare takes two models"),
    (["doctor", "compare", "mine.py", "mine.py", "--set", "a=1"], "--set is for hf:NAME only"),
    (["doctor", "mine.py", "--symptom", "repeat"], "did you mean 'repeats'"),
    (["doctor", "symptoms", "repeats"], "one argument too many"),
    (["doctor", "loss"], "name a loss function"),
    (["doctor", "train"], "name a training script"),
    (["doctor", "train", "train.py", "--level", "standard"], "--level is for the examination of a model"),
    (["doctor", "train", "train.py", "--allow", "T0=no"], "there is no check 'T0'"),
    (["doctor", "loss", "losses.py:wrong", "--", "more"], "'more' is one argument too many"),
]


@pytest.mark.parametrize(("argv", "message"), USAGE, ids=lambda value: str(value)[:40])
def test_words_that_make_no_sense_are_refused(argv: list[str], message: str, call: Caller) -> None:
    shutil.copy(HOSTS / "gpt.py", "mine.py")
    done = call(*argv, "--json")
    assert done.code == 2, done
    assert message in json.loads(done.out)["error"]


def test_the_report_is_written_in_every_form(call_here: Caller) -> None:
    done = call_here(
        "doctor", host("gpt", MASKING, ""), "--json", "--report", "r.html", "--junit", "j.xml", "--sarif", "s.json"
    )
    assert done.code == 4
    finding = done.json["findings"][0]
    assert finding["evidence"]["witness"] in Path("r.html").read_text(encoding="utf-8")
    assert 'name="dependencies"' in Path("j.xml").read_text(encoding="utf-8")
    location = json.loads(Path("s.json").read_text(encoding="utf-8"))["runs"][0]["results"][0]["locations"][0]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "mine.py"
    assert location["physicalLocation"]["region"]["startLine"] == finding["where"]["line"]
    assert finding["repro"] == "clearhead doctor mine.py:build --level quick --only M01 --seed 0"


def test_a_batch_is_part_of_the_examination(call_here: Caller) -> None:
    torch.save(torch.arange(5, 35).view(2, 15), "batch.pt")
    done = call_here("doctor", host("gpt", MASKING, ""), "--json", "--batch", "batch.pt", "--kind", "causal")
    assert done.code == 4
    assert done.json["findings"][0]["repro"].endswith("--kind causal --batch batch.pt")
    assert "the batch as it is, 2 of 2 rows of 15 tokens" in done.json["paths"]


SENTENCES = [
    (["--batch", "absent.pt"], 3, "there is no file absent.pt"),
    (["--device", "cuda:99"], 3, "torch sees no cuda:99 here"),
    (["--sarif", "absent/x.json"], 2, "--sarif cannot be written to absent/x.json: there is no folder absent"),
]


@pytest.mark.parametrize(("argv", "code", "message"), SENTENCES, ids=lambda value: str(value)[:40])
def test_what_is_not_there_gets_a_sentence(argv: list[str], code: int, message: str, call_here: Caller) -> None:
    done = call_here("doctor", host("gpt"), *argv)
    assert done.code == code, done
    assert message in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("argv", [["list", "--sarif", "x"], ["explain", "M01", "--batch", "x"]], ids=str)
def test_options_of_an_examination_are_refused_elsewhere(argv: list[str], call: Caller) -> None:
    done = call("doctor", *argv)
    assert done.code == 2
    assert "is for the examination of a model" in done.err


def test_every_json_is_as_the_schema_says(call_here: Caller) -> None:
    schema = json.loads(files("clearhead.doctor.report").joinpath("schema.json").read_text("utf-8"))
    catalogue, entry = call_here("doctor", "list", "--json").json, call_here("doctor", "explain", "M01", "--json").json
    assert set(schema["$defs"]["entry"]["properties"]) == set(entry)
    assert {type(title) for title in catalogue.values()} == {str}
    Path("losses.py").write_text(
        "import torch.nn.functional as F\n\n"
        "def right(logits, labels):\n"
        "    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())\n",
        encoding="utf-8",
    )
    loss = call_here("doctor", "loss", "losses.py:right", "--json").json
    assert set(schema["$defs"]["loss"]["properties"]) == set(loss)
