"""Learning from other classifiers: what they say reaches the texts, and a student learns it."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.errors import UserError
from qkv.run.labels import balanced
from qkv.run.train import Run
from qkv.tasks import Classifier
from tests.run import language_tiny
from tests.run.classify_tiny import (
    LEARNS,
    job,
    killed_and_resumed,
    learned,
    one_of_three,
    run,
    which_first,
    write_data,
    write_rows,
)
from tests.run.common import everything, write_lines
from tests.tasks import test_vision

LABELS = ("animal", "metal", "plant")
NEW = [text for text, _ in one_of_three(240, seed=9)]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return learned(tmp_path_factory)


def changed(teacher: Run, folder: Path, change: Callable[[Classifier], None]) -> Path:
    """A copy of the teacher in which something is otherwise."""
    copy = Classifier.load(teacher.folder)
    with torch.no_grad():
        change(copy)
    folder.mkdir()
    copy.save(folder)
    return folder


def relabelled(*labels: str, **more: Any) -> Callable[[Classifier], None]:
    def change(one: Classifier) -> None:
        one.classes = dataclasses.replace(one.classes, labels=labels, **more)

    return change


def turned(one: Classifier) -> None:
    """Other labels, the first and the last in each other's place, and all that follows from it."""
    relabelled(*reversed(one.classes.labels))(one)
    for parameter in one.model.head.parameters():
        parameter.copy_(parameter.flip(0))


def shaken(one: Classifier) -> None:
    one.model.head.projection.weight.add_(3 * torch.randn_like(one.model.head.projection.weight))


def useless(folder: Path) -> None:
    """Training examples whose labels say nothing of their texts."""
    write_data(folder, "class")
    rows, draw = one_of_three(30, seed=8), random.Random(0)
    write_rows(folder / "class.train.tsv", [(text, draw.choice(LABELS)) for text, _ in rows])


def taught(folder: Path, *teachers: Path, **differences: Any) -> dict[str, Any]:
    """Settings of a run that learns from teachers, and from texts without labels."""
    texts = write_lines(folder / "texts.txt", NEW)
    settings = {"teacher_models": [str(one) for one in teachers], "teacher_text": str(texts)}
    return {**settings, **differences}


def accuracy(done: Run) -> float:
    return next(score.value for score in done.scores["test"] if score.name == "accuracy")


def test_a_student_learns_from_a_teacher_what_its_labels_do_not_say(
    teacher: Run, tmp_path: Path
) -> None:
    useless(tmp_path)
    settings = {**LEARNS, "data_test_examples": str(tmp_path / "class.test.tsv")}
    assert accuracy(run(tmp_path, "alone", **settings)) < 70
    settings = {**settings, **taught(tmp_path, teacher.folder, teacher_weight=1.0)}
    assert accuracy(run(tmp_path, "taught", **settings)) >= accuracy(teacher) - 5 >= 90


@torch.no_grad()
def logits(folder: Path, text: str) -> torch.Tensor:
    """What a folder's model says of a text, without the object of its task."""
    classifier = Classifier.load(folder)
    tokenizer = classifier.tokenizer
    tokens = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
    return classifier.model.eval()(torch.tensor([tokens]))[0]


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_opinions_are_the_mean_of_the_teachers_probabilities(
    teacher: Run, tmp_path: Path, temperature: float
) -> None:
    torch.manual_seed(3)
    folders = [teacher.folder, changed(teacher, tmp_path / "second", shaken)]
    said: list[str] = []
    settings = taught(tmp_path, *folders, teacher_temperature=temperature)
    made = job(tmp_path, said=said, **settings, data_n_examples=10)
    texts = [example.texts[0] for example in made.splits.train]
    found = made.train_items.opinions
    assert found.dtype == np.float32 and found.shape == (len(texts), 3)
    parts = [
        np.stack([(logits(one, text) / temperature).softmax(-1).numpy() for text in texts[:20]])
        for one in folders
    ]
    assert np.abs(parts[0] - parts[1]).max() > 0.1
    np.testing.assert_allclose(found[:20], (parts[0] + parts[1]) / 2, atol=1e-5)
    for folder in folders:
        assert f"teacher: {folder} reads {len(texts)} texts" in said

    assert all(batch.opinions is None for batch in made.valid_batches)
    [batch] = next(made.stream.steps_from())
    torch.testing.assert_close(batch.opinions.sum(-1), torch.ones(len(batch.labels)))


def test_a_teacher_may_have_its_labels_in_another_order(teacher: Run, tmp_path: Path) -> None:
    other = changed(teacher, tmp_path / "other", turned)
    found = [
        job(tmp_path, **taught(tmp_path, folder)).train_items.opinions
        for folder in (teacher.folder, other)
    ]
    assert (found[0].argmax(1) != 1).any()  # metal has the same number in both
    np.testing.assert_allclose(*found, atol=1e-6)


