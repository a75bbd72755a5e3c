"""Contrastive training: texts that belong together in, vectors that lie side by side out."""

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.config import EmbedConfig
from qkv.errors import UserError
from qkv.evaluation import evaluate
from qkv.tasks import Encoder
from tests.run import fill_tiny
from tests.run.common import ENCODER, TRAINING, Runs, validations, write_lines

STARTS, ENDS = ("bri", "can", "gui", "jun"), ("dge", "tar", "gle", "mer", "sol")
WORDS = ["".join(parts) for parts in product(STARTS, ENDS)]
FIRST = ["tell me about the {}", "what is a {} ?", "i like my {}", "where is the {} now ?"]
SECOND = ["this {} is here", "some say a {} is old", "one more {} for you", "see the {} again"]
HELD = ("do you know the {} ?", "all of it is a {} to us")


def paired(first: str, second: str) -> list[tuple[str, str]]:
    """Texts that share a word, which the second one writes backwards: it must be learnt."""
    return [(first.format(word), second.format(word[::-1])) for word in WORDS]


def write_table(path: Path, pairs: Sequence[Sequence[str]]) -> str:
    names = ("sentence1", "sentence2")[: len(pairs[0])]
    return str(write_lines(path, map("\t".join, (names, *pairs))))


def values(folder: Path) -> dict[str, Any]:
    shared = [pair for both in product(FIRST, SECOND) for pair in paired(*both)]
    return {
        "task": "embed",
        "data": {
            "examples": write_table(folder / "pairs.tsv", shared),
            "valid_examples": write_table(folder / "valid.tsv", paired(*HELD)),
        },
        "tokenizer": {"kind": "wordpiece", "vocab_size": 400},
        "model": {**ENCODER, "d_model": 32, "d_ff": 64, "max_length": 24},
        "train": {**TRAINING, "batch_tokens": 300, "warmup": 4, "lr": 0.003},
    }


RUNS = Runs(values)
recipe, run, job = RUNS.recipe, RUNS.run, RUNS.job


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
    before = evaluate(fresh.result, fresh.splits.valid).scores
    assert before[0].value <= 20  # one of twenty is chance
    done = run(tmp_path, data_test_examples=test, **LEARNS)
    log = validations(done.folder)
    assert [record["step"] for record in log] == [30, 60]
    assert log[-1]["accuracy"] > 80
    assert log[-1]["valid_loss"] < 0.7 * fresh.baseline()
    assert done.scores.keys() == {"valid", "test"}
    assert [score.name for score in done.scores["valid"]] == ["accuracy", "mean reciprocal rank"]
    assert done.scores["valid"][0].value == max(record["accuracy"] for record in log)
    assert done.scores["test"][0].value > 80
    model = qkv.load(done.folder, "cpu")
    assert isinstance(model, Encoder)
    likeness = model.similarity(*zip(*paired("my {} .", "the {} !"), strict=True))
    assert (likeness.argmax(1) == torch.arange(len(WORDS))).float().mean() > 0.8


def test_the_loss_is_that_of_finding_the_other_half_of_each_pair(tmp_path: Path) -> None:
    found = job(tmp_path, embed_temperature=0.2, embed_pooling="first").evaluate()
    made = job(tmp_path, embed_temperature=0.2, embed_pooling="first")
    assert made.result.embedding == EmbedConfig("first", True, 0.2)
    [batch] = made.valid_batches
    first, second = (
        made.result.embed([pair[side] for pair in made.splits.valid]).double() for side in (0, 1)
    )
    assert len(batch.labels) == len(first) == 20
    scores = first @ second.T / 0.2
    there, back = (one.log_softmax(-1).diagonal().mean() for one in (scores, scores.T))
    assert found["valid_loss"] == pytest.approx(-float(there + back) / 2, rel=1e-4)
    assert made.baseline() == pytest.approx(math.log(20))


