"""Pre-training an encoder again: resumed, begun from another one, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.config import recipe_from
from qkv.errors import UserError
from qkv.model import Encoder as Model
from qkv.run.train import train
from qkv.run.fill import Filling
from qkv.run.job import Plan
from qkv.text import train_tokenizer
from qkv.weights import read_tensors
from tests.run import classify_tiny, language_tiny
from tests.run.common import everything, read_log, silence
from tests.run.fill_tiny import (
    RUNS,
    documents,
    job,
    learned,
    recipe,
    run,
    values,
)
from tests.run.language_tiny import write_lines


def beginning_from(folder: Path, start: Path, **differences: Any) -> Filling:
    """A job on a model that is there already, whose sizes a recipe leaves out."""
    told = values(folder, train_start_from=str(start), **differences)
    made = recipe_from(told | {"model": {"preset": "bert-tiny"}})
    return Filling(Plan(made, folder, torch.device("cpu"), lambda _: None))


def parts(model: Model) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


TWICE: dict[str, Any] = {"train_accumulate": 2, "train_batch_tokens": 600}


@pytest.mark.parametrize(
    ("step", "settings"),
    [
        (2, {"mask_units": "span"}),
        (9, {"mask_pairs": "next", "train_accumulate": 2}),
        (7, {"mask_pairs": "order", "train_packing": "on", **TWICE}),
        (11, {"train_average": 3, "data_valid_text": [], "train_metric": "accuracy"}),
    ],
)
def test_a_run_killed_and_resumed_ends_bit_for_bit_the_same(
    tmp_path: Path, step: int, settings: dict
) -> None:
    whole = run(tmp_path, "whole", **settings).folder
    assert everything(RUNS.killed_and_resumed(step, tmp_path, **settings)) == everything(whole)


def test_some_of_the_runs_above_cross_the_border_of_an_epoch(tmp_path: Path) -> None:
    made = job(tmp_path, mask_pairs="order", train_packing="on", **TWICE)
    assert made.stream.position(6)[0] >= 1


@pytest.mark.parametrize("name", ["text", "valid"])
def test_changed_text_is_not_gone_on_with(tmp_path: Path, name: str) -> None:
    run(tmp_path, train_steps=4)
    lines = (tmp_path / f"{name}.txt").read_text().splitlines()
    write_lines(tmp_path / f"{name}.txt", [*lines[:-1], lines[-1].replace("sees", "the")])
    with pytest.raises(UserError, match="The text has changed since the run"):
        RUNS.resumed(tmp_path, "run", train_steps=6)


def test_a_model_that_fills_gaps_goes_on_where_it_was(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = learned(tmp_path_factory, "order")

    def never(*arguments: Any) -> None:
        raise AssertionError("a tokenizer is trained")

    monkeypatch.setattr("qkv.run.understand.train_tokenizer", never)
    made = beginning_from(tmp_path, before.folder, mask_pairs="order")
    weights = read_tensors(before.folder / "model.safetensors")
    now = parts(made.model)
    assert now.keys() == weights.keys()
    assert {"head.dense.weight", "pair_head.projection.weight"} <= now.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in now.items())
    assert made.tokenizers.target.encode("the cat") == before.result.tokenizer.encode("the cat")
    scores = [score.value for score in before.scores["valid"]]
    assert list(made.evaluate().values()) == pytest.approx([scores[0], *scores[2:]])
    alone = beginning_from(tmp_path, before.folder)
    assert alone.model.pair_head is None and not alone.config.pair_head
    assert parts(alone.model).keys() == {one for one in now if not one.startswith("pair_head")}


def test_an_encoder_of_another_task_gets_a_fresh_head(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = classify_tiny.learned(tmp_path_factory)
    text = str(write_lines(tmp_path / "beasts.txt", ["the cat was on that rose and so"] * 30))
    texts = {"data_text": text, "data_valid_text": []}
    made = beginning_from(tmp_path, before.folder, **texts)
    other = beginning_from(tmp_path, before.folder, **texts, train_seed=1)
    weights = read_tensors(before.folder / "model.safetensors")
    now, drawn = parts(made.model), parts(other.model)
    heads = {name for name in now if name.startswith("head.")}
    assert heads == {
        "head.dense.weight",
        "head.dense.bias",
        "head.norm.weight",
        "head.norm.bias",
        "head.projection.bias",
    }
    for name in now.keys() - heads:
        assert torch.equal(now[name], weights[name]), name
    assert not torch.equal(now["head.dense.weight"], drawn["head.dense.weight"])
    assert now["head.projection.bias"].shape == (len(before.result.tokenizer),)
    assert (made.config.head, made.config.n_labels) == ("masked", 0)
    made.keep()
    assert qkv.load(tmp_path, device="cpu").fill("the <mask>") == made.verb.fill("the <mask>")


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ({"data_text": []}, "no text is given; set text"),
        ({"data_valid_text": [], "data_valid_share": 0.0}, "nothing to validate with"),
        ({"model_preset": "llama-tiny"}, "needs a model of family 'encoder'"),
        ({"model_preset": "vit-tiny"}, "an image has no words to hide"),
        ({"model_head": "masked"}, r"\[model\]: head follows from the task and its data"),
        ({"model_vocab_size": 9}, r"\[model\]: vocab_size follows from the tokenizer"),
        ({"data_max_length": 33}, r"data.max_length \(33\) is over model.max_length \(32\)"),
        ({"data_max_length": 2}, r"data.max_length \(2\) leaves no room .* raise it to 3"),
        ({"data_max_length": 4, "mask_pairs": "order"}, "leaves no room .* raise it to 5"),
        ({"train_metric": "f1"}, "is not measured by task = 'fill'"),
    ],
)
def test_contradictions_are_explained(tmp_path: Path, differences: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        run(tmp_path, **differences)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()  # nor has a long text been read for nothing


@pytest.mark.parametrize("use", ["text", "valid_text", "test_text"])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("the cat sees one . the cat sees two .", "pairs = 'next' .* but the {} text has 1; see"),
        ("☃ ☃", "data: the {} text has no tokens that could be hidden and guessed"),
    ],
)
def test_text_that_cannot_be_learnt_from_is_seen_before_anything_is(
    tmp_path: Path, use: str, line: str, words: str
) -> None:
    tokenizer = train_tokenizer(documents(50), recipe(tmp_path).tokenizer)
    tokenizer.save(tmp_path / "known.json")
    path = write_lines(tmp_path / "one.txt", [line])
    settings = {f"data_{use}": str(path), "tokenizer_path": str(tmp_path / "known.json")}
    name = {"text": "training", "valid_text": "validation", "test_text": "test"}[use]
    with pytest.raises(UserError, match=words.format(name)):
        job(tmp_path, mask_pairs="next", **settings)


def test_other_families_cannot_be_gone_on_with(tmp_path: Path) -> None:
    decoder = language_tiny.run(tmp_path, "decoder", train_steps=1).folder
    with pytest.raises(UserError, match=r"family 'decoder', but task = 'fill' needs 'encoder'"):
        beginning_from(tmp_path, decoder)


def test_a_vocabulary_without_a_token_that_hides_is_refused(tmp_path: Path) -> None:
    folder = run(tmp_path, train_steps=1).folder
    train_tokenizer(documents(50), recipe(tmp_path).tokenizer).save(folder / "tokenizer.json")
    with pytest.raises(UserError, match="The tokenizer has no mask token"):
        beginning_from(tmp_path, folder)


def test_a_run_depends_on_its_seed_alone(tmp_path: Path) -> None:
    one, same, other = (
        train(recipe(tmp_path, train_seed=seed), tmp_path / name, console=silence()).folder
        for name, seed in (("one", 0), ("same", 0), ("other", 1))
    )
    losses = [[record["loss"] for record in read_log(each)] for each in (one, same, other)]
    assert losses[0] == losses[1] != losses[2]
    batches = [next(job(tmp_path, train_seed=seed).stream.steps_from(0))[0] for seed in (0, 1)]
    lengths = [batch.target.lengths.tolist() for batch in batches]  # type: ignore[union-attr]
    assert lengths[0] != lengths[1] or not torch.equal(*(one.target.tokens for one in batches))
