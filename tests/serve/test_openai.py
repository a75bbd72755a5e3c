"""The official client of OpenAI, and what it gets: the texts and numbers of the Python API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import qkv
from qkv.tasks import LanguageModel, Translator
from tests.serve.conftest import Running

openai = pytest.importorskip("openai", reason="needs the package openai")


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        max_retries=0,
        http_client=httpx.Client(trust_env=False),
    ) as found:
        yield found


@pytest.fixture(scope="module")
def talker(folders: dict[str, Path]) -> LanguageModel:
    return qkv.load(folders["talker"], device="cpu")


def complete(client: Any, **asked: Any) -> Any:
    """Ask for a completion, by default of the speaker's "the cat"."""
    return client.completions.create(**{"model": "speaker", "prompt": "the cat", **asked})


def said(chunks: Any) -> str:
    """The text of a stream of completions."""
    return "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


def test_models(client: Any, server: Running) -> None:
    assert [model.id for model in client.models.list()] == server.models.names()
    assert client.models.retrieve("zh-en").task == "translate"
    with pytest.raises(openai.NotFoundError, match="There is no model 'gpt-4'"):
        client.models.retrieve("gpt-4")


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"temperature": 0.8, "seed": 5}])
def test_a_completion_is_what_generate_gives(
    client: Any, speaker: LanguageModel, settings: dict[str, Any]
) -> None:
    prompts = ["the cat", "a", ""]
    found = complete(client, prompt=prompts, max_tokens=9, **settings)
    drawn = {"sample": True, **settings} if settings.get("temperature") else {}
    expected = speaker.n_best(prompts, max_length=9, **drawn)
    assert [choice.text for choice in found.choices] == [best.text for best, *_ in expected]
    reasons = ["stop" if best.finished else "length" for best, *_ in expected]
    assert [choice.finish_reason for choice in found.choices] == reasons
    read = sum(len(speaker.encode(prompt)) for prompt in prompts)
    assert found.usage.prompt_tokens == read
    written = sum(len(best.tokens) + best.finished for best, *_ in expected)
    assert found.usage.completion_tokens == written


def test_a_stream_is_the_same_text(client: Any, speaker: LanguageModel) -> None:
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(complete(client, max_tokens=12, **streaming))
    assert said(chunks) == speaker.generate("the cat", max_length=12)
    assert len(chunks) > 3
    assert chunks[-1].choices == []
    assert chunks[-1].usage == complete(client, max_tokens=12).usage


def test_several_draws_are_those_of_python(client: Any, speaker: LanguageModel) -> None:
    asked = {"prompt": "a", "max_tokens": 8, "n": 3, "temperature": 1.0, "seed": 3}
    found = complete(client, **asked)
    expected = speaker.n_best("a", max_length=8, sample=True, n_best=3, seed=3)[0]
    assert sorted(x.text for x in found.choices) == sorted(best.text for best in expected)
    streamed = [""] * 3
    for chunk in complete(client, **asked, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in found.choices]


def test_text_ends_before_a_stop_string(client: Any, speaker: LanguageModel) -> None:
    whole = speaker.generate("the cat", max_length=20)
    stop = whole[4:6]
    found = complete(client, max_tokens=20, stop=[stop, "zzz"]).choices[0]
    assert found.text == speaker.generate("the cat", max_length=20, stop=stop)
    assert found.text == whole.partition(stop)[0]
    assert found.finish_reason == "stop"


def test_log_probabilities_are_those_of_score(client: Any, speaker: LanguageModel) -> None:
    found = complete(client, max_tokens=5, temperature=0, logprobs=2).choices[0]
    prompt = speaker.encode("the cat")
    best = speaker.n_best("the cat", max_length=5)[0][0]
    (scored,) = speaker.likelihoods([[*prompt, *best.tokens]])
    expected = scored.log_probabilities[len(prompt) - 1 :]
    assert found.logprobs.token_logprobs == pytest.approx(expected, abs=1e-5)
    assert "".join(found.logprobs.tokens) == found.text
    for value, top in zip(found.logprobs.token_logprobs, found.logprobs.top_logprobs, strict=True):
        assert max(top.values()) == value  # the likeliest token was taken
        assert len(top) == 2
    assert found.logprobs.text_offset[0] == 0


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_an_echo_scores_its_prompt(client: Any, speaker: LanguageModel, max_tokens: int) -> None:
    text = "the cat sees the dog."
    for prompt in (text, speaker.encode(text), [speaker.encode(text)]):
        asked = {"prompt": prompt, "echo": True, "logprobs": 1, "temperature": 0}
        found = complete(client, **asked, max_tokens=max_tokens).choices[0]
        scored = speaker.score(text)
        values = found.logprobs.token_logprobs
        assert values[0] is None
        assert values[1 : len(scored.tokens)] == pytest.approx(scored.log_probabilities, abs=1e-5)
        assert len(values) == len(scored.tokens) + max_tokens
        assert found.text.startswith(text)
        words = zip(found.logprobs.text_offset, found.logprobs.tokens, strict=True)
        assert all(found.text[at:].startswith(word) for at, word in list(words)[1:])


def test_a_chat_is_what_chat_gives(client: Any, talker: LanguageModel) -> None:
    messages = [
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": "a dog"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}],
        },
    ]
    plain = [*messages[:2], {"role": "user", "content": "a b"}]
    for settings in ({}, {"temperature": 0.9, "seed": 2}):
        asked = {"model": "talker", "messages": messages, "max_completion_tokens": 10, **settings}
        found = client.chat.completions.create(**asked).choices[0]
        drawn = {"sample": True, **settings} if settings else {}
        assert found.message.content == talker.chat(plain, max_length=10, **drawn)
        chunks = client.chat.completions.create(**asked, stream=True)
        deltas = [chunk.choices[0].delta for chunk in chunks]
        assert deltas[0].role == "assistant"
        assert "".join(delta.content or "" for delta in deltas) == found.message.content


