"""What is true of a run whatever its task: exact resumption, its folder, its log, its settings."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.config import TASKS, load_recipe
from qkv.errors import UserError
from qkv.weights import read_tensors
from tests.run import (
    classify_tiny,
    denoise_tiny,
    fill_tiny,
    language_tiny,
    prefer_tiny,
    tag_tiny,
    test_answer,
    test_embed,
    test_vision,
    tiny,
)
from tests.run.common import Runs, differing, everything, read_log

VALUES: dict[str, Callable[..., dict[str, Any]]] = {
    "translate": tiny.values,
    "generate": language_tiny.values,
    "instruct": partial(language_tiny.values, task="instruct"),
    "prefer": prefer_tiny.values,
    "fill": fill_tiny.values,
    "denoise": denoise_tiny.values,
    "classify": classify_tiny.values,
    "classes": partial(classify_tiny.values, task="classes"),
    "number": partial(classify_tiny.values, task="number"),
    "images": test_vision.values,
    "tag": tag_tiny.values,
    "answer": test_answer.values,
    "embed": test_embed.values,
}
DIFFERENCES: dict[str, dict[str, Any]] = {
    "translate": {
        **{"train_accumulate": 2, "train_average": 3, "train_consistency": 2.0},
        **{"tokenizer_shared": False, "tokenizer_kind": "bpe", "tokenizer_vocab_size": 330},
        "data_bpe_dropout": 0.3,  # drawn anew in each epoch
    },
    "generate": {"data_across": True, "data_bos": False, "train_optimizer": "muon"},
    "instruct": {"chat_template": "alpaca"},
    "fill": {"mask_pairs": "next", "mask_units": "word"},
    "denoise": {"denoise_kind": "infill", "denoise_permute_sentences": True},
    "classify": {"train_consistency": 1.0, "classify_weights": "balanced"},
    "tag": {"train_precision": "bfloat16"},
    "images": {"classify_shift": 1},
    "embed": {"embed_pooling": "first"},
}


def test_every_task_is_tried() -> None:
    assert TASKS.keys() <= VALUES.keys()


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("differs", [False, True])
def test_a_run_that_is_killed_and_resumed_ends_bit_for_bit_the_same(
    tmp_path: Path, name: str, differs: bool
) -> None:
    if differs and name not in DIFFERENCES:
        pytest.skip("has no other settings to try")
    runs, differences = Runs(VALUES[name]), DIFFERENCES[name] if differs else {}
    differences = {"data_licence": "CC0", **differences}
    whole = runs.run(tmp_path, "whole", **differences)
    files = ["config.json", "recipe.toml"] + ["tokenizer.json"] * (name != "images")
    for step in (3, 9) if name == "translate" else (9,):  # before and after a checkpoint
        resumed = runs.killed_and_resumed(step, tmp_path, f"cut{step}", **differences)
        assert everything(resumed, files) == everything(whole.folder, files)
    log = read_log(whole.folder)
    assert [record["step"] for record in log] == list(range(1, 13))
    assert all(math.isfinite(record["loss"]) for record in log)
    measured = [record for record in log if "valid_loss" in record]
    assert [record["step"] for record in measured] == [4, 8, 12]
    named = runs.recipe(tmp_path, **differences)
    metrics = {"loss": "valid_loss"}.get(named.train.metric, named.train.metric)
    assert all(metrics in record for record in measured)
    assert load_recipe(whole.folder / "recipe.toml") == named
    loaded = qkv.load(whole.folder, device="cpu")
    assert type(loaded) is type(whole.result)
    assert not differing(loaded.model, whole.folder)
    card, spec = (whole.folder / "README.md").read_text(), TASKS[named.task]
    about = "a classifier of images" if name == "images" else spec.about
    assert card.startswith(f"# whole: {about}\n")
    assert f"(licence: {named.data.licence})" in card
    assert spec.usage.partition("{}")[0] + str(whole.folder) in card
    assert all(str(score) in card for score in whole.scores["valid"])
    if name != "prefer":  # which compares with the start, and so begins anew
        start = runs.starting_from(whole.folder).job(tmp_path, **differences)
        assert not differing(start.model, whole.folder)
        found = start.evaluate()[metrics]
        assert found == pytest.approx(abs(whole.state.best), rel=1e-4)


@pytest.mark.parametrize("name", VALUES)
def test_packed_runs_train_too_where_the_task_packs(tmp_path: Path, name: str) -> None:
    runs = Runs(VALUES[name])
    spec = TASKS[runs.recipe(tmp_path).task]
    settings = {"train_packing": "on", "train_steps": 2, "model_dropout": 0.0}
    if not spec.reads("train", "packing"):
        with pytest.raises(UserError, match=r"does not read train\.packing"):
            runs.recipe(tmp_path, **settings)
        return
    assert math.isfinite(read_log(runs.run(tmp_path, **settings).folder)[-1]["loss"])


@pytest.mark.parametrize("name", ["translate", "generate", "instruct", "fill", "denoise"])
def test_packed_and_padded_batches_have_the_same_loss(tmp_path: Path, name: str) -> None:
    """All items in one batch and nothing drawn at random: the first step sees the same."""
    runs = Runs(VALUES[name])
    jobs = [
        runs.job(tmp_path, train_packing=packing, train_batch_tokens=1000, model_dropout=0.0)
        for packing in ("off", "on")
    ]
    losses = []
    for job in jobs:
        indices = np.arange(min(10, len(job.train_items)))
        batch = job.train_items.batch(indices, shape=job.stream.shape)
        losses.append(float(job.loss_sum(batch, 0.0).detach()) / batch.n_labels)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("name", VALUES)
def test_a_job_reports_its_data_and_its_baseline_is_a_loss(tmp_path: Path, name: str) -> None:
    said: list[str] = []
    job = Runs(VALUES[name]).job(tmp_path, said=said)
    assert 0 < job.baseline() < 20
    text = "\n".join(said)
    assert "train: " in text and "valid: " in text
    if name not in ("generate", "fill", "denoise"):
        assert "first example: " in text


@pytest.mark.parametrize("name", ["translate", "instruct", "classify", "tag", "answer", "embed"])
def test_held_out_examples_are_never_trained_on(tmp_path: Path, name: str) -> None:
    values = VALUES[name](tmp_path)
    for key in [key for key in values["data"] if key.startswith("valid_")]:
        del values["data"][key]
    job = Runs(lambda folder: values).job(tmp_path)
    assert len(job.splits.valid) > 0

    def key(example: Any) -> Any:
        if name == "instruct":
            return example[0]["content"]
        if name == "answer":
            return example.context
        return example[0] if isinstance(example, tuple) else vars(example).get("texts", example)

    assert not {key(e) for e in job.splits.train} & {key(e) for e in job.splits.valid}


def test_a_run_cannot_be_resumed_with_other_data(tmp_path: Path) -> None:
    """What other data is, each task says by its digest."""
    runs = Runs(tiny.values)
    folder = runs.killed_at(7, tmp_path)
    path = folder / "checkpoints" / "data.json"
    path.write_text('"of other data"')
    with pytest.raises(UserError, match=f"The data has changed since the run in {folder} began"):
        runs.resumed(tmp_path)


@pytest.mark.parametrize("name", VALUES)
def test_the_digest_identifies_the_training_and_the_validation_data(
    tmp_path: Path, name: str
) -> None:
    runs = Runs(VALUES[name])
    values = runs.values(tmp_path)
    files = {Path(path) for path in values["data"].values() if Path(str(path)).is_file()}
    before = runs.job(tmp_path).digest()
    assert runs.job(tmp_path).digest() == before
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".npz":
            arrays = dict(np.load(path))
            np.savez(path, images=arrays["images"] + np.uint8(1), labels=arrays["labels"])
        elif path.suffix == ".json":
            path.write_bytes(content.replace(b"which", b"what"))
        else:
            path.write_bytes(b"".join(content.splitlines(keepends=True)[:-2]))
        assert Runs(lambda folder: values).job(tmp_path).digest() != before, path
        path.write_bytes(content)


def test_weights_depend_on_the_seed_alone(tmp_path: Path) -> None:
    runs = [
        tiny.run(tmp_path, out, train_seed=seed) for out, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    weights = [read_tensors(run.folder / "model.safetensors") for run in runs]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert any(not torch.equal(tensor, weights[2][name]) for name, tensor in weights[0].items())


LONG = {"model_max_length": 128}  # for the words of chat templates
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("translate", {"train_packing": "on", "train_precision": "bfloat16"}),
    ("translate", {"train_valid_bleu": False}),
    ("generate", {"tokenizer_kind": "unigram", "data_documents": "file"}),
    ("generate", {"tokenizer_kind": "byte", "train_precision": "bfloat16"}),
    (
        "generate",
        {"tokenizer_kind": "wordpiece", "data_documents": "paragraph", "data_valid_share": 0.3},
    ),
    ("generate", {"model_preset": "gpt2-mini", "train_packing": "on", "data_max_length": 16}),
    ("generate", {"model_tie": "none", "model_n_kv_heads": 1, "train_batch_tokens": 10}),
    ("fill", {"model_preset": "albert-mini", "mask_pairs": "order", "train_packing": "on"}),
    ("fill", {"model_preset": "deberta-mini", "model_relative_buckets": 8, "mask_units": "span"}),
    ("fill", {"tokenizer_kind": "byte", "data_documents": "file", "data_valid_text": []}),
    ("fill", {"data_max_length": 12, "mask_pairs": "order", "train_metric": "accuracy"}),
    ("fill", {"data_max_length": 3, "train_precision": "bfloat16"}),
    ("fill", {"train_batch_tokens": 10, "train_packing": "on", "data_bos": False}),
    ("denoise", {"tokenizer_kind": "unigram", "data_bos": False, "denoise_share": 0.9}),
    ("denoise", {"data_max_length": 4}),
    ("denoise", {"train_batch_tokens": 10, "train_packing": "on", "denoise_share": 0.5}),
    ("instruct", {"chat_template": "chatml", "train_metric": "exact_match", **LONG}),
    ("answer", {"model_preset": "roberta-mini", "answer_overlap": 3}),
]
USES: dict[str, Callable[[Any], Any]] = {
    "translate": lambda model: model.translate("3 1", max_length=5),
    "generate": lambda model: model.generate("the", max_length=5),
    "instruct": lambda model: model.chat("say 3", max_length=5),
    "fill": lambda model: (model.fill("the <mask> sees"), model.embed("the dog").tolist()),
    "denoise": lambda model: model.translate("the dog sees", max_length=5),
    "answer": lambda model: model.answer("which name?", "a 12 B"),
}


@pytest.mark.parametrize(("name", "differences"), KINDS, ids=str)
def test_every_kind_of_run_ends_in_a_model(
    tmp_path: Path, name: str, differences: dict[str, Any]
) -> None:
    settings = {"train_steps": 4, "train_valid_every": 2, **differences}
    done = Runs(VALUES[name]).run(tmp_path, **settings)
    assert all(math.isfinite(record["loss"]) for record in read_log(done.folder))
    assert USES[name](qkv.load(done.folder, device="cpu")) == USES[name](done.result)


@pytest.mark.parametrize("name", VALUES)
def test_a_validation_changes_nothing(tmp_path: Path, name: str) -> None:
    job = Runs(VALUES[name]).job(tmp_path, model_dropout=0.5)
    before = {weight: tensor.clone() for weight, tensor in job.model.state_dict().items()}
    job.model.train()
    scores = job.evaluate()
    assert job.model.training
    assert scores == job.evaluate()
    assert {"valid_loss"} <= scores.keys() <= {"valid_loss", "wrong_source_loss", *job.spec.metrics}
    after = job.model.state_dict()
    assert all(torch.equal(tensor, after[weight]) for weight, tensor in before.items())


CONTRADICTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("generate", {"data_text": []}, "no text is given; set text"),
    ("generate", {"data_valid_share": 0.0}, "nothing to validate with"),
    ("instruct", {"data_records": []}, "no records are given; set records"),
    ("instruct", {"model_max_length": 16}, "all 80 records were dropped"),
    ("instruct", {"chat_assistant": "{content}"}, "nothing ends an answer"),
    ("fill", {"model_head": "masked"}, r"\[model\]: head follows from the task and its data"),
    ("fill", {"data_max_length": 33}, r"data.max_length \(33\) is over model.max_length \(32\)"),
    ("fill", {"data_max_length": 2}, r"max_length \(2\) leaves no room .* raise it to at least 3"),
    (
        "fill",
        {"data_max_length": 4, "mask_pairs": "order"},
        "leaves no room .* raise it to at least 5",
    ),
    (
        "denoise",
        {"data_max_length": 3},
        r"data.max_length \(3\) leaves no room .* raise it to at least 4",
    ),
    (
        "denoise",
        {"denoise_share": 0.5, "denoise_span_length": 1},
        "a text of 40 tokens has up to 19 spans .* but there are 10; raise sentinels to 20",
    ),
    ("translate", {"train_device": "tpu"}, "Unknown device 'tpu'"),
    ("translate", {"tokenizer_vocab_size": 10}, "vocab_size is 10, but must be at least 16"),
    ("translate", {"data_pairs": "none.tsv"}, "There is no file none.tsv"),
    ("translate", {"data_pairs": []}, "no pairs are given"),
    ("translate", {"data_corpus": "demo"}, "has its own text, but pairs is given too"),
    ("translate", {"model_vocab_size": 5}, r"\[model\]: vocab_size follows from the tokenizer"),
    ("images", {"model_image_size": 6}, "the images are 4 × 4 pixels, but model.image_size is 6"),
    ("images", {"model_n_labels": 2}, r"\[model\]: n_labels follows from the task and its data"),
    ("images", {"model_n_channels": 2}, r"\[model\]: n_channels is 2; use 1 \(grey\) or 3"),
    (
        "images",
        {"classify_kind": "number"},
        "classify.kind is 'number', but an image has one class",
    ),
    ("images", {"teacher_models": "big"}, "teacher.models label texts, not images"),
    ("images", {"classify_shift": 4}, r"classify.shift \(4\) must be below the image size \(4\)"),
    ("number", {"train_metric": "accuracy"}, "metric = 'accuracy' is not measured"),
]


@pytest.mark.parametrize(("name", "differences", "words"), CONTRADICTIONS)
def test_contradictions_are_explained_in_one_sentence(
    tmp_path: Path, name: str, differences: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        Runs(VALUES[name]).run(tmp_path, **differences)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
