"""Classification jobs: they learn what there is to learn, and say what there is not."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.errors import UserError
from qkv.run.labels import balanced
from tests.run.classify_tiny import LEARNS, job, learned, one_of_three, run, write_rows
from tests.run.common import validations

NAMES = {
    "class": ["accuracy", "macro F1", "MCC", "ECE", "Brier score", "mean confidence"],
    "classes": ["accuracy", "macro F1", "micro F1"],
    "number": ["Pearson", "Spearman", "mean squared error", "mean absolute error"],
}


@pytest.mark.parametrize("task", [*NAMES, "pairs"])
def test_every_kind_of_label_is_learned(
    task: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    done = learned(tmp_path_factory, task)
    for split in ("valid", "test"):
        scores = {score.name: score.value for score in done.scores[split]}
        assert list(scores) == NAMES[task.replace("pairs", "class")]
        assert scores.get("accuracy", scores.get("Pearson")) >= 95
    measured = validations(done.folder)
    logged = {"step", "loss", "lr", "tokens_per_second", "valid_loss"}
    logged |= {"correlation"} if task == "number" else {"accuracy", "f1"}
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


def unbalanced(path: Path) -> None:
    """Texts that say nothing, one in ten with another label."""
    labels = ["usual" if n % 10 else "rare" for n in range(200)]
    texts = [f"the one {'so ' * (n // 10 % 5)}" for n in range(200)]
    write_rows(path, [*zip(texts, labels, strict=True)])


@pytest.mark.parametrize(("weights", "expected"), [("none", 0.1), ("balanced", 0.5)])
@pytest.mark.parametrize("kind", ["class", "classes"])
def test_weights_change_what_is_learned_of_rare_labels(
    tmp_path: Path, kind: str, weights: str, expected: float
) -> None:
    for name in ("train", "valid"):
        unbalanced(tmp_path / f"class.{name}.tsv")
    settings = {"classify_kind": kind, "classify_weights": weights, "train_metric": "loss"}
    model = run(tmp_path, **{**LEARNS, **settings, "train_lr": 0.003}).result
    found = model.classify("the one so").probabilities["rare"]
    assert found == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_the_baseline_is_the_least_loss_without_reading(tmp_path: Path, weights: str) -> None:
    write_rows(tmp_path / "class.train.tsv", one_of_three(200, rare=0.2))
    made = job(tmp_path, classify_weights=weights)
    labels = made.train_items.labels
    counts = np.bincount(labels)
    scale = np.ones(3) if weights == "none" else balanced(labels, 3)
    grid = [(a, b, 100 - a - b) for a, b in product(range(1, 99), repeat=2) if a + b < 100]
    losses = -(np.log(np.array(grid) / 100) * scale * counts).sum(axis=1) / counts.sum()
    assert losses.min() - 1e-3 < made.baseline() <= losses.min()

    made = job(tmp_path, "classes", classify_weights=weights)
    wanted = made.train_items.labels
    scale = np.ones(3) if weights == "none" else balanced(wanted, 3)
    chances = np.linspace(0.001, 0.999, 999)[:, None]
    share = wanted.mean(0)
    losses = -(np.log(chances) * scale * share + np.log(1 - chances) * (1 - share))
    assert made.baseline() == pytest.approx(losses.min(axis=0).mean(), abs=1e-5)


@pytest.mark.parametrize("numbers", [range(30), [7] * 30, [10**9 + n % 2 for n in range(30)]])
def test_numbers_are_learned_as_distances_from_their_mean(tmp_path: Path, numbers: Any) -> None:
    for name in ("train", "valid"):
        rows = [(f"text {n}", str(number)) for n, number in enumerate(numbers)]
        write_rows(tmp_path / f"number.{name}.tsv", rows)
    made = job(tmp_path, "number")
    mean, deviation = np.mean(numbers), np.std(numbers) or 1.0
    assert made.classes.mean == pytest.approx(mean)
    assert made.classes.deviation == pytest.approx(deviation)
    expected = (np.array(numbers) - mean) / deviation
    np.testing.assert_allclose(made.train_items.labels, expected, atol=1e-5)
    assert made.baseline() == pytest.approx(float(len(set(numbers)) > 1), abs=1e-5)


def test_balanced_classes_weigh_the_same_together() -> None:
    labels = np.array([0] * 6 + [1] * 3 + [2])
    weights = balanced(labels, 3)
    assert [weights[c] * n for c, n in enumerate([6, 3, 1])] == pytest.approx([10 / 3] * 3)
    several = np.array([[1, 0], [0, 0], [0, 0], [1, 1]], np.float32)
    assert balanced(several, 2).tolist() == [1.0, 3.0]  # one yes weighs as three noes


def test_long_texts_are_learned_from_window_by_window(tmp_path: Path) -> None:
    settings = {"model_max_length": 6, "classify_overlap": 1}
    made = job(tmp_path, **settings)
    items, train = made.train_items, made.splits.train
    assert len(items) > len(train)
    assert items.target_sizes.max() == 6
    _, owners = made.result.frame([example.texts for example in train])
    names = [made.classes.labels[label] for label in items.labels]
    assert names == [train[owner].label for owner in owners]
    assert made.result.classes.overlap == 1


def examples(folder: Path, **rows: list[tuple[str, ...]]) -> None:
    for name, found in rows.items():
        write_rows(folder / f"class.{name}.tsv", found)


def mistake(folder: Path, task: str = "class", **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        run(folder, "run", task, **settings)
    assert not (folder / "run").exists()
    return str(caught.value)


ROWS = one_of_three(40)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            {"valid": [*ROWS, ("a cat", "animel")]},
            "the validation examples have the label 'animel', which no training example has",
        ),
        (
            {"test": [("a cat", "Animal"), ("so", "zinc")]},
            "the test examples have the label 'Animal', which no training example has",
        ),
        ({"train": [(f"{n}", "good") for n in range(9)]}, "have only the label 'good'"),
    ],
)
def test_labels_must_differ_and_be_known(tmp_path: Path, rows: Any, words: str) -> None:
    examples(tmp_path, **{"train": ROWS, "valid": ROWS, "test": ROWS, **rows})
    test = str(tmp_path / "class.test.tsv")
    assert words in mistake(tmp_path, data_test_examples=test)


def test_no_label_at_all_is_a_mistake_but_one_of_several_is_none(tmp_path: Path) -> None:
    several = {"classify_kind": "classes", "train_metric": "f1"}
    bare = [(f"text {n}", "") for n in range(30)]
    examples(tmp_path, train=bare, valid=bare)
    assert "the training examples have no label at all" in mistake(tmp_path, **several)
    some = [*bare, ("word", "yes")]
    examples(tmp_path, train=some, valid=some)
    assert run(tmp_path, **several).result.classes.labels == ("yes",)
