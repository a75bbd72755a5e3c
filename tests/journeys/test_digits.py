"""The recipe of the digits: images in, a classifier that reads handwriting out."""

from pathlib import Path

import numpy as np
import pytest

from bench.digits import train, write_digits
from qkv.tasks import load

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder)
    return folder


def test_no_image_is_both_learnt_and_tested(data: Path) -> None:
    learnt, tested = (np.load(data / f"{name}.npz") for name in ("train", "test"))
    assert (len(learnt["images"]), len(tested["images"])) == (1438, 359)
    assert learnt["images"].dtype == np.uint8 and learnt["images"].max() == 255
    held_out = {image.tobytes() for image in tested["images"]}
    assert not held_out & {image.tobytes() for image in learnt["images"]}


def test_handwritten_digits_are_read(data: Path, tmp_path: Path) -> None:
    few = ("train.steps=150", "train.valid_every=75")  # of the recipe's 2,500
    _, accuracy, _ = train(data, tmp_path / "digits", 0, *few)
    assert accuracy > 80
    model, tested = load(tmp_path / "digits", device="cpu"), np.load(data / "test.npz")
    said = [one.label for one in model.classify(list(tested["images"]))]
    right = np.mean([one == str(label) for one, label in zip(said, tested["labels"], strict=True)])
    assert 100 * right == pytest.approx(accuracy)
