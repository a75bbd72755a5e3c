"""`qkv translate`: text in, text out, each line in its place."""

import json
from pathlib import Path

import pytest

import qkv as package
from qkv.tasks import Translation, Translator
from tests.convert.test_languages import put
from tests.journeys.conftest import Command


def test_sentences_as_arguments(qkv: Command, model: Path) -> None:
    answer = qkv("translate", "--model", model, "3 1", "2")
    assert (answer.code, answer.out, answer.err) == (0, "three one\ntwo\n", "")


def test_json_is_an_object_a_line(qkv: Command, model: Path) -> None:
    answer = qkv("translate", "--model", model, "--json", stdin="3 1\r\n\n爱\n")
    found = [json.loads(line) for line in answer.lines]
    assert [each["source"] for each in found] == ["3 1", "", "爱"]
    assert found[0]["translation"] == "three one"
    assert found[0]["score"] < 0
    assert found[1] == {"source": "", "translation": ""}
    assert "爱" in answer.out


def test_several_translations_have_their_scores(qkv: Command, model: Path) -> None:
    lines = qkv("translate", "--model", model, "--n-best", 3, "3 1", "2").lines
    assert len(lines) == 6
    scores = [float(line.split("\t")[0]) for line in lines]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert lines[0].split("\t")[1] == "three one"
    answer = qkv("translate", "--model", model, "--n-best", 3, "--json", "3 1")
    best = json.loads(answer.out)["n_best"]
    assert [f"{each['score']:.4f}\t{each['translation']}" for each in best] == lines[:3]


def test_a_translation_keeps_to_its_line(
    qkv: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that was trained on texts with line feeds may write them."""
    found = [Translation("one\ntwo\r", -1.0, -1.0), Translation("three\u2028", -2.0, -2.0)]
    monkeypatch.setattr(Translator, "n_best", lambda self, texts, **settings: [found[:1], found])
    lines = qkv("translate", "--model", model, "1", "2").lines
    assert lines == ["one two ", "-1.0000\tone two ", "-2.0000\tthree\u2028"]


def test_settings_of_random_draws_need_sampling(qkv: Command, model: Path) -> None:
    mistake = qkv("translate", "1", "--model", model, "--top-k", "3").mistake
    assert "--top-k is about random draws; add --sample" in mistake


def test_languages_are_named_by_their_codes(qkv: Command, tmp_path: Path) -> None:
    put(tmp_path, "m2m100")
    text, model = "the cat sat on the mat", ("translate", "--model", tmp_path)
    found = qkv(*model, "--from", "en", "--to", "de", text)
    ours = package.load(tmp_path, "cpu")
    assert found.lines[0] == ours.translate(text, source_language="en", target_language="de")
    unknown = qkv(*model, "--to", "klingon", "cat").mistake
    assert "'klingon' is not known; this model knows af, am, ar" in unknown
    assert "name the target's with" in qkv(*model, "cat").mistake
    assert (
        "translates one language into another" in qkv("translate", "--to", "de", "我爱你").mistake
    )
