"""Contrastive training: texts that belong together in, vectors that lie side by side out."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import qkv
from qkv.config import EmbedConfig, recipe_from
from qkv.errors import UserError
from qkv.run.train import train
from qkv.run.embed import Contrasting, retrieval_scores, uniformity
from qkv.run.job import Plan
from qkv.tasks import Encoder
from tests.run.common import ENCODER, TRAINING, Runs, everything, read_log, with_differences

WORDS = [
    "apple",
    "bridge",
    "candle",
    "desert",
    "engine",
    "forest",
    "guitar",
    "hammer",
    "island",
    "jungle",
    "kettle",
    "ladder",
    "mirror",
    "needle",
    "orange",
    "pencil",
    "rabbit",
    "saddle",
    "tunnel",
    "violin",
]
FIRST = ["tell me about the {}", "what is a {} ?", "i like my {}", "where is the {} now ?"]
SECOND = ["this {} is here", "some say a {} is old", "one more {} for you", "see the {} again"]
HELD = ("do you know the {} ?", "all of it is a {} to us")


def paired(first: str, second: str) -> list[tuple[str, str]]:
    """Texts that share a word, which the second one writes backwards: it must be learnt."""
    return [(first.format(word), second.format(word[::-1])) for word in WORDS]


def write_table(path: Path, pairs: Sequence[Sequence[str]]) -> str:
    names = ("one", "other")[: len(pairs[0])]
    lines = ["\t".join(row) for row in (names, *pairs)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def values(folder: Path, **differences: Any) -> dict[str, Any]:
    """A recipe as plain values; differences are named section_key."""
    shared = [pair for both in product(FIRST, SECOND) for pair in paired(*both)]
    found: dict[str, Any] = {
        "task": "embed",
        "data": {
            "examples": write_table(folder / "pairs.tsv", shared),
            "valid_examples": write_table(folder / "valid.tsv", paired(*HELD)),
        },
        "tokenizer": {"kind": "wordpiece", "vocab_size": 400},
        "model": {**ENCODER, "d_model": 32, "d_ff": 64, "max_length": 24},
        "train": {**TRAINING, "batch_tokens": 300, "warmup": 4, "lr": 0.003},
    }
    return with_differences(found, differences)


RUNS = Runs(values)
recipe, run = RUNS.recipe, RUNS.run


def job(folder: Path, said: list[str] | None = None, **differences: Any) -> Contrasting:
    return Contrasting(RUNS.plan(folder, said=said, **differences))


LEARNS: dict[str, Any] = {
    "train_steps": 60,
    "train_lr": 0.01,
    "train_warmup": 10,
    "train_valid_every": 30,
    "train_metric": "accuracy",
    "train_checkpoint_every": 1000,
}


def test_a_run_learns_which_texts_belong_together(tmp_path: Path) -> None:
    test = write_table(tmp_path / "test.tsv", paired("a {} ?", SECOND[0]))
    fresh = job(tmp_path)
    before = retrieval_scores(fresh.verb, fresh.splits.valid)
    assert before[0].value <= 20  # one of twenty is chance
    done = run(tmp_path, data_test_examples=test, **LEARNS)
    log = [record for record in read_log(done.folder) if "valid_loss" in record]
    assert [record["step"] for record in log] == [30, 60]
    assert log[-1]["accuracy"] > 80
    assert log[-1]["valid_loss"] < 0.7 * fresh.frequencies_loss
    assert done.scores.keys() == {"valid", "test"}
    assert [score.name for score in done.scores["valid"]] == ["accuracy", "mean reciprocal rank"]
    assert done.scores["valid"][0].value == max(record["accuracy"] for record in log)
    assert done.scores["test"][0].value > 80
    model = qkv.load(done.folder, "cpu")
    assert isinstance(model, Encoder)
    likeness = model.similarity(*zip(*paired("my {} .", "the {} !"), strict=True))
    assert (likeness.argmax(1) == torch.arange(len(WORDS))).float().mean() > 0.8
    card = (done.folder / "README.md").read_text()
    assert card.startswith("# run: an encoder of sentences\n")
    assert f"qkv embed --model {done.folder}" in card


def test_the_loss_is_that_of_finding_the_other_half_of_each_pair(tmp_path: Path) -> None:
    found = job(tmp_path, embed_temperature=0.2, embed_pooling="first").evaluate()
    made = job(tmp_path, embed_temperature=0.2, embed_pooling="first")
    assert made.verb.embedding == EmbedConfig("first", True, 0.2)
    [batch] = made.batches
    first, second = (
        made.verb.embed([pair[side] for pair in made.splits.valid]).double() for side in (0, 1)
    )
    assert len(batch.labels) == len(first) == 20
    scores = first @ second.T / 0.2
    there, back = (one.log_softmax(-1).diagonal().mean() for one in (scores, scores.T))
    assert found["valid_loss"] == pytest.approx(-float(there + back) / 2, rel=1e-4)
    assert made.frequencies_loss == pytest.approx(math.log(20))


def test_equal_first_texts_are_no_opposites(tmp_path: Path) -> None:
    pairs = [("the apple", f"{word} here") for word in WORDS[:3]] + [("a kettle", "see it")]
    valid = write_table(tmp_path / "some.tsv", pairs)
    made = job(tmp_path, data_valid_examples=valid)
    [batch] = made.batches
    assert sorted(batch.labels.tolist()) == [0, 0, 0, 1]
    # Three choose between their own and the fourth, which chooses among all.
    assert made.frequencies_loss == pytest.approx((3 * math.log(2) + math.log(4)) / 4)


def test_long_texts_are_cut_to_the_models_length(tmp_path: Path) -> None:
    words = " ".join(WORDS)
    valid = write_table(tmp_path / "long.tsv", [(words, f"apple {words}"), ("a", "b")])
    made = job(tmp_path, data_valid_examples=valid, model_max_length=16)
    source, target = made.batches[0].source, made.batches[0].target
    assert source is not None and source.tokens.shape[1] == target.tokens.shape[1] == 16
    tokens = made.tokenizers.target.encode(words)
    row = int(source.lengths.argmax())
    assert source.tokens[row].tolist() == [made.special.bos, *tokens[:14], made.special.eos]


def test_a_text_alone_is_its_own_other_half(tmp_path: Path) -> None:
    lines = [first.format(word) for first in FIRST for word in WORDS]
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    settings = {"data_examples": str(path), "data_valid_examples": [], "train_steps": 40}
    done = run(tmp_path, **settings, train_valid_every=20)
    log = [record for record in read_log(done.folder) if "valid_loss" in record]
    assert all("accuracy" not in record for record in log)
    [score] = done.scores["valid"]
    made = job(tmp_path, **settings)
    assert (len(made.splits.train), len(made.splits.valid)) == (72, 8)
    assert np.array_equal(
        made.lay_out(made.splits.train).first.tokens, made.lay_out(made.splits.train).second.tokens
    )
    before = uniformity(made.verb, [one[0] for one in made.splits.valid])
    assert (score.name, score.signature) == ("uniformity", "lower is better")
    assert score.value < before.value - 0.5  # texts have moved apart
    with pytest.raises(UserError, match="validation examples are no pairs; use metric = 'loss'"):
        job(tmp_path, **settings, train_metric="accuracy")


class Known(Encoder):
    """Texts are numbers: the angles of their vectors, in degrees."""

    def __init__(self) -> None: ...

    def embed(self, texts, *more, **settings):  # type: ignore[no-untyped-def,override]
        angles = torch.tensor([float(text) for text in texts]).deg2rad()
        return torch.stack([angles.cos(), angles.sin()], dim=-1)


def test_a_twin_is_found_where_nothing_else_is_as_near(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("0", "10"), ("20", "25"), ("80", "90"), ("180", "91"), ("50", "150")]
    # "180" has "150" before its own, and "50" has all others before its own.
    monkeypatch.setattr("qkv.run.embed.ROWS", 2)
    accuracy, rank = retrieval_scores(Known(), pairs)
    assert accuracy.value == pytest.approx(60)
    assert rank.value == pytest.approx((3 + 1 / 2 + 1 / 5) / 5)
    alike = [("7", "3"), ("007", "03"), ("7.0", "3.0")]
    assert retrieval_scores(Known(), alike)[0].value == 0  # to one who takes all for the same
    shared = [("0", "1"), ("0", "2"), ("-1", "1")]
    assert retrieval_scores(Known(), shared)[0].value == 100  # all of these are right


def test_uniformity_is_its_formula() -> None:
    angles = ["0", "60", "180", "0"]
    squares = [1.0, 4.0, 3.0, 1.0, 4.0]  # of the distances of all that are not equal
    expected = math.log(np.mean([math.exp(-2 * square) for square in squares]))
    assert uniformity(Known(), angles).value == pytest.approx(expected, rel=1e-5)
    assert uniformity(Known(), ["1", "1"]).value == 0


@pytest.mark.parametrize("settings", [{}, {"train_accumulate": 2, "data_n_examples": 50}], ids=str)
def test_a_run_killed_and_resumed_ends_bit_for_bit_the_same(tmp_path: Path, settings: dict) -> None:
    whole = run(tmp_path, "whole", **settings).folder
    assert everything(RUNS.killed_and_resumed(9, tmp_path, **settings)) == everything(whole)


def test_it_goes_on_from_a_model_that_fills_gaps(tmp_path: Path) -> None:
    made = job(tmp_path)
    config = made.config.to_dict() | {"head": "masked", "pair_head": True}
    torch.manual_seed(5)
    body = type(made.model)(type(made.config).from_dict(config))
    Encoder(body, made.tokenizers.target).save(tmp_path / "fill", "fill")
    model = {"preset": "bert-tiny"}
    values_ = values(tmp_path, train_start_from=str(tmp_path / "fill")) | {"model": model}
    plan = Plan(recipe_from(values_), tmp_path, torch.device("cpu"), lambda _: None)
    begun = Contrasting(plan)
    assert (begun.config.head, begun.config.pair_head) == ("none", False)
    assert not any(name.startswith("head.") for name, _ in begun.model.named_parameters())
    assert torch.equal(
        begun.verb.embed("the apple"), Encoder(body, made.tokenizers.target).embed("the apple")
    )


def test_pairs_that_lack_a_text_are_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    table = write_table(tmp_path / "gaps.tsv", [("a", "b"), ("c", ""), ("", "d"), ("e", "f")])
    made = job(tmp_path, said, data_examples=table)
    assert made.splits.train == [("a", "b"), ("e", "f")]
    assert "examples: 2 pairs lack a text" in said
    table = write_table(tmp_path / "gaps.tsv", [("c", ""), ("", "d")])
    with pytest.raises(UserError, match="all pairs of valid_examples lack one of their texts"):
        job(tmp_path, data_valid_examples=table)


def test_labels_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "labelled.jsonl"
    rows = [{"one": "a b", "label": 1, "other": "c"}, {"one": "d", "label": 0, "other": "e"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = job(tmp_path, data_valid_examples=str(path))
    assert made.splits.valid == [("a b", "c"), ("d", "e")]


def test_what_is_read_is_told(tmp_path: Path) -> None:
    file = StringIO()
    train(recipe(tmp_path, train_steps=1), tmp_path / "run", console=Console(file=file, width=200))
    assert "· train: 320 examples; valid: 20 examples" in file.getvalue()
