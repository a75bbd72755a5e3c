"""`qkv fill` and `qkv embed`: gaps filled, texts as vectors, and what is like what."""

import json
from pathlib import Path

import numpy as np
import pytest

import qkv as package
from qkv.config import ModelConfig, preset
from qkv.convert.model_folder import model_content, save_model_folder
from qkv.tasks import Candidate, Classifier, Encoder, Filled
from qkv.tasks.classify import Classes
from tests.journeys.conftest import Command
from tests.tasks.test_encoder import build, tokenizer

LINES = ["the cat sat", "a dog ran", "", "the small cat"]


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder that guesses hidden tokens."""
    folder = tmp_path_factory.mktemp("filler")
    made = build(tokenizer("wordpiece"))
    made.model.float()
    made.save(folder)
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    made = build(head="sequence", n_labels=2)
    made.model.float()
    Classifier(made.model, made.tokenizer, Classes(("bad", "good"))).save(folder)
    return folder


def test_a_gap_is_filled_and_its_candidates_are_shown(qkv: Command, filler: Path) -> None:
    texts = ["the <mask> sat", "a [MASK] and a <mask>"]
    answer = qkv("fill", "--model", filler, "--top-k", 2, *texts)
    found = package.load(filler).fill(texts, top_k=2)
    lines = []
    for one in found:
        lines.append(one.text)
        for number, each in enumerate(one.masks, 1):
            shares = ", ".join(f"{c.text} {100 * c.probability:.1f} %" for c in each)
            lines.append(f"  {number}: {shares}")
    assert (answer.code, answer.lines, answer.err) == (0, lines, "")
    assert [line[:4] for line in lines] == ["the ", "  1:", lines[2][:4], "  1:", "  2:"]
    usual = qkv("fill", "--model", filler, texts[0]).lines
    assert usual[1].count(" %") == 5


def test_json_is_an_object_a_line(qkv: Command, filler: Path) -> None:
    texts = ["the <mask> sat", "", "我<mask>你"]
    answer = qkv("fill", "--model", filler, "--json", stdin="\n".join(texts))
    found = [json.loads(line) for line in answer.lines]
    assert [one["text"] for one in found] == texts
    assert "我" in answer.out
    expected = package.load(filler).fill(texts)[0]
    masks = tuple(tuple(Candidate(**one) for one in each) for each in found[0]["masks"])
    assert Filled(found[0]["filled"], masks) == expected
    assert found[1] == {"text": "", "filled": "", "masks": []}


def test_a_filled_text_keeps_to_its_line(
    qkv: Command, filler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = (Candidate(5, "\n", 0.5), Candidate(6, "cat", 0.25))
    found = [Filled("one\ntwo", (candidates,))]
    monkeypatch.setattr(Encoder, "fill", lambda self, texts, **settings: found)
    lines = qkv("fill", "--model", filler, "<mask>").lines
    assert lines == ["one two", "  1:   50.0 %, cat 25.0 %"]


def test_what_cannot_be_filled_is_explained(
    qkv: Command, filler: Path, classifier: Path, tmp_path: Path
) -> None:
    mistake = qkv("fill", "--model", classifier, "<mask>").mistake
    assert mistake == (f"{classifier} cannot fill gaps, but embed texts; use it with `qkv embed`.")
    translator, viewer = tmp_path / "translator", tmp_path / "viewer"
    save_model_folder(translator, model_content("translate", ModelConfig()), {})
    images = preset("vit-tiny", head="sequence", n_labels=2)
    save_model_folder(viewer, model_content("classify", images), {})
    for name in ("fill", "embed"):
        mistake = qkv(name, "--model", translator, "<mask>").mistake
        assert mistake == f"{translator} is no encoder; use it with `qkv translate`."
        mistake = qkv(name, "--model", viewer, "<mask>").mistake
        assert mistake == f"{viewer} reads images, not texts; use it with `qkv classify`."


def test_vectors_are_lines_of_numbers(qkv: Command, filler: Path) -> None:
    answer = qkv("embed", "--model", filler, stdin="\n".join(LINES) + "\n")
    found = np.array([[float(value) for value in line.split(" ")] for line in answer.lines])
    assert (answer.code, answer.err) == (0, "")
    np.testing.assert_allclose(found, package.load(filler).embed(LINES), rtol=1e-5)


def test_vectors_as_json_and_as_an_array(qkv: Command, filler: Path, tmp_path: Path) -> None:
    expected = package.load(filler).embed(LINES).numpy()
    lines = qkv("embed", "--model", filler, "--json", *LINES).lines
    found = [json.loads(line) for line in lines]
    assert [one["text"] for one in found] == LINES
    assert np.array_equal(np.array([one["embedding"] for one in found], np.float32), expected)
    path = tmp_path / "there" / "vectors.npy"
    answer = qkv("embed", "--model", filler, "--output", path, *LINES)
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    array = np.load(path)
    assert array.dtype == np.float32
    assert np.array_equal(array, expected)


def test_how_alike_texts_are(qkv: Command, filler: Path) -> None:
    texts = ["the cat sat", "a dog ran", "the cat sat"]
    model = package.load(filler)
    expected = model.similarity(model.embed(texts), model.embed(texts)).tolist()
    lines = qkv("embed", "--model", filler, "--similarity", *texts).lines
    assert lines == [" ".join(f"{value:.4f}" for value in row) for row in expected]
    assert lines[0].split()[::2] == ["1.0000", "1.0000"]
    lines = qkv("embed", "--model", filler, "--similarity", "--json", *texts).lines
    assert json.loads(lines[1])["similarity"] == pytest.approx(expected[1], rel=1e-6)


def test_the_nearest_lines_of_a_file(qkv: Command, filler: Path, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    found = package.load(filler).nearest(["a dog", "the cat sat"], LINES, k=2)
    words = ("--nearest", path, "--k", 2, "a dog", "the cat sat")
    lines = qkv("embed", "--model", filler, *words).lines
    expected = []
    for text, near in zip(["a dog", "the cat sat"], found, strict=True):
        expected += [text, *(f"  {one.score:.4f}  {one.text}" for one in near)]
    assert lines == expected
    assert lines[4] == "  1.0000  the cat sat"
    as_json = json.loads(qkv("embed", "--model", filler, "--json", *words).lines[1])
    assert as_json["nearest"][0]["line"] == 1
    assert [one["text"] for one in as_json["nearest"]] == [one.text for one in found[1]]
    path.write_text("\n \n")
    assert "There is no text in" in qkv("embed", "--model", filler, *words).mistake
    mistake = qkv("embed", "--model", filler, "--nearest", path, "--similarity", "a").mistake
    assert "are three answers; ask for one" in mistake


def test_any_encoder_can_embed(qkv: Command, classifier: Path) -> None:
    lines = qkv("embed", "--model", classifier, *LINES).lines
    assert [len(line.split()) for line in lines] == [16] * 4


def test_vectors_are_not_made_for_a_file_that_cannot_be(qkv: Command, tmp_path: Path) -> None:
    mistake = qkv("embed", "--model", tmp_path / "none", "--output", tmp_path, "a cat").mistake
    assert mistake == f"{tmp_path} is a directory; name the file to write in it."
