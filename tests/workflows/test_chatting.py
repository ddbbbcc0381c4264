"""A chat keeps what was said, reads only what is new, and drops its oldest turns where they do not fit."""

from pathlib import Path
from typing import Any

import pytest
from chat_templates import CHATML, tokenizer_files
from run_folders import write_run

import clearhead as ch
from clearhead.data import ChatEncoder, ChatMessage, Tokenizer
from clearhead.errors import DataError, UsageError
from clearhead.inference import prompt_reading
from clearhead.workflows.chatting import Chat
from clearhead.workflows.runs.folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("chats")
    tokenizer_files("bytes", folder / "files", CHATML)
    return write_run(folder / "run", tokenizer=Tokenizer.load(folder / "files", keep_frame=True), block_size=256)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_run(tmp_path_factory.mktemp("plain") / "run")


def chat_of(run: RunFolder, **options: object) -> Chat:
    arguments: dict[str, Any] = {"seed": 1, "max_new_tokens": 8, "engine": "eager"} | options
    return ch.chat(run, **arguments)


def test_an_answer_follows_from_all_that_was_said(run: RunFolder) -> None:
    chat, pieces = chat_of(run, system="be nice"), list[str]()
    answers = [chat.say("hello", pieces.append), chat.say("and now?", pieces.append)]
    assert "".join(pieces) == "".join(answers)
    roles = ["system", "user", "assistant", "user", "assistant"]
    contents = ["be nice", "hello", answers[0], "and now?", answers[1]]
    assert chat.messages == [ChatMessage(*both) for both in zip(roles, contents, strict=True)]
    again = chat_of(run, system="be nice")
    again.messages = chat.messages[:3]
    assert again.say("and now?") == answers[1], "whatever is in the cache"
    assert chat_of(run).say("and now?") != answers[1], "or this shows nothing"


def test_an_answer_reads_what_is_new_alone(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    chat, counts = chat_of(run), list[int]()
    chat.say("hello there " * 6)
    read = prompt_reading.PromptReader._read_chunk

    def counted(self, backend, ids, *options, **more):  # type: ignore[no-untyped-def]
        counts.append(ids.numel())
        return read(self, backend, ids, *options, **more)

    monkeypatch.setattr(prompt_reading.PromptReader, "_read_chunk", counted)
    chat.say("go on")
    template = run.tokenizer.chat_template
    assert template is not None
    assert sum(counts) < 50 < len(ChatEncoder(run.tokenizer, template).encode(chat.messages))


def test_the_last_turn_can_be_undone_and_the_system_message_replaced(run: RunFolder) -> None:
    chat = chat_of(run)
    first = chat.say("hello")
    assert chat.undo()
    assert chat.messages == []
    assert not chat.undo()
    assert chat.say("hello") == first
    chat.system = "be short"
    assert (chat.system, len(chat.messages)) == ("be short", 3)
    chat.system = None
    assert chat.messages[0].role == "user"


def test_what_no_longer_fits_is_dropped_with_a_sentence(run: RunFolder) -> None:
    sentences = list[str]()
    chat = chat_of(run, system="be nice", on_notice=sentences.append, max_new_tokens=30)
    for number in range(9):
        chat.say(f"{number} " + "hello there " * 4)
    assert chat.dropped > 2
    assert chat.messages[chat.dropped + 1].role == "user", "whole turns"
    assert len(chat.messages) == 19, "a person still has them"
    assert sentences
    assert all("outgrown the model's context of 256 tokens: the model no longer sees its" in s for s in sentences)
    with pytest.raises(
        UsageError, match=r"do not fit into the model's context: it has 256 tokens, and the message takes"
    ):
        chat.say("hello there " * 200)
    assert len(chat.messages) == 19


def test_an_interrupted_answer_is_kept_as_far_as_it_came(run: RunFolder) -> None:
    whole, chat, pieces = chat_of(run, max_new_tokens=20).say("hello"), chat_of(run, max_new_tokens=20), list[str]()

    def stop(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chat.say("hello", stop)
    assert chat.messages[-1] == ChatMessage("assistant", "".join(pieces))
    assert whole.startswith("".join(pieces))
    assert chat.say("go on") == chat.messages[-1].content


def test_stop_strings_end_an_answer(run: RunFolder) -> None:
    whole = chat_of(run, max_new_tokens=20).say("hello")
    chat = chat_of(run, max_new_tokens=20, stop=(whole[3:5],))
    assert chat.say("hello") == whole[: whole.index(whole[3:5])]
    assert chat.say("hello")


def test_a_form_may_be_asked_for_between_two_answers(run: RunFolder) -> None:
    pytest.importorskip("llguidance")
    chat = chat_of(run)
    chat.say("hello")
    free = chat.config
    chat.config = free.model_copy(update={"regex": "ab|c"})
    assert chat.say("hello") in ("ab", "c")
    chat.config = free
    chat.say("hello")


def test_a_template_may_come_from_a_file(run: RunFolder, plain: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no chat template: it was not trained for chats; continue a text with"):
        chat_of(plain)
    file = tmp_path / "chat.jinja"
    file.write_text("{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}", encoding="utf-8")
    assert isinstance(chat_of(plain, template=file).say("hello"), str)
    with pytest.raises(DataError, match="cannot be read"):
        chat_of(plain, template=tmp_path / "none")


def test_one_answer_to_each_message(run: RunFolder) -> None:
    with pytest.raises(UsageError, match="one answer to each message"):
        chat_of(run, num_samples=2)


def test_an_imported_template_is_exported(run: RunFolder, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers import AutoTokenizer

    ch.export(run, "hf", tmp_path / "out")
    listed = [{"role": "user", "content": "hello there"}]
    reference = AutoTokenizer.from_pretrained(tmp_path / "out")
    template = run.tokenizer.chat_template
    assert template is not None
    ids = reference.apply_chat_template(listed, add_generation_prompt=True, return_dict=False)
    assert ids == ChatEncoder(run.tokenizer, template).encode([ChatMessage("user", "hello there")])
    imported = ch.import_model(tmp_path / "out", out=tmp_path / "again")
    assert imported.tokenizer.chat_template is not None
    assert imported.tokenizer.chat_template.source == template.source
