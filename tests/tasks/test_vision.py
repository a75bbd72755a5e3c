"""The classifier of images: the same answer however an image is given."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.config import preset
from qkv.data import Scale
from qkv.data.formats.images import read_image
from qkv.errors import UserError
from qkv.model import Encoder
from qkv.tasks import Classification, ImageClassifier
from qkv.tasks import vision as vision_module
from qkv.tasks.vision import ImageClasses

LABELS = ("cat", "dog", "鸟")


def classifier(channels: int = 1) -> ImageClassifier:
    """One that never learnt anything, and says something else of every image."""
    torch.manual_seed(5)
    config = preset(
        "vit-tiny",
        d_model=16,
        d_ff=24,
        n_heads=2,
        n_encoder_layers=2,
        image_size=8,
        n_channels=channels,
        head="sequence",
        n_labels=3,
    )
    model = Encoder(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(15 if weight.ndim > 1 else 1)
    means = (0.4, 0.5, 0.3)[:channels]
    return ImageClassifier(model, ImageClasses(LABELS, means, (0.2, 0.3, 0.1)[:channels]))


def images(n: int, channels: int = 1) -> np.ndarray:
    """Noise, of some images dark and of others bright."""
    random = np.random.default_rng(3)
    most = random.integers(2, 257, (n, 1, 1, 1))
    return random.integers(0, most, (n, channels, 8, 8)).astype(np.uint8)


def close(one: Classification, other: Classification) -> bool:
    return one.labels == other.labels and one.probabilities == pytest.approx(other.probabilities)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_likeliest_label_is_given_with_the_probabilities_of_all(channels: int) -> None:
    model, given = classifier(channels), images(12, channels)
    found = model.classify(given)
    scale = Scale(model.classes.mean, model.classes.deviation)
    with torch.no_grad():
        pixels = scale(torch.from_numpy(given).float() / 255)
        expected = model.model(pixels.double()).softmax(-1)
    for one, probable in zip(found, expected, strict=True):
        assert list(one.probabilities) == list(LABELS)
        assert list(one.probabilities.values()) == pytest.approx(probable.tolist(), abs=1e-6)
        assert one.labels == (LABELS[int(probable.argmax())],)
    assert len({one.label for one in found}) > 1


def test_one_image_gives_one_and_many_give_many() -> None:
    model, given = classifier(), images(3)
    one = model.classify(given[0])
    assert isinstance(one, Classification)
    assert len(model.classify(given)) == len(model.classify(list(given))) == 3
    assert close(model.classify([given[0]])[0], one)
    assert model.classify([]) == []


def test_together_is_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = classifier(), images(11)
    together = model.classify(given)
    assert all(map(close, together, [model.classify(one) for one in given]))
    # 17 tokens an image: four fit, and even one that does not is read
    for budget, sizes in ((70, [4, 4, 3]), (5, [1] * 11)):
        monkeypatch.setattr(vision_module, "BATCH_TOKENS", {"cpu": budget})
        told: list[int] = []
        assert all(map(close, model.classify(given, told.append), together))
        assert told == sizes


@pytest.mark.parametrize("channels", [1, 3])
def test_all_ways_to_give_an_image_are_the_same(tmp_path: Path, channels: int) -> None:
    model, given = classifier(channels), images(1, channels)[0]
    last = np.moveaxis(given, 0, -1)
    path = tmp_path / "image.png"
    Image.fromarray(last.squeeze()).save(path)
    ways: list[Any] = [
        given,
        last,
        given / 255,
        (given / 255).astype(np.float32),
        given.astype(np.int64),
        torch.from_numpy(given),
        torch.from_numpy(given).double() / 255,
        path,
        str(path),
        given[:, :, ::-1].copy()[:, :, ::-1],
    ]
    if channels == 1:
        ways += [given[0], torch.from_numpy(given[0])]
    expected = model.classify(given)
    assert all(close(model.classify(way), expected) for way in ways)
    assert all(close(one, expected) for one in model.classify(ways))


def test_files_are_scaled_to_the_size_of_the_model(tmp_path: Path) -> None:
    model, given = classifier(), images(1)[0, 0]
    path = tmp_path / "large.png"
    Image.fromarray(given.repeat(3, 0).repeat(2, 1)).save(path)
    assert close(model.classify(path), model.classify(read_image(path, 8, 1)))


SHAPE = r"Image 2 has the shape .*, but the model reads images of the shape \(1, 8, 8\); scale it"
RANGE = "Image 2 has pixels that are out of range or no numbers; give whole numbers from 0 to 255"


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (np.zeros((9, 9)), SHAPE),
        (np.zeros((3, 8, 8)), SHAPE),
        (np.zeros((8, 8, 3)), SHAPE),
        (np.zeros(64), SHAPE),
        (np.full((8, 8), 16.0), RANGE),
        (np.full((8, 8), -1), RANGE),
        (np.full((8, 8), 256), RANGE),
        (np.full((8, 8), np.nan), RANGE),
        (torch.ones(8, 8, dtype=torch.bool), RANGE),
        ("no-such.png", "no-such.png"),
    ],
)
def test_what_is_no_such_image_is_refused_in_one_sentence(image: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        classifier().classify([images(1)[0], image])
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
