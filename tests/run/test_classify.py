"""Classification jobs: they learn what there is to learn, and say what there is not."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.data.formats.labelled import Labelled, read_labelled
from qkv.errors import UserError
from qkv.run.classify import Classifying, balanced, classifier_scores, judge, labels_of
from tests.run.classify_tiny import LEARNS, learned, one_of_three, plan, run, write_rows
from tests.run.common import read_log

NAMES = {
    "class": ["accuracy", "macro F1", "MCC", "ECE", "Brier score", "mean confidence"],
    "classes": ["accuracy", "macro F1", "micro F1"],
    "number": ["Pearson", "Spearman", "mean squared error", "mean absolute error"],
    "pairs": ["accuracy", "macro F1", "MCC", "ECE", "Brier score", "mean confidence"],
}
LOGGED = {
    "class": {"accuracy", "f1"},
    "classes": {"accuracy", "f1"},
    "number": {"correlation"},
    "pairs": {"accuracy", "f1"},
}


@pytest.mark.parametrize("task", NAMES)
def test_every_kind_of_label_is_learnt(task: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    done = learned(tmp_path_factory, task)
    for split in ("valid", "test"):
        scores = {score.name: score.value for score in done.scores[split]}
        assert list(scores) == NAMES[task]
        assert scores.get("accuracy", scores.get("Pearson")) >= 95
    measured = [record for record in read_log(done.folder) if "valid_loss" in record]
    logged = {"step", "loss", "lr", "tokens_per_second", "valid_loss"} | LOGGED[task]
    assert all(record.keys() == logged for record in measured)
    assert measured[-1]["valid_loss"] < 0.15


def test_new_texts_are_labelled(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = learned(tmp_path_factory).result
    assert model.classes.labels == ("animal", "metal", "plant")
    found = model.classify(["the dog was there", "iron", "so on and on with a rose"])
    assert [one.label for one in found] == ["animal", "metal", "plant"]
    several = learned(tmp_path_factory, "classes").result
    found = several.classify(["the rose and the iron", "there was one", "a cat"])
    assert [set(one.labels) for one in found] == [{"iron", "rose"}, set(), {"cat"}]
    counting = learned(tmp_path_factory, "number").result
    values = [counting.classify(text).value for text in ("the one", "a cat", "cat cat was cat")]
    assert values == pytest.approx([50, 60, 80], abs=5)
    pairs = learned(tmp_path_factory, "pairs").result
    both = [("the cat was", "a dog"), ("a dog", "the cat was")]
    assert [one.label for one in pairs.classify(both)] == ["first", "second"]


def unbalanced(path: Path, label: str = "rare", other: str = "usual") -> None:
    """Texts that say nothing, one in ten with another label."""
    rows = [
        (f"the one {'so ' * (n // 10 % 5)}", label if n % 10 == 0 else other) for n in range(200)
    ]
    write_rows(path, rows)


@pytest.mark.parametrize(("weights", "expected"), [("none", 0.1), ("balanced", 0.5)])
@pytest.mark.parametrize("kind", ["class", "classes"])
def test_weights_change_what_is_learnt_of_rare_labels(
    tmp_path: Path, kind: str, weights: str, expected: float
) -> None:
    for name in ("train", "valid"):
        unbalanced(tmp_path / f"class.{name}.tsv")
    settings = {"classify_kind": kind, "classify_weights": weights, "train_metric": "loss"}
    model = run(tmp_path, **{**LEARNS, **settings, "train_lr": 0.003}).result
    found = model.classify("the one so").probabilities["rare"]
    assert found == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_the_baseline_of_classes_is_the_best_loss_without_looking(
    tmp_path: Path, weights: str
) -> None:
    write_rows(tmp_path / "class.train.tsv", one_of_three(200, rare=0.2))
    job = Classifying(plan(tmp_path, classify_weights=weights))
    labels = job.stream.items.labels
    counts = np.bincount(labels)
    scale = np.ones(3) if weights == "none" else balanced(labels, 3)
    grid = [(a, b, 100 - a - b) for a, b in product(range(1, 99), repeat=2) if a + b < 100]
    chances = np.array(grid) / 100
    losses = -(np.log(chances) * scale * counts).sum(axis=1) / counts.sum()
    assert job.frequencies_loss == pytest.approx(losses.min(), abs=1e-3)
    assert job.frequencies_loss <= losses.min()


@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_the_baseline_of_several_classes_is_that_of_each(tmp_path: Path, weights: str) -> None:
    job = Classifying(plan(tmp_path, "classes", classify_weights=weights))
    wanted = job.stream.items.labels
    scale = np.ones(3) if weights == "none" else balanced(wanted, 3)
    chances = np.linspace(0.001, 0.999, 999)[:, None]
    share = wanted.mean(0)
    losses = -(np.log(chances) * scale * share + np.log(1 - chances) * (1 - share))
    assert job.frequencies_loss == pytest.approx(losses.min(axis=0).mean(), abs=1e-5)


def test_the_baseline_of_numbers_is_their_variance(tmp_path: Path) -> None:
    job = Classifying(plan(tmp_path, "number"))
    assert job.stream.items.labels.mean() == pytest.approx(0, abs=1e-6)
    assert job.frequencies_loss == pytest.approx(1, abs=1e-5)


def test_balanced_classes_weigh_the_same_together() -> None:
    labels = np.array([0] * 6 + [1] * 3 + [2])
    weights = balanced(labels, 3)
    assert [weights[c] * n for c, n in enumerate([6, 3, 1])] == pytest.approx([10 / 3] * 3)
    several = np.array([[1, 0], [0, 0], [0, 0], [1, 1]], np.float32)
    assert balanced(several, 2).tolist() == [1.0, 3.0]  # one yes weighs as three noes


def test_a_number_s_mean_and_deviation_are_kept(tmp_path: Path) -> None:
    done = run(tmp_path, task="number")
    rows = (tmp_path / "number.train.tsv").read_text().splitlines()[1:]
    numbers = [float(row.split("\t")[1]) for row in rows]
    assert done.result.classes.mean == pytest.approx(np.mean(numbers))
    assert done.result.classes.deviation == pytest.approx(np.std(numbers))


def test_numbers_that_are_all_the_same_are_no_trouble(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        write_rows(tmp_path / f"number.{name}.tsv", [(f"text {n}", "7") for n in range(30)])
    done = run(tmp_path, task="number", train_metric="loss")
    assert done.result.classes.deviation == 1.0
    assert done.result.classify("text 3").value == pytest.approx(7, abs=3)


def test_large_numbers_keep_their_differences(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        rows = [(f"text {n}", str(1e9 + n % 2)) for n in range(30)]
        write_rows(tmp_path / f"number.{name}.tsv", rows)
    job = Classifying(plan(tmp_path, "number"))
    assert sorted(set(job.stream.items.labels.tolist())) == [-1, 1]


def test_long_texts_are_learnt_from_window_by_window(tmp_path: Path) -> None:
    settings = {"model_max_length": 6, "classify_overlap": 1}
    job = Classifying(plan(tmp_path, **settings))
    items, train = job.stream.items, job.splits.train
    assert len(items) > len(train)
    assert items.target_sizes.max() == 6
    _, owners = job.verb.frame([one.texts for one in train])
    names = [job.classes.labels[label] for label in items.labels]
    assert names == [train[owner].label for owner in owners]
    done = run(tmp_path, **settings)
    assert done.result.classes.overlap == 1


def examples(folder: Path, **rows: list[tuple[str, ...]]) -> None:
    for name, found in rows.items():
        write_rows(folder / f"class.{name}.tsv", found)


def mistake(folder: Path, task: str = "class", **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        run(folder, task=task, **settings)
    assert not (folder / "run").exists()
    return str(caught.value)


def test_a_label_that_was_never_learnt_is_a_mistake(tmp_path: Path) -> None:
    rows = one_of_three(40)
    examples(tmp_path, train=rows, valid=[*rows, ("a cat", "animel")], test=rows)
    said = mistake(tmp_path)
    assert "the validation examples have the label 'animel', which no training example" in said
    examples(tmp_path, valid=rows, test=[("a cat", "Animal"), ("so", "zinc")])
    said = mistake(tmp_path, data_test_examples=str(tmp_path / "class.test.tsv"))
    assert "the test examples have the label 'Animal', which no training example has" in said


def test_one_label_only_is_a_mistake(tmp_path: Path) -> None:
    examples(tmp_path, train=[(f"text {n}", "good") for n in range(30)])
    assert "the training examples have only the label 'good'" in mistake(tmp_path)


def test_no_label_at_all_is_a_mistake_but_one_of_several_is_none(tmp_path: Path) -> None:
    several = {"classify_kind": "classes", "train_metric": "f1"}
    bare = [(f"text {n}", "") for n in range(30)]
    examples(tmp_path, train=bare, valid=bare)
    assert "the training examples have no label at all" in mistake(tmp_path, **several)
    some = [*bare, ("word", "yes")]
    examples(tmp_path, train=some, valid=some)
    assert run(tmp_path, **several).result.classes.labels == ("yes",)


@pytest.mark.parametrize(
    ("task", "metric"),
    [("number", "accuracy"), ("class", "correlation"), ("classes", "correlation")],
)
def test_what_is_not_measured_cannot_be_gone_by(tmp_path: Path, task: str, metric: str) -> None:
    assert f"metric = '{metric}' is not measured" in mistake(tmp_path, task, train_metric=metric)


@pytest.mark.parametrize("metric", ["loss", "accuracy", "f1"])
@pytest.mark.parametrize("task", ["class", "classes"])
def test_the_best_may_be_chosen_by_any_measure(tmp_path: Path, task: str, metric: str) -> None:
    done = run(tmp_path, task=task, train_metric=metric, train_steps=4)
    logged = read_log(done.folder)[-1]
    expected = -logged["valid_loss"] if metric == "loss" else logged[metric]
    assert done.progress.best == expected


def test_a_verdict_is_what_was_found_and_how_good_it_is(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for task, kind in (("class", "class"), ("classes", "classes"), ("number", "number")):
        done = learned(tmp_path_factory, task)
        path = done.folder.parent / f"{task}.test.tsv"
        rows = read_labelled([path], kind)  # type: ignore[arg-type]
        told: list[int] = []
        found = judge(done.result, rows, told.append)
        assert sum(told) == len(rows)
        assert found.found == done.result.classify([one.texts for one in rows])
        assert found.scores == classifier_scores(done.result, rows) == done.scores["test"]
        assert (found.report is None) == (task == "number")
        assert (found.trust is None) == (task != "class")


def test_a_verdict_counts_wrong_answers(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = learned(tmp_path_factory).result
    texts = ["a cat", "the rose", "iron", "a dog"]
    right = [one.label for one in model.classify(texts)]
    assert len(set(right)) == 3
    rows = [Labelled((text,), label) for text, label in zip(texts, right, strict=True)]
    rows[3] = Labelled(("a dog",), "metal")
    verdict = judge(model, rows)
    assert verdict.scores[0].value == 75
    assert verdict.report.confusion.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert verdict.trust.accuracy == 0.75
    sure = [max(one.probabilities.values()) for one in verdict.found]
    assert verdict.trust.confidence == pytest.approx(np.mean(sure))


def test_labels_that_a_model_does_not_know_are_named(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = learned(tmp_path_factory).result
    with pytest.raises(UserError) as caught:
        judge(model, [Labelled(("a cat",), "animal"), Labelled(("tin",), "tin")])
    assert str(caught.value) == (
        "The examples have the label 'tin', which the model does not know; its labels are animal, "
        "metal, plant."
    )


def test_labels_of_every_kind_of_example() -> None:
    assert labels_of(Labelled(("a",), "x")) == ("x",)
    assert labels_of(Labelled(("a",), ("x", "y"))) == ("x", "y")
    assert labels_of(Labelled(("a",), ())) == ()
    assert labels_of(Labelled(("a",), 3.0)) == ()
