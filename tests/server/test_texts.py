"""Texts of many requests at once: each is what it would be alone, and nobody holds up anybody."""

import asyncio
import random
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from server_models import EAGER, ENDING, NATIVE, TOKENIZER, Served, ids_of, small_model, solo

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.config.serving import ServerConfig
from clearhead.errors import ClearheadError, InputError
from clearhead.inference import GenerationBatch, TextOptions
from clearhead.inference.kv_context import PREFILL_TOKENS
from clearhead.native import compiler
from clearhead.server.http.errors import HttpError
from clearhead.server.text_batch import TextRequest
from clearhead.server.text_progress import TextEvent
from clearhead.server.texts import BusyError, SlowReaderError, TextQueue

T = TypeVar("T")

pytestmark = pytest.mark.usefixtures("compiled_code")
NEEDS_COMPILER = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
ENGINES = [EAGER, pytest.param(NATIVE, marks=NEEDS_COMPILER)]
WARM = SamplingConfig(seed=3, temperature=1.0, max_new_tokens=30)


def run(work: Coroutine[Any, Any, T]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(work, 60)

    return asyncio.run(limited())


def warm(**options: object) -> SamplingConfig:
    return SamplingConfig.read(WARM.model_dump(exclude_unset=True), options)


def request(prompt: str, sampling: SamplingConfig = WARM, options: TextOptions | None = None) -> TextRequest:
    return TextRequest([ids_of(prompt)] * sampling.num_samples, sampling, options or TextOptions())


async def events_of(queue: TextQueue, texts: TextRequest) -> list[TextEvent]:
    with queue.submit(texts) as reader:
        return [event async for event in reader]


async def texts_of(queue: TextQueue, texts: TextRequest) -> list[str]:
    written = [""] * len(texts.prompts)
    for event in await events_of(queue, texts):
        written[event.index] += event.text
    return written


@pytest.mark.parametrize("engine", ENGINES)
def test_a_text_is_what_it_is_alone_whatever_runs_beside_it(engine: EngineConfig) -> None:
    model, draw = small_model(tokenizer=ENDING), random.Random(0)
    prompts = ["".join(draw.choices("abcdefg ", k=draw.randint(1, 20))) for _ in range(12)]
    configs = [
        warm(seed=seed, num_samples=draw.randint(1, 3), stop=("ab",) if seed % 2 else (), top_k=draw.choice([None, 3]))
        for seed in range(12)
    ]

    async def client(queue: TextQueue, prompt: str, config: SamplingConfig) -> list[str]:
        await asyncio.sleep(draw.random() * 0.05)
        return await texts_of(queue, request(prompt, config))

    async def leaver(queue: TextQueue) -> None:
        with queue.submit(request("gag", warm(seed=None))) as reader:
            async for _ in reader:
                return

    async def main() -> list[list[str]]:
        with Served(model, engine, prompt_tokens=8, tokenizer=ENDING) as queue:
            leaving = [leaver(queue) for _ in range(6)]
            written, _ = await asyncio.gather(
                asyncio.gather(*map(client, [queue] * 12, prompts, configs)), asyncio.gather(*leaving)
            )
            assert queue.n_texts == 0
            return written

    pairs = zip(prompts, configs, strict=True)
    expected = [solo(model, prompt, config, engine, ENDING) for prompt, config in pairs]
    assert run(main()) == expected
    assert len({text for texts in expected for text in texts}) > 12


def test_prompts_are_read_in_the_pieces_in_which_the_library_reads_them() -> None:
    """Otherwise long ones, which PyTorch reads, would give a text with other last bits than `generate`."""
    assert ServerConfig().prompt_tokens == PREFILL_TOKENS


def test_reasons_tokens_and_log_probabilities_fit_the_text() -> None:
    model = small_model()

    async def main() -> None:
        with Served(model) as queue:
            plain = await events_of(queue, request("abc"))
            text = "".join(event.text for event in plain)
            assert [event.finish_reason for event in plain][-1] == "length"
            assert len(text) == 30
            stop = text[10:12]
            texts = request("abc", warm(stop=(stop,)), TextOptions(logprobs=2))
            with queue.submit(texts) as reader:
                events = [event async for event in reader]
            shown = "".join(event.text for event in events)
            assert shown == text[: text.index(stop)]
            assert events[-1].finish_reason == "stop"
            assert reader.n_tokens == len(shown) + 2
            tokens = [token for event in events for token in event.tokens]
            assert TOKENIZER.decode(tokens) == shown, "nothing of the stop string"
            assert [offset for event in events for offset in event.offsets] == [*range(len(shown))]
            assert [len(event.logprobs) for event in events] == [len(event.tokens) for event in events]
            assert all(len(token.top) == 2 for event in events for token in event.logprobs)

    run(main())


def test_a_full_queue_refuses_at_once_and_nobody_it_took_in_suffers() -> None:
    model = small_model()

    async def main() -> None:
        with Served(model, slots=2, waiting=3) as queue:
            accepted = [asyncio.ensure_future(texts_of(queue, request("abc", warm(seed=seed)))) for seed in range(5)]
            await asyncio.sleep(0)
            with pytest.raises(BusyError) as refusal:
                queue.submit(request("abc"))
            assert (refusal.value.status, refusal.value.headers) == (429, {"Retry-After": "1"})
            with pytest.raises(HttpError, match="at most 5") as never:
                queue.submit(request("abc", warm(num_samples=6)))
            assert never.value.status == 400, "waiting would not help"
            assert await asyncio.gather(*accepted) == [solo(model, "abc", warm(seed=seed), EAGER) for seed in range(5)]
            assert await texts_of(queue, request("abc")), "there is room again"

    run(main())


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    with Served(small_model(block_size=40)) as queue:

        async def main() -> None:
            assert len((await texts_of(queue, request("a" * 10)))[0]) == 30
            with pytest.raises(HttpError, match="has 40 tokens; the prompt has 11 and max_tokens is 30") as refusal:
                queue.submit(request("a" * 11))
            assert (refusal.value.status, refusal.value.code) == (400, "context_length_exceeded")
            for ids in ([999], [-1], []):
                with pytest.raises(InputError):
                    queue.submit(TextRequest([ids], WARM))
            assert queue.n_texts == 0

        run(main())


class Counting(GenerationBatch):
    """A batch that counts its steps."""

    steps = 0

    def step(self) -> dict[int, list[int]]:
        type(self).steps += 1
        return super().step()


def counting(batch: GenerationBatch) -> GenerationBatch:
    batch.__class__ = Counting
    return batch


def test_leaving_frees_the_slot_at_the_next_step() -> None:
    model = small_model(block_size=4096)

    async def main() -> None:
        with Served(model, slots=1, wrap=counting) as queue:
            endless = warm(max_new_tokens=4000)
            with queue.submit(request("abc", endless)) as reader:
                await anext(reader)
                waiting = asyncio.ensure_future(texts_of(queue, request("abc")))
                await asyncio.sleep(0.05)
                assert not waiting.done(), "there is one slot"
                assert queue.n_texts == 2
                left = Counting.steps
            assert queue.n_texts == 1, "for whoever asks now there is room at once"
            assert await waiting == solo(model, "abc", WARM, EAGER)
            assert Counting.steps <= left + WARM.max_new_tokens + 100, "a token a step, and no more of the other's"

    run(main())


@pytest.mark.parametrize("engine", ENGINES)
def test_who_reads_slowly_holds_up_his_own_text_alone(engine: EngineConfig) -> None:
    model, longer = small_model(block_size=300), warm(max_new_tokens=250)

    async def main() -> None:
        with Served(model, engine, slots=2, buffer=40) as queue:
            with queue.submit(request("abc", longer)) as slow:
                first = await anext(slow)
                for seed in range(3):
                    assert await texts_of(queue, request("g", longer.model_copy(update={"seed": seed})))
                steps = 0
                while not queue._thread.is_idle:  # the slow text pauses, and nothing else is there
                    await asyncio.sleep(0.01)
                    steps += 1
                    assert steps < 1000
                second = await anext(slow)
                assert second.finish_reason is None
                assert 40 < len(second.text) < 200, "a bounded buffer"
                rest = [event.text async for event in slow]
            assert [first.text + second.text + "".join(rest)] == solo(model, "abc", longer, engine)

    run(main())


@pytest.mark.campaign
def test_who_reads_a_little_now_and_then_does_not_keep_his_slot_for_ever() -> None:
    model, longer = small_model(block_size=1200), warm(max_new_tokens=1000)

    async def main() -> None:
        with (
            Served(model, slots=1, buffer=40, patience=0.2) as queue,
            queue.submit(request("abc", longer)) as slow,
        ):
            waiting = asyncio.ensure_future(texts_of(queue, request("abc")))
            written = ""

            async def dribble() -> None:
                nonlocal written
                async for event in slow:
                    written += event.text
                    while slow._pause is None and not waiting.done():
                        await asyncio.sleep(0.002)
                    await asyncio.sleep(0.05)  # less than the limit, which the pauses reach together

            with pytest.raises(SlowReaderError, match=r"0\.2 seconds"):
                await dribble()
            [expected] = solo(model, "abc", longer, EAGER)
            assert expected.startswith(written)
            assert 40 < len(written) < 1000, "what had been written is read before the error"
            assert await waiting == solo(model, "abc", WARM, EAGER), "the slot is free"

    run(main())


def test_tokens_are_handed_out_together_but_the_first_and_the_end_at_once() -> None:
    model = small_model(block_size=600)

    async def main() -> None:
        with Served(model, seconds=1000) as queue:
            assert await texts_of(queue, request("ab")) == solo(model, "ab", WARM, EAGER)
            with queue.submit(request("abc")) as reader:  # the first of all might be handed out with the others
                texts = [event.text async for event in reader]
            assert len(texts) <= 2, "how it begins, and the rest"
            assert ["".join(texts)] == solo(model, "abc", WARM, EAGER)
        with Served(model, seconds=0.05) as queue, queue.submit(request("abc", warm(max_new_tokens=500))) as reader:
            assert (await anext(reader)).finish_reason is None
            assert (await anext(reader)).finish_reason is None, "they do not wait for the end"

    run(main())


def test_nothing_runs_where_nothing_can_go_on() -> None:
    model, longer = small_model(block_size=600), warm(max_new_tokens=500)

    async def main() -> None:
        served = Served(model, slots=1, buffer=4)
        with served as queue, queue.submit(request("abc", longer)) as slow:
            await anext(slow)
            with queue.submit(request("abc")) as waiting:
                await asyncio.sleep(0.2)
                before = time.thread_time_ns()
                assert served.thread.is_idle, "a text that waits for the slot of one that pauses is no work"
                assert time.thread_time_ns() >= before
                [event async for event in slow]
                assert "".join([event.text async for event in waiting])

    run(main())


class Fragile(GenerationBatch):
    """A batch in which a step fails as a whole as long as a text of that prompt is there."""

    poison: tuple[int, ...] = ()
    failures = 0

    def step(self) -> dict[int, list[int]]:
        running = [tuple(request.prompt) for request in self._requests if request.remaining]
        if self.poison in running:
            type(self).failures += 1
            raise RuntimeError("a fault of the library")
        return super().step()


def test_an_exception_hurts_its_own_text_alone() -> None:
    model = small_model()

    def fragile(batch: GenerationBatch) -> GenerationBatch:
        batch.__class__ = Fragile
        return batch

    Fragile.poison, Fragile.failures = tuple(ids_of("bad")), 0

    async def main() -> None:
        with Served(model, slots=3, wrap=fragile) as queue:
            others = [asyncio.ensure_future(texts_of(queue, request("abc", warm(seed=s, num_samples=2)))) for s in "12"]
            await asyncio.sleep(0.01)
            with pytest.raises(RuntimeError, match="a fault"):
                await texts_of(queue, request("bad"))
            assert await asyncio.gather(*others) == [
                solo(model, "abc", warm(seed=s, num_samples=2), EAGER) for s in "12"
            ]
            assert await texts_of(queue, request("abc")) == solo(model, "abc", WARM, EAGER)

    run(main())
    assert Fragile.failures == 2, "in the batch, and alone"


def test_a_model_that_always_fails_fails_everybody_in_bounded_time() -> None:
    def broken(batch: GenerationBatch) -> GenerationBatch:
        batch.step = lambda: 1 // 0  # type: ignore[method-assign, assignment, return-value]
        return batch

    async def main() -> None:
        with Served(small_model(), wrap=broken) as queue:
            results = await asyncio.gather(*(texts_of(queue, request("abc")) for _ in range(9)), return_exceptions=True)
            assert [type(result) for result in results] == [ZeroDivisionError] * 9
            assert queue.n_texts == 0

    run(main())


def test_numbers_that_are_none_end_their_text_with_a_sentence() -> None:
    model = small_model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.embedding.weight, "data", model.embedding.weight.data.clone())
        model.embedding.weight.data[ids_of("é")[0]] = float("nan")

        async def main() -> None:
            with Served(model) as queue:
                beside = asyncio.ensure_future(texts_of(queue, request("abc", warm(top_k=1))))
                with pytest.raises(ClearheadError, match="not finite"):
                    await texts_of(queue, request("é"))
                await asyncio.gather(beside, return_exceptions=True)

        run(main())


def test_closing_ends_every_text_with_an_error() -> None:
    model = small_model(block_size=4096)

    async def main() -> None:
        with Served(model, slots=1) as queue:
            endless = warm(max_new_tokens=4000)
            texts = [asyncio.ensure_future(texts_of(queue, request("abc", endless))) for _ in range(3)]
            await asyncio.sleep(0.05)
            queue.close()
            results = await asyncio.gather(*texts, return_exceptions=True)
            assert [result.status for result in results if isinstance(result, HttpError)] == [503] * 3
            with pytest.raises(HttpError, match="try again"):
                queue.submit(request("abc"))

    run(main())
