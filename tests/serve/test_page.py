"""The routes of the page: files, structure, quantities, changes and worked cells of `zh-en`."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import qkv
from qkv.inspect import Trace
from tests.serve.conftest import page_client

STATIC = Path(qkv.__file__).parent / "serve" / "page" / "static"

TEXT = "我爱你"
PASS = {"action": "translate", "text": TEXT}
CROSS = "decoder.2.cross_attention"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with page_client(["zh-en"]) as found:
        yield found


@pytest.fixture(scope="module")
def trace() -> Trace:
    return qkv.load("zh-en", device="cpu").trace(TEXT)


def ask(client: Any, what: str, **fields: Any) -> Any:
    return client.post(f"/v1/models/zh-en/{what}", json={**PASS, **fields})


def quantities(client: Any, **fields: Any) -> dict[str, numpy.ndarray[Any, Any]]:
    """Quantities of the pass, by default in full precision."""
    return blocks(ask(client, "trace", **{"precision": "float32", **fields}).content)[1]


def blocks(content: bytes) -> tuple[dict[str, Any], dict[str, numpy.ndarray[Any, Any]]]:
    (length,) = struct.unpack("<I", content[:4])
    header = json.loads(content[4 : 4 + length])
    kind = {"float16": "<f2", "float32": "<f4"}[header["precision"]]
    arrays = {}
    for block in header["blocks"]:
        count = int(numpy.prod(block["shape"])) if block["shape"] else 1
        start = 4 + length + block["offset"]
        array = numpy.frombuffer(content, kind, count, start)
        arrays[block["key"]] = array.reshape(block["shape"])
    return header, arrays


def test_files_of_the_page_and_nothing_else_are_served(client: Any) -> None:
    page = client.get("/")
    assert page.status_code == 200 and "main.js" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert client.get("/page/main.js").headers["content-type"].startswith("text/javascript")
    for path in ("../routes.py", "%2e%2e/routes.py", "..%2froutes.py", "/etc/passwd", ".", ""):
        assert client.get(f"/page/{path}").status_code == 404, path


def test_the_page_has_no_inline_code_and_loads_nothing_from_elsewhere() -> None:
    for file in STATIC.rglob("*"):
        if file.suffix in (".html", ".js", ".css"):
            text = file.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
            assert "http://" not in text and "https://" not in text, file
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*src)|<style|\sstyle=|\son\w+=", html)


WORDS = json.loads((STATIC / "words.json").read_text(encoding="utf-8"))


def test_every_word_is_there_in_both_languages() -> None:
    words = {key: texts for key, texts in WORDS.items() if key != "errors"}
    code = "".join(file.read_text(encoding="utf-8") for file in STATIC.rglob("*.js"))
    code += (STATIC / "index.html").read_text(encoding="utf-8")
    used = set(re.findall(r"""\bt\("([\w.]+)\"""", code))
    used |= set(re.findall(r'data-i18n(?:-\w+)?="([\w.]+)"', code))
    assert used <= words.keys()
    for key, (english, chinese) in words.items():
        fields = re.findall(r"\{\w+\}", english)
        assert sorted(fields) == sorted(re.findall(r"\{\w+\}", chinese)), key


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("answer", {"text": "好" * 600}),
        ("answer", {"text": "好" * 5000}),
        ("answer", {"text": " "}),
        ("answer", {"changes": ["from:encoder.output:text=我"]}),
        ("next", {"written": [5] * 300}),
        ("forced", {"target": "a " * 600}),
        ("word", {"word": "我", "sentences": ["我爱你", "你好"]}),
        ("word", {"word": "我", "sentences": ["我爱你"]}),
        ("neighbours", {"word": "苹果派对天下"}),
    ],
)
def test_a_mistake_is_told_in_chinese(client: Any, what: str, fields: dict[str, Any]) -> None:
    sentence = ask(client, what, **fields).json()["error"]["message"]
    assert any(re.search(known, sentence) for known in WORDS["errors"]), sentence


def test_the_structure_is_that_of_the_model(client: Any, trace: Trace) -> None:
    found = client.get("/v1/models/zh-en/structure").json()
    config = trace.model.config
    encoder, decoder = found["stacks"]
    assert (encoder["n_layers"], decoder["n_layers"]) == (
        config.n_encoder_layers,
        config.n_decoder_layers,
    )
    assert found["facts"]["norm_position"] == config.norm_position
    assert found["actions"] == ["translate"]
    names = [sublayer["name"] for sublayer in decoder["sublayers"]]
    assert names == ["self_attention", "cross_attention", "feed_forward"]
    stations = decoder["sublayers"][1]["stations"]
    assert {station["key"] for station in stations} <= set(trace.names())
    (formula,) = [x["formula"] for x in stations if x["part"] == "weights"]
    assert formula == trace.formula("decoder.0.cross_attention.weights")
    chinese = client.get("/v1/models/zh-en/structure?language=zh").json()
    stations = chinese["stacks"][1]["sublayers"][1]["stations"]
    assert [x["formula"] for x in stations if x["part"] == "mask"] == ["M：0 或 −∞"]


