"""`qkv.evaluate`: a model of each task on examples and on files of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.config import DecodeConfig, MaskConfig
from qkv.data import Labelled, LabelledImage, Question, Sentence
from qkv.data.formats.squad import Answer
from qkv.errors import UserError
from qkv.evaluation import Score, bleu, exact_match
from qkv.evaluation.classification import ClassReport
from qkv.evaluation.entities import EntityReport
from qkv.tasks import Answerer, Encoder, Tagger
from qkv.tasks.answer import Answers
from qkv.tasks.few_shot import FewShot
from qkv.tasks.tag import Tags
from qkv.text.chat import TEMPLATES
from tests.run.common import write_lines, write_records
from tests.tasks import test_vision
from tests.tasks.test_texts import speaker, translator
from tests.tasks.understand_tiny import TOKENIZER, classifier, encoder

TEXTS = ["the cat", "a dog", "no fish", "birds likes a cat"]


def names(evaluation: qkv.Evaluation) -> list[str]:
    return [score.name for score in evaluation.scores]


def test_a_translator_on_pairs_and_on_files(tmp_path: Path) -> None:
    model, references = translator(), ["the cat", "a dog", "fish", "birds"]
    counts: list[tuple[int, int]] = []
    found = qkv.evaluate(
        model, zip(TEXTS, references, strict=True), progress=lambda *count: counts.append(count)
    )
    outputs = model.translate(TEXTS)
    assert found.outputs == outputs
    assert found.scores[0] == bleu(outputs, references)
    assert found.scores[2] == exact_match(outputs, references)
    assert (found.report, found.calibration) == (None, None)
    assert counts[-1] == (4, 4)
    table = write_lines(tmp_path / "a.tsv", map("\t".join, zip(TEXTS, references, strict=True)))
    both = write_lines(tmp_path / "a.en", TEXTS), write_lines(tmp_path / "a.de", references)
    assert qkv.evaluate(model, table) == qkv.evaluate(model, both) == found
    assert str(qkv.evaluate(model, str(table))) == "\n".join(map(str, found.scores))
    other = qkv.evaluate(model, table, tokenize="char", beams=2)
    assert "tok:char" in other.scores[0].signature
    assert other.outputs == model.translate(TEXTS, beams=2)


def test_a_language_model_on_texts_and_on_files(tmp_path: Path) -> None:
    model = speaker()
    found = qkv.evaluate(model, ["the cat\n", "a dog"])
    assert names(found) == ["loss", "perplexity", "bits per byte"]
    whole = model.score(["the cat\n", "a dog"])
    nats = -sum(text.log_probability for text in whole)
    assert found.scores[0].value == pytest.approx(nats / sum(text.n_tokens for text in whole))
    (tmp_path / "a.txt").write_bytes(b"the cat\r\n")
    (tmp_path / "b.txt").write_bytes(b"a dog")
    files = qkv.evaluate(model, [tmp_path / "a.txt", tmp_path / "b.txt"])
    assert files.scores == found.scores  # a last line end is part of a text
    assert qkv.evaluate(model, str(tmp_path / "b.txt")) == qkv.evaluate(model, ["a dog"])


def test_a_language_model_on_conversations_and_records(tmp_path: Path) -> None:
    model = speaker()
    model.prompting = qkv.tasks.Prompting(chat_template=TEMPLATES["plain"])
    asked = [{"role": "user", "content": "a"}]
    [answer] = model.answers([asked], beams=1, sample=False)
    talks = [[*asked, {"role": "assistant", "content": text}] for text in (answer, "no", "no")]
    found = qkv.evaluate(model, [*talks, asked])  # one without an answer is left out
    assert found.scores == [Score("exact match", pytest.approx(100 / 3))]
    path = write_records(tmp_path / "a.v2.jsonl", *({"messages": talk} for talk in talks))
    assert qkv.evaluate(model, path) == found
    rows = [f'a,"{reply["content"]}"' for _, reply in talks]
    path = write_lines(tmp_path / "a.csv", ["question,answer", *rows])
    assert qkv.evaluate(model, path) == found
    few_shot = FewShot("{text}:", " {label}", options=("cat", "dog"))
    records = [{"text": "the", "label": "cat"}, {"text": "a", "label": "dog"}]
    chosen = qkv.evaluate(model, records, few_shot=few_shot)
    assert names(chosen) == ["accuracy", "always the commonest"]
    path = write_records(tmp_path / "b.jsonl", *records)
    assert qkv.evaluate(model, path, few_shot=few_shot) == chosen


@pytest.mark.parametrize("kind", ["class", "classes", "number"])
def test_a_classifier(kind: Any, tmp_path: Path) -> None:
    labels: list[Any] = {
        "class": ["a", "b", "a", "b"],
        "classes": [("a",), ("a", "b"), (), ("b",)],
        "number": [1.0, 2.0, 3.0, 4.0],
    }[kind]
    model = classifier(("value",) if kind == "number" else ("a", "b"), kind=kind)
    examples = [Labelled((text,), label) for text, label in zip(TEXTS, labels, strict=True)]
    found = qkv.evaluate(model, examples)
    assert found.outputs == model.classify(TEXTS)
    assert names(found)[0] == ("Pearson" if kind == "number" else "accuracy")
    assert isinstance(found.report, ClassReport) == (kind != "number")
    assert (found.calibration is not None) == (kind == "class")
    cells = ["|".join(label) if isinstance(label, tuple) else str(label) for label in labels]
    rows = [f"{text}\t{cell}" for text, cell in zip(TEXTS, cells, strict=True)]
    path = write_lines(tmp_path / "a.tsv", ["said\tkind", *rows])
    again = qkv.evaluate(model, path, label_field="kind", text_field=["said"])
    assert again.scores == found.scores
    assert set(names(found)) <= json.loads(json.dumps(found.to_dict())).keys()
    if kind != "number":
        with pytest.raises(UserError, match="the label 'c', which the model does not know"):
            qkv.evaluate(model, [Labelled(("x",), "c" if kind == "class" else ("c",))])
    with pytest.raises(UserError, match="Example 1 has no text"):
        qkv.evaluate(model, [Labelled((" ",), labels[0])])


def test_a_classifier_of_images() -> None:
    model, drawn = test_vision.classifier(), test_vision.images(6)
    labels = test_vision.LABELS[:2] * 3
    found = qkv.evaluate(model, list(map(LabelledImage, drawn, labels)))
    outputs = model.classify(drawn)
    right = [output.label == label for output, label in zip(outputs, labels, strict=True)]
    assert found.scores[0] == Score("accuracy", pytest.approx(100 * sum(right) / 6))
    assert found.report is not None and found.calibration is not None


def test_a_tagger_with_entities_and_without() -> None:
    words = ("the", "cat")
    for scheme, kind in (("iob2", EntityReport), ("none", ClassReport)):
        tags = Tags(("O", "B-x", "I-x"), scheme)  # type: ignore[arg-type]
        model = Tagger(encoder(head="token", n_labels=3), TOKENIZER, tags)
        gold = model.tag(words).labels
        found = qkv.evaluate(model, [Sentence(words, gold), Sentence(words, ("O", "B-x"))])
        assert isinstance(found.report, kind)
        assert found.outputs == [model.tag(words)] * 2
        assert found.scores == found.report.scores()


def test_an_answerer() -> None:
    model = Answerer(encoder(head="token", n_labels=2), TOKENIZER, Answers())
    best = model.answer("a?", "the cat sees").text
    questions = [
        Question("1", "a?", "the cat sees", (Answer(best, 0),)),
        Question("1", "a?", "the cat sees", (Answer("fish", -1),)),
    ]
    found = qkv.evaluate(model, questions)
    assert names(found) == ["exact match", "F1"]
    assert found.scores[0].value == 50
    assert found.outputs == [best, best]


def test_an_encoder_on_pairs_and_on_texts() -> None:
    model = Encoder(encoder(head="none"), TOKENIZER)
    found = qkv.evaluate(model, [(text, text) for text in TEXTS])
    assert [score.value for score in found.scores] == [100, 1]
    assert names(qkv.evaluate(model, [(text,) for text in TEXTS])) == ["uniformity"]


def test_what_cannot_be_evaluated_is_said() -> None:
    with pytest.raises(UserError, match=r"A int cannot be evaluated; give what qkv\.load"):
        qkv.evaluate(3, [])  # type: ignore[call-overload]
    with pytest.raises(UserError, match="no examples are given"):
        qkv.evaluate(classifier(), [])
    with pytest.raises(UserError, match="None holds no examples; give a list of them, or the name"):
        qkv.evaluate(classifier(), None)  # type: ignore[call-overload]
    with pytest.raises(UserError, match=r"Example 1 is \('a', 'b'\), but must be a qkv\.data\.Lab"):
        qkv.evaluate(classifier(), [("a", "b")])
    with pytest.raises(UserError, match="Unknown BLEU tokenizer"):
        qkv.evaluate(translator(), [("a", "b")], tokenize="13b")
    with pytest.raises(UserError, match=r"Example 2 is \('a',\), but must be a tuple of 2 texts"):
        qkv.evaluate(translator(), [("a", "b"), ("a",)])
    with pytest.raises(UserError, match=r"Example 1 is \('a', 5\), but must be a tuple of 2 texts"):
        qkv.evaluate(translator(), [("a", 5)])
    model = Encoder(encoder(head="none"), TOKENIZER)
    with pytest.raises(UserError, match=r"Example 2 is .*, but must be a tuple of 1 text;"):
        qkv.evaluate(model, [("a",), ("a", "b")])
    assert isinstance(translator().decode, DecodeConfig)


@pytest.mark.parametrize(
    ("conversation", "sentence"),
    [
        ([], "Conversation 1: there is no message"),
        (3, "Conversation 1 is '3', but must be a list of messages"),
        ([{"content": "a"}], "is no message; write it like"),
        ([{"role": "user", "content": "a"}], "no conversation ends with an answer"),
    ],
)
def test_what_is_no_conversation_is_said(conversation: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        qkv.evaluate(speaker(), [conversation])


@pytest.mark.parametrize("length", [-1, 1, 2, 10_000])
def test_masked_tokens_are_scored_in_lengths_that_the_model_reads(length: int) -> None:
    model = qkv.Encoder.load("mini-bert", "cpu")
    most = model.model.config.max_length
    with pytest.raises(UserError, match=f"this model reads sequences of 3 to {most} tokens"):
        qkv.evaluate(model, TEXTS, mask=MaskConfig(), max_length=length)
    found = qkv.evaluate(model, TEXTS, mask=MaskConfig(), max_length=3)
    assert names(found) == ["loss", "perplexity", "accuracy"]