@pytest.mark.parametrize("side", [0, 1])
def test_pairs_that_share_a_text_are_no_opposites(tmp_path: Path, side: int) -> None:
    pairs = [("the apple", f"{word} here") for word in WORDS[:3]] + [("a kettle", "see it")]
    pairs = [pair if side == 0 else pair[::-1] for pair in pairs]
    valid = write_table(tmp_path / "some.tsv", pairs)
    made = job(tmp_path, data_valid_examples=valid, embed_temperature=0.2)
    [batch] = made.valid_batches
    assert batch.labels.shape == (4, 2)
    assert sorted(batch.labels[:, side].tolist()) == [0, 0, 0, 1]
    assert sorted(batch.labels[:, 1 - side].tolist()) == [0, 1, 2, 3]
    # Three choose between their own and the fourth, which chooses among all.
    assert made.baseline() == pytest.approx((3 * math.log(2) + math.log(4)) / 4)
    first, second = (made.result.embed([pair[i] for pair in pairs]).double() for i in (0, 1))
    scores = first @ second.T / 0.2
    scores[:3, :3] = scores[:3, :3].where(torch.eye(3, dtype=torch.bool), -torch.inf)
    there, back = (each.log_softmax(-1).diagonal().mean() for each in (scores, scores.T))
    expected = -float(there + back) / 2
    assert made.evaluate()["valid_loss"] == pytest.approx(expected, rel=1e-4)


def test_long_texts_are_cut_to_the_models_length(tmp_path: Path) -> None:
    words = " ".join(WORDS)
    valid = write_table(tmp_path / "long.tsv", [(words, f"apple {words}"), ("a", "b")])
    made = job(tmp_path, data_valid_examples=valid, model_max_length=16)
    source, target = made.valid_batches[0].source, made.valid_batches[0].target
    assert source is not None and source.tokens.shape[1] == target.tokens.shape[1] == 16
    tokens = made.tokenizer.encode(words)
    row = int(source.lengths.argmax())
    assert source.tokens[row].tolist() == [made.special.bos, *tokens[:14], made.special.eos]


def test_a_text_alone_is_its_own_other_half(tmp_path: Path) -> None:
    lines = [first.format(word) for first in FIRST for word in WORDS]
    path = write_lines(tmp_path / "lines.txt", lines)
    settings = {"data_examples": str(path), "data_valid_examples": [], "train_steps": 40}
    done = run(tmp_path, **settings, train_valid_every=20)
    log = validations(done.folder)
    assert all("accuracy" not in record for record in log)
    [score] = done.scores["valid"]
    made = job(tmp_path, **settings)
    assert (len(made.splits.train), len(made.splits.valid)) == (72, 8)
    assert np.array_equal(made.train_items.first.tokens, made.train_items.second.tokens)
    [before] = evaluate(made.result, made.splits.valid).scores
    assert (score.name, score.signature) == ("uniformity", "lower is better")
    assert score.value < before.value - 0.5  # texts have moved apart
    with pytest.raises(UserError, match="validation examples are no pairs; use metric = 'loss'"):
        job(tmp_path, **settings, train_metric="accuracy")


def test_it_starts_from_a_model_that_fills_gaps(tmp_path: Path) -> None:
    before = fill_tiny.run(tmp_path, "fill", train_steps=1, mask_pairs="next")
    made = RUNS.starting_from(before.folder).job(tmp_path)
    assert (made.config.head, made.config.pair_head) == ("none", False)
    assert not any(name.startswith("head.") for name, _ in made.model.named_parameters())
    assert torch.equal(made.result.embed("the cat"), before.result.embed("the cat"))


def test_pairs_that_lack_a_text_are_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    table = write_table(tmp_path / "gaps.tsv", [("a", "b"), ("c", ""), ("", "d"), ("e", "f")])
    made = job(tmp_path, said=said, data_examples=table)
    assert made.splits.train == [("a", "b"), ("e", "f")]
    assert "dropped 2 pairs that lack a text" in said
    assert "train: 2 examples; valid: 20 examples" in said
    table = write_table(tmp_path / "gaps.tsv", [("c", ""), ("", "d")])
    with pytest.raises(UserError, match="all pairs of examples lack one of their texts"):
        job(tmp_path, data_valid_examples=table)
