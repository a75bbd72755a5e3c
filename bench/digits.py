"""An encoder that reads images: `python -m bench.digits [--out runs/digits]`.

Parts scikit-learn's 1,797 digits into four fifths to learn from and one fifth to test on (always
the same), trains recipes/digits.toml, and prints the accuracy on the test part, asked once a run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

import qkv
from bench.measure import machine
from qkv.config import load_recipe

RECIPE = Path(__file__).parent.parent / "recipes" / "digits.toml"
BRIGHTEST = 16  # of scikit-learn's pixels
TESTED = 0.2


def write_digits(folder: Path) -> None:
    """train.npz and test.npz."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / BRIGHTEST)).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(images))
    n_tested = round(TESTED * len(images))
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("test", order[:n_tested]), ("train", order[n_tested:])):
        np.savez(folder / f"{name}.npz", images=images[rows], labels=digits.target[rows])


def train(data: Path, out: Path, seed: int) -> tuple[float, float, float]:
    """Accuracy on validation and test images in percent, and seconds."""
    settings = [
        f"data.examples={data / 'train.npz'}",
        f"data.test_examples={data / 'test.npz'}",
        f"train.seed={seed}",
    ]
    start = time.perf_counter()
    run = qkv.train(load_recipe(RECIPE, settings), out, anew=True)
    seconds = time.perf_counter() - start
    valid, test = (
        next(score.value for score in run.scores[split] if score.name == "accuracy")
        for split in ("valid", "test")
    )
    return valid, test, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/digits"))
    parser.add_argument("--data", type=Path, default=Path("runs/digits_data"))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # so small a model is slower on more
    print(machine(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
    write_digits(arguments.data)
    for seed in arguments.seeds:
        name = arguments.out.name + (f"-{seed}" if seed else "")
        valid, test, seconds = train(arguments.data, arguments.out.with_name(name), seed)
        print(
            f"seed {seed}: right in {test:.2f} % of the test images ({valid:.2f} % of the "
            f"validation images), {seconds:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
