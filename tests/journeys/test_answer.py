"""`qkv answer`, and `qkv train` for what it needs: questions and a text in, answers out."""

import json
from pathlib import Path

import pytest

import qkv as package
from qkv.tasks import Answerer
from tests.journeys.conftest import Command
from tests.run.test_answer import learned, write_questions

TEXT = "abc 742 BAD fed"
QUESTIONS = ["which name?", "which number?"]


@pytest.fixture(scope="module")
def answerer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that finds numbers and names."""
    return learned(tmp_path_factory).folder


@pytest.fixture
def article(tmp_path: Path) -> Path:
    path = tmp_path / "article.txt"
    path.write_bytes(b"abc\r\n742 BAD\r\nfed\r\n")
    return path


def test_questions_as_arguments(qkv: Command, answerer: Path, article: Path) -> None:
    answer = qkv("answer", "--model", answerer, "--context", article, *QUESTIONS)
    assert (answer.code, answer.out, answer.err) == (0, "BAD\n742\n", "")
    assert qkv("answer", "--model", answerer, "--text", TEXT, *QUESTIONS).out == answer.out
    assert qkv("answer", "--model", answerer, "--text", "", "which name?").out == "\n"


def test_several_answers_with_their_probabilities(qkv: Command, answerer: Path) -> None:
    words = ["answer", "--model", answerer, "--text", TEXT, "--n-best", 3]
    lines = qkv(*words, "which name?").lines
    expected = package.load(answerer, device="cpu").answer("which name?", TEXT, n_best=3).n_best
    assert lines == [f"{one.probability:.4f}\t{one.text}" for one in expected]
    assert len(lines) == 3
    assert lines[0].endswith("\tBAD")
    assert qkv(*words, "").lines == ["1.0000\t"]


def test_json_is_an_object_a_question(qkv: Command, answerer: Path) -> None:
    words = ["answer", "--model", answerer, "--json", "--text", f"猫 {TEXT}"]
    answer = qkv(*words, *QUESTIONS)
    found = [json.loads(line) for line in answer.lines]
    assert [each["question"] for each in found] == QUESTIONS
    assert [(each["answer"], each["start"], each["end"]) for each in found] == [
        ("BAD", 10, 13),
        ("742", 6, 9),
    ]
    fields = {"question", "answer", "start", "end", "score", "probability"}
    assert all(each.keys() == fields for each in found)
    [more] = [json.loads(line) for line in qkv(*words, "which name?", "--n-best", 2).lines]
    assert more.keys() == fields | {"n_best"}
    assert more["n_best"][0].items() <= more.items()
    assert len(more["n_best"]) == 2


def test_an_answer_keeps_to_its_line(
    qkv: Command, answerer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Answerer.answers

    def over_lines(self, pairs, n_best, progress):  # type: ignore[no-untyped-def]
        [[found]] = plain(self, pairs, n_best, progress)
        return [[type(found)("a\nb", 0, 3, 0.0, 1.0)]]

    monkeypatch.setattr(Answerer, "answers", over_lines)
    assert qkv("answer", "--model", answerer, "--text", "a\nb", "who?").out == "a b\n"


def test_a_whole_file_of_questions(qkv: Command, answerer: Path, tmp_path: Path) -> None:
    path = write_questions(tmp_path / "dev.json", 20, seed=7)
    words = ["answer", "--model", answerer, "--input", path]
    found = json.loads(qkv(*words, "--json").out)
    paragraphs = json.loads(path.read_text())["data"][0]["paragraphs"]
    gold = {one["id"]: one["answers"][0]["text"] for each in paragraphs for one in each["qas"]}
    assert found.keys() == gold.keys()
    assert sum(found[id] == gold[id] for id in gold) > 0.9 * len(gold)
    assert qkv(*words).lines == list(found.values())
    assert len(qkv(*words, "--n-best", 2).lines) == 2 * len(gold)


def test_what_is_asked_for_wrongly(
    qkv: Command, answerer: Path, article: Path, tmp_path: Path
) -> None:
    words = ["answer", "--model", answerer]
    wanted = "Give the text to look in as --context FILE or as --text"
    assert wanted in qkv(*words, "who?").mistake
    assert wanted in qkv(*words, "--context", article, "--text", TEXT, "who?").mistake
    missing = tmp_path / "none.txt"
    assert f"There is no file {missing}" in qkv(*words, "--context", missing, "who?").mistake
    path = write_questions(tmp_path / "dev.json", 2, seed=7)
    mistake = qkv(*words, "--input", path, "who?").mistake
    assert mistake == f"{path} brings its own questions; leave 'who?' out."
    mistake = qkv(*words, "--input", path, "--json", "--n-best", 2).mistake
    assert mistake == "--json with --input gives one answer for each id; leave --n-best out."
