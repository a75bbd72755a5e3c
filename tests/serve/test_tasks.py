"""Tasks over HTTP give what the Python API gives, alone or beside others."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import qkv
from qkv.serve.api.docs import example_of
from qkv.tasks import Translation, Translator
from tests.proofs.models import KINDS, folder_of
from tests.serve.conftest import Running, image_url, running

SENTENCES = ["我爱你", "我爱学习", "今天天气很好"]


def assert_same(found: Any, expected: Any) -> None:
    """Equal, but for rounding: a text in another batch is multiplied in another order."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-4)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_same(found[name], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


@pytest.fixture
def load(folders: dict[str, Path]) -> Any:
    return lambda name: qkv.load(folders[name], device="cpu")


def test_classify(client: httpx.Client, load: Any) -> None:
    texts = ["the cat", ["a dog", "no fish"], " "]
    found = client.post("/classify", json={"texts": texts}).json()
    expected = load("labeller").classify(["the cat", ("a dog", "no fish"), " "])
    assert found["model"] == "labeller"
    for result, one in zip(found["results"], expected, strict=True):
        assert (result["label"], tuple(result["labels"])) == (one.label, one.labels)
        assert_same(result["probabilities"], one.probabilities)


def test_tag(client: httpx.Client, load: Any) -> None:
    texts = ["the cat sees", ["a", "dog"]]
    found = client.post("/tag", json={"texts": texts}).json()["results"]
    expected = load("tagger").tag(["the cat sees", ("a", "dog")])
    assert_same(found, [dataclasses.asdict(tagging) for tagging in expected])


def test_answer(client: httpx.Client, load: Any) -> None:
    asked = {"question": "who sees", "context": "the cat sees a dog", "n_best": 3}
    found = client.post("/answer", json=asked).json()
    expected = load("answerer").answer("who sees", "the cat sees a dog", 3)
    assert found.pop("model") == "answerer"
    assert_same(found, {**dataclasses.asdict(expected), "n_best": found["n_best"]})
    assert_same(found["n_best"], [dataclasses.asdict(one) for one in expected.n_best])


def test_fill(client: httpx.Client, load: Any) -> None:
    found = client.post("/fill", json={"texts": "the <mask> sees", "top_k": 2}).json()["results"]
    assert_same(found, [dataclasses.asdict(load("filler").fill("the <mask> sees", 2))])


def test_embed(client: httpx.Client, load: Any) -> None:
    asked = {"texts": ["the cat", "a"], "model": "embedder"}
    found = client.post("/embed", json=asked).json()["results"]
    assert_same(found, load("embedder").embed(["the cat", "a"]).tolist())


def test_score(client: httpx.Client, load: Any) -> None:
    found = client.post("/score", json={"texts": ["the cat sees the dog."]}).json()["results"][0]
    expected = load("speaker").score("the cat sees the dog.")
    assert_same(found["log_probability"], expected.log_probability)
    assert_same(found["perplexity"], expected.perplexity)
    assert_same(found["bits_per_byte"], expected.bits_per_byte)
    assert found["tokens"] == expected.tokens


def test_libretranslate_works_unchanged(server: Running, translator: Translator) -> None:
    library = pytest.importorskip("libretranslatepy", reason="needs libretranslatepy")
    client = library.LibreTranslateAPI(server.url)
    assert client.translate("我爱你", "zh", "en") == translator.translate("我爱你")
    assert client.detect("我爱你")[0]["language"] == "zh"
    assert {"code": "zh", "name": "Chinese", "targets": ["en"]} in client.languages()


