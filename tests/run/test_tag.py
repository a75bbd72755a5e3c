"""Tagging: labelled words in, a model folder that marks entities out."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.config import load_recipe
from qkv.data import IGNORE, Sentence
from qkv.errors import UserError
from qkv.evaluation import evaluate
from qkv.evaluation.classification import ClassReport
from qkv.evaluation.entities import EntityReport
from qkv.run.train import prepare
from qkv.tasks import Tagger
from tests.run.common import read_log, silence, validations
from tests.run.tag_tiny import (
    job,
    learned,
    parts_of_speech,
    run,
    sentences,
    write_conll,
    write_data,
)

NAMES = ["entity F1", "entity precision", "entity recall", "token accuracy"]


def test_a_run_learns_to_tag_and_says_how_well(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = learned(tmp_path_factory)
    measured = validations(done.folder)
    assert measured[0].keys() - {"step", "loss", "lr", "tokens_per_second"} == {
        "valid_loss",
        "f1",
        "accuracy",
    }
    for scores in done.scores.values():
        assert [score.name for score in scores] == NAMES
        assert scores[0].value > 90
    best = max(record["f1"] for record in measured)
    assert done.scores["valid"][0].value == pytest.approx(best)
    assert done.scores.keys() == {"valid", "test"}


def test_its_folder_tags_new_sentences(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = qkv.load(learned(tmp_path_factory).folder, device="cpu")
    assert isinstance(model, Tagger)
    assert model.tags.scheme == "iob2"
    fresh = sentences(50, seed=77)
    report = evaluate(model, fresh).report
    assert isinstance(report, EntityReport)
    assert report.types.keys() == {"person", "place"}
    assert report.whole.f1 > 0.9
    found = model.tag("anna stone goes to new york")
    assert [(one.type, one.text) for one in found.entities] == [
        ("person", "anna stone"),
        ("place", "new york"),
    ]
    assert all(one.probability > 0.5 for one in found.entities)


def test_only_first_tokens_of_words_count(tmp_path: Path) -> None:
    """The loss is what the model itself says of each word's gold label, word by word."""
    made = job(tmp_path)
    index = {label: place for place, label in enumerate(made.classes.labels)}
    gold = made.splits.valid
    total, count = 0.0, 0
    for one, scores in zip(gold, made.result.scores([one.words for one in gold]), strict=True):
        right = torch.tensor([index[label] for label in one.labels])
        total -= float(scores.gather(1, right[:, None]).sum())
        count += len(right)
    assert made.evaluate()["valid_loss"] == pytest.approx(total / count, rel=1e-5)
    [batch] = next(made.stream.steps_from(0))
    assert batch.n_labels == len(batch.labels) < (batch.target.tokens != made.config.pad_id).sum()


def test_words_of_long_sentences_count_once(tmp_path: Path) -> None:
    long = [Sentence(one.words * 20, one.labels * 20) for one in sentences(6)]
    write_conll(tmp_path / "train.conll", long)
    made = job(tmp_path, model_max_length=24)
    items = made.train_items
    assert len(items) > 6
    assert items.tokens.lengths.max() <= 24
    labels = items.labels[items.labels != IGNORE]
    assert len(labels) == sum(len(one.words) for one in long)
    counts = Counter(label for one in long for label in one.labels)
    assert Counter(made.classes.labels[label] for label in labels) == counts
    total = counts.total()
    entropy = -sum(count / total * math.log(count / total) for count in counts.values())
    assert made.baseline() == pytest.approx(entropy)


@pytest.mark.parametrize("scheme", ["iob1", "iob2", "bioes"])
def test_the_scheme_is_found_in_the_labels(tmp_path: Path, scheme: Any) -> None:
    write_conll(tmp_path / "train.conll", sentences(60, scheme=scheme))
    write_conll(tmp_path / "valid.conll", sentences(20, seed=5, scheme=scheme))
    made = job(tmp_path)
    assert made.classes.scheme == scheme
    assert made.config.n_labels == len(made.classes.labels) == (9 if scheme == "bioes" else 5)
    assert job(tmp_path, tag_scheme="none").classes.scheme == "none"


