"""`qkv tag`, and `qkv train` for what it needs: sentences in, entities out."""

import json
from pathlib import Path

import pytest

import qkv as package
from qkv.data.formats.conll import read_conll
from tests.journeys.conftest import Command
from tests.run.tag_tiny import learned, parts_of_speech, run, write_conll, write_recipe

LINE = "anna stone  goes to new york ."
MARKED = "[anna stone|person]  goes to [new york|place] ."


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that knows some people and places."""
    return learned(tmp_path_factory).folder


def test_entities_are_marked_in_the_text(qkv: Command, tagger: Path) -> None:
    answer = qkv("tag", "--model", tagger, LINE, "the old house")
    assert (answer.code, answer.out, answer.err) == (0, f"{MARKED}\nthe old house\n", "")


def test_a_text_with_a_line_end_keeps_to_its_line(qkv: Command, tagger: Path) -> None:
    assert qkv("tag", "--model", tagger, "the\nold").lines == ["the old"]


def test_columns_can_be_read_back(qkv: Command, tagger: Path, tmp_path: Path) -> None:
    answer = qkv("tag", "--model", tagger, "--columns", stdin=f"{LINE}\n\nthe\n")
    assert answer.lines[:3] == ["anna\tB-person", "stone\tI-person", "goes\tO"]
    assert answer.lines[7:] == ["", "", "the\tO", ""]
    path = tmp_path / "found.conll"
    path.write_text(answer.out)
    first, second = read_conll([path])
    assert first.words == tuple(LINE.split())
    assert second.labels == ("O",)


def test_json_is_an_object_a_line(qkv: Command, tagger: Path) -> None:
    text = "😀 在北京 bob"
    answer = qkv("tag", "--model", tagger, "--json", stdin=f"{text}\n\n{LINE}\n")
    first, blank, last = (json.loads(line) for line in answer.lines)
    assert "北京" in answer.out
    assert blank == {"text": "", "tokens": [], "entities": []}
    assert first["text"] == text
    assert [one["word"] for one in first["tokens"]] == ["😀", "在", "北", "京", "bob"]
    for one in first["tokens"]:
        assert one.keys() == {"word", "label", "probability", "start", "end"}
        assert text[one["start"] : one["end"]] == one["word"]
    person, place = last["entities"]
    assert person == {
        "type": "person",
        "text": "anna stone",
        "start": 0,
        "end": 10,
        "probability": pytest.approx(
            last["tokens"][0]["probability"] * last["tokens"][1]["probability"]
        ),
    }
    assert (place["type"], LINE[place["start"] : place["end"]]) == ("place", "new york")
    assert package.load(tagger).tag(LINE).entities[1].start == place["start"]
    mistake = qkv("tag", "--model", tagger, "--json", "--columns", LINE).mistake
    assert "--columns and --json are two forms" in mistake


def test_parts_of_speech_are_words_with_labels(qkv: Command, tmp_path: Path) -> None:
    write_conll(tmp_path / "train.conll", parts_of_speech(60))
    write_conll(tmp_path / "valid.conll", parts_of_speech(20, seed=4))
    folder = run(tmp_path, train_steps=2).folder
    [line, blank] = qkv("tag", "--model", folder, stdin="anna sees  rome.\n\n").lines
    labels = package.load(folder).tag("anna sees  rome.").labels
    words = ["anna", "sees", "rome", "."]
    assert line.split(" ") == [f"{w}/{label}" for w, label in zip(words, labels, strict=True)]
    assert blank == ""
    assert json.loads(qkv("tag", "--model", folder, "--json", "anna").out)["entities"] == []


def test_a_mistyped_label_is_noticed(qkv: Command, tmp_path: Path) -> None:
    path = tmp_path / "some.conll"
    path.write_text("anna\tB-person\nsees\t0\nrome\tB-place\n")
    words = [f"data.examples={path}", f"data.valid_examples={path}", "train.steps=2"]
    changes = [word for change in words for word in ("--set", change)]
    trained = qkv("train", write_recipe(tmp_path), "--out", tmp_path / "run", *changes)
    assert "the label 0 is not written like an entity" in trained.err
    path.write_text("anna\tNOUN\nsees\tVERB\n")
    trained = qkv("train", write_recipe(tmp_path), "--out", tmp_path / "more", *changes)
    assert "not written like an entity" not in trained.err
