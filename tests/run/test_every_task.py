"""What is true of a run whatever its task: exact resumption, its folder, its log, its settings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.config import TASKS, load_recipe
from qkv.errors import UserError
from qkv.run.train import train
from qkv.weights import read_tensors
from tests.run import classify_tiny, denoise_tiny, fill_tiny, language_tiny, tag_tiny, tiny
from tests.run.common import Runs, everything, read_log, silence, with_differences


def answers(folder: Path, **differences: Any) -> dict[str, Any]:
    """Questions whose answer is the word after "is"."""
    for name, n, seed in (("train", 60, 1), ("valid", 12, 2)):
        path = folder / f"{name}.json"
        if not path.exists():
            random = np.random.default_rng(seed)
            records = []
            for number in range(n):
                name_, colour = random.choice(["cat", "dog"]), random.choice(["red", "blue"])
                context = f"{number} here the {name_} is {colour} today"
                start = context.index(colour)
                answer = {"text": [colour], "answer_start": [start]}
                records.append(
                    {"question": f"what is the {name_}", "context": context, "answers": answer}
                )
            path.write_text("\n".join(json.dumps(record) for record in records))
    values = classify_tiny.values(folder) | {"task": "answer"}
    values["data"] = {
        "examples": str(folder / "train.json"),
        "valid_examples": str(folder / "valid.json"),
    }
    return with_differences(values, differences)


def twins(folder: Path, **differences: Any) -> dict[str, Any]:
    """Digits and their words belong together."""
    tiny.write_pairs(folder / "twins.tsv", 120)
    values = classify_tiny.values(folder) | {"task": "embed"}
    values["data"] = {"examples": str(folder / "twins.tsv"), "text_field": [0, 1]}
    return with_differences(values, differences)


def images(folder: Path, **differences: Any) -> dict[str, Any]:
    """Which half is brighter."""
    random = np.random.default_rng(0)
    for name, n in (("train", 60), ("valid", 12)):
        if not (folder / f"{name}.npz").exists():
            pixels = random.integers(0, 100, (n, 4, 4), np.uint8)
            labels = random.integers(0, 2, n)
            pixels[labels == 1, :2] += 100
            np.savez(folder / f"{name}.npz", images=pixels, labels=labels)
    values = classify_tiny.values(folder)
    values["data"] = {
        "examples": str(folder / "train.npz"),
        "valid_examples": str(folder / "valid.npz"),
    }
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_encoder_layers": 1}
    values["model"] = {"preset": "vit-tiny", **sizes, "image_size": 4, "patch_size": 2}
    del values["tokenizer"]
    return with_differences(values, {"classify_shift": 1, **differences})


def other_task(runs: Runs, *which: str) -> Callable[..., dict[str, Any]]:
    return lambda folder, **differences: runs.values(folder, *which, **differences)


VALUES: dict[str, Callable[..., dict[str, Any]]] = {
    "translate": tiny.values,
    "generate": language_tiny.values,
    "instruct": other_task(language_tiny.RUNS, "instruct"),
    "fill": fill_tiny.values,
    "denoise": denoise_tiny.values,
    "classify": classify_tiny.values,
    "classes": other_task(classify_tiny.RUNS, "classes"),
    "number": other_task(classify_tiny.RUNS, "number"),
    "images": images,
    "tag": tag_tiny.values,
    "answer": answers,
    "embed": twins,
}
DIFFERENCES: dict[str, dict[str, Any]] = {
    "translate": {"train_accumulate": 2, "train_average": 3, "tokenizer_shared": False},
    "generate": {"data_across": True, "data_bos": False, "train_optimizer": "muon"},
    "instruct": {"chat_template": "alpaca"},
    "fill": {"mask_pairs": "next", "mask_units": "word"},
    "denoise": {"denoise_kind": "infill", "denoise_permute_sentences": True},
    "classify": {"train_consistency": 1.0, "classify_weights": "balanced"},
    "tag": {"train_precision": "bfloat16"},
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
    whole = runs.run(tmp_path, "whole", **differences)
    files = ["config.json", "recipe.toml"] + ["tokenizer.json"] * (name != "images")
    for step in (3, 9):
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
    saved = read_tensors(whole.folder / "model.safetensors")
    for weight, parameter in loaded.model.named_parameters():
        assert torch.equal(parameter.detach(), saved[weight])
    card = (whole.folder / "README.md").read_text()
    assert all(str(score) in card for score in whole.scores["valid"])


@pytest.mark.parametrize("name", VALUES)
def test_packed_runs_train_too_where_the_task_packs(tmp_path: Path, name: str) -> None:
    runs, spec = (
        Runs(VALUES[name]),
        TASKS[Runs(VALUES[name]).values(tmp_path).get("task", "translate")],
    )
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


@pytest.mark.parametrize("name", ["translate", "instruct", "classify", "tag", "embed"])
def test_held_out_examples_are_never_trained_on(tmp_path: Path, name: str) -> None:
    values = VALUES[name](tmp_path)
    for key in [key for key in values["data"] if key.startswith("valid_")]:
        del values["data"][key]
    job = Runs(lambda folder: values).job(tmp_path)
    assert len(job.splits.valid) > 0

    def key(example: Any) -> Any:
        if name == "instruct":
            return example[0]["content"]
        return example[0] if isinstance(example, tuple) else vars(example).get("texts", example)

    assert not {key(e) for e in job.splits.train} & {key(e) for e in job.splits.valid}


@pytest.mark.parametrize("name", VALUES)
def test_a_run_cannot_be_resumed_with_other_data(tmp_path: Path, name: str) -> None:
    runs = Runs(VALUES[name])
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
        else:
            path.write_bytes(b"".join(content.splitlines(keepends=True)[:-2]))
        assert Runs(lambda folder: values).job(tmp_path).digest() != before, path
        path.write_bytes(content)


UNREAD = [
    ("answer", "train_label_smoothing", 0.1, r"does not read train\.label_smoothing"),
    ("classify", "train_packing", "on", r"does not read train\.packing"),
    ("generate", "mask_share", 0.2, r"does not read \[mask\] \(only fill\)"),
    ("generate", "model_n_encoder_layers", 2, "n_encoder_layers is for models with an encoder"),
    ("tag", "data_max_length", 20, r"does not read data\.max_length"),
    ("fill", "data_across", True, r"does not read data\.across \(only generate\)"),
    ("translate", "train_consistency", 1.0, r"does not read train\.consistency"),
]


@pytest.mark.parametrize(("name", "setting", "value", "words"), UNREAD)
def test_a_setting_that_the_task_does_not_read_is_refused(
    tmp_path: Path, name: str, setting: str, value: Any, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        Runs(VALUES[name]).recipe(tmp_path, **{setting: value})


def test_the_recipe_in_a_run_holds_what_differs_and_a_format_number(tmp_path: Path) -> None:
    text = (tiny.run(tmp_path).folder / "recipe.toml").read_text()
    assert text.startswith("format = 1\n")
    assert "beams" not in text and "label_smoothing" not in text
    later = tmp_path / "later.toml"
    later.write_text(text.replace("format = 1", "format = 2"))
    with pytest.raises(UserError, match="format is 2, but this version of qkv reads up to 1"):
        train(later, tmp_path / "other", console=silence())


def test_weights_depend_on_the_seed_alone(tmp_path: Path) -> None:
    runs = [
        tiny.run(tmp_path, out, train_seed=seed) for out, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    weights = [read_tensors(run.folder / "model.safetensors") for run in runs]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert any(not torch.equal(tensor, weights[2][name]) for name, tensor in weights[0].items())
