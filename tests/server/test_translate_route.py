"""Translations over HTTP: those of `inference.translate`, whoever is translated along with them."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial

import httpx2
import pytest
from run_folders import write_run
from running_server import running

from clearhead.config import TranslationConfig
from clearhead.config.serving import ServerConfig
from clearhead.errors import ClearheadError
from clearhead.inference import translate
from clearhead.inference.beam import BeamStep, beam_search
from clearhead.models import EncoderDecoder
from clearhead.server import translations
from clearhead.server.http.errors import HttpError
from clearhead.server.http.model_thread import ModelThread
from clearhead.server.translations import TranslationQueue
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.translating import aligned_words

SENTENCES = ["hello world", "a", "the cat sees a dog", "", "zebra"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_run(tmp_path_factory.mktemp("runs") / "pairs", "seq2seq")


@pytest.fixture(scope="module")
def address(run: RunFolder) -> Iterator[str]:
    with running([run], ServerConfig(engine="eager", max_prompts=8, gather_milliseconds=30)) as address:
        yield address


def model_of(run: RunFolder) -> EncoderDecoder:
    model = run.model()
    assert isinstance(model, EncoderDecoder)
    return model


def post(address: str, **body: object) -> httpx2.Response:
    return httpx2.post(f"{address}/translate", json=body, timeout=60)


@pytest.mark.parametrize("options", [{}, {"n_best": 3}, {"beam_size": 1, "max_tokens": 7}, {"length_penalty": 0.0}])
def test_translations_are_those_of_the_library(address: str, run: RunFolder, options: dict[str, float]) -> None:
    answer = post(address, text=SENTENCES, **options).json()
    named = {"max_new_tokens" if name == "max_tokens" else name: value for name, value in options.items()}
    config = TranslationConfig.read({"engine": "eager"}, named)
    expected = translate(model_of(run), *run.tokenizers, SENTENCES, config)
    assert (answer["object"], answer["model"]) == ("translations", "pairs")
    assert [[t["text"] for t in best] for best in answer["translations"]] == [
        [t.text for t in best] for best in expected
    ]
    for own, others in zip(answer["translations"], expected, strict=True):
        assert [t["score"] for t in own] == pytest.approx([t.score for t in others], abs=1e-4)
        assert all(t["alignment"] is None for t in own)


def test_words_are_aligned_where_that_is_asked_for(address: str, run: RunFolder) -> None:
    [[answer]] = post(address, text=SENTENCES[0], align=True).json()["translations"]
    config = TranslationConfig(engine="eager")
    [[expected]] = translate(model_of(run), *run.tokenizers, SENTENCES[:1], config)
    assert answer["alignment"] == [[*pair] for pair in aligned_words(model_of(run), *run.tokenizers, expected)]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": []}, "text"),
        ({"text": ["a"] * 9}, "text"),
        ({"text": "a" * 64}, "text"),
        ({"text": "ß"}, "text"),
        ({"text": "a", "n_best": 6}, "n_best"),
        ({"text": "a", "beam_size": 33}, "beam_size"),
        ({"text": "a", "max_tokens": 5000}, "max_tokens"),
        ({"text": 3}, "text"),
        ({}, "text"),
        ({"text": "a", "beem_size": 3}, "beem_size"),
    ],
)
def test_a_mistake_is_a_sentence_that_names_its_field(address: str, body: dict[str, object], param: str) -> None:
    answer = post(address, **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def end_of(run: RunFolder) -> int:
    assert run.tokenizer.end_of_document is not None
    return run.tokenizer.end_of_document


def queue_of(run: RunFolder, thread: ModelThread, capacity: int = 100) -> TranslationQueue:
    return TranslationQueue(
        thread, model_of(run), end=end_of(run), seconds=0.02, capacity=capacity, on_notice=lambda sentence: None
    )


def test_who_comes_within_a_moment_shares_a_search(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    searches, thread = list[int](), ModelThread("test")
    thread.start()

    def counted(model: EncoderDecoder, sources: list[list[int]], *args: object, **options: object) -> object:
        searches.append(len(sources))
        return beam_search(model, sources, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(translations, "beam_search", counted)
    config, other = TranslationConfig(engine="eager"), TranslationConfig(engine="eager", beam_size=2)
    end = end_of(run)

    async def main() -> None:
        queue = queue_of(run, thread)
        sources = [[1 + number % 29, end] for number in range(70)]
        together = await asyncio.gather(
            *(queue.search([source], config) for source in sources), queue.search(sources[:2], other)
        )
        assert sorted(searches) == [2, 19, 51], "at most 256 hypotheses at once, with a beam of 5"
        alone = await queue.search(sources[:3], config)
        for [[own]], [again] in zip(together[:3], alone, strict=True):
            assert own.ids == again.ids
            assert own.score == pytest.approx(again.score, abs=1e-4), "eager: but for rounding"
        leaver = asyncio.ensure_future(queue.search(sources[:1], config))
        await asyncio.sleep(0)
        leaver.cancel()
        await asyncio.sleep(0.1)
        assert len(searches) == 4, "nobody waits for it any more"
        assert queue.n_sentences == 0

    asyncio.run(asyncio.wait_for(main(), 60))
    assert thread.close(20)


def test_an_error_hurts_its_own_sentence_and_the_queue_has_an_end(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:

    thread, end, config = ModelThread("test"), end_of(run), TranslationConfig(engine="eager")
    thread.start()

    def broken(model: EncoderDecoder, sources: list[list[int]], *args: object, **options: object) -> object:
        if [5, end] in sources:
            raise ClearheadError("not finite")
        return beam_search(model, sources, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(translations, "beam_search", broken)

    async def main() -> None:
        queue = queue_of(run, thread, capacity=4)
        results = await asyncio.gather(
            *(queue.search([[token, end]], config) for token in (4, 5, 6)), return_exceptions=True
        )
        assert [isinstance(result, ClearheadError) for result in results] == [False, True, False]
        waiting = asyncio.ensure_future(queue.search([[4, end]] * 4, config))
        await asyncio.sleep(0)
        with pytest.raises(HttpError) as refusal:
            await queue.search([[4, end]], config)
        assert refusal.value.status == 429
        queue.close()
        with pytest.raises(HttpError, match="try again"):
            await waiting

    asyncio.run(asyncio.wait_for(main(), 60))
    assert thread.close(20)


def test_who_leaves_counts_until_his_search_ends_and_is_not_searched_for(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches, release, thread = list[int](), threading.Event(), ModelThread("test")
    thread.start()

    def held(model: EncoderDecoder, sources: list[list[int]], *args: object, **options: object) -> object:
        searches.append(len(sources))
        assert release.wait(timeout=20)
        return beam_search(model, sources, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(translations, "beam_search", held)
    source, config = [4, end_of(run)], TranslationConfig(engine="eager")
    other, third = (config.model_copy(update={"beam_size": beam_size}) for beam_size in (2, 3))

    async def main() -> None:
        queue = queue_of(run, thread, capacity=6)
        leavers = [
            asyncio.ensure_future(queue.search(sources, options))
            for sources, options in [([source] * 2, config), ([source] * 2, other), ([source], third)]
        ]
        stayer = asyncio.ensure_future(queue.search([source], third))
        await asyncio.sleep(0.2)
        for leaver in leavers:
            leaver.cancel()
        await asyncio.wait(leavers, timeout=20)
        assert queue.n_sentences == 6
        with pytest.raises(HttpError) as refusal:
            await queue.search([source], config)
        assert refusal.value.status == 429
        release.set()
        assert len(await stayer) == 1
        assert searches == [2, 1], "the first had begun; nobody waits for the second, and for one of the third"
        assert queue.n_sentences == 0

    try:
        asyncio.run(asyncio.wait_for(main(), 60))
    finally:
        release.set()
    assert thread.close(20)


def test_a_search_ends_with_the_step_in_which_its_last_client_leaves(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gone, steps, thread = threading.Event(), threading.Event(), list[BeamStep](), ModelThread("test")
    thread.start()

    def watched(*args: object, on_step: Callable[[BeamStep], None], **options: object) -> object:
        def step(what: BeamStep) -> None:
            steps.append(what)
            begun.set()
            assert gone.wait(20)
            on_step(what)

        return beam_search(*args, on_step=step, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(translations, "beam_search", watched)

    async def main() -> None:
        queue = queue_of(run, thread)
        search = partial(queue.search, [[5, end_of(run)]], TranslationConfig(engine="eager"))
        clients = [asyncio.ensure_future(search()) for _ in range(2)]
        assert await asyncio.to_thread(begun.wait, 20)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        gone.set()
        while queue.n_sentences:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert len(steps) == 1
    assert thread.close(20)


@pytest.mark.parametrize(("beam_size", "expected"), [(1, [64, 6]), (4, [64, 6]), (32, [8] * 8 + [6]), (300, [1] * 70)])
def test_a_search_has_a_bounded_number_of_hypotheses(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, beam_size: int, expected: list[int]
) -> None:
    searches, thread = list[int](), ModelThread("test")
    thread.start()

    def counted(model: EncoderDecoder, sources: list[list[int]], *args: object, **options: object) -> object:
        searches.append(len(sources))
        return [[] for _ in sources]

    monkeypatch.setattr(translations, "beam_search", counted)
    source, config = [4, end_of(run)], TranslationConfig(engine="eager", beam_size=beam_size)

    async def main() -> None:
        assert len(await queue_of(run, thread).search([source] * 70, config)) == 70

    asyncio.run(asyncio.wait_for(main(), 60))
    assert searches == expected
    assert thread.close(20)


def test_closing_ends_also_what_waits_for_a_second_search(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release, thread = threading.Event(), threading.Event(), ModelThread("test")
    thread.start()

    def held(model: EncoderDecoder, sources: list[list[int]], *args: object, **options: object) -> object:
        begun.set()
        assert release.wait(timeout=20)
        return [[] for _ in sources]

    monkeypatch.setattr(translations, "beam_search", held)
    source, config = [4, end_of(run)], TranslationConfig(engine="eager", beam_size=1)

    async def main() -> None:
        queue = queue_of(run, thread)
        first = asyncio.ensure_future(queue.search([source] * 64, config))
        second = asyncio.ensure_future(queue.search([source], config))
        assert await asyncio.to_thread(begun.wait, 20)
        queue.close()
        for waiting in (first, second):
            with pytest.raises(HttpError, match="try again"):
                await asyncio.wait_for(waiting, 10)

    try:
        asyncio.run(asyncio.wait_for(main(), 60))
    finally:
        release.set()
    assert thread.close(20)
