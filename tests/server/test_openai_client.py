"""The official client, as it comes, on every route."""

import asyncio
from collections.abc import Iterator, Sequence

import openai
import pytest
import torch
from run_folders import write_run
from running_server import running

from clearhead.config import SamplingConfig
from clearhead.data import Tokenizer
from clearhead.inference import generate
from clearhead.models import CausalLM, EncoderLM
from clearhead.server.openai.embeddings import embed
from clearhead.workflows.runs.folder import RunFolder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    folder = tmp_path_factory.mktemp("runs")
    return {kind: write_run(folder / kind, kind) for kind in ("causal", "masked", "seq2seq")}


@pytest.fixture(scope="module")
def client(runs: dict[str, RunFolder]) -> Iterator[openai.OpenAI]:
    with (
        running([*runs.values()]) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


def solo(run: RunFolder, prompt: str, **options: object) -> list[str]:
    model = run.model()
    assert isinstance(model, CausalLM)
    [texts] = generate(model, run.tokenizer, [prompt], SamplingConfig.read({"temperature": 1.0}, options))
    return texts


def test_models(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["causal", "masked", "seq2seq"]
    assert [model.model_extra["kind"] for model in models if model.model_extra] == ["causal", "masked", "seq2seq"]
    model = client.models.retrieve("causal")
    assert (model.id, model.object, model.owned_by) == ("causal", "model", "clearhead")
    assert model.model_extra == {"kind": "causal", "chat": False, "context": 64}
    with pytest.raises(openai.NotFoundError) as refusal:
        client.models.retrieve("casual")
    assert refusal.value.code == "model_not_found"
    assert "did you mean 'causal'" in refusal.value.message


def test_a_completion_is_the_text_of_that_seed(client: openai.OpenAI, runs: dict[str, RunFolder]) -> None:
    answer = client.completions.create(model="causal", prompt="hello", seed=5, n=3, max_tokens=20)
    expected = solo(runs["causal"], "hello", seed=5, num_samples=3, max_new_tokens=20)
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.finish_reason for choice in answer.choices} <= {"length", "stop"}
    assert (answer.object, answer.model) == ("text_completion", "causal")
    assert answer.usage
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_adds_up_to_the_same_text(client: openai.OpenAI, runs: dict[str, RunFolder]) -> None:
    stream = client.completions.create(
        model="causal",
        prompt=["hello", "é🙂"],
        seed=5,
        max_tokens=30,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1},
    )
    texts, reasons, usage = ["", ""], ["", ""], None
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        usage = chunk.usage or usage
    options = {"seed": 5, "max_new_tokens": 30, "top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1}
    assert texts == [text for prompt in ("hello", "é🙂") for text in solo(runs["causal"], prompt, **options)]
    assert set(reasons) <= {"length", "stop"}
    assert usage
    assert usage.prompt_tokens == 7


def test_ids_echo_and_stops(client: openai.OpenAI, runs: dict[str, RunFolder]) -> None:
    tokenizer = runs["causal"].tokenizer
    ids = [int(token) for token in tokenizer.encode("hello")]
    [whole] = solo(runs["causal"], "hello", seed=5, max_new_tokens=20)
    stop = whole[6:8]
    for prompt in (ids, [ids, ids]):
        answer = client.completions.create(model="causal", prompt=prompt, seed=5, max_tokens=20, echo=True, stop=[stop])
        assert answer.choices[0].text == "hello" + whole[: whole.index(stop)]
        assert answer.choices[0].finish_reason == "stop"
        assert len(answer.choices) == (2 if prompt != ids else 1)


def test_log_probabilities(client: openai.OpenAI, runs: dict[str, RunFolder]) -> None:
    answer = client.completions.create(model="causal", prompt="hello", temperature=0, max_tokens=9, logprobs=3)
    [choice] = answer.choices
    columns = choice.logprobs
    assert columns
    assert columns.tokens
    assert columns.token_logprobs
    assert columns.top_logprobs
    count = len(choice.text)
    assert "".join(columns.tokens[:count]) == choice.text
    assert columns.text_offset == [*range(len(columns.tokens))]
    for logprob, top in zip(columns.token_logprobs, columns.top_logprobs, strict=True):
        assert len(top) == 3
        assert logprob == max(top.values()), "greedy, and the same number to the last digit, as lm-eval compares them"


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_echoed_is_decoded_beside_the_event_loop_and_a_token_once(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    prompt, threads = "hello world " * 4, list[bool]()
    decode = Tokenizer.decode

    def counted(self: Tokenizer, ids: Sequence[int]) -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            threads.append(False)
        else:
            threads.append(True)
        return decode(self, ids)

    monkeypatch.setattr(Tokenizer, "decode", counted)
    for _ in range(2):
        threads.clear()
        answer = client.completions.create(
            model="causal", prompt=prompt, max_tokens=0, logprobs=5, echo=True, stream=stream
        )
        if isinstance(answer, openai.Stream):
            assert sum(len(choice.text) for event in answer for choice in event.choices) == len(prompt)
    assert not any(threads), "on the event loop"
    assert len(threads) < 2 * len(prompt), "where they begin; their texts and those of the others are remembered"


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_what_is_echoed_has_log_probabilities(
    client: openai.OpenAI, runs: dict[str, RunFolder], max_tokens: int
) -> None:
    run = runs["causal"]
    ids = [int(token) for token in run.tokenizer.encode("hello world")]
    answer = client.completions.create(model="causal", prompt=[ids], max_tokens=max_tokens, logprobs=1, echo=True)
    [choice] = answer.choices
    columns = choice.logprobs
    assert columns
    assert columns.token_logprobs
    assert len(columns.token_logprobs) == len(ids) + max_tokens, "also where the text is over at once"
    assert columns.token_logprobs[0] is None
    with torch.inference_mode():
        expected = run.model()(torch.tensor([ids]))[0].log_softmax(-1)  # (T, V)
    likelihoods = [float(row[token]) for row, token in zip(expected, ids[1:], strict=False)]
    assert columns.token_logprobs[1 : len(ids)] == pytest.approx(likelihoods, abs=1e-4)
    assert choice.text.startswith("hello world")
    if not max_tokens:
        assert choice.text == "hello world"
        assert choice.finish_reason == "length"


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_vectors(client: openai.OpenAI, runs: dict[str, RunFolder], options: dict[str, str]) -> None:
    run = runs["masked"]
    model = run.model()
    assert isinstance(model, EncoderLM)
    answer = client.embeddings.create(model="masked", input=["hello", "world and all"], **options)  # type: ignore[arg-type]
    for item, text in zip(answer.data, ("hello", "world and all"), strict=True):
        expected = embed(model, [int(token) for token in run.tokenizer.encode(text)])
        vector = item.embedding
        if isinstance(vector, str):
            import base64

            vector = torch.frombuffer(bytearray(base64.b64decode(vector)), dtype=torch.float32).tolist()
        assert vector == expected.tolist()
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 18


def refused(client: openai.OpenAI, **fields: object) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as refusal:
        client.completions.create(**{"model": "causal", "prompt": "hello", "max_tokens": 3, **fields})  # type: ignore[call-overload]
    return refusal.value


@pytest.mark.parametrize(
    ("fields", "param", "words_of_it"),
    [
        ({"max_tokens": 60}, "prompt", "context has 64 tokens; the prompt has 5 and max_tokens is 60"),
        ({"max_tokens": 5000}, "max_tokens", "at most 4096"),
        ({"n": 9}, "n", "at most 8"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"suffix": "end"}, "suffix", "not supported"),
        ({"logprobs": 6}, "logprobs", "at most 5"),
        ({"temperature": 3}, "temperature", "at most 2"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": ""}, "stop", "not be empty"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [[]]}, "prompt", "no token ids"),
        ({"prompt": [99]}, "prompt", "99"),
        ({"prompt": "ß"}, "prompt", "ß"),
        ({"prompt": ["a"] * 65}, "prompt", "at most 64"),
        ({"logit_bias": {"99": 1}}, "logit_bias", "ids of tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"extra_body": {"sead": 1}}, "sead", "did you mean"),
        ({"model": "masked"}, "model", "does not continue"),
        ({"model": "nobody"}, "model", "no such model"),
    ],
)
def test_a_mistake_is_a_sentence_that_names_its_field(
    client: openai.OpenAI, fields: dict[str, object], param: str | None, words_of_it: str
) -> None:
    error = refused(client, **fields)
    assert error.status_code == (404 if fields.get("model") == "nobody" else 400)
    assert isinstance(error.body, dict)
    assert error.body["param"] == param
    assert words_of_it in error.body["message"]
    assert "/" not in error.body["message"].replace("/translate", "")


def test_a_mistake_in_a_stream_has_its_own_status(client: openai.OpenAI) -> None:
    assert refused(client, stream=True, max_tokens=60).status_code == 400


def test_what_gives_no_vectors_says_so(client: openai.OpenAI) -> None:
    for fields in ({"model": "causal", "input": "a"}, {"model": "masked", "input": "a", "dimensions": 3}):
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(**fields)
    for text in ("", "a" * 65):
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model="masked", input=text)


def test_penalties_and_biases_are_the_engines(client: openai.OpenAI, runs: dict[str, RunFolder]) -> None:
    token = int(runs["causal"].tokenizer.encode("z")[0])
    answer = client.completions.create(
        model="causal", prompt="hello", max_tokens=8, temperature=0, logit_bias={str(token): 100}
    )
    assert answer.choices[0].text == "z" * 8
    answer = client.completions.create(
        model="causal", prompt="hello", max_tokens=8, seed=1, frequency_penalty=2, presence_penalty=2, top_p=0
    )
    assert answer.choices[0].text
