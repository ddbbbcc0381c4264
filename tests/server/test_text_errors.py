"""A text that cannot be passed on ends with its error, and those beside it go on."""

import asyncio

import pytest
from server_models import EAGER, Served, ids_of, small_model, solo

from clearhead.config import SamplingConfig
from clearhead.inference import TextOptions
from clearhead.server.text_batch import TextRequest
from clearhead.server.texts import TextReader

SAMPLING = SamplingConfig(seed=3, temperature=1.0, max_new_tokens=30)


async def texts_of(reader: TextReader) -> str:
    with reader:
        return "".join([event.text async for event in reader])


def test_what_cannot_be_decoded_ends_its_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise ValueError("these tokens are no text")

    async def main() -> None:
        model = small_model()
        with Served(model, slots=3) as queue:
            readers = [queue.submit(TextRequest([ids_of("abc")], SAMPLING, TextOptions())) for _ in range(3)]
            monkeypatch.setattr(readers[1]._texts[0], "take", refuse)
            results = await asyncio.gather(*map(texts_of, readers), return_exceptions=True)
            [expected] = solo(model, "abc", SAMPLING, EAGER)
            assert [results[0], results[2]] == [expected, expected]
            assert isinstance(results[1], ValueError)

    asyncio.run(asyncio.wait_for(main(), 60))