def test_translate_takes_forms_lists_and_alternatives(
    client: httpx.Client, translator: Translator
) -> None:
    form = client.post("/translate", data={"q": "我爱你", "source": "auto", "target": "en"}).json()
    assert form["translatedText"] == translator.translate("我爱你")
    assert form["detectedLanguage"] == {"language": "zh", "confidence": 100.0}
    asked = {"q": SENTENCES, "source": "zh-Hans", "alternatives": 2, "model": "zh-en"}
    found = client.post("/translate", json=asked).json()
    expected = translator.n_best(SENTENCES, n_best=3)
    assert found["translatedText"] == [best[0].text for best in expected]
    assert found["alternatives"] == [[one.text for one in best[1:]] for best in expected]
    several = client.post("/translate", data={"q": SENTENCES, "source": "zh"}).json()
    assert several["translatedText"] == found["translatedText"]
    plain = client.post("/translate", content='{"q": "我爱你", "target": null}'.encode()).json()
    assert plain == form
    refused = client.post("/translate", files={"q": (None, "我爱你")})
    assert refused.status_code == 422
    assert "form in several parts" in refused.json()["error"]["message"]
    refused = client.post("/translate", json={"q": "a", "source": "de", "model": "zh-en"})
    assert refused.status_code == 422
    assert "zh→en" in refused.json()["error"]["message"]
    long = client.post("/translate", json={"q": "我爱你。" * 300, "model": "zh-en"})
    assert long.json()["error"]["message"].endswith("; split it into sentences.")


def test_lines_of_a_text_are_translated_each_and_stay_lines(
    client: httpx.Client, translator: Translator
) -> None:
    text = "我爱你\r\n\n我爱学习\n"
    expected = "\n".join(translator.translate(["我爱你", "", "我爱学习", ""]))
    assert client.post("/translate", json={"q": text}).json()["translatedText"] == expected
    asked = {"q": ["我爱学习", text], "alternatives": 1}
    found = client.post("/translate", json=asked).json()
    first, other = translator.n_best(["我爱你", "我爱学习"], n_best=2)
    assert found["translatedText"] == [other[0].text, expected]
    assert found["alternatives"] == [[other[1].text], [f"{first[1].text}\n\n{other[1].text}\n"]]


