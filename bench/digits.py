"""An encoder that reads images: `python -m bench.digits [--seeds 0 1 2]`.

Splits scikit-learn's 1,797 digits into four fifths to learn from and one fifth to test on (always
the same), trains recipes/digits.toml, and scores the test part once a run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bench.measure import Session, parser, run, score, trained

BRIGHTEST = 16  # of scikit-learn's pixels
TESTED = 0.2


def write_digits(folder: Path) -> None:
    """Write train.npz and test.npz."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / BRIGHTEST)).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(images))
    n_tested = round(TESTED * len(images))
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("test", order[:n_tested]), ("train", order[n_tested:])):
        np.savez(folder / f"{name}.npz", images=images[rows], labels=digits.target[rows])


def train(data: Path, out: Path, seed: int, *more: str) -> tuple[float, float, float]:
    """Return the accuracy on validation and test images in percent, and seconds."""
    settings = [
        f"data.examples={data / 'train.npz'}",
        f"data.test_examples={data / 'test.npz'}",
        f"train.seed={seed}",
        *more,
    ]
    start = time.perf_counter()
    finished = trained("digits", settings, out)
    spent = time.perf_counter() - start
    valid, test = (score(finished, split, "accuracy") for split in ("valid", "test"))
    return valid, test, spent


def body(session: Session) -> None:
    torch.set_num_threads(1)  # a model this small is slower on more
    options = session.options
    write_digits(options.data)
    for seed in options.seeds:
        _, test, _ = train(options.data, options.out.with_name(f"{options.out.name}-{seed}"), seed)
        figures = {"test images right, %": round(test, 2)}
        session.record(f"quality.digits.{seed}", f"seed {seed}", figures)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser("bench.digits", __doc__)
    options.add_argument("--out", type=Path, default=Path("runs/digits"))
    options.add_argument("--data", type=Path, default=Path("runs/digits_data"))
    options.add_argument("--seeds", type=int, nargs="*", default=[0])
    run(body, options, arguments)


if __name__ == "__main__":
    main()
