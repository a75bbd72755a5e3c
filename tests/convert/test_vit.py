"""ViT's checkpoints, both ways, with what scales the pixels."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

from qkv.config import preset
from qkv.convert.huggingface.exporting import write_huggingface
from qkv.convert.opening import open_model
from qkv.errors import UserError
from qkv.model import Encoder
from qkv.tasks import load
from qkv.tasks.vision import ImageClasses, ImageClassifier
from tests.convert.both import said
from tests.convert.harness import (
    assert_close,
    draw_weights,
    exported,
    loaded,
    made,
    saved,
)
from tests.convert.small import VIT as TINY
from tests.tasks.test_vision import LABELS, classifier


@torch.no_grad()
def test_a_model_of_ours_without_a_pooler_gets_one_of_zeros(tmp_path):
    small = {"d_model": 8, "n_heads": 2, "n_encoder_layers": 1, "d_ff": 9}
    model = Encoder(preset("vit-tiny", **small)).eval()
    draw_weights(model, 0)
    ImageClassifier(model, ImageClasses()).save(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    del content["classify"]
    (tmp_path / "config.json").write_text(json.dumps({**content, "task": "embed"}))
    with exported(open_model(tmp_path)) as folder:
        theirs = loaded(folder, "ViTModel")
        assert not theirs.pooler.dense.weight.any()
        assert_close(*said("none", model, theirs, [], 0)[0])
        assert open_model(folder).content["model"] == content["model"]


@pytest.mark.parametrize("n_channels", [1, 3])
@torch.no_grad()
def test_a_classifier_of_ours_says_the_same_there_and_when_it_is_back(n_channels, tmp_path):
    ours = classifier(n_channels)
    ours.model.float()
    ours.save(tmp_path)
    folder = tmp_path / "theirs"
    write_huggingface(open_model(tmp_path), folder)
    shape = (8, 8, 3) if n_channels == 3 else (8, 8)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    processor = AutoImageProcessor.from_pretrained(folder)
    theirs = AutoModelForImageClassification.from_pretrained(folder).eval()
    inputs = processor(Image.fromarray(pixels), return_tensors="pt")
    (mine,) = ours.logits([pixels])
    assert_close(mine, theirs(**inputs).logits[0])
    assert theirs.config.id2label == dict(enumerate(LABELS))
    back = load(folder, "cpu")
    assert back.classes == ours.classes
    assert torch.equal(back.logits([pixels])[0], mine)


def test_pixels_that_are_not_scaled():
    with saved(made("ViTForImageClassification", TINY)) as folder:
        (folder / "preprocessor_config.json").write_text(json.dumps({"do_normalize": False}))
        section = open_model(folder).content["classify"]
    assert (section["mean"], section["deviation"]) == ([0.0] * 3, [1.0] * 3)


@pytest.mark.parametrize(
    "said",
    [
        {"image_mean": 0.4, "image_std": 0.2},
        {"rescale_factor": 1 / 127.5},
        {"do_rescale": False, "image_mean": [120.0, 110.0, 100.0], "image_std": [60.0, 50.0, 40.0]},
        {"do_rescale": False, "do_normalize": False},
    ],
    ids=str,
)
@torch.no_grad()
def test_pixels_are_scaled_as_they_are_there(said):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    theirs = made("ViTForImageClassification", TINY)
    size = {"height": 6, "width": 6}
    with saved(theirs) as folder:
        content = {"image_processor_type": "ViTImageProcessor", "size": size, **said}
        (folder / "preprocessor_config.json").write_text(json.dumps(content))
        processor = AutoImageProcessor.from_pretrained(folder)
        (mine,) = load(folder, "cpu").logits([pixels])
    assert_close(mine, theirs(**processor(Image.fromarray(pixels), return_tensors="pt")).logits[0])


@pytest.mark.parametrize("said", [{"resample": 3}, {"do_center_crop": True}], ids=str)
def test_what_is_done_otherwise_with_files_is_told(said):
    with saved(made("ViTForImageClassification", TINY)) as folder:
        (folder / "preprocessor_config.json").write_text(json.dumps(said))
        with pytest.warns(UserWarning, match=f"says {next(iter(said))} = "):
            assert open_model(folder).content["model"]["patch_size"]


def test_an_encoder_of_images_alone_has_nothing_to_say():
    bare = made("ViTModel", TINY)
    with saved(bare) as folder, pytest.raises(UserError, match="reads images"):
        load(folder, "cpu")