def test_a_chat_has_log_probabilities(client: Any) -> None:
    found = client.chat.completions.create(
        model="talker",
        messages=[{"role": "user", "content": "a"}],
        max_tokens=4,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    ).choices[0]
    tokens = found.logprobs.content
    assert "".join(token.token for token in tokens) == found.message.content
    for token in tokens:
        assert token.bytes == list(token.token.encode())
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob


def test_a_translator_translates(client: Any, translator: Translator) -> None:
    found = client.chat.completions.create(
        model="zh-en", messages=[{"role": "user", "content": "我爱学习"}]
    )
    assert found.choices[0].message.content == translator.translate("我爱学习")
    several = complete(client, model="zh-en", prompt=["我爱你", " "], n=2)
    expected = [best.text for best in translator.n_best("我爱你", n_best=2)[0]]
    assert [choice.text for choice in several.choices] == [*expected, "", ""]
    encode = translator.tokenizers.target.encode
    assert several.usage.completion_tokens == sum(len(encode(text)) + 1 for text in expected)
    drawn = complete(client, model="zh-en", prompt="我爱你", temperature=0.5)
    assert drawn.usage.completion_tokens == len(encode(drawn.choices[0].text)) + 1
    assert said(complete(client, model="zh-en", prompt="我爱你", stream=True)) == expected[0]


def test_a_beam_search_is_that_of_python(client: Any, folders: dict[str, Path]) -> None:
    searcher = qkv.load(folders["searcher"], device="cpu")
    asked = {"model": "searcher", "prompt": "the cat", "n": 2}
    expected = [best.text for best in searcher.n_best("the cat", n_best=2)[0]]
    found = client.completions.create(**asked)
    assert [choice.text for choice in found.choices] == expected
    streamed = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
    assert streamed == expected  # which are known at the end alone
    stop = expected[0][2:4]
    cut = client.completions.create(**{**asked, "n": 1}, stop=stop).choices[0].text
    assert cut == searcher.generate("the cat", stop=stop)
    with pytest.raises(openai.UnprocessableEntityError, match="no log-probabilities of tokens"):
        client.completions.create(**asked, logprobs=1)


def test_embeddings_are_those_of_embed(client: Any, folders: dict[str, Path]) -> None:
    encoder = qkv.load(folders["embedder"], device="cpu")
    texts = ["the cat", "a dog and a bird"]
    expected = encoder.embed(texts)
    # The client asks for base64 and decodes it.
    found = client.embeddings.create(model="embedder", input=texts)
    assert [x.embedding for x in found.data] == [
        pytest.approx(row, abs=1e-5) for row in expected.tolist()
    ]
    plain = client.embeddings.create(model="embedder", input=texts, encoding_format="float")
    assert plain.data[1].embedding == pytest.approx(expected[1].tolist(), abs=1e-5)
    alike = client.embeddings.create(model="embedder", input=texts, dimensions=expected.shape[1])
    assert [x.embedding for x in alike.data] == [x.embedding for x in found.data]
    with pytest.raises(openai.UnprocessableEntityError, match=r"these vectors have \d+ numbers"):
        client.embeddings.create(model="embedder", input=texts, dimensions=3)
    assert plain.usage.prompt_tokens == sum(len(encoder.tokenizer.encode(text)) for text in texts)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": "gpt-4"}, "There is no model 'gpt-4' here"),
        ({"model": "tagger"}, "is made to tag, so that it cannot write text"),
        ({"prompt": "a" * 400}, "must hold it and what comes after; shorten it."),
        ({"prompt": [[10**6]]}, "those of the model go from 0"),
        ({"n": 100}, "at most 64 at a time"),
        ({"temperature": 3}, "temperature: Input should be less than or equal to 2"),
        ({"stop": ""}, "A stop string is empty"),
        ({"presence_penalty": 1.0}, "presence_penalty is not known here"),
        ({"extra_body": {"suffix": "x"}}, "suffix is not known here"),
    ],
)
def test_mistakes_get_a_sentence(client: Any, settings: dict[str, Any], sentence: str) -> None:
    asked = {"prompt": "a", "max_tokens": 3, **settings}
    with pytest.raises(openai.APIStatusError) as error:
        complete(client, **asked)
    assert sentence in error.value.message
    assert error.value.status_code == (404 if settings.get("model") == "gpt-4" else 422)
    with pytest.raises(openai.APIStatusError):  # before a stream begins, too
        complete(client, **asked, stream=True)


def test_null_is_what_is_left_out(server: Running) -> None:
    asked = {"model": "speaker", "prompt": "the cat", "max_tokens": 4}
    nulls = dict.fromkeys(["n", "stop", "stream", "stream_options", "temperature", "echo"])
    with server.client() as client:
        plain = client.post("/v1/completions", json=asked).json()
        found = client.post("/v1/completions", json={**asked, **nulls}).json()
        assert found["choices"] == plain["choices"]
        missing = client.post("/v1/embeddings", json={"model": "embedder", "input": None})
        assert missing.json()["error"]["message"] == "input: Field required."


def test_langchain_works_unchanged(server: Running, talker: LanguageModel) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="needs langchain-openai")
    settings = {"base_url": f"{server.url}/v1", "api_key": "none", "max_tokens": 8}
    chat = langchain.ChatOpenAI(model="talker", temperature=0, **settings)
    expected = talker.chat("the cat", max_length=8, sample=False)
    assert chat.invoke("the cat").content == expected
    assert "".join(part.content for part in chat.stream("the cat")) == expected