def test_quantities_asked_for_with_an_answer_are_those_of_the_trace(
    client: Any, trace: Trace
) -> None:
    key = f"{CROSS}.weights"
    assert ask(client, "answer", keys=[key, "encoder.*.residual"]).json()["text"] == "I love you."
    found = quantities(client, keys=[key])
    assert found[key] == pytest.approx(trace[key][0].numpy(), abs=1e-5)
    refused = ask(client, "answer", keys=["decoder.9.output"])
    assert refused.status_code == 422 and "decoder.9.output" in refused.text


def test_an_answer_has_the_candidates_of_each_output(client: Any, trace: Trace) -> None:
    found = ask(client, "answer", top=3).json()
    assert found["text"] == "I love you."
    steps = trace.steps(3)
    assert [word["output"]["name"] for word in found["outputs"]] == [
        step.label.name for step in steps if step.label is not None
    ]
    for word, step in zip(found["outputs"], steps, strict=True):
        assert [x["name"] for x in word["candidates"]] == [x.name for x in step.candidates]
        assert word["candidates"][0]["probability"] == pytest.approx(step.candidates[0].probability)


def test_quantities_are_those_of_the_trace(client: Any, trace: Trace) -> None:
    keys = [f"{CROSS}.weights", "encoder.0.self_attention.query", "logits"]
    header, arrays = blocks(ask(client, "trace", keys=keys, precision="float32").content)
    assert header["tokens"]["source"] == trace.tokens("source")
    for key in keys:
        torch.testing.assert_close(torch.tensor(arrays[key]), trace[key][0].float())
    halves = quantities(client, keys=keys, precision="float16")
    assert numpy.allclose(halves[keys[0]], arrays[keys[0]], atol=1e-3)
    one = quantities(client, keys=keys[:1], head=2)
    assert numpy.array_equal(one[keys[0]][0], arrays[keys[0]][2])


def test_lanes_have_one_row_per_token(client: Any, trace: Trace) -> None:
    query, weights = "encoder.0.self_attention.query", f"{CROSS}.weights"
    arrays = quantities(client, keys=[query, weights, "source.input"], lanes=True, cells=64)
    whole = trace[query][0].transpose(0, 1).flatten(1)  # (S, H·K)
    torch.testing.assert_close(
        torch.tensor(arrays[query]), whole.reshape(len(whole), 64, -1).mean(dim=-1)
    )
    torch.testing.assert_close(torch.tensor(arrays[weights]), trace[weights][0].mean(dim=0))
    assert arrays["source.input"].shape == (4, 64)


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (f"off:{CROSS}:head=1", lambda trace: trace.silence(CROSS, head=1)),
        ("off:decoder.1", lambda trace: trace.silence("decoder.1")),
        (f"off:{CROSS}.scale", lambda trace: trace.change(f"{CROSS}.scale", 1.0)),
        ("off:source.positions", lambda trace: trace.silence("source.positions")),
        ("hide:source:position=1", lambda trace: trace.hide(1, "source")),
        (
            "from:encoder.output:position=1:text=我恨你",
            lambda trace: trace.patch(
                qkv.load("zh-en", device="cpu").trace("我恨你"), "encoder.output", positions=[1]
            ),
        ),
    ],
)
def test_changes_are_those_of_the_trace(
    client: Any, trace: Trace, change: str, changed: Any
) -> None:
    expected = changed(trace)
    found = ask(client, "answer", changes=[change]).json()["changed"]
    for word, step in zip(found, expected.steps(1), strict=True):
        assert word["candidates"][0]["name"] == step.candidates[0].name
        assert word["candidates"][0]["probability"] == pytest.approx(
            step.candidates[0].probability, rel=1e-4
        )
    key = "decoder.output"
    moved = quantities(client, changes=[change], keys=[key], difference=True)[key]
    difference = (expected[key] - trace[key])[0]
    torch.testing.assert_close(torch.tensor(moved), difference, atol=1e-4, rtol=1e-4)


