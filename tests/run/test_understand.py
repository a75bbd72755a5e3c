"""What all jobs on an encoder share: where they begin, what they keep, and that they resume."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from qkv.config import preset, recipe_from
from qkv.errors import UserError
from qkv.model import Encoder
from qkv.run.train import Run, train
from qkv.run.card import write_card
from qkv.run.classify import Classifying
from qkv.run.job import model_config
from qkv.run.start import find_start
from qkv.run.understand import MASK, Understanding, fresh_encoder
from qkv.tasks.reading import save_encoder
from qkv.tasks.vision import ImageClasses, ImageClassifier
from qkv.text import Tokenizer, train_tokenizer
from qkv.weights import read_tensors
from tests.run import tiny
from tests.run.classify_tiny import (
    killed_and_resumed,
    learned,
    one_of_three,
    plan,
    recipe,
    run,
    values,
    write_data,
    write_rows,
)
from tests.run.common import everything, read_log, silence


def vocabulary(folder: Path, mask: bool = True) -> Tokenizer:
    """A tokenizer that is not the one which the examples would give."""
    config = recipe(folder, tokenizer_kind="char", tokenizer_vocab_size=300).tokenizer
    tokenizer = train_tokenizer(["the quick brown fox jumps over a lazy dog 猫"], config)
    if mask:
        tokenizer.add_special([MASK])
    return tokenizer


def base(folder: Path, name: str = "base", **head: Any) -> Path:
    """A model folder of an encoder that nobody taught, by default one that fills gaps."""
    tokenizer = vocabulary(folder)
    wanted = {"head": "masked", "pair_head": True, **head}
    made = recipe(folder, model_max_length=64)
    torch.manual_seed(5)
    model = Encoder(model_config(made, tokenizer, **wanted))
    save_encoder(folder / name, "fill", model, tokenizer)
    return folder / name


def begun(folder: Path, start: Path, task: str = "class", **differences: Any) -> Classifying:
    settings = {"train_start_from": str(start), "model_max_length": 64, **differences}
    return Classifying(plan(folder, task, **settings))


def parts(model: Encoder) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_at_step_0_the_body_is_the_folder_s_and_the_head_is_fresh(tmp_path: Path) -> None:
    start = base(tmp_path)
    before = read_tensors(start / "model.safetensors")
    job, other = begun(tmp_path, start), begun(tmp_path, start, train_seed=1)
    now = parts(job.model)
    body = {name for name in before if not name.startswith(("head.", "pair_head."))}
    assert set(now) == body | {"head.projection.weight", "head.projection.bias"}
    for name in body:
        assert torch.equal(now[name], before[name]), name
    assert "pooler.dense.weight" in body
    fresh = [one.model.head.projection.weight for one in (job, other)]
    assert not torch.equal(*fresh)  # drawn by the seed
    assert fresh[0].shape == (3, 16)
    assert job.config.head == "sequence"
    assert not job.config.pair_head


def test_the_folder_s_vocabulary_is_kept_and_none_is_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = base(tmp_path)
    words = "the brown 猫"

    def never(*arguments: Any) -> None:
        raise AssertionError("a tokenizer is trained")

    monkeypatch.setattr("qkv.run.understand.train_tokenizer", never)
    job = begun(tmp_path, start)
    assert job.tokenizers.target.encode(words) == vocabulary(tmp_path).encode(words)
    assert job.verb.tokenizer is job.tokenizers.source is job.tokenizers.target


def test_a_folder_without_its_tokenizer_is_explained(tmp_path: Path) -> None:
    start = base(tmp_path)
    (start / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"There is no tokenizer .*base/tokenizer.json"):
        begun(tmp_path, start)


def test_a_folder_is_left_as_it_was(tmp_path: Path) -> None:
    start = base(tmp_path)
    before = {path: path.read_bytes() for path in start.rglob("*")}
    run(tmp_path, train_start_from=str(start), model_max_length=64)
    assert {path: path.read_bytes() for path in start.rglob("*")} == before


def test_a_classifier_of_the_same_labels_goes_on_where_it_was(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = learned(tmp_path_factory)
    job = begun(tmp_path, before.folder, model_max_length=32)
    weights = read_tensors(before.folder / "model.safetensors")
    for name, parameter in parts(job.model).items():
        assert torch.equal(parameter, weights[name]), name
    texts = [text for text, _ in one_of_three(20, seed=7)]
    assert job.verb.classify(texts) == before.result.classify(texts)


def with_head(folder: Path, head: str, section: dict[str, Any], n_labels: int = 3) -> Path:
    """A folder with a head of as many labels as the examples have."""
    tokenizer = vocabulary(folder)
    made = model_config(
        recipe(folder, model_max_length=64), tokenizer, head=head, n_labels=n_labels
    )
    task = "classify" if head == "sequence" else "tag"
    torch.manual_seed(5)
    save_encoder(folder / "other", task, Encoder(made), tokenizer, **{task: section})
    return folder / "other"


@pytest.mark.parametrize(
    ("head", "section", "kept"),
    [
        ("sequence", {"labels": ["animal", "metal", "plant"]}, True),
        ("sequence", {"labels": ["good", "bad", "neither"]}, False),
        ("sequence", {"labels": ["plant", "metal", "animal"]}, False),
        ("sequence", {"labels": ["animal", "metal", "plant"], "kind": "classes"}, False),
        ("token", {}, False),
    ],
)
def test_a_head_is_kept_only_where_it_says_the_same(
    tmp_path: Path, head: str, section: dict, kept: bool
) -> None:
    start = with_head(tmp_path, head, section)
    job = begun(tmp_path, start)
    before = read_tensors(start / "model.safetensors")
    now = parts(job.model)
    for name in ("head.projection.weight", "embedding.table.weight"):
        assert torch.equal(now[name], before[name]) == (kept or name.startswith("embedding"))


def test_a_head_on_tokens_is_none_on_texts_whatever_a_job_says(tmp_path: Path) -> None:
    start = with_head(tmp_path, "token", {})
    told = plan(tmp_path, train_start_from=str(start), model_max_length=64)
    job = begun(tmp_path, start)
    model = fresh_encoder(told, job.config, find_start(told.recipe, "encoder"), keep_head=True)
    before = read_tensors(start / "model.safetensors")
    assert not torch.equal(parts(model)["head.projection.weight"], before["head.projection.weight"])


def test_another_number_of_labels_begins_fresh(tmp_path: Path) -> None:
    start = with_head(tmp_path, "sequence", {"labels": ["a", "b"]}, n_labels=2)
    assert begun(tmp_path, start).model.head.projection.weight.shape == (3, 16)


def test_other_families_and_sizes_are_refused(tmp_path: Path) -> None:
    translator = tiny.run(tmp_path, "translator", train_steps=1, train_valid_bleu=False).folder
    words = "family 'encoder-decoder', but task = 'classify' needs 'encoder'"
    with pytest.raises(UserError, match=words):
        begun(tmp_path, translator)
    start = base(tmp_path)
    with pytest.raises(UserError, match=r"\[model\]: d_ff follows from .*; leave it out"):
        begun(tmp_path, start, model_d_ff=64)
    assert begun(tmp_path, start, model_dropout=0.3).config.dropout == 0.3


@pytest.mark.parametrize("begins", [False, True])
def test_what_the_examples_decide_cannot_be_set(tmp_path: Path, begins: bool) -> None:
    more = {"train_start_from": str(base(tmp_path))} if begins else {}
    for settings in ({"model_n_labels": 7}, {"model_head": "masked"}, {"model_pair_head": True}):
        with pytest.raises(UserError, match=r"\[model\]: \w+ follows from the task and its data"):
            run(tmp_path, **settings, **more)


def test_nobody_is_led_to_believe_that_long_texts_are_dropped(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.max_length \(16\) is not for task = 'classify'"):
        run(tmp_path, data_max_length=16)
    assert Classifying(plan(tmp_path, data_max_length=32)).config.max_length == 32


def test_a_fresh_vocabulary_has_a_token_that_hides_others(tmp_path: Path) -> None:
    tokenizer = Classifying(plan(tmp_path)).tokenizers.target
    assert tokenizer.mask_id == tokenizer.special_id(MASK)
    assert tokenizer.encode("the rose") != tokenizer.encode("the oak")


@pytest.mark.parametrize("mask", [True, False])
def test_a_given_vocabulary_gets_such_a_token_if_it_has_none(tmp_path: Path, mask: bool) -> None:
    given = vocabulary(tmp_path, mask)
    given.save(tmp_path / "given.json")
    job = Classifying(plan(tmp_path, tokenizer_path=str(tmp_path / "given.json")))
    assert len(job.tokenizers.target) == len(given) + (not mask)
    assert job.config.vocab_size == len(job.tokenizers.target)
    assert job.tokenizers.target.mask_id == job.tokenizers.target.special_id(MASK)


@pytest.mark.parametrize(
    ("task", "step", "settings"),
    [
        ("class", 9, {"classify_weights": "balanced", "train_accumulate": 2, "train_average": 3}),
        ("classes", 2, {"model_dropout": 0.3, "data_n_examples": 100}),
        ("number", 9, {"train_precision": "bfloat16", "train_steps": 14}),
        ("pairs", 7, {"data_valid_examples": (), "train_steps": 20}),
    ],
)
def test_a_run_killed_and_resumed_ends_bit_for_bit_the_same(
    tmp_path: Path, task: str, step: int, settings: dict
) -> None:
    whole = run(tmp_path, "whole", task, **settings).folder
    cut = killed_and_resumed(step, tmp_path, "cut", task, **settings)
    assert everything(cut) == everything(whole)


def test_a_run_from_a_folder_resumes_exactly_too(tmp_path: Path) -> None:
    settings = {"train_start_from": str(base(tmp_path)), "model_max_length": 64}
    whole = run(tmp_path, "whole", **settings).folder
    assert everything(killed_and_resumed(7, tmp_path, **settings)) == everything(whole)


@pytest.mark.parametrize("name", ["train", "valid"])
def test_changed_labels_are_not_gone_on_with(tmp_path: Path, name: str) -> None:
    run(tmp_path)
    path = tmp_path / f"class.{name}.tsv"
    lines = path.read_text().splitlines()
    lines[3] = lines[3].replace("\tanimal", "\tmetal").replace("\tplant", "\tmetal")
    assert lines != path.read_text().splitlines()
    path.write_text("\n".join(lines))
    again = recipe(tmp_path, train_steps=14)
    with pytest.raises(UserError, match="The text has changed since the run"):
        train(again, tmp_path / "run", resume=True, console=silence())


def test_a_small_draw_is_of_each_class_and_within_a_larger_one(tmp_path: Path) -> None:
    write_rows(tmp_path / "class.train.tsv", one_of_three(300, rare=0.1))
    draws = {}
    for size in (9, 60, 0):
        job = Classifying(plan(tmp_path, data_n_examples=size))
        draws[size] = job.splits.train
        assert len(job.splits.valid) == 40
    assert [len(draw) for draw in draws.values()] == [9, 60, 300]
    assert all(one in draws[60] for one in draws[9])
    labels = [one.label for one in draws[9]]
    assert sorted(labels) == ["animal"] * 3 + ["metal"] * 3 + ["plant"] * 3
    other = Classifying(plan(tmp_path, data_n_examples=9, train_seed=1))
    assert other.splits.train != draws[9]


def test_only_what_is_trained_on_is_learnt_from(tmp_path: Path) -> None:
    """Nor does a vocabulary hold words of examples that were not drawn, or of validation."""
    write_data(tmp_path, "class")
    seen = [text for text, _ in one_of_three(12, seed=1)]
    job = Classifying(plan(tmp_path, data_n_examples=12))
    assert sorted(job.texts()) == sorted(one.texts[0] for one in job.splits.train)
    assert len(job.stream.items) == len(seen) == 12


def test_counts_and_parameters_are_told(tmp_path: Path) -> None:
    file = StringIO()
    made = recipe(tmp_path, data_test_examples=str(tmp_path / "class.test.tsv"))
    train(made, tmp_path / "run", console=Console(file=file))
    said = file.getvalue()
    assert "train: 240 examples; valid: 40 examples; test: 60 examples" in said
    assert "accuracy" in said
    assert " parameters, vocabulary " in said


def test_a_validation_leaves_the_model_in_training_and_its_weights_alone(tmp_path: Path) -> None:
    job = Classifying(plan(tmp_path))
    before = {name: tensor.clone() for name, tensor in parts(job.model).items()}
    job.model.train()
    scores = job.evaluate()
    assert job.model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in parts(job.model).items())
    assert scores == job.evaluate()
    assert scores.keys() == {"valid_loss", "accuracy", "f1"}


def test_what_is_kept_is_the_best_by_the_measure_that_was_chosen(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    done: Run = learned(tmp_path_factory)
    measured = [record for record in read_log(done.folder) if "valid_loss" in record]
    assert done.progress.best == max(record["accuracy"] for record in measured)
    saved = read_tensors(done.folder / "model.safetensors")
    for name, parameter in parts(done.result.model).items():
        assert torch.equal(parameter, saved[name])


def test_the_card_says_what_it_is(tmp_path: Path) -> None:
    done = run(tmp_path, data_test_examples=str(tmp_path / "class.test.tsv"), data_licence="CC0")
    card = (done.folder / "README.md").read_text()
    assert card.startswith("# run: a classifier\n")
    assert f"{tmp_path / 'class.train.tsv'} (licence: CC0)" in card
    assert "qkv classify --model" in card
    assert "Decoding" not in card
    for split in ("valid", "test"):
        assert all(str(score) in card for score in done.scores[split])


def test_no_examples_are_a_mistake(tmp_path: Path) -> None:
    bare = values(tmp_path)
    bare["data"] = {}
    with pytest.raises(UserError, match="no examples are given; set examples"):
        train(recipe_from(bare), tmp_path / "run", console=silence())
    assert not (tmp_path / "run").exists()


def test_a_job_must_say_all_that_is_asked_of_it() -> None:
    assert "read" in Understanding.__abstractmethods__
    assert "keeps_head" not in Understanding.__abstractmethods__


def test_a_shorter_model_keeps_the_first_places_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    start = base(tmp_path)
    before = read_tensors(start / "model.safetensors")["encoder.positions.table.weight"]
    job = begun(tmp_path, start, model_max_length=32)
    assert torch.equal(job.model.encoder.positions.table.weight, before[:32])
    with pytest.raises(UserError, match=r"max_length \(128\) is over the 64 places"):
        begun(tmp_path, start, model_max_length=128)


def test_distances_mean_in_a_shorter_or_longer_model_what_they_meant(tmp_path: Path) -> None:
    tokenizer = vocabulary(tmp_path)
    parts_of = {"positions": "disentangled", "relative_buckets": 8, "n_segments": 0}
    made = model_config(recipe(tmp_path, model_max_length=64), tokenizer, **parts_of)
    model = Encoder(made)
    save_encoder(tmp_path / "far", "fill", model, tokenizer)
    before = model.encoder.positions.bucket
    for length in (32, 64, 128):
        start = find_start(
            recipe(tmp_path, train_start_from=str(tmp_path / "far"), model_max_length=length),
            "encoder",
        )
        assert start is not None
        told = recipe(tmp_path, model_max_length=length)
        now = Encoder(start.model_config(told, tokenizer)).encoder.positions.bucket
        assert len(now) == length
        assert torch.equal(now[:64], before[:length])


def test_a_text_cannot_be_read_by_a_model_of_images(tmp_path: Path) -> None:
    images = preset("vit-tiny", head="sequence", n_labels=2)
    classes = ImageClasses(("a", "b"), (0.0,), (1.0,))
    (tmp_path / "images").mkdir()
    ImageClassifier(Encoder(images), classes).save(tmp_path / "images")
    with pytest.raises(UserError, match="holds a model of images, but task = 'classify' reads"):
        begun(tmp_path, tmp_path / "images")


def test_the_card_counts_the_layers_that_there_are(tmp_path: Path) -> None:
    model = Encoder(preset("bert-tiny", n_decoder_layers=7, n_encoder_layers=1, vocab_size=20))
    write_card(tmp_path, recipe(tmp_path), model, {})
    assert " parameters: 1 layers, " in (tmp_path / "README.md").read_text()
