"""What all jobs on an encoder share: what they start from, what they draw and what they save."""

from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.config import preset
from qkv.errors import UserError
from qkv.model import Encoder
from qkv.run.card import write_card
from qkv.tasks.reading import save_encoder
from qkv.text import MASK, Tokenizer, train_tokenizer
from qkv.weights import read_tensors
from tests.run.classify_tiny import job, one_of_three, recipe, write_rows
from tests.run.common import ENCODER, ids_of, parts


def vocabulary(folder: Path, mask: bool = True) -> Tokenizer:
    """A tokenizer that is not the one which the examples would give."""
    config = recipe(folder, tokenizer_kind="char", tokenizer_vocab_size=300).tokenizer
    tokenizer = train_tokenizer(["the quick brown fox jumps over a lazy dog 猫"], config)
    if mask:
        tokenizer.add_special([MASK])
    return tokenizer


def base(folder: Path, task: str = "fill", section: Any = None, **settings: Any) -> Path:
    """A model folder of an encoder that nobody taught, by default one that fills gaps."""
    tokenizer = vocabulary(folder)
    head = {"head": "masked", "pair_head": True} if task == "fill" else {}
    torch.manual_seed(5)
    values = {**ENCODER, "max_length": 64, **ids_of(tokenizer), **head, **settings}
    model = Encoder(preset(values.pop("preset"), **values))
    sections = {} if section is None else {task: section}
    save_encoder(folder / "base", task, model, tokenizer, **sections)
    return folder / "base"


def started(folder: Path, start: Path, **differences: Any) -> Any:
    settings = {"train_start_from": str(start), "model_max_length": 64, **differences}
    return job(folder, **settings)


def test_at_step_0_the_body_is_the_folder_s_and_the_head_is_fresh(tmp_path: Path) -> None:
    start = base(tmp_path)
    before = read_tensors(start / "model.safetensors")
    made, other = started(tmp_path, start), started(tmp_path, start, train_seed=1)
    now = parts(made.model)
    body = {name for name in before if not name.startswith(("head.", "pair_head."))}
    assert set(now) == body | {"head.projection.weight", "head.projection.bias"}
    for name in body:
        assert torch.equal(now[name], before[name]), name
    assert "pooler.dense.weight" in body
    fresh = [each.model.head.projection.weight for each in (made, other)]
    assert not torch.equal(*fresh)  # drawn by the seed
    assert fresh[0].shape == (3, 16)
    assert (made.config.head, made.config.pair_head) == ("sequence", False)
    words = "the brown 猫"
    assert made.tokenizer.encode(words) == vocabulary(tmp_path).encode(words)
    assert made.result.tokenizer is made.tokenizers.source is made.tokenizers.target


@pytest.mark.parametrize(
    ("head", "section", "kept"),
    [
        ("sequence", {"labels": ["animal", "metal", "plant"]}, True),
        ("sequence", {"labels": ["good", "bad", "neither"]}, False),
        ("sequence", {"labels": ["plant", "metal", "animal"]}, False),
        ("sequence", {"labels": ["animal", "metal", "plant"], "kind": "classes"}, False),
        ("sequence", {"labels": ["a", "b"]}, False),
        ("token", {}, False),
    ],
)
def test_a_head_is_kept_only_where_it_means_the_same(
    tmp_path: Path, head: str, section: dict, kept: bool
) -> None:
    task = "classify" if head == "sequence" else "tag"
    n_labels = len(section.get("labels", "abc"))
    start = base(tmp_path, task, section, head=head, n_labels=n_labels)
    made = started(tmp_path, start)
    before = read_tensors(start / "model.safetensors")
    now = parts(made.model)
    assert torch.equal(now["embedding.table.weight"], before["embedding.table.weight"])
    name = "head.projection.weight"
    assert now[name].shape == (3, 16)
    assert torch.equal(now[name], before[name]) == kept


@pytest.mark.parametrize("given", [None, True, False])
def test_a_vocabulary_has_a_mask_token(tmp_path: Path, given: bool | None) -> None:
    settings = {}
    if given is not None:  # it may have one already
        vocabulary(tmp_path, given).save(tmp_path / "given.json")
        settings = {"tokenizer_path": str(tmp_path / "given.json")}
    made = job(tmp_path, **settings)
    assert made.tokenizer.mask_id == made.tokenizer.special_id(MASK)
    assert made.config.vocab_size == len(made.tokenizer)
    if given is not None:
        assert len(made.tokenizer) == len(vocabulary(tmp_path, given)) + (not given)


def test_a_small_draw_is_of_each_class_and_within_a_larger_one(tmp_path: Path) -> None:
    write_rows(tmp_path / "class.train.tsv", one_of_three(300, rare=0.1))
    draws = {}
    for size in (9, 60, 0):
        made = job(tmp_path, data_n_examples=size)
        draws[size] = made.splits.train
        assert len(made.splits.valid) == 40
        # Nothing else is learned from: neither by the weights nor by the vocabulary.
        assert sorted(made.texts()) == sorted(example.texts[0] for example in draws[size])
        assert len(made.train_items) == len(draws[size])
    assert [len(draw) for draw in draws.values()] == [9, 60, 300]
    assert all(example in draws[60] for example in draws[9])
    labels = [example.label for example in draws[9]]
    assert sorted(labels) == ["animal"] * 3 + ["metal"] * 3 + ["plant"] * 3
    assert job(tmp_path, data_n_examples=9, train_seed=1).splits.train != draws[9]
    # Those of the test file that are trained on are counted, not those that could have been.
    said: list[str] = []
    test = str(tmp_path / "class.train.tsv")
    made = job(tmp_path, said=said, data_n_examples=9, data_test_examples=test)
    texts = {example.texts for example in made.splits.train}
    n_repeated = sum(example.texts in texts for example in made.splits.test)
    assert f"test: {n_repeated} of 300 examples are in the training data too" in "\n".join(said)
    assert n_repeated < 300


def test_the_card_counts_the_layers_that_there_are(tmp_path: Path) -> None:
    model = Encoder(preset("bert-tiny", n_decoder_layers=7, n_encoder_layers=1, vocab_size=20))
    write_card(tmp_path, recipe(tmp_path), model, {})
    assert " parameters: 1 layers, " in (tmp_path / "README.md").read_text()


def test_sizes_that_the_weights_decide_stay(tmp_path: Path) -> None:
    start = base(tmp_path)
    with pytest.raises(UserError, match=r"\[model\]: d_ff follows from .*; leave it out"):
        started(tmp_path, start, model_d_ff=64)
    before = read_tensors(start / "model.safetensors")["encoder.positions.table.weight"]
    made = started(tmp_path, start, model_max_length=32, model_dropout=0.3)
    assert made.config.dropout == 0.3
    assert torch.equal(made.model.encoder.positions.table.weight, before[:32])
    with pytest.raises(UserError, match=r"max_length \(128\) is over the 64 positions"):
        started(tmp_path, start, model_max_length=128)


def test_distances_mean_in_a_shorter_or_longer_model_what_they_meant(tmp_path: Path) -> None:
    relative = {"positions": "disentangled", "relative_buckets": 8, "n_segments": 0}
    start = base(tmp_path, **relative)
    before = started(tmp_path, start).model.encoder.positions.bucket
    for length in (32, 128):
        now = started(tmp_path, start, model_max_length=length).model.encoder.positions.bucket
        assert len(now) == length
        assert torch.equal(now[:64], before[:length])