def test_a_dragged_weight_leaves_the_rest_to_the_others(client: Any, trace: Trace) -> None:
    change = f"set:{CROSS}.weights:head=2:row=1:column=0:to=0.75"
    key = f"{CROSS}.weights"
    found = quantities(client, keys=[key], changes=[change])[key]
    row, before = torch.tensor(found[2, 1]), trace[key][0, 2, 1]
    assert float(row[0]) == 0.75
    torch.testing.assert_close(row[1:] / row[1:].sum(), before[1:] / before[1:].sum())
    assert float(row.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"changes": ["off"]}, "no change"),
        ({"changes": ["off:decoder.9.cross_attention"]}, "no quantity"),
        ({"changes": [f"off:{CROSS}:head=x"]}, "whole number"),
        ({"changes": [f"set:{CROSS}.weights:head=0:row=0:column=0:to=2"]}, "from 0 to 1"),
        ({"changes": [f"from:{CROSS}.query:text="]}, "missing"),
        ({"changes": ["hide:nowhere:position=0"]}, "nowhere"),
        ({"action": "fly"}, "cannot fly"),
        ({"keys": ["encoder.*"], "head": 99}, "no head 99"),
        ({"keys": ["nothing"]}, "no quantity"),
        ({"text": " "}, "text"),
        ({"precision": "float8"}, "precision"),
    ],
)
def test_a_mistake_is_one_sentence(client: Any, fields: dict[str, Any], part: str) -> None:
    response = ask(client, "trace", **{"keys": ["logits"], **fields})
    assert response.status_code == 422
    message = response.json()["error"]["message"]
    assert part in message and "\n" not in message


CELLS = [
    ("source.input", None),
    ("encoder.1.self_attention.norm", None),
    (f"{CROSS}.query", 1),
    (f"{CROSS}.key", 3),
    (f"{CROSS}.products", 2),
    (f"{CROSS}.scores", 2),
    (f"{CROSS}.weights", 2),
    (f"{CROSS}.heads", 0),
    (f"{CROSS}.output", None),
    (f"{CROSS}.residual", None),
    ("decoder.0.feed_forward.inner", None),
    ("decoder.0.feed_forward.hidden", None),
    ("decoder.0.feed_forward.output", None),
    ("decoder.output", None),
    ("logits", None),
    ("probabilities", None),
]


@pytest.mark.parametrize(("key", "head"), CELLS)
def test_a_cell_is_worked_out_to_its_value(
    client: Any, trace: Trace, key: str, head: int | None
) -> None:
    found = ask(client, "cell", key=key, head=head, row=2, column=1).json()
    value = trace.get(key, head)[0].float().reshape(-1, trace.shape(key)[-1])[2, 1]
    assert found["value"] == pytest.approx(float(value), rel=1e-5, abs=1e-7)
    # Products of the weights in 8 bits round their inputs; where it shows, a last step says so.
    assert found["lines"][-1]["value"] == pytest.approx(float(value), rel=2e-3, abs=1e-3)
    for line in found["lines"]:
        if line["terms"]:
            total = sum(a * b for a, b in line["terms"]) + line["rest"] + (line["operand"] or 0.0)
            assert total == pytest.approx(line["value"], rel=1e-4, abs=1e-4)


def test_a_masked_score_is_worked_out(client: Any) -> None:
    key = "decoder.0.self_attention.scores"
    found = ask(client, "cell", key=key, head=0, row=0, column=2).json()
    assert found["value"] == "-inf" and found["lines"][-1]["operand"] == "-inf"


def test_a_weight_that_was_set_is_worked_out(client: Any) -> None:
    cell = {"key": f"{CROSS}.weights", "head": 2, "row": 1, "column": 1}
    change = f"set:{CROSS}.weights:head=2:row=1:column=1:to=0.125"
    plain = ask(client, "cell", **cell).json()
    found = ask(client, "cell", **cell, changes=[change]).json()
    assert found["value"] == found["lines"][-1]["value"] == 0.125
    assert [line["symbol"] for line in found["lines"][-2:]] == ["÷ Σ", "≔"]
    assert found["lines"][-2]["value"] == pytest.approx(plain["value"], abs=1e-6)


def test_a_number_alone_is_a_quantity_too(client: Any) -> None:
    assert quantities(client, keys=[f"{CROSS}.scale"])[f"{CROSS}.scale"].item() == 8


def test_heads_are_described(client: Any, trace: Trace) -> None:
    kinds = ask(client, "heads").json()["kinds"]
    assert [kind["name"] for kind in kinds] == [
        "encoder.self_attention",
        "decoder.self_attention",
        "decoder.cross_attention",
    ]
    assert kinds[2]["keys"] == trace.names("decoder.*.cross_attention.weights")
    for sink in kinds[2]["sinks"]:
        mean = torch.stack([trace[key][0] for key in kinds[2]["keys"]]).mean(dim=(0, 1, 2))
        assert float(mean[sink]) > 0.35


def test_the_next_quantity_of_a_text_needs_no_new_search(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkv.tasks import Translator

    ask(client, "answer", text="他在家。")
    monkeypatch.setattr(Translator, "trace", lambda *given: pytest.fail("a second search"))
    assert ask(client, "trace", text="他在家。", keys=["encoder.output"]).status_code == 200


def test_page_files_are_package_data() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert "serve/page/static/**/*" in text
