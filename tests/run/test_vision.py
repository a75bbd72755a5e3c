"""Images in, a model folder that classifies them out: the encoder is not about words."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTConfig, ViTModel

import qkv
from qkv.config import recipe_from
from qkv.errors import UserError
from qkv.run.train import Run, reads_images
from qkv.tasks import ImageClassifier
from tests.run import tag_tiny
from tests.run.common import ENCODER, TRAINING, Runs, data_files, differing, validations

SIDES = ("left", "right")


def halves(n: int, seed: int = 1, size: int = 4, channels: int = 0) -> tuple[np.ndarray, list[str]]:
    """Noise, bright in one half; the label is which."""
    random = np.random.default_rng(seed)
    shape = (n, size, size, channels) if channels else (n, size, size)
    images = random.integers(0, 100, shape, dtype=np.uint8)
    right = random.integers(0, 2, n)
    for image, side in zip(images, right, strict=True):
        image[:, size // 2 * side : size // 2 * (side + 1)] += 120
    return images, [SIDES[side] for side in right]


def write_halves(path: Path, n: int, seed: int = 1, **more: int) -> Path:
    images, labels = halves(n, seed, **more)
    np.savez(path, images=images, labels=labels)
    return path


def values(folder: Path) -> dict[str, Any]:
    sizes = {"train": 100, "valid": 40, "test": 40}
    return {
        "task": "classify",
        "data": data_files("examples", folder, "{}.npz", write_halves, seed=0, **sizes),
        "model": {**ENCODER, "preset": "vit-tiny", "image_size": 4, "patch_size": 2},
        "train": {**TRAINING, "batch_tokens": 100, "warmup": 4},
    }


RUNS = Runs(values)
recipe, run, job = RUNS.recipe, RUNS.run, RUNS.job


def test_a_run_learns_which_half_is_bright(tmp_path: Path) -> None:
    more = {"data_test_examples": str(tmp_path / "test.npz"), "train_steps": 60}
    done = run(tmp_path, **more, train_valid_every=20)
    for split in ("valid", "test"):
        scores = {score.name: score.value for score in done.scores[split]}
        assert scores["accuracy"] == scores["macro F1"] == 100
        assert {"ECE", "Brier score", "mean confidence"} <= scores.keys()
    measured = validations(done.folder)
    assert [record["step"] for record in measured] == [20, 40, 60]
    assert {"accuracy", "f1"} <= measured[0].keys()
    model = qkv.load(done.folder, device="cpu")
    assert isinstance(model, ImageClassifier)
    images, labels = halves(50, seed=9)
    assert [one.label for one in model.classify(list(images))] == labels
    card = (done.folder / "README.md").read_text()
    assert card.startswith("# run: a classifier of images\n")
    assert "images of 4 × 4 pixels in patches of 2 × 2" in card
    assert f"- Data: {tmp_path / 'train.npz'}" in card
    assert f"qkv classify --model {done.folder} image.png" in card


def test_a_folder_of_files_from_end_to_end(tmp_path: Path) -> None:
    """Colours, files larger than the model reads, and a validation part cut off."""
    images, labels = halves(80, size=8, channels=3)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = tmp_path / "sides" / label / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    done = run(
        tmp_path,
        data_examples=str(tmp_path / "sides"),
        data_valid_examples=[],
        train_steps=50,
        model_n_channels=3,
    )
    assert done.scores["valid"][0].value == 100
    model = qkv.load(done.folder, device="cpu")
    assert len(model.classes.mean) == len(model.classes.deviation) == 3
    for side in SIDES:
        files = sorted((tmp_path / "sides" / side).iterdir())
        assert {one.label for one in model.classify(files)} == {side}
    assert not list(done.folder.rglob("tokenizer.json"))


def test_pixels_are_scaled_as_the_training_images_are_and_that_is_stored(tmp_path: Path) -> None:
    """Validation images that are darker do not change the scale."""
    images, labels = halves(40, seed=3)
    np.savez(tmp_path / "valid.npz", images=images // 4, labels=labels)
    folder = run(tmp_path).folder
    learnt = np.load(tmp_path / "train.npz")["images"] / 255
    stored = json.loads((folder / "config.json").read_text())["classify"]
    assert stored["labels"] == list(SIDES)
    assert stored["mean"] == [pytest.approx(learnt.mean())]
    assert stored["deviation"] == [pytest.approx(learnt.std())]


def test_the_loss_is_that_of_what_the_classifier_says(tmp_path: Path) -> None:
    found = job(tmp_path)
    assert found.tokenizers is None
    assert (found.model.config.head, found.model.config.n_labels) == ("sequence", 2)
    said = found.result.classify([one.pixels for one in found.splits.valid])
    right = [one.label for one in found.splits.valid]
    losses = [-math.log(one.probabilities[label]) for one, label in zip(said, right, strict=True)]
    scores = found.evaluate()
    assert scores["valid_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    correct = [one.label == label for one, label in zip(said, right, strict=True)]
    assert scores["accuracy"] == pytest.approx(100 * np.mean(correct))
    [batch] = next(found.stream.steps_from(0))
    assert batch.target.tokens.shape == (20, 1, 4, 4)  # of 5 tokens each


def test_equal_images_stay_on_one_side(tmp_path: Path) -> None:
    images, labels = halves(60)
    copies = np.concatenate([images, images, images])
    np.savez(tmp_path / "train.npz", images=copies, labels=labels * 3)
    said: list[str] = []
    found = job(tmp_path, said=said, data_valid_examples=[])
    kept = {one.pixels.tobytes() for one in found.splits.train}
    held_out = {one.pixels.tobytes() for one in found.splits.valid}
    assert (len(found.splits.valid), len(held_out)) == (18, 6)
    assert not kept & held_out
    assert "train: 162 examples; valid: 18 examples" in said
    again = job(tmp_path, data_valid_examples=[], train_seed=1)
    assert {one.pixels.tobytes() for one in again.splits.valid} != held_out


def test_the_model_decides_whether_texts_or_images_are_classified(tmp_path: Path) -> None:
    assert reads_images(recipe(tmp_path))
    assert not reads_images(recipe_from({"task": "classify"}))
    other = {"preset": "bert-tiny", "image_size": 4, "patch_size": 2, "n_segments": 0}
    assert reads_images(recipe_from({"task": "classify", "model": other}))


# Starting from a model that exists


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("base"), train_steps=40)


def test_at_step_0_it_is_the_model_that_it_starts_from(base: Run, tmp_path: Path) -> None:
    write_halves(tmp_path / "train.npz", 60, seed=8)  # of another mean
    found = job(tmp_path, train_start_from=str(base.folder))
    assert not differing(found.model, base.folder)
    assert found.result.classes == base.result.classes


def test_a_recipe_need_not_describe_what_it_starts_from(base: Run, tmp_path: Path) -> None:
    """What is read follows from the folder, and from nothing else."""
    made = RUNS.starting_from(base.folder).recipe(tmp_path)
    assert reads_images(made)
    done = qkv.train(made, tmp_path / "run")
    card = (done.folder / "README.md").read_text()
    assert "a classifier of images" in card and f"Started from {base.folder}, " in card


def test_a_body_of_somebody_else_s_is_trained_on(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = {"image_size": 4, "patch_size": 2, "num_channels": 1}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2}
    theirs = ViTModel(ViTConfig(hidden_size=16, intermediate_size=32, **heads, **images))
    theirs.save_pretrained(tmp_path / "theirs")
    scale = '{"image_mean": [0.25], "image_std": [0.5]}'
    (tmp_path / "theirs" / "preprocessor_config.json").write_text(scale)
    made = RUNS.starting_from(tmp_path / "theirs").recipe(tmp_path, train_steps=60)
    found = job(tmp_path, train_start_from=str(tmp_path / "theirs"))
    pixels = torch.rand(3, 1, 4, 4)
    with torch.no_grad():
        ours = found.model.eval().hidden(pixels)
        expected = theirs.eval()(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    done = qkv.train(made, tmp_path / "run")
    assert done.result.classes.mean == (0.25,) and done.result.classes.deviation == (0.5,)
    assert done.scores["valid"][0].value == 100


def test_text_does_not_start_from_images(base: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="reads images, but task = 'tag' reads text"):
        tag_tiny.job(tmp_path, train_start_from=str(base.folder))
