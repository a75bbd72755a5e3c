"""What every task answers on the page, with tiny models that never learnt anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.config import DecodeConfig
from qkv.errors import UserError
from qkv.model import Decoder
from qkv.tasks import Answerer, Classifier, Encoder, LanguageModel, Tagger
from qkv.tasks.answer import Answers
from qkv.tasks.classify import Classes
from qkv.tasks.tag import Tags
from tests.model.tiny import tiny_config
from tests.proofs.models import KINDS
from tests.serve.conftest import filler, image_url
from tests.tasks.understand_tiny import TOKENIZER, encoder

pytest.importorskip("pydantic", reason="needs pydantic (pip install qkv[serve])")


def language_model() -> LanguageModel:
    torch.manual_seed(0)
    config = tiny_config(
        family="decoder",
        n_kv_heads=2,
        positions="rotary",
        norm="rms",
        norm_position="pre",
        gated=True,
        activation="silu",
        vocab_size=len(TOKENIZER),
        pad_id=TOKENIZER.pad_id,
        bos_id=TOKENIZER.bos_id,
        eos_id=TOKENIZER.eos_id,
    )
    return LanguageModel(Decoder(config).eval(), TOKENIZER, DecodeConfig())


def answer(task: Any, action: str, text: str, second: str = "", **fields: Any) -> dict[str, Any]:
    from qkv.serve.page.looks import AnswerAsk
    from qkv.serve.page.looks import answer as look

    return look(task, AnswerAsk(action=action, text=text, second=second, **fields))


def test_a_text_goes_on_as_generate_says() -> None:
    task = language_model()
    found = answer(task, "continue", "the cat")
    expected = task.generate("the cat", max_length=8, sample=False, beams=1)
    assert found["text"] == expected
    assert len(found["outputs"]) == len(found["tokens"]["target"]) - len(task.encode("the cat"))
    assert all(word["rank"] == 1 for word in found["outputs"])


def test_an_image_is_labelled_and_no_path_is_read(tmp_path: Path) -> None:
    from qkv.serve.page.heads import roles
    from qkv.serve.page.structure import structure
    from qkv.serve.page.traces import Ask

    path, task = tmp_path / "a.png", KINDS["image"]()
    url = image_url(path)
    assert structure("images", task)["actions"] == ["see"]
    found = answer(task, "see", url)
    expected = task.classify(path)
    assert found["text"] == expected.label
    [candidates] = [word["candidates"] for word in found["outputs"]]
    told = {one["name"]: one["probability"] for one in candidates}
    assert told == pytest.approx(expected.probabilities, abs=1e-3)
    assert roles(task, Ask(action="see", text=url)) == {"heads": []}
    with pytest.raises(UserError, match="reads images; send one as a data URL"):
        answer(task, "see", str(path))
    with pytest.raises(ValueError, match="at most 4000 characters"):
        Ask(action="translate", text="x" * 4001)
    assert len(Ask(action="see", text=url + "x" * 5000).text) > 5000


def test_gaps_are_filled() -> None:
    task = filler()
    found = answer(task, "fill", "the <mask>at")
    assert found["text"] == task.fill("the <mask>at").text
    assert [word["after"] for word in found["outputs"]] == ["<mask>"]
    with pytest.raises(UserError, match="no gap"):
        answer(task, "fill", "the cat")


def test_vectors_are_compared() -> None:
    task = Encoder(encoder(head="none", n_labels=0).float(), TOKENIZER)
    found = answer(task, "embed", "the cat", "a dog")
    cosine = float(task.similarity("the cat", "a dog")[0, 0])
    assert found["marks"] == [{"name": "cosine", "value": pytest.approx(cosine)}]
    assert found["outputs"] == []


def test_a_text_and_a_pair_are_classified() -> None:
    task = Classifier(encoder().float(), TOKENIZER, Classes(("a", "b", "c")))
    for second in ("", "a dog"):
        found = answer(task, "classify", "the cat", second)
        (result,) = task.classify([("the cat", second) if second else "the cat"])
        best = found["outputs"][0]["candidates"][0]
        assert (found["text"], best["name"]) == (result.label, result.label)
        assert best["probability"] == pytest.approx(result.probability, abs=1e-5)


def test_words_are_tagged() -> None:
    model = encoder(head="token", n_labels=3).float()
    task = Tagger(model, TOKENIZER, Tags(("O", "B-X", "I-X")))
    found = answer(task, "tag", "the cat sees")
    assert [word["after"] for word in found["outputs"]] == ["the", "cat", "sees"]
    entities = task.tag("the cat sees").entities
    assert [mark["name"] for mark in found["marks"]] == [entity.text for entity in entities]
    with pytest.raises(UserError, match="blank"):
        answer(task, "tag", " ")


def test_a_question_is_answered() -> None:
    task = Answerer(encoder(head="token", n_labels=2).float(), TOKENIZER, Answers())
    found = answer(task, "answer", "the cat", "a dog")
    assert found["text"] == task.answer("a dog", "the cat").text
    assert [word["after"] for word in found["outputs"]] == ["start", "end"]
    with pytest.raises(UserError, match="question"):
        answer(task, "answer", "the cat")


@pytest.mark.parametrize("kind", [*sorted(KINDS.keys() - {"short", "number"}), "gated"])
def test_cells_of_other_architectures_are_worked_out(kind: str, tmp_path: Path) -> None:
    from qkv.serve.page.actions import actions
    from qkv.serve.page.traces import untouched
    from qkv.serve.page.worked import RULES, CellAsk, worked

    task = language_model() if kind == "gated" else KINDS[kind]()
    [action, *_] = actions(task)
    text = image_url(tmp_path / "a.png") if action == "see" else "the cat sees"
    action = "embed" if action == "fill" else action  # the tiny vocabulary has no gap
    ask = {"action": action, "text": text, "second": "a dog"}
    trace = untouched(task, CellAsk(**ask, key="")).trace
    for key in trace.names("*"):
        if key.rpartition(".")[2] not in RULES or not 2 <= len(trace.axes(key)) <= 4:
            continue
        head = 1 if trace.find(key).has_heads and trace.shape(key)[1] > 1 else 0
        row = min(1, trace.shape(key)[-2] - 1)
        found = worked(task, CellAsk(**ask, key=key, head=head, row=row, column=1))
        assert [line["symbol"] for line in found["lines"]][-1:] != ["≈"], key  # nothing is rounded
        if kind in ("class", "gated"):
            has_steps = not key.startswith(("target.input", "probabilities"))
            assert found["lines"] or not has_steps, key


def test_the_structure_says_what_the_parts_are() -> None:
    from qkv.serve.page.structure import structure

    found = structure("tiny", language_model())
    facts = found["facts"]
    assert (facts["gated"], facts["turns_positions"], facts["kv_heads"]) == (True, True, 2)
    (stack,) = found["stacks"]
    parts = [station["part"] for station in stack["sublayers"][1]["stations"]]
    assert {"gate", "inner", "hidden"} <= set(parts)
    assert found["actions"] == ["continue"]


def test_a_head_of_queries_finds_its_grouped_keys() -> None:
    from qkv.serve.page.looks import TraceAsk, quantities

    task, key = language_model(), "decoder.0.self_attention.key"
    asked = {"action": "continue", "text": "the cat", "keys": [key], "lanes": True}
    third, second = (quantities(task, TraceAsk(**asked, head=head)) for head in (3, 2))
    first = quantities(task, TraceAsk(**asked, head=1))
    assert third == second != first
    with pytest.raises(UserError, match="no head 4"):
        quantities(task, TraceAsk(**asked, head=4))


def test_examples_are_in_languages_that_the_model_reads() -> None:
    from qkv.serve.page.actions import examples

    both = examples(qkv.load("mini-bert", device="cpu"))["fill"]
    assert [text.isascii() for (text,) in both] == [True, False]
    assert [text.isascii() for (text,) in examples(filler())["fill"]] == [True]
