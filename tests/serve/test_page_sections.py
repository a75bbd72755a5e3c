"""Routes of the page's sections: writing, comparing, positions, runs and labs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.model import sinusoids
from tests.proofs.models import folder_of
from tests.serve.conftest import filler, page_client
from tests.tasks.understand_tiny import SENTENCE

TEXT = "我爱你"
PASS = {"action": "translate", "text": TEXT}
# Passes of different lengths differ in float32's last bits, which may move an input of the packaged
# 8-bit weights to the next of its integers: by some 1e-5 of a probability, on some CPUs.
EXACT = "fp32"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def client(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    bert = folder_of(filler(), tmp_path_factory.mktemp("models") / "bert")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_HOME", str(home))
        with page_client(["zh-en", f"bert={bert}"], dtype=EXACT) as found:
            yield found


@pytest.fixture(scope="module")
def translator() -> qkv.Translator:
    return qkv.load("zh-en", device="cpu", dtype=EXACT)


def ask(client: Any, what: str, model: str = "zh-en", **fields: Any) -> Any:
    return client.post(f"/v1/models/{model}/{what}", json={**PASS, **fields})


def test_next_tokens_are_those_of_the_trace_and_follow_what_was_written(client, translator):
    written: list[int] = []
    trace = translator.trace(TEXT)
    labels = trace["target.labels"][0].tolist()  # of beam search, which may pass the likeliest over
    for step, label in zip(trace.steps(3), labels, strict=True):
        answer = ask(client, "next", written=written, top=3).json()
        expected = [(one.id, pytest.approx(one.probability, abs=1e-5)) for one in step.candidates]
        assert [(one["id"], one["probability"]) for one in answer["candidates"]] == expected
        assert answer["next"] == step.candidates[0].id
        assert answer["cache"]["slots"] == len(written) + 1
        written.append(label)
    assert ask(client, "next", written=written).json()["ended"]


def test_rules_reshape_the_distribution(client):
    plain = ask(client, "next", top=50).json()
    cut = ask(client, "next", top=50, top_k=4, temperature=0.5).json()
    kept = [one for one in cut["candidates"] if one["ruled"] > 0]
    assert cut["n_kept"] == len(kept) == 4
    squares = [one["probability"] ** 2 for one in plain["candidates"][:4]]
    shares = [square / sum(squares) for square in squares]
    assert [one["ruled"] for one in kept] == pytest.approx(shares, abs=1e-4)
    greedy = ask(client, "next", temperature=0).json()
    assert greedy["candidates"][0]["ruled"] == 1.0
    drawn = {
        ask(client, "next", sample=True, temperature=5, seed=s).json()["next"] for s in range(9)
    }
    assert len(drawn) > 1


def test_changes_combine_while_it_writes_and_stand_beside_the_unchanged_pass(client, translator):
    changes = ["off:decoder.2.cross_attention:head=1", "off:encoder.0.feed_forward"]
    later = "hide:target:position=4"  # a token that is not written yet
    answer = ask(client, "next", top=4, changes=[*changes, later]).json()
    plain = translator.trace(TEXT)
    changed = plain.silence("decoder.2.cross_attention", head=1).silence("encoder.0.feed_forward")
    expected = [(one.id, one.probability) for one in changed.steps(4)[0].candidates]
    found = [(one["id"], one["probability"]) for one in answer["candidates"][:4]]
    assert found == [(id, pytest.approx(value, abs=1e-3)) for id, value in expected]
    best = plain.steps(1)[0].candidates[0]
    (same,) = [one for one in answer["candidates"] if one["id"] == best.id]
    unchanged = ask(client, "next", top=4).json()["candidates"][0]
    assert unchanged["id"] == best.id
    assert same["unchanged"] == pytest.approx(unchanged["ruled"], abs=1e-6) != same["ruled"]
    assert answer["is_changed"] and answer["waiting"] == [later]
    written = plain["target.labels"][0].tolist()
    assert ask(client, "next", written=written, changes=[later]).json()["waiting"] == []
    assert ask(client, "next", changes=["off:decoder.9"]).status_code == 422


def test_a_given_output_is_read_under_changes(client, translator):
    change = "off:decoder.2.cross_attention"
    answer = ask(client, "forced", target="I like you.", changes=[change]).json()
    trace = translator.trace(TEXT, "I like you.")
    assert answer["unchanged_loss"] == pytest.approx(trace["loss"].item(), abs=1e-4)
    changed = trace.silence("decoder.2.cross_attention")["loss"].item()
    assert answer["loss"] == pytest.approx(changed, abs=1e-4) != answer["unchanged_loss"]


def test_the_beam_tree_follows_changes(client, translator):
    plain = ask(client, "beam", beams=3).json()
    change = "off:decoder.2.cross_attention"
    tree = ask(client, "beam", beams=3, changes=[change]).json()
    assert plain["waiting"] == tree["waiting"] == []
    assert tree["outputs"] != plain["outputs"]
    step = translator.trace(TEXT).silence("decoder.2.cross_attention").steps(1)[0]
    first = max((node for node in tree["nodes"] if node["step"] == 0), key=lambda x: x["score"])
    assert first["token"] == step.candidates[0].id
    assert math.exp(first["score"]) == pytest.approx(step.candidates[0].probability, abs=1e-5)
    same = ask(client, "beam", beams=3, changes=["hide:target:position=60"]).json()
    assert same["waiting"] == ["hide:target:position=60"]
    scores = [[output["score"] for output in found["outputs"]] for found in (plain, same)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_the_beam_tree_ends_in_what_the_search_finds(client, translator):
    tree = ask(client, "beam", beams=3).json()
    best = translator.translate(TEXT, beams=3)
    assert tree["outputs"][0]["tokens"].replace("▁", " ").replace(" ", "") == best.replace(" ", "")
    assert {node["fate"] for node in tree["nodes"]} == {"kept", "ended", "pruned"}
    pruned = [number for number, node in enumerate(tree["nodes"]) if node["fate"] == "pruned"]
    reasons = ask(client, "beam", beams=3, language="zh").json()["nodes"]
    assert all(tree["nodes"][number]["why"].isascii() for number in pruned)
    assert not any(reasons[number]["why"].isascii() for number in pruned)


def test_teacher_forcing_scores_a_given_output(client, translator):
    answer = ask(client, "forced", target="I like you.").json()
    trace = translator.trace(TEXT, "I like you.")
    assert answer["loss"] == pytest.approx(trace["loss"].item(), abs=1e-4)
    assert [step["output"]["name"] for step in answer["given"]][1] == "▁like"
    assert [step["output"]["name"] for step in answer["own"]][1] == "▁love"


def test_an_encoder_predicts_each_token_with_that_token_hidden(client):
    text = SENTENCE[:12]
    answer = ask(client, "predictions", "bert", text=text).json()
    assert answer["family"] == "encoder"
    assert all(value == 1 for row in answer["visible"] for value in row)
    found = [step for step in answer["predictions"] if step]
    assert found and all(0 < one["probability"] <= 1 for step in found for one in step)
    left = ask(client, "predictions", "bert", text=text, side="left").json()
    # What comes after is not seen.
    longer = ask(client, "predictions", "bert", text=SENTENCE[:20], side="left").json()
    assert torch.equal(torch.tensor(left["visible"]), torch.ones(14, 14).tril())
    assert left["predictions"][1:13] != answer["predictions"][1:13]
    for step, same in zip(left["predictions"][1:13], longer["predictions"][1:13], strict=True):
        assert [one["probability"] for one in step] == pytest.approx(
            [one["probability"] for one in same], abs=1e-5
        )
    refused = ask(client, "predictions", text=text)
    assert refused.status_code == 422 and "BERT" in refused.text


def test_one_word_in_sentences_is_compared_layer_by_layer(client, translator):
    sentences = ["我吃苹果", "苹果很好"]
    answer = ask(client, "word", word="苹果", sentences=sentences).json()
    cosines = torch.tensor(answer["cosines"])
    assert cosines.shape == (translator.model.config.n_encoder_layers + 1, 2, 2)
    assert torch.allclose(cosines.diagonal(dim1=1, dim2=2), torch.ones(7, 2), atol=1e-5)
    vectors = []
    for sentence in sentences:
        trace = translator.trace(sentence)
        place = trace.tokens("source").index("苹果")
        vectors.append(trace["encoder.5.feed_forward.residual"][0, place])
    expected = torch.cosine_similarity(*vectors, dim=0).item()
    assert cosines[-1, 0, 1].item() == pytest.approx(expected, abs=1e-4)
    missing = ask(client, "word", word="香蕉", sentences=sentences)
    assert missing.status_code == 422 and "香蕉" in missing.text


def test_neighbours_are_those_with_the_highest_cosine(client, translator):
    words = ask(client, "neighbours", word="今天", top=3).json()["words"]
    table = translator.model.source_embedding.table.weight.detach()
    tokenizer = translator.tokenizers.source
    [id] = tokenizer.encode("今天")
    cosines = torch.cosine_similarity(table, table[id][None], dim=-1)
    cosines[id] = -math.inf
    best = tokenizer.tokens(cosines.topk(3).indices.tolist())
    assert [word["name"] for word in words[1:]] == best


def test_positions_are_the_models_own(client):
    answer = client.get("/v1/positions?length=6&width=8").json()
    assert torch.allclose(torch.tensor(answer["table"]), sinusoids(6, 8), atol=1e-4)
    assert answer["products"][3][3] == pytest.approx(1, abs=1e-3)
    assert client.get("/v1/positions?length=6&width=7").status_code == 422
    rotary = client.get("/v1/models/zh-en/rotary?length=4").json()
    assert not rotary["is_own"]  # how a head of its size would be turned
    assert rotary["angles"][3][:2] == pytest.approx([3, 3 / 10_000 ** (2 / 64)], abs=1e-3)
    assert rotary["decay"][0] == pytest.approx(1)


def test_runs_have_a_log_and_samples(client, home):
    assert client.get("/v1/runs").json() == {"data": ["demo"], "running": ""}
    empty = client.get("/v1/runs/demo/log").json()
    assert empty["records"] == [] and not empty["running"]
    folder = home / "page" / "demo"
    folder.mkdir(parents=True)
    whole = '{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n'
    (folder / "log.jsonl").write_text(whole + '{"step": 3', encoding="utf-8")
    first = client.get("/v1/runs/demo/log").json()
    assert [record["step"] for record in first["records"]] == [1, 2]
    assert client.get(f"/v1/runs/demo/log?after={first['next']}").json()["records"] == []
    assert client.post("/v1/runs/demo/sample", json={}).json()["text"] == ""
    packaged = Path(qkv.__file__).parent / "packaged" / "zh-en"
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes((packaged / name).read_bytes())
    sample = client.post("/v1/runs/demo/sample", json={"text": TEXT}).json()
    assert sample["text"] == "I love you."
    assert sum(sample["attention"][0]) == pytest.approx(1, abs=1e-3)
    assert client.get("/v1/runs/other/log").status_code == 422


def test_work_is_started_by_the_page_alone(client):
    other = {"Origin": "http://evil.example"}
    for path in ("/v1/runs/demo/start", "/v1/runs/stop", "/v1/labs/order/start"):
        assert client.post(path, headers=other, json={}).status_code == 403
    assert client.post("/v1/labs/nothing/start", json={}).status_code == 422
    paths = client.get("/openapi.json").json()["paths"]
    assert not [path for path in paths if path.endswith(("/start", "/stop"))]


def test_work_is_started_only_where_the_server_serves_this_machine_alone(home, monkeypatch):
    monkeypatch.setenv("QKV_HOME", str(home))
    with page_client(["zh-en"], host="0.0.0.0") as client:
        for path in ("/v1/runs/demo/start", "/v1/runs/stop", "/v1/labs/nothing/start"):
            refused = client.post(path, json={})
            assert refused.status_code == 403 and "serves this machine" in refused.text


def test_labs_are_listed_in_both_languages(client, home):
    english = client.get("/v1/labs").json()["data"]
    chinese = client.get("/v1/labs?language=zh").json()["data"]
    assert len(english) == len(chinese) > 20
    assert {lab["name"] for lab in english} == {lab["name"] for lab in chinese}
    assert all(one["title"] != two["title"] for one, two in zip(english, chinese, strict=True))
    missing = client.get("/v1/labs/order/figure")
    assert missing.status_code == 404 and "'order' has no figure yet" in missing.text
    assert client.get("/v1/labs/..%2Fx/figure").status_code in (404, 422)
    folder = home / "page" / "labs"
    folder.mkdir(parents=True)
    for name in ("order.png", "order.zh.png"):
        (folder / name).write_text(name, encoding="utf-8")
    figure = "/v1/labs/order/figure"
    assert client.get(figure).text == "order.png"
    assert client.get(f"{figure}?language=zh").text == "order.zh.png"
