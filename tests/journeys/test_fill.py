"""`qkv train` with task = "fill", and all that one does with what it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import qkv as package
from qkv.config import to_toml
from tests.journeys.conftest import Command, mistakes_in_training
from tests.run import classify_tiny
from tests.run.common import read_log
from tests.run.fill_tiny import BEASTS, LEARNS, RUNS, documents
from tests.run.language_tiny import write_lines

GAPS = [
    "the <mask> sees two . the dog sees three .",
    "",
    "the cat sees six . the cat sees <mask> .",
]


def test_from_text_to_an_encoder_and_from_there_to_a_classifier(
    qkv: Command, tmp_path: Path
) -> None:
    recipe, out = RUNS.write_recipe(tmp_path, **LEARNS), tmp_path / "run"
    test = f"data.test_text={tmp_path / 'test.txt'}"
    answer = qkv("train", recipe, "--out", out, "--set", test)
    assert answer.code == 0, answer.err
    names = ["loss", "perplexity", "accuracy"]
    expected = [f"{split}: {name}" for split in ("valid", "test") for name in names]
    assert [line.rpartition(" ")[0] for line in answer.lines[:6]] == expected
    assert f'{out} is ready: qkv fill --model {out} "… <mask> …"' in answer.out
    assert " documents; valid: " in answer.err
    assert "step 300/300  loss " in answer.err

    filled = qkv("fill", "--model", out, "--top-k", 1, stdin="\n".join(GAPS)).lines
    assert filled == [GAPS[0].replace("<mask>", "dog"), "", GAPS[2].replace("<mask>", "seven")]
    found = json.loads(qkv("fill", "--model", out, "--json", GAPS[0]).out)
    assert found["masks"][0][0]["text"] == "dog"
    vectors = qkv("embed", "--model", out, *documents(3)).lines
    assert [len(line.split()) for line in vectors] == [32] * 3
    like = "the cat sees one ."
    lines = write_lines(tmp_path / "lines.txt", ["the bird sees two .", like])
    near = qkv("embed", "--model", out, "--nearest", lines, "--k", 1, like).lines
    assert near == [like, f"  1.0000  {like}"]

    classifies_from(qkv, out, tmp_path)


def classifies_from(qkv: Command, start: Path, folder: Path) -> None:
    """Few steps are enough to tell beasts that it knows already."""
    texts = documents(160, seed=7)
    rows = [(text, next(beast for beast in BEASTS if beast in text)) for text in texts]
    for use, part in (("train", rows[:120]), ("valid", rows[120:])):
        classify_tiny.write_rows(folder / f"class.{use}.tsv", part)
    told = classify_tiny.values(folder, train_start_from=str(start), train_steps=60)
    told["model"] = {"preset": "bert-tiny", "pooling": "mean"}
    (folder / "class.toml").write_text(to_toml(told))
    answer = qkv("train", folder / "class.toml", "--out", folder / "class")
    assert answer.code == 0, answer.err
    assert f"· {start}: " in answer.err  # what it begins from, and its size
    assert float(answer.lines[0].removeprefix("valid: accuracy ")) > 95
    said = qkv("classify", "--model", folder / "class", "the bird sees nine .").lines
    assert said[0].startswith("bird")
    before, now = (package.load(each, "cpu").tokenizer for each in (start, folder / "class"))
    assert now.encode("the bird sees") == before.encode("the bird sees")
    mistake = qkv("fill", "--model", folder / "class", "<mask>").mistake
    assert "cannot fill gaps, but embed texts" in mistake


def test_a_run_goes_on(qkv: Command, tmp_path: Path) -> None:
    recipe, out = RUNS.write_recipe(tmp_path, mask_pairs="order"), tmp_path / "run"
    answer = qkv("train", recipe, "--out", out)
    assert answer.lines[3].startswith("valid: pair accuracy ")
    assert f"{out} holds a run already" in qkv("train", recipe, "--out", out).mistake
    answer = qkv("train", recipe, "--out", out, "--resume", "--set", "train.steps=14")
    assert "· resuming from step 12" in answer.err
    assert [record["step"] for record in read_log(out)] == list(range(1, 15))
    assert "pair_accuracy" in read_log(out)[-1]


@pytest.fixture
def train(qkv: Command, tmp_path: Path) -> Callable[..., str]:
    return mistakes_in_training(qkv, RUNS.write_recipe(tmp_path), tmp_path / "run")


def test_text_that_cannot_be_learnt_from(train: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    files = f"data.text={path}"
    assert f"There is no file {path}" in train(files)
    path.write_text("\n \n")
    assert f"There is no text in {path}" in train(files)
    path.write_bytes(b"the cat\n\xff\n")
    assert "other.txt, line 2: byte 1 of the line (0xff) is not UTF-8" in train(files)
    assert "no text is given; set text" in train("data.text=[]")
    path.write_text("the cat sees one .\n")
    assert "but the train text has 1; see documents" in train(files, "mask.pairs=next")
    assert "mask: share is 0.0, but must be at least 0.01" in train("mask.share=0.0")
    assert "needs a model of family 'encoder'" in train("model.preset=llama-tiny")
    assert "is neither a path that exists" in train(f"train.start_from={tmp_path / 'none'}")