def test_labels_that_spell_no_entities(tmp_path: Path) -> None:
    write_conll(tmp_path / "train.conll", parts_of_speech(100))
    write_conll(tmp_path / "valid.conll", parts_of_speech(30, seed=5))
    done = run(tmp_path, train_steps=40, train_metric="accuracy")
    assert [score.name for score in done.scores["valid"]][:2] == ["accuracy", "macro F1"]
    assert done.scores["valid"][0].value > 60
    assert {"accuracy", "f1"} <= read_log(done.folder)[-1].keys()
    model = qkv.load(done.folder, device="cpu")
    assert (model.tags.scheme, model.tags.labels) == ("none", ("NAME", "PUNCT", "VERB", "WORD"))
    strange = [Sentence(("anna", "hm"), ("NAME", "INTJ"))]
    report = evaluate(model, strange).report
    assert isinstance(report, ClassReport)
    assert "INTJ" in report.labels


def test_labels_that_are_not_learned_are_told_of_and_missed(tmp_path: Path) -> None:
    write_data(tmp_path)
    more = [*sentences(20, seed=5), Sentence(("acme", "inc"), ("B-firm", "I-firm"))]
    write_conll(tmp_path / "test.conll", more)
    said: list[str] = []
    settings = {"data_test_examples": str(tmp_path / "test.conll")}
    made = job(tmp_path, said=said, **settings)
    assert (
        "no training example has the label B-firm, I-firm of the test examples: it will never be "
        "found"
    ) in said
    assert "train: 120 examples; valid: 60 examples; test: 21 examples" in said
    report = evaluate(made.result, more).report
    assert isinstance(report, EntityReport)
    assert (report.types["firm"].support, report.types["firm"].recall) == (1, 0.0)
    write_conll(tmp_path / "valid.conll", more)
    made = job(tmp_path)
    assert math.isfinite(made.evaluate()["valid_loss"])
    assert (
        sum(batch.n_labels for batch in made.valid_batches)
        == sum(len(one.words) for one in more) - 2
    )


@pytest.mark.parametrize(
    ("lines", "differences", "words"),
    [
        ("a\tO\n", {}, "the training examples have only the label 'O'"),
        ("a\tB-x\nb\tNOUN\n", {"tag_scheme": "iob2"}, r"tag.scheme: 'NOUN' is no label of"),
        ("a\tS-x\nb\tO\n", {"tag_scheme": "iob1"}, r"tag.scheme: 'S-x' is no label of"),
        ("a\tB-x\n\nb\tO\n", {"data_valid_examples": []}, "are too few"),
    ],
)
def test_contradictions_are_explained(
    tmp_path: Path, lines: str, differences: dict, words: str
) -> None:
    (tmp_path / "train.conll").write_text(lines)
    with pytest.raises(UserError, match=words):
        run(tmp_path, **differences)
    assert not (tmp_path / "run").exists()


def test_a_label_of_another_kind_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    write_data(tmp_path)
    write_conll(tmp_path / "valid.conll", [Sentence(("a", "b"), ("O", "NOUN"))])
    with pytest.raises(UserError, match="the validation examples have the label 'NOUN', but"):
        job(tmp_path)


def test_the_packaged_recipe_fits_its_data(shared_data: Path, tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "wnut17.toml"
    folder = shared_data / "wnut17"
    files = [
        f"data.examples={folder / 'train.conll.gz'}",
        f"data.test_examples={folder / 'valid.conll'}",
    ]
    small = ["data.n_examples=50", "tokenizer.vocab_size=400", "model.n_encoder_layers=1"]
    read = load_recipe(recipe, [*files, *small, "train.device=cpu"])
    assert (read.task, read.data.valid_examples) == ("tag", ())
    made = prepare(read, tmp_path, silence())
    assert made.classes.scheme == "iob2"
    assert (len(made.splits.train), len(made.splits.test)) == (50, 1009)
    assert "B-creative-work" in made.classes.labels
