"""A translator from pairs to a score: trained, taken up again, translating, evaluated."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from pair_helpers import some_pairs, tiny_translator, write_pairs
from safetensors.torch import load_file
from torch import Tensor
from workflow_helpers import assert_same, outcome, write_text

from clearhead import inference
from clearhead.config import DataConfig, RunConfig, TranslationConfig
from clearhead.errors import DataError, InterruptedRunError, UsageError
from clearhead.inference import Translation, translation, translation_backend
from clearhead.models import EncoderDecoder
from clearhead.options import merge
from clearhead.training import Stepped
from clearhead.workflows import (
    Run,
    Sampled,
    TranslationScore,
    WeightsAveraged,
    WorkflowEvent,
    evaluate,
    generate,
    resume,
    summary,
    train,
    translate,
)
from clearhead.workflows.tasks.translation import TranslationTask

LEARNT = tiny_translator(
    model={"n_layers": 1, "n_heads": 4, "d_model": 64, "d_ff": 256, "dropout": 0.0},
    train={
        "steps": 240,
        "batch_size": 16,
        "precision": "float32",
        "eval_every": 120,
        "save_every": 120,
        "learning_rate": 0.02,
    },
)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A translator that knows its language well; no test changes it."""
    folder = tmp_path_factory.mktemp("learnt")
    source = folder / "my.tsv"
    source.write_text("".join(f"{s}\t{t}\n" for s, t in some_pairs(1500)), encoding="utf-8")
    return train(source, out=folder / "run", options=LEARNT)


def test_a_run_translates_a_sentence_or_several(learnt: Run) -> None:
    sentences = ["small dog sees old cat.", "big bird finds tree."]
    several = learnt.translate(sentences)
    assert several == [translations[0].text for translations in translate(learnt, sentences)]
    assert [learnt.translate(sentence) for sentence in sentences] == several


def test_pairs_make_a_translator(learnt: Run) -> None:
    assert learnt.config.objective == "seq2seq"
    assert isinstance(learnt.model(), EncoderDecoder)
    unseen = some_pairs(40, seed=9)
    translations = translate(learnt, [source for source, _ in unseen])
    right = sum(best[0].text == target for best, (_, target) in zip(translations, unseen, strict=True))
    assert right >= 36, f"{right} of 40"
    (alone,) = translate(learnt, unseen[0][0])
    assert alone[0].text == translations[0][0].text, "a string is one sentence, not its letters"


