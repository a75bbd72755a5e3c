from collections.abc import Callable

import numpy as np
import pytest

from qkv.data import PairItems, Ragged, Specials

SPECIAL = Specials(pad=0, bos=2, eos=3)


@pytest.fixture(scope="session")
def make_pairs() -> Callable[..., PairItems]:
    """Random pairs with the skewed lengths of real sentences, cut at 60 tokens."""

    def make(n: int, seed: int = 0, mean: float = 13.0) -> PairItems:
        random = np.random.default_rng(seed)
        target = np.clip(np.round(random.lognormal(np.log(mean), 0.5, n)), 1, 60).astype(int)
        noise = random.lognormal(0.0, 0.25, n)
        source = np.clip(np.round(0.8 * target * noise), 1, 60).astype(int)

        def draw(lengths: np.ndarray) -> Ragged:
            return Ragged.of([random.integers(4, 500, length).tolist() for length in lengths])

        return PairItems(draw(source), draw(target), SPECIAL)

    return make
