"""A stranger's folder becomes a run, and what cannot be done with such a run says what can."""

import json
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers, processors
from workflow_helpers import trained, write_text

from clearhead import inference
from clearhead.config import ModelConfig, SamplingConfig
from clearhead.errors import DataError, UsageError
from clearhead.interop import SpecialTokens, save
from clearhead.models import DecoderLM, build_model
from clearhead.workflows import Notice, Run, evaluate, generate, import_model, list_all, load, resume
from clearhead.workflows.importing import after_import

PIECES = ["<s>", "</s>", "<unk>", "▁the", "▁king", "▁", *"abcdefghijklmnopqrstuvwxyz.,;\n"]
CONFIG = ModelConfig(
    vocab_size=len(PIECES) + 3, block_size=24, n_layers=1, n_heads=2, d_model=16,
    norm="rmsnorm", feedforward="swiglu", positions="rope",
)  # fmt: skip


def sentencepiece() -> tokenizers.Tokenizer:
    """As Llama's was: pieces with a mark for the space before them, a beginning before every text."""
    vocab = [(piece, -float(i)) for i, piece in enumerate(PIECES)]
    library = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=2, byte_fallback=False))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens(["<s>", "<unk>"])
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return library


@pytest.fixture
def folder() -> Path:
    """A Llama of somebody else's; its end token is known from generation_config.json alone."""
    new = Path("llama")
    save(new, build_model(CONFIG, seed=3), SpecialTokens(end=1))
    sentencepiece().save(str(new / "tokenizer.json"))
    return new


def test_a_folder_becomes_a_run(folder: Path) -> None:
    write_text()
    run = import_model(folder)
    assert run.folder == Path("runs/llama-1")
    assert run.imported_from == str(folder.resolve())
    config = run.config
    assert config.model == CONFIG
    assert config.objective == "causal"
    actual, expected = run.model().state_dict(), build_model(CONFIG, seed=3).state_dict()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())
    assert generate(run, "the king", max_new_tokens=5, greedy=True).startswith("the king")
    assert evaluate(run, "my.txt").loss > 0
    assert list_all().runs == {"runs/llama-1": f"imported from {folder.resolve()}"}
    assert load(None).folder == run.folder
    assert "clearhead train my.txt --from runs/llama-1" in after_import(run)


def test_the_end_is_known_and_every_text_has_its_beginning(folder: Path) -> None:
    tokenizer = import_model(folder, out="run").tokenizer
    assert tokenizer.end_of_document == 1
    assert tokenizer.beginning == (0,)
    assert tokenizer.encode("the king").tolist() == [3, 4]
    assert tokenizer.decode([3, 4, 1]) == "the king"
    model, prompts = Run(Path("run")).model(), list[list[int]]()
    assert isinstance(model, DecoderLM)
    model.embedding.register_forward_pre_hook(lambda module, arguments: prompts.append(arguments[0].tolist()[0]))
    for prompt in ("the king", ""):
        inference.generate(model, tokenizer, [prompt], SamplingConfig(max_new_tokens=1))
    assert prompts == [[0, 3, 4], [0]]


@pytest.mark.parametrize("ending", [[], [1]])
def test_other_readers_of_the_run_see_the_same_tokens(ending: list[int], folder: Path) -> None:
    """What a tokenizer puts around a text, it puts there still."""
    transformers = pytest.importorskip("transformers")
    library = sentencepiece()
    frame = {"single": "<s> $A" + " </s>" * len(ending), "special_tokens": [("<s>", 0), ("</s>", 1)]}
    library.post_processor = processors.TemplateProcessing(**frame)
    library.save(str(folder / "tokenizer.json"))
    import_model(folder, out="run")
    for directory in (folder, "run"):
        loaded = transformers.AutoTokenizer.from_pretrained(directory)
        assert loaded("the king")["input_ids"] == [0, 3, 4, *ending]
    again = import_model("run", out="again").tokenizer
    assert (again.beginning, again.ending) == ((0,), tuple(ending))


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("eos_token", ["<unk>", {"content": "<unk>"}])
def test_the_tokenizers_own_files_go_before_the_models(file: str, eos_token: object, folder: Path) -> None:
    (folder / file).write_text(json.dumps({"eos_token": eos_token}), encoding="utf-8")
    assert import_model(folder, out="run").tokenizer.end_of_document == 2


def test_the_first_of_several_ends_is_taken(folder: Path) -> None:
    settings = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    (folder / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": [2, 1]}), encoding="utf-8")
    assert import_model(folder, out="run").tokenizer.end_of_document == 2


def test_a_run_of_ours_is_imported_like_any_other_folder() -> None:
    run = trained()
    again = import_model(run.folder, out="again")
    assert again.config.model.model_copy(update={"dropout": 0.1}) == run.config.model
    assert again.generate("the", max_new_tokens=9, greedy=True) == run.generate("the", max_new_tokens=9, greedy=True)


def test_what_an_imported_run_cannot_do_it_says(folder: Path) -> None:
    run = import_model(folder, out="run")
    for verb in (resume, evaluate):
        with pytest.raises(UsageError, match=r"`ch\.train\('my\.txt', start_from='run"):
            verb(run)
    (run.folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match=r"import .*llama again"):
        run.model()


def test_what_is_odd_is_noticed_and_no_error(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(tensors | {name: torch.zeros_like(tensors[name])}, folder / "model.safetensors")
    for file in ("generation_config.json", "config.json"):
        settings = json.loads((folder / file).read_text(encoding="utf-8"))
        (folder / file).write_text(json.dumps(settings | {"eos_token_id": None}), encoding="utf-8")
    library = sentencepiece()
    library.save(str(folder / "tokenizer.json"))
    notices: list[str] = []
    import_model(
        folder, out="run", on_event=lambda event: notices.append(event.text) if isinstance(event, Notice) else None
    )
    assert "every number is the same in stack.blocks.0.feedforward.part.up.weight" in notices[0]
    assert "no file of the folder names the token that ends a text" in notices[1]
    assert len(notices) == 2


def test_nothing_is_left_of_an_import_that_failed(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}
    save_file(broken, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"not finite, in embedding\.weight"):
        import_model(folder)
    save_file(tensors, folder / "model.safetensors")
    larger = sentencepiece()
    larger.add_tokens([f"more {i}" for i in range(9)])
    larger.save(str(folder / "tokenizer.json"))
    with pytest.raises(DataError, match="one of them belongs to another model"):
        import_model(folder)
    assert not Path("runs").exists()


def test_a_run_is_not_written_over(folder: Path) -> None:
    run = import_model(folder, out="run")
    with pytest.raises(UsageError, match="run already holds a run"):
        import_model(folder, out=run.folder)
