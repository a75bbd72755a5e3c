"""Images from a model that is there: its body and its scale are kept, its head where labels are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ViTConfig, ViTModel

import qkv
from qkv.config import recipe_from
from qkv.errors import UserError
from qkv.run.train import Run
from qkv.run.train import job_of
from qkv.run.vision import ImageClassifying
from qkv.weights import read_tensors
from tests.run.common import everything
from tests.run.test_vision import RUNS, halves, job, run, values, write_halves


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("base"), train_steps=40)


def begun(start: Path, **differences: Any) -> dict[str, Any]:
    return {"train_start_from": str(start), **differences}


def test_at_step_0_it_is_the_model_that_it_began_from(base: Run, tmp_path: Path) -> None:
    write_halves(tmp_path / "train.npz", 60, seed=8)  # of another mean
    found = job(tmp_path, **begun(base.folder))
    weights = read_tensors(base.folder / "model.safetensors")
    for name, parameter in found.model.named_parameters():
        assert torch.equal(parameter.detach(), weights[name])
    assert found.verb.classes == base.result.classes


def test_labels_of_another_meaning_begin_with_a_fresh_head(base: Run, tmp_path: Path) -> None:
    for name in ("train", "valid"):
        images, labels = halves(40, seed=8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=[f"the {one}" for one in labels])
    found = job(tmp_path, **begun(base.folder))
    weights = read_tensors(base.folder / "model.safetensors")
    fresh = {
        name for name, one in found.model.named_parameters() if not torch.equal(one, weights[name])
    }
    assert fresh == {"head.projection.weight", "head.projection.bias"}
    assert found.verb.classes.scale == base.result.classes.scale


def test_a_recipe_need_not_describe_what_it_begins_from(base: Run, tmp_path: Path) -> None:
    """What is read follows from the folder, and from nothing else."""
    plain = values(tmp_path, **begun(base.folder))
    del plain["model"]
    recipe = recipe_from(plain)
    assert job_of(recipe) is ImageClassifying
    done = qkv.train(recipe, tmp_path / "run")
    card = (done.folder / "README.md").read_text()
    assert "a classifier of images" in card and f"Begun from {base.folder}, " in card
    cut = RUNS.killed_and_resumed(7, tmp_path, **begun(base.folder))
    files = ("config.json",)
    whole = run(tmp_path, "whole", **begun(base.folder))
    assert everything(cut, files) == everything(whole.folder, files)


def test_what_the_weights_decide_cannot_be_changed(base: Run, tmp_path: Path) -> None:
    found = job(tmp_path, **begun(base.folder, model_dropout=0.3))
    assert found.model.config.dropout == 0.3
    with pytest.raises(UserError, match=r"\[model\]: d_ff follows from .*, which the run begins"):
        job(tmp_path, **begun(base.folder, model_d_ff=33))


def test_a_body_of_somebody_else_s_is_trained_on(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = ViTModel(
        ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=4,
            patch_size=2,
            num_channels=1,
        )
    )
    theirs.save_pretrained(tmp_path / "theirs")
    scale = '{"image_mean": [0.25], "image_std": [0.5]}'
    (tmp_path / "theirs" / "preprocessor_config.json").write_text(scale)
    plain = values(tmp_path, **begun(tmp_path / "theirs", train_steps=60))
    del plain["model"]
    recipe = recipe_from(plain)
    found = ImageClassifying(RUNS.plan(tmp_path, **begun(tmp_path / "theirs")))
    pixels = torch.rand(3, 1, 4, 4)
    with torch.no_grad():
        ours = found.model.eval().hidden(pixels)
        expected = theirs.eval()(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    done = qkv.train(recipe, tmp_path / "run")
    assert done.result.classes.mean == (0.25,) and done.result.classes.deviation == (0.5,)
    assert done.scores["valid"][0].value == 100


def test_text_does_not_begin_from_images(base: Run, tmp_path: Path) -> None:
    words = tmp_path / "words.conll"
    words.write_text("".join(f"{word}\t{word % 2}\n\n" for word in range(30)))
    text = {
        "task": "tag",
        "data": {"examples": str(words)},
        "train": {"start_from": str(base.folder)},
    }
    with pytest.raises(UserError, match="holds a model of images, but task = 'tag' reads text"):
        qkv.train(recipe_from(text), tmp_path / "run")
