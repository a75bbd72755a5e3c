"""A tagger that a test can train: people and places by their names, one layer, a second or two."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qkv.config import TokenizerConfig
from qkv.data.formats.conll import Sentence
from qkv.run.train import Run
from qkv.tasks.tag import Tagger, Tags
from qkv.text import Tokenizer, train_tokenizer
from qkv.text.tagging import Scheme, entities, label_set
from qkv.text.words import join_words
from tests.run.common import ENCODER, TRAINING, Runs, data_files, untaught
from tests.text.labels import write_labels

FIRST, LAST = ["anna", "bob", "carl", "王"], ["stone", "wood", "小明"]
PLACES = ["paris", "york", "rome", "北京"]
FILLERS = ["sees", "the", "old", "house", "in", "and", "goes", "to", "very", "happy", "."]


def sentences(n: int, seed: int = 1, scheme: Scheme = "iob2") -> list[Sentence]:
    """People have one name or two, some places are new, and a name alone may be a last one."""
    draw = random.Random(seed)
    found = []
    for _ in range(n):
        words: list[str] = []
        labels: list[str] = []
        for _ in range(draw.randint(1, 6)):
            kind = draw.choice(["filler", "filler", "person", "place"])
            if kind == "filler":
                words.append(draw.choice(FILLERS))
                labels.append("O")
            elif kind == "person":
                both = draw.random() < 0.5
                words += [draw.choice(FIRST), draw.choice(LAST)] if both else [draw.choice(FIRST)]
                labels += ["B-person", "I-person"] if both else ["B-person"]
            else:
                new = draw.random() < 0.3
                words += ["new"] * new + [draw.choice(PLACES)]
                labels += ["B-place", "I-place"] if new else ["B-place"]
        found.append(
            Sentence(
                tuple(words), tuple(write_labels(entities(labels, "iob2"), len(labels), scheme))
            )
        )
    return found


def parts_of_speech(n: int, seed: int = 1) -> list[Sentence]:
    """The same words, with labels that spell no entities."""
    kinds = {**dict.fromkeys(FIRST + LAST + PLACES, "NAME"), ".": "PUNCT", "sees": "VERB"}
    return [
        Sentence(one.words, tuple(kinds.get(word, "WORD") for word in one.words))
        for one in sentences(n, seed)
    ]


def write_conll(path: Path, written: Sequence[Sentence]) -> Path:
    blocks = (
        "".join(f"{word}\t{label}\n" for word, label in zip(one.words, one.labels, strict=True))
        for one in written
    )
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path


def write_data(folder: Path, n_train: int = 120) -> dict[str, str]:

    def write(path: Path, n: int, seed: int) -> None:
        write_conll(path, sentences(n, seed))

    sizes = {"train": n_train, "valid": 60, "test": 60}
    return data_files("examples", folder, "{}.conll", write, seed=0, **sizes)


def values(folder: Path, n_train: int = 120) -> dict[str, Any]:
    return {
        "task": "tag",
        "data": write_data(folder, n_train),
        "tokenizer": {"kind": "bpe", "vocab_size": 320},
        "model": {**ENCODER, "max_length": 64, "dropout": 0.1},
        "train": {**TRAINING, "batch_tokens": 400},
    }


LEARNS: dict[str, Any] = {
    "tokenizer_vocab_size": 400,
    "model_d_model": 32,
    "model_d_ff": 64,
    "model_dropout": 0.0,
    "train_steps": 200,
    "train_lr": 0.005,
    "train_warmup": 20,
    "train_valid_every": 50,
    "train_checkpoint_every": 1000,
}

RUNS = Runs(values, learns=LEARNS)
recipe, write_recipe, run, job = RUNS.recipe, RUNS.write_recipe, RUNS.run, RUNS.job
killed_and_resumed = RUNS.killed_and_resumed


def learned(factory: pytest.TempPathFactory) -> Run:
    return RUNS.learned(factory, 1000, data_test_examples="test.conll")


def vocabulary() -> Tokenizer:
    """A tokenizer that spells most words in several pieces."""
    text = [join_words(one.words)[0] for one in sentences(50)]
    return train_tokenizer(text, TokenizerConfig(kind="bpe", vocab_size=280))


def tagger(tokenizer: Tokenizer, scheme: Scheme | None = "iob2", **sizes: Any) -> Tagger:
    """A tagger that never learnt anything, in float64, and says something else of every word."""
    written = [["O", "B-person", "B-place"] if scheme else ["NOUN", "VERB", "X"]]
    tags = Tags(tuple(label_set(written, scheme)), scheme or "none", overlap=6)
    usual = {
        "embedding_scale": False,
        "n_segments": 0,
        "head": "token",
        "n_labels": len(tags.labels),
    }
    return Tagger(untaught(tokenizer, times=3, **{**usual, **sizes}), tokenizer, tags)