def test_the_best_translation_may_be_empty(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["", "I love you.", ""]
    monkeypatch.setattr(Translator, "read", lambda *_: [Translation(x, 0.0, 0.0) for x in texts])
    asked = {"q": ["我爱你", "我爱你\n我爱学习"], "alternatives": 2, "model": "zh-en"}
    found = client.post("/translate", json=asked).json()
    assert found["translatedText"] == ["", "\n"]
    assert found["alternatives"] == [["I love you.", ""], ["I love you.\nI love you.", "\n"]]


def test_clients_at_once_get_what_they_get_alone(
    server: Running, load: Any, translator: Translator
) -> None:
    """Requests of all kinds join and leave the running batches beside each other."""
    labeller, speaker = load("labeller"), load("speaker")
    asked: list[tuple[str, dict[str, Any], Any]] = []
    for sentence in SENTENCES:
        asked.append(("/translate", {"q": sentence}, translator.translate(sentence)))
    for text in ("the cat", "a dog", "no fish but birds", "sees"):
        asked.append(("/classify", {"texts": text}, labeller.classify(text).label))
        body = {"prompt": text, "max_tokens": 5 * len(text), "model": "speaker"}
        expected = speaker.generate(text, max_length=5 * len(text))
        asked.append(("/v1/completions", body, expected))

    def ask(item: tuple[str, dict[str, Any], Any]) -> tuple[Any, Any]:
        path, body, expected = item
        with server.client() as client:
            found = client.post(path, json=body).json()
        if path == "/v1/completions":
            return found["choices"][0]["text"], expected
        return found.get("translatedText") or found["results"][0]["label"], expected

    with ThreadPoolExecutor(16) as pool:
        for found, expected in pool.map(ask, asked * 2):
            assert found == expected


def test_each_example_of_the_description_runs(client: httpx.Client, server: Running) -> None:
    description = client.get("/openapi.json").json()
    n_examples = 0
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            if "page" in operation.get("tags", []):
                continue  # the page's own
            example = example_of(description, operation)
            if method == "post":
                assert example is not None, f"{path} has no example"
                n_examples += 1
                if path == "/v1/chat/completions":
                    example = {**example, "model": "talker"}
                if path == "/trace":
                    example = {**example, "model": "zh-en"}
            answer = client.request(method, path.replace("{model}", "zh-en"), json=example)
            assert answer.status_code == 200, (path, answer.text)
    assert n_examples >= 11


def test_the_page_of_the_api_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert "http-equiv" not in page.text and "<script" not in page.text and "src=" not in page.text
    assert "curl" in page.text and "/v1/chat/completions" in page.text
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")


def test_nothing_of_a_text_is_logged(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="qkv.serve"):
        client.post("/translate", json={"q": "秘密的话"})
        client.post("/translate?q=secret", json={"q": "秘密的话", "target": "secret"})
    assert len(caplog.records) == 2
    for record in caplog.records:
        written = json.dumps({**vars(record), "args": str(record.args)}, default=str)
        assert "secret" not in written
        assert "秘密" not in written and "\\u79d8" not in written
        assert record.facts["path"] == "/translate"


def test_quantities_of_a_pass_are_those_of_the_trace(client: httpx.Client) -> None:
    key, mask = "decoder.2.cross_attention.weights", "decoder.0.self_attention.mask"
    body = {"model": "zh-en", "text": "我爱你", "keys": [key, mask]}
    answer = client.post("/trace", json=body).json()
    trace = qkv.load("zh-en", device="cpu").trace("我爱你")
    assert answer["tokens"]["source"] == trace.tokens("source")
    found = torch.tensor(answer["quantities"][key]["values"])
    assert torch.allclose(found, trace[key], atol=1e-6)
    assert answer["quantities"][mask]["values"][0][0][0][1] is None  # hidden: −∞
    refused = client.post("/trace", json={**body, "keys": ["nothing"]})
    assert refused.status_code == 422 and "nothing" in refused.text


def test_a_model_of_images_reads_data_urls_and_no_path(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    url = image_url(path, 60)  # longer than a text may be
    folder = folder_of(KINDS["image"](), tmp_path / "images")
    with running([str(folder)]) as server, server.client() as client:
        body = {"model": "images", "keys": ["logits"]}
        for given in (str(path), "/etc/passwd", "/no/file"):
            refused = client.post("/trace", json={**body, "text": given})
            assert refused.status_code == 422
            assert "send one as a data URL" in refused.json()["error"]["message"]
        found = client.post("/trace", json={**body, "text": url}).json()["quantities"]["logits"]
        expected = qkv.load(str(folder), device="cpu").trace(url)["logits"]
        assert torch.allclose(torch.tensor(found["values"]), expected, atol=1e-5)
        found = client.post("/classify", json={"texts": [url, url]}).json()
        expected = qkv.load(str(folder), device="cpu").classify(str(path))
        assert found["model"] == "images"
        for result in found["results"]:
            assert result["label"] == expected.label
            assert result["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)
        refusals = {
            "so that it cannot classify texts": {"model": "images", "texts": str(path)},
            "can classify texts": {"texts": str(path)},
            "send one as a data URL": {"texts": [url, str(path)]},
            "data URL is damaged": {"texts": "data:image/png;base64,?"},
            "an image has one label": {"texts": url, "threshold": 0.5},
        }
        for sentence, body in refusals.items():
            refused = client.post("/classify", json=body)
            assert refused.status_code in (404, 422), body
            assert sentence in refused.json()["error"]["message"]


def test_every_model_can_be_traced_or_says_why_not(
    client: httpx.Client, folders: dict[str, Path]
) -> None:
    for name in folders:
        for target in (None, "x"):
            body = {"model": name, "text": "the cat", "target": target, "keys": ["*.weights"]}
            answer = client.post("/trace", json=body)
            assert answer.status_code in (200, 422), (name, answer.text)
            assert answer.status_code == 422 or answer.json()["quantities"]


def test_a_model_that_reads_questions_compares_no_words(client: httpx.Client) -> None:
    asked = {"word": "a", "sentences": ["a b", "b a"]}
    answer = client.post("/v1/models/answerer/word", json=asked)
    assert answer.status_code == 422 and "question" in answer.json()["error"]["message"]
