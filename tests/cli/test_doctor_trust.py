"""What the doctor runs of what it is given, where and with which rights: each sentence of its documentation, tried."""

import json
import os
import pickle
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command_helpers import Caller
from doctor_caller import examined_here

HOSTS = Path(__file__).parents[1] / "doctor" / "hosts"
LEAVES = """
import json, os, sys
from pathlib import Path
Path("left-{name}.json").write_text(json.dumps({{
    "process": os.getpid(), "user": os.getuid() if hasattr(os, "getuid") else 0, "folder": os.getcwd(),
    "secret": os.environ.get("A_SECRET"), "offline": os.environ.get("HF_HUB_OFFLINE"), "name": __name__,
}}))
"""
LOSS = """
import torch.nn.functional as F

def right(logits, labels):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
"""
TRAINS = """
import torch
model = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    ids = torch.randint(0, 20, (4, 9))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
"""


class Code:
    """Leaves a file behind where it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return Path.write_text, (Path("unpickled"), "code was run")  # type: ignore[return-value]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.setenv("A_SECRET", "seen")
    return Caller(capsys)


@pytest.fixture
def call_here(call: Caller) -> Iterator[Caller]:
    """In this process, which is told by the same file whether code was run."""
    with examined_here():
        yield call


def target(name: str, code: str | None = None) -> str:
    code = (HOSTS / "gpt.py").read_text(encoding="utf-8") if code is None else code
    Path(f"{name}.py").write_text(LEAVES.format(name=name) + code, encoding="utf-8")
    return f"{name}.py"


VERBS = {
    "check": lambda: ["doctor", target("mine") + ":build"],
    "module": lambda: ["doctor", target("mine").removesuffix(".py") + ":build"],
    "symptom": lambda: ["doctor", "--symptom", "repeats", target("mine")],
    "compare": lambda: ["doctor", "compare", target("mine"), target("theirs")],
    "loss": lambda: ["doctor", "loss", target("mine", LOSS) + ":right"],
    "train": lambda: ["doctor", "train", target("mine", TRAINS)],
}


SOME = [pytest.param(verb, marks=[] if verb == "check" else [pytest.mark.campaign]) for verb in VERBS]


@pytest.mark.parametrize("verb", SOME)
def test_named_code_runs_in_another_process_with_your_rights(verb: str, call: Caller) -> None:
    done = call(*VERBS[verb]())
    assert done.code == 0, done
    files = sorted(Path().glob("left-*.json"))
    assert [file.name for file in files] == [f"left-{n}.json" for n in ("mine", "theirs")[: 1 + (verb == "compare")]]
    for file in files:
        left = json.loads(file.read_text(encoding="utf-8"))
        assert left["process"] != os.getpid()
        assert left["user"] == (os.getuid() if hasattr(os, "getuid") else 0)
        assert (left["folder"], left["secret"], left["offline"]) == (os.getcwd(), "seen", "1")
        assert (left["name"] == "__main__") == (verb == "train")
    assert not {"mine", "theirs"} & {*sys.modules}


@pytest.mark.campaign
def test_the_network_is_not_cut_off(call: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        heard: list[bool] = []
        waiting = threading.Thread(target=lambda: heard.append(_accepts(server)), daemon=True)
        waiting.start()
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 20).close()\n"
        assert call("doctor", target("mine", code + (HOSTS / "gpt.py").read_text(encoding="utf-8"))).code == 0
        waiting.join(60)
    assert heard == [True]


def _accepts(server: socket.socket) -> bool:
    connection, _ = server.accept()
    connection.close()
    return True


def test_a_batch_with_code_in_it_is_refused_and_the_code_is_not_run(call_here: Caller) -> None:
    for name, write in (("torch.pt", lambda file: torch.save({"input_ids": Code()}, file)), ("plain.pt", _pickled)):
        write(name)
        done = call_here("doctor", target("mine"), "--batch", name)
        assert done.code == 3
        assert f"{name} cannot be read as plain tensors" in done.err
        assert not Path("unpickled").exists()


def _pickled(file: str) -> None:
    Path(file).write_bytes(pickle.dumps(Code()))


def folder_of_transformers(**config: object) -> Path:
    """A checkpoint whose config names code of its own."""
    transformers = pytest.importorskip("transformers")
    settings = transformers.GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    transformers.GPT2LMHeadModel(settings).save_pretrained("theirs")
    folder = Path("theirs")
    content = json.loads((folder / "config.json").read_text(encoding="utf-8")) | config
    content["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "code.py").write_text(
        LEAVES.format(name="code") + "class Config: pass\nclass Model: pass\n", encoding="utf-8"
    )
    return folder


def test_of_a_folder_no_code_runs_that_its_config_names(call_here: Caller) -> None:
    folder_of_transformers()
    done = call_here("doctor", "hf:theirs")
    assert done.code == 0, done
    assert not [*Path().rglob("left-*.json")]


def test_a_folder_that_needs_code_of_its_own_is_refused(call_here: Caller) -> None:
    folder_of_transformers(model_type="of-their-own")
    done = call_here("doctor", "hf:theirs")
    assert done.code == 3, done
    assert "theirs cannot be loaded" in done.err
    assert "Traceback" not in done.err
    assert not [*Path().rglob("left-*.json")]


def test_weights_in_a_pickle_are_refused(call_here: Caller) -> None:
    folder = folder_of_transformers()
    (folder / "model.safetensors").unlink()
    torch.save({"transformer.wte.weight": Code()}, folder / "pytorch_model.bin")
    done = call_here("doctor", "hf:theirs")
    assert done.code == 3, done
    assert not Path("unpickled").exists()


@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("sleep") is None, reason="starts a sleep")
def test_what_the_target_starts_in_a_session_of_its_own_outlives_it(call: Caller) -> None:
    code = (
        "import subprocess\nfrom pathlib import Path\n"
        "left = subprocess.Popen(['sleep', '60'], start_new_session=True, stderr=subprocess.DEVNULL)\n"
        "Path('started').write_text(str(left.pid))\n"
    )
    assert call("doctor", target("mine", code + (HOSTS / "gpt.py").read_text(encoding="utf-8"))).code == 0
    process = int(Path("started").read_text(encoding="utf-8"))
    os.kill(process, 9)  # which says that it was there


def test_lines_to_paste_are_printed_as_lines(call_here: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.doctor.calling.climbing.CALLS", 2)
    code = "import torch\nclass Strange(torch.nn.Module):\n    def forward(self, *, x):\n        return x.odd\n"
    code += "    def __init__(self):\n        super().__init__()\n        self.a = torch.nn.Embedding(9, 8)\n"
    Path("odd.py").write_text(code + "def build(): return Strange()\n", encoding="utf-8")
    sentence, *lines = call_here("doctor", "odd.py:build").err.splitlines()
    assert sentence.endswith("examine 'adapted' instead:")
    assert lines[0] == "class Adapted(torch.nn.Module):"
    assert lines[-1] == "def adapted(): return Adapted()"
    assert len(lines) == 5
    assert call_here("doctor", "odd.py:build", "--json").json["error"].splitlines()[1:] == lines
