"""Pre-training an encoder: from plain text to a folder that fills gaps."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import qkv
from qkv.config import EmbedConfig, load_recipe
from qkv.data import Batch
from qkv.data.passages import passage_batches
from qkv.model import Encoder as Model
from qkv.run import fill, train
from qkv.run.fill import Filling
from qkv.tasks import Encoder
from qkv.text import train_tokenizer
from tests.run.common import read_log
from tests.run.fill_tiny import (
    LEARNS,
    documents,
    job,
    learned,
    recipe,
    run,
)
from tests.run.language_tiny import write_lines


def measured(folder: Path) -> list[Any]:
    return [record for record in read_log(folder) if "valid_loss" in record]


def test_a_run_learns_its_language(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = learned(tmp_path_factory)
    text = str(done.folder.parent / "test.txt")
    told = recipe(done.folder.parent, data_test_text=text, mask_pairs="none", **LEARNS)
    assert load_recipe(done.folder / "recipe.toml") == told
    assert [record["step"] for record in read_log(done.folder)] == list(range(1, 301))
    log = measured(done.folder)
    assert [record["step"] for record in log] == [100, 200, 300]
    assert all(record.keys() >= {"accuracy", "valid_loss"} for record in log)
    assert "pair_accuracy" not in log[0]
    words = Counter(" ".join(documents(400)).split())
    commonest = 100 * max(words.values()) / words.total()
    assert commonest < 25 < 90 < log[-1]["accuracy"]
    assert log[-1]["valid_loss"] < 0.1 * job(done.folder.parent).frequencies_loss
    for split in ("valid", "test"):
        loss, perplexity, accuracy = done.scores[split]
        assert (loss.name, perplexity.name, accuracy.name) == ("loss", "perplexity", "accuracy")
        assert perplexity.value == pytest.approx(math.exp(loss.value))
        assert accuracy.value > 90
    assert done.scores["valid"][0].value == min(record["valid_loss"] for record in log)


def test_its_folder_fills_gaps(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = learned(tmp_path_factory)
    model = qkv.load(done.folder, device="cpu")
    assert isinstance(model, Encoder)
    filled = model.fill("the dog sees three . the <mask> sees four . the dog sees <mask> .")
    assert filled.text == "the dog sees three . the dog sees four . the dog sees five ."
    assert filled.masks[0][0].probability > 0.8
    assert filled == done.result.fill(
        "the dog sees three . the <mask> sees four . the dog sees <mask> ."
    )
    card = (done.folder / "README.md").read_text()
    assert card.startswith("# run: an encoder\n")
    assert f'qkv fill --model {done.folder} "… <mask> …"' in card
    assert all(str(score) in card for scores in done.scores.values() for score in scores)


@pytest.mark.parametrize("pairs", ["next", "order"])
def test_pairs_are_learnt_too(tmp_path_factory: pytest.TempPathFactory, pairs: str) -> None:
    done = learned(tmp_path_factory, pairs)
    log = measured(done.folder)
    made = job(done.folder.parent, mask_pairs=pairs)
    answers = torch.cat([batch.pairs for batch in made.batches])
    true = 100 * float((answers == 1).double().mean())
    assert 40 < true < 60 and len(answers) == 80
    assert log[-1]["pair_accuracy"] > max(true, 100 - true) + 12
    assert log[-1]["accuracy"] > 75
    names = ["loss", "perplexity", "accuracy", "pair accuracy"]
    for split in ("valid", "test"):
        assert [score.name for score in done.scores[split]] == names
    best = min(log, key=lambda record: record["valid_loss"])
    assert done.scores["valid"][3].value == best["pair_accuracy"]
    assert done.result.model.pair_head is not None
    assert done.result.fill("the cat sees two . the cat <mask> three .").text.count("sees") == 2


def test_what_is_hidden_at_a_time(tmp_path: Path) -> None:
    """A token is a letter here; a word is hidden wholly or not at all, and spans lie together."""
    settings = {"tokenizer_kind": "char", "model_max_length": 128}
    parts_of_words, runs = {}, {}
    for units in ("token", "word", "span"):
        made = job(tmp_path, **settings, mask_units=units)
        found = sequences(made)
        parts_of_words[units] = sum(n_partly_hidden(made, *each) for each in found)
        hidden = np.concatenate([[False, *flags] for _, flags in found])
        runs[units] = int((hidden[1:] & ~hidden[:-1]).sum())
    assert parts_of_words["token"] > 300
    assert parts_of_words["word"] == parts_of_words["span"] == 0
    assert runs["token"] > 1.5 * runs["word"] > 2 * runs["span"], runs


@pytest.mark.parametrize(("preset", "separators"), [("bert-tiny", 1), ("roberta-mini", 2)])
def test_pairs_are_framed_as_the_model_has_them(
    tmp_path: Path, preset: str, separators: int
) -> None:
    made = job(tmp_path, model_preset=preset, mask_pairs="order")
    [batch] = next(made.stream.steps_from(0))
    ends = (batch.target.tokens == made.config.eos_id).sum(dim=1)
    assert set(ends.tolist()) == {separators + 1}
    assert batch.target.tokens.shape[1] <= made.length == 32


def n_partly_hidden(made: Filling, tokens: list[int], hidden: list[bool]) -> int:
    """The words of which some letters are hidden and some are not."""
    letters = made.tokenizers.target.tokens(tokens)
    marked = "".join(
        "-" if flag and letter != "▁" else letter
        for letter, flag in zip(letters, hidden, strict=True)
    )
    return sum("-" in word and not set(word) <= {"-"} for word in marked.split("▁"))


def sequences(made: Filling) -> list[tuple[list[int], list[bool]]]:
    """The text of all validation sequences as it was, and which of its tokens are to be guessed."""
    found = []
    for batch in made.batches:
        tokens = batch.target.tokens.clone()
        tokens.view(-1)[batch.places] = batch.labels
        hidden = torch.zeros_like(tokens, dtype=torch.bool)
        hidden.view(-1)[batch.places] = True
        assert batch.target.lengths is not None
        for row, length in enumerate(batch.target.lengths.tolist()):
            inside = slice(1, length - 1)
            found.append((tokens[row, inside].tolist(), hidden[row, inside].tolist()))
    return found


@pytest.mark.parametrize("pairs", ["none", "next"])
def test_packed_and_padded_runs_are_measured_alike_and_both_learn(
    tmp_path: Path, pairs: str
) -> None:
    settings = {"mask_pairs": pairs, "model_dropout": 0.0, "train_batch_tokens": 600}
    packed, padded = (job(tmp_path, train_packing=how, **settings) for how in ("on", "off"))
    assert packed.evaluate() == padded.evaluate()
    assert packed.one_shape and not padded.one_shape
    [batch], [other] = next(packed.stream.steps_from(0)), next(padded.stream.steps_from(0))
    assert batch.target.offsets is not None and batch.target.tokens.shape == (1, 640)
    assert other.target.offsets is None and len(other.target.tokens) > 1
    for how in ("on", "off"):
        log = read_log(run(tmp_path, how, train_packing=how, **settings, train_steps=30).folder)
        assert log[-1]["valid_loss"] < 0.8 * packed.evaluate()["valid_loss"]


@pytest.mark.parametrize(
    "settings", [{"model_attention_dropout": 0.1}, {"model_positions": "disentangled"}], ids=str
)
def test_what_packed_kernels_cannot_do_is_padded(tmp_path: Path, settings: dict) -> None:
    made = job(tmp_path, train_packing="on", **settings)
    [batch] = next(made.stream.steps_from(0))
    assert batch.target.offsets is None and not made.one_shape


@pytest.mark.parametrize(
    "differences",
    [
        {"model_preset": "albert-mini", "mask_pairs": "order", "train_packing": "on"},
        {"model_preset": "roberta-mini", "mask_pairs": "next", "mask_units": "word"},
        {"model_preset": "deberta-mini", "model_relative_buckets": 8, "mask_units": "span"},
        {"tokenizer_kind": "bpe", "tokenizer_vocab_size": 320, "model_positions": "rotary"},
        {"tokenizer_kind": "unigram", "data_bos": False},
        {"train_precision": "bfloat16"},
        {"tokenizer_kind": "byte", "data_documents": "file", "data_valid_text": []},
        {"data_max_length": 12, "mask_pairs": "order"},
        {"data_max_length": 3},
        {"train_batch_tokens": 10, "train_packing": "on"},
        {"train_metric": "accuracy"},
        {"model_tie": "none", "train_label_smoothing": 0.1, "train_average": 2},
    ],
    ids=str,
)
def test_every_kind_of_run_ends_in_a_model(tmp_path: Path, differences: dict) -> None:
    done = run(tmp_path, train_steps=4, train_valid_every=2, **differences)
    assert all(math.isfinite(record["loss"]) for record in read_log(done.folder))
    model = qkv.load(done.folder, device="cpu")
    assert isinstance(model.fill("the <mask> sees").text, str)
    assert model.embed("the dog sees").shape == (model.model.config.d_model,)


def test_text_to_validate_with_is_given_or_cut_off(tmp_path: Path) -> None:
    said: list[str] = []
    test = str(tmp_path / "test.txt")
    made = job(tmp_path, said, data_test_text=test, data_documents="line")
    assert {name: len(split) for name, split in made.splits.items()} == {"valid": 80, "test": 40}
    lines = [f"<s> {line} </s>" for line in documents(80, seed=2)]
    text = [" ".join(made.tokenizers.target.tokens(tokens)) for tokens, _ in sequences(made)]
    assert sorted(text) == sorted(" ".join(f"▁{w}" for w in one.split()[1:-1]) for one in lines)
    n_tokens = sum(len(line.split()) + 2 for line in documents(400))
    assert said[0].startswith(
        f"train: {n_tokens:,} tokens of 400 documents in 400 passages; valid: "
    )
    cut = job(tmp_path, data_valid_text=[], data_valid_share=0.1)
    assert (len(cut.stream.items), len(cut.splits["valid"])) == (360, 40)
    assert cut.splits.keys() == {"valid"}


@torch.no_grad()
def by_hand(model: Model, batches: list[Batch]) -> dict[str, float]:
    """The same figures, a sequence at a time, of logits of all of its tokens."""
    nats = pair_nats = 0.0
    right, right_pairs = [], []
    for batch in batches:
        side, (n_rows, width) = batch.target, batch.target.tokens.shape
        for row in range(n_rows):
            length = int(side.lengths[row])  # type: ignore[index]
            segments = None if side.segments is None else side.segments[row : row + 1, :length]
            said = model(side.tokens[row : row + 1, :length], segments=segments)[0].log_softmax(-1)
            for place, label in zip(batch.places.tolist(), batch.labels.tolist(), strict=True):
                if place // width == row:
                    nats -= float(said[place % width, label])
                    right.append(int(said[place % width].argmax()) == label)
            if batch.pairs is not None:
                x = model.hidden(side.tokens[row : row + 1, :length], segments=segments)
                vector = torch.tanh(model.pooler.dense(x[0, 0]))
                logits = model.pair_head.projection(vector).log_softmax(-1)  # type: ignore[union-attr]
                pair_nats -= float(logits[batch.pairs[row]])
                right_pairs.append(int(logits.argmax()) == int(batch.pairs[row]))
    assert sum(batch.n_labels for batch in batches) == len(right)
    return {
        "nats": nats,
        "pair nats": pair_nats,
        "loss": nats / len(right),
        "perplexity": math.exp(nats / len(right)),
        "accuracy": 100 * np.mean(right),
        **({"pair accuracy": 100 * np.mean(right_pairs)} if right_pairs else {}),
    }


@pytest.mark.parametrize("pairs", ["none", "order"])
def test_scores_are_those_of_each_hidden_token(
    tmp_path_factory: pytest.TempPathFactory, pairs: str
) -> None:
    done = learned(tmp_path_factory, pairs)
    made = job(done.folder.parent, mask_pairs=pairs, **LEARNS)
    model = qkv.load(done.folder, device="cpu").model.double()
    expected = by_hand(model, made.batches)
    for score in done.scores["valid"]:
        assert score.value == pytest.approx(expected[score.name], rel=1e-5), score.name
    assert expected["accuracy"] < 100
    # What is minimised is the same, and a pair counts for all that is hidden in a full text.
    with torch.no_grad():
        total = sum(float(made.objective(model, batch, 0.0)) for batch in made.batches)
    weight = 0.15 * 32 if pairs == "order" else 0
    assert total == pytest.approx(expected["nats"] + weight * expected["pair nats"], rel=1e-9)


def test_a_long_text_is_measured_in_parts_and_in_full_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill, "VALID_BATCH_TOKENS", 200)
    monkeypatch.setattr(fill, "MEASURED", 300)
    made = job(tmp_path, mask_pairs="next", data_test_text=str(tmp_path / "test.txt"))
    assert len(made.batches) > 1
    assert all(batch.target.tokens.numel() <= 200 for batch in made.batches)
    words = [len(tokens) for tokens, _ in sequences(made)]
    assert 200 < sum(words) < 300
    made.keep()
    with torch.no_grad():
        made.model.head.norm.weight.zero_()  # what is kept is measured, not what came after it
    finished = made.finish()
    for name, n_texts in (("valid", 80), ("test", 40)):
        batches = passage_batches(made.splits[name], made.masker, 200)
        assert sum(len(batch.target.tokens) for batch in batches) == n_texts
        expected = by_hand(finished.result.model.double(), batches)
        for score in finished.scores[name]:
            assert score.value == pytest.approx(expected[score.name], rel=1e-5), score.name


def test_a_validation_leaves_the_model_in_training_and_its_weights_alone(tmp_path: Path) -> None:
    made = job(tmp_path, mask_pairs="next", model_dropout=0.5)
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    made.model.train()
    scores = made.evaluate()
    assert made.model.training
    assert scores == made.evaluate() == job(tmp_path, mask_pairs="next").evaluate()
    assert scores.keys() == {"valid_loss", "accuracy", "pair_accuracy"}
    after = made.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_what_is_kept_is_an_encoder_with_its_settings(tmp_path: Path) -> None:
    made = job(tmp_path, embed_pooling="first", embed_normalize=False)
    made.keep()
    kept = qkv.load(tmp_path, device="cpu")
    assert isinstance(kept, Encoder)
    assert kept.embedding == EmbedConfig(pooling="first", normalize=False)
    assert json.loads((tmp_path / "config.json").read_text())["task"] == "fill"
    assert kept.fill("the <mask> sees") == made.verb.fill("the <mask> sees")
    assert torch.equal(kept.embed("the cat"), made.verb.embed("the cat"))


def test_how_frequent_tokens_are_is_what_must_be_beaten(tmp_path: Path) -> None:
    made = job(tmp_path)
    counts = Counter(" ".join(documents(400)).split())  # a word is a token
    shares = [count / counts.total() for count in counts.values()]
    assert made.frequencies_loss == pytest.approx(-sum(p * math.log(p) for p in shares))
    assert made.evaluate()["valid_loss"] > made.frequencies_loss


def test_text_without_known_characters_is_passed_over(tmp_path: Path) -> None:
    """A batch may have nothing to guess."""
    tokenizer = train_tokenizer(documents(50), recipe(tmp_path).tokenizer)
    tokenizer.save(tmp_path / "known.json")
    write_lines(tmp_path / "text.txt", [f"{line}\n☃ ☃ ☃" for line in documents(60)])
    settings = {"tokenizer_path": str(tmp_path / "known.json"), "train_batch_tokens": 20}
    log = read_log(run(tmp_path, **settings).folder)
    assert 0 < sum(record["loss"] == 0 for record in log) < 12
    assert log[-1]["valid_loss"] < log[3]["valid_loss"]


def test_what_is_read_is_told(tmp_path: Path) -> None:
    file = StringIO()
    train(recipe(tmp_path), tmp_path / "run", console=Console(file=file, width=40))
    said = file.getvalue().splitlines()
    told = r"· train: [\d,]+ tokens of 400 documents in 400 passages; valid: [\d,]+ tokens"
    assert re.fullmatch(told, said[0])
    assert any(line.startswith("· bert-tiny: ") for line in said)
    assert any(line.startswith("step 12/12  loss ") for line in said)