def test_each_window_of_a_long_text_has_the_text_s_opinion(teacher: Run, tmp_path: Path) -> None:
    whole = job(tmp_path, **taught(tmp_path, teacher.folder))
    settings = taught(tmp_path, teacher.folder, model_max_length=6, classify_overlap=1)
    made = job(tmp_path, **settings)
    _, owners = made.result.frame([example.texts for example in made.splits.train])
    assert len(made.train_items) == len(owners) > len(made.splits.train)
    expected = whole.train_items.opinions[owners]
    np.testing.assert_array_equal(made.train_items.opinions, expected)


def test_texts_that_are_known_or_there_twice_are_left_out(teacher: Run, tmp_path: Path) -> None:
    write_data(tmp_path, "class")
    examples = str(tmp_path / "class.test.tsv")
    known = [
        (tmp_path / f"class.{name}.tsv").read_text().splitlines()[5].split("\t")[0]
        for name in ("train", "valid", "test")
    ]
    write_lines(tmp_path / "texts.txt", [*known, "a new one", "a new one", "another", ""])
    said: list[str] = []
    settings = {
        "teacher_models": str(teacher.folder),
        "teacher_text": str(tmp_path / "texts.txt"),
        "data_test_examples": examples,
        "classify_weights": "balanced",
    }
    made = job(tmp_path, said=said, **settings)
    found = [one.texts for one in made.splits.train if one.label is None]
    assert found == [("a new one",), ("another",)]
    assert "teacher: 2 texts without labels are trained on too" in said
    plain = job(tmp_path, data_test_examples=examples, classify_weights="balanced")
    assert made.splits.train[:-2] == plain.splits.train
    assert made.baseline() == plain.baseline()
    labels = made.train_items.labels
    assert (labels < 0).sum() == 2
    np.testing.assert_array_equal(made.weights, balanced(labels[:-2], 3))


def test_a_taught_run_killed_and_resumed_ends_bit_for_bit_the_same(
    teacher: Run, tmp_path: Path
) -> None:
    settings = taught(tmp_path, teacher.folder, train_accumulate=2, train_consistency=1.0)
    whole = run(tmp_path, "whole", **settings).folder
    assert everything(killed_and_resumed(7, tmp_path, **settings)) == everything(whole)


def test_a_weight_of_nothing_is_no_teacher(teacher: Run, tmp_path: Path) -> None:
    """Where every text has a label."""
    models = {"teacher_models": [str(teacher.folder)], "teacher_weight": 0.0}
    jobs = [job(tmp_path, model_dropout=0.0, **more) for more in ({}, models)]
    losses = [
        float(made.loss_sum(next(made.stream.steps_from())[0], 0.0).detach()) for made in jobs
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other", "other tells apart good, bad, fair, but the examples animal, metal, plant; name"),
        ("several", r"several gives several classes at once, .* \(its kind is 'classes'\); name"),
        (
            "images",
            r"teacher.models: .*images is no classifier of texts \(its task is 'classify'\); name",
        ),
        (
            "speaker",
            r"teacher.models: .*speaker is no classifier of texts \(its task is 'generate'\); name",
        ),
        (
            "pairs",
            "teacher.models: .*pairs was trained to label pairs of texts, but the examples are",
        ),
        ("job", "teacher.models: .* is the folder of this run, which .*; choose another folder"),
        ("nowhere", "nowhere is neither a path that exists nor a packaged model"),
    ],
)
def test_who_cannot_teach_is_refused(teacher: Run, tmp_path: Path, name: str, words: str) -> None:
    folder = tmp_path / name
    changes = {
        "other": relabelled("good", "bad", "fair"),
        "several": relabelled(*LABELS, kind="classes"),
        "job": relabelled(*LABELS),
        "pairs": relabelled(*LABELS, n_texts=2),
    }
    if name in changes:
        changed(teacher, folder, changes[name])
    elif name == "images":
        folder.mkdir()
        test_vision.classifier().save(folder)
    elif name == "speaker":
        language_tiny.run(tmp_path, name, train_steps=1)
    said: list[str] = []
    with pytest.raises(UserError, match=words) as error:
        job(tmp_path, said=said, **taught(tmp_path, teacher.folder, folder))
    assert "\n" not in str(error.value)
    assert not any("reads" in remark for remark in said)  # not even the one before it


def test_texts_without_labels_are_as_many_a_record_as_the_examples(
    teacher: Run, tmp_path: Path
) -> None:
    pairs = write_rows(tmp_path / "pairs.tsv", which_first(5))
    words = (
        "teacher.text: .*pairs.tsv holds pairs of texts, but the examples are single texts; give"
    )
    settings = {"teacher_models": str(teacher.folder), "teacher_text": str(pairs)}
    with pytest.raises(UserError, match=words):
        job(tmp_path, **settings)