def test_empty_translations_are_said_once_with_what_helps(learnt: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blank sentence has an empty translation by right."""
    own, mute = inference.translate, {"small dog sees cat.", "bird finds tree."}

    def at_once(*arguments: Any, **options: Any) -> list[list[Translation]]:
        pairs = zip(arguments[3], own(*arguments, **options), strict=True)
        return [[best._replace(text="") for best in n_best] if s in mute else n_best for s, n_best in pairs]

    monkeypatch.setattr(inference, "translate", at_once)
    notices: list[str] = []
    translate(learnt, [*mute, "", "old cat sees dog."], on_notice=notices.append)
    longer = f"to train it longer: `ch.resume({str(learnt.folder)!r}, options={{'train.steps': 480}})`"
    why = "the model has learned too little to begin with a word"
    assert notices == [f"2 of 4 translations are empty: {why}; {longer}"]
    notices.clear()
    translate(learnt, "bird finds tree.", on_notice=notices.append)
    assert notices == [f"the translation is empty: {why}; {longer}"]
    notices.clear()
    translate(learnt, ["", "old cat sees dog."], on_notice=notices.append)
    assert notices == []


def test_the_score_is_that_of_the_translations(learnt: Run) -> None:
    pairs = some_pairs(60, seed=5)
    Path("a.txt").write_text("".join(f"{s}\n" for s, _ in pairs), encoding="utf-8")
    Path("b.txt").write_text("".join(f"{t}\n" for _, t in pairs), encoding="utf-8")
    score = evaluate(learnt, "a.txt", "b.txt")
    assert isinstance(score, TranslationScore)
    assert score.sentences == 60
    assert score.bleu > 90
    assert score.exact > 0.8
    assert "tok:13a" in score.signature
    assert "case:mixed" in score.signature
    assert sum(group.sentences for group in score.by_length) == 60
    wrong = evaluate(learnt, "b.txt", "a.txt")
    assert isinstance(wrong, TranslationScore)
    assert (wrong.bleu < 30, wrong.loss > score.loss + 1, wrong.exact) == (True, True, 0)


@pytest.mark.parametrize(("engine", "expected"), [(None, "eager"), ("auto", "eager"), ("ctranslate2", "ctranslate2")])
def test_a_score_does_not_depend_on_what_is_installed(
    learnt: Run, monkeypatch: pytest.MonkeyPatch, engine: str | None, expected: str
) -> None:
    engines, own = list[str](), translation_backend.choose_search

    def look(model: EncoderDecoder, config: TranslationConfig, **options: Any) -> Any:
        engines.append(config.engine)
        return own(model, config.model_copy(update={"engine": "eager"}), **options)

    monkeypatch.setattr(translation, "choose_search", look)
    evaluate(learnt, str(write_pairs(3)), options={"beam_size": 1, **({"engine": engine} if engine else {})})
    assert engines == [expected]


def test_what_was_held_out_is_the_default(learnt: Run) -> None:
    score = evaluate(learnt)
    assert isinstance(score, TranslationScore)
    assert 100 < score.sentences < 200, "a tenth of 1,500"


def test_alignment_follows_the_moved_adjective(learnt: Run) -> None:
    (best,) = translate(learnt, ["small dog sees old cat."], align=True)[0]
    assert best.alignment is not None
    assert [target for _, target in best.alignment] == list(range(len(best.text.split())))
    assert {source for source, _ in best.alignment} <= set(range(5))


def test_n_best_are_distinct_and_in_order(learnt: Run) -> None:
    with pytest.raises(UsageError, match="gives the best translation"):
        learnt.translate("big bird finds tree.", n_best=4)
    (best,) = translate(learnt, ["big bird finds tree."], {"n_best": 4})
    assert len({translated.text for translated in best}) == 4
    assert [t.score for t in best] == sorted((t.score for t in best), reverse=True)


@pytest.mark.parametrize("stop_at", [4, 7])
def test_taken_up_again_it_ends_where_the_undisturbed_training_ends(stop_at: int) -> None:
    source = write_pairs()
    train(source, out="whole", options=tiny_translator())

    class Crash(BaseException):
        pass

    def crash(event: WorkflowEvent) -> None:
        if getattr(event, "step", 0) == stop_at and not isinstance(event, Sampled):
            raise Crash

    with pytest.raises(Crash):
        train(source, out="cut", options=tiny_translator(), on_event=crash)
    resume("cut")
    assert_same(outcome("cut"), outcome("whole"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        {"data": {"vocabulary": "separate"}},
        {"data": {"tokenizer": "char"}},
        {"data": {"reverse": True}},
        {"model": {"norm_position": "post", "scale_embedding": True, "init": "xavier"}},
        {"model": {"positions": "rope", "norm": "rmsnorm", "feedforward": "swiglu", "qk_norm": True, "bias": False}},
        {"model": {"n_encoder_layers": 2, "n_kv_heads": 1, "positions": "alibi", "tie_embeddings": False}},
        {"model": {"decoder_start_id": 1}},
        {"train": {"optimizer": "adamw", "micro_batches": 2, "label_smoothing": 0.1, "smoothing_over": "others"}},
    ],
)
def test_every_kind_trains_saves_and_translates(options: dict[str, Any]) -> None:
    run = train(write_pairs(), out="run", options=merge(tiny_translator(), options))
    assert len(translate(run, ["small dog sees cat.", "", "hund"])) == 3
    assert translate(run, [""])[0][0].text == ""
    assert isinstance(evaluate(run), TranslationScore)


@pytest.mark.parametrize("start", ["end", "pad", "another"])
def test_what_is_read_begins_with_the_token_that_the_config_names(start: str) -> None:
    task = TranslationTask.open(DataConfig(source=str(write_pairs()), bpe_vocab_size=300))
    start_id = {"end": None, "pad": task.prepared.pad, "another": 7}[start]
    model = {"architecture": "encoder_decoder", "block_size": 32, "decoder_start_id": start_id, **task.model_settings()}
    config = RunConfig.read({"objective": "seq2seq", "model": model, "train": {"batch_size": 8}})
    for _, inputs, targets in (task.batches(config)(0), *task.held_out(config)):
        assert set(inputs[:, 0].tolist()) == {task.prepared.end if start_id is None else start_id}
        assert torch.equal(inputs[:, 1:][targets[:, 1:] >= 0], targets[:, :-1][targets[:, 1:] >= 0])


def test_bleu_is_logged_beside_the_loss() -> None:
    run = train(write_pairs(), out="run", options=tiny_translator())
    samples = [json.loads(line) for line in run.metrics.read_text("utf-8").splitlines()]
    scores = [record["scores"] for record in samples if record["kind"] == "sample"]
    assert [set(score) for score in scores] == [{"bleu"}] * 3


def test_the_mean_of_the_last_checkpoints_is_the_model_where_it_is_better() -> None:
    events = list[WorkflowEvent]()
    options = tiny_translator(train={"average_checkpoints": 3})
    run = train(write_pairs(), out="run", options=options, on_event=events.append)
    (averaged,) = (event for event in events if isinstance(event, WeightsAveraged))
    assert averaged.checkpoints == 3
    assert len(list(run.checkpoints.iterdir())) >= 3
    mean: dict[str, Tensor] = {}
    for folder in sorted(run.checkpoints.iterdir())[-3:]:
        for name, tensor in load_file(folder / "model.safetensors").items():
            mean[name] = mean.get(name, torch.zeros(())) + tensor.double() / 3
    weights = {name: tensor.double() for name, tensor in run.model().state_dict().items()}
    is_mean = all(torch.allclose(weights[name], mean[name], atol=1e-7) for name in mean)
    assert is_mean == averaged.used


def test_a_mean_does_not_depend_on_interruptions() -> None:
    """An interruption leaves a checkpoint at a step of its own, which no mean may count."""
    options = tiny_translator(train={"average_checkpoints": 3, "save_every": 2, "eval_every": 9, "keep_checkpoints": 1})
    source = write_pairs()
    train(source, out="whole", options=options)

    def interrupt(event: WorkflowEvent) -> None:
        if isinstance(event, Stepped) and event.step in (3, 7):
            raise BrokenPipeError  # whoever watched has gone: the training saves and stops

    with suppress(InterruptedRunError):
        train(source, out="cut", options=options, on_event=interrupt)
    resume("cut")
    assert_same(outcome("cut"), outcome("whole"))
    names = [sorted(path.name for path in Path(run, "checkpoints").iterdir()) for run in ("whole", "cut")]
    assert names[0] == names[1]


def test_a_finished_mean_is_still_the_model_when_it_is_resumed() -> None:
    run = train(write_pairs(), out="run", options=tiny_translator(train={"average_checkpoints": 3}))
    before = (run.folder / "model.safetensors").read_bytes()
    resume(run)
    assert (run.folder / "model.safetensors").read_bytes() == before
    records = [record for record in run.records() if record["kind"] == "mean"]
    assert len(records) == 1
    if records[0]["used"]:
        assert summary(run)["best_val_loss"] == records[0]["loss"]


def test_spaces_around_a_sentence_mean_nothing(learnt: Run) -> None:
    plain, spaced = translate(learnt, ["small dog sees cat.", "  small dog sees cat. "])
    assert plain[0].text == spaced[0].text


def test_verbs_that_are_for_other_models_say_so(learnt: Run) -> None:
    with pytest.raises(UsageError, match="cannot continue a text"):
        generate(learnt, ["a"])
    write_text()
    text = train("my.txt", out="text", options=merge(tiny_translator(), {"data": {"tokenizer": "char"}}))
    with pytest.raises(UsageError, match="is no translator"):
        translate(text, ["a"])
    with pytest.raises(UsageError, match="takes no `target`"):
        evaluate(text, "my.txt", "my.txt")


def test_a_text_for_a_translator_and_pairs_for_a_writer_are_refused() -> None:
    with pytest.raises(
        UsageError, match="is a text and no sentence pairs; presets that learn such a text: tiny, small"
    ):
        train(write_text(), preset="translator")
    with pytest.raises(UsageError, match="is sentence pairs; presets that learn to translate: "):
        train(write_pairs(), preset="small")


def test_files_of_unequal_length_are_refused() -> None:
    Path("a.de").write_text("eins\nzwei\n", encoding="utf-8")
    Path("a.en").write_text("one\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"has 2 lines and .* has 1; sentence pairs need as many"):
        train("a.de", options={"data": {"target": "a.en"}})
    assert not Path("runs").exists() or not list(Path("runs").iterdir())
