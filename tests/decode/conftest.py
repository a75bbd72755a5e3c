import pytest

from tests.parity.pairs import marian_pair, sources


@pytest.fixture(scope="package")
def pair():
    """A MarianMTModel, and ours with the same weights."""
    return marian_pair()


@pytest.fixture(scope="package")
def ours(pair):
    return pair[1]


@pytest.fixture(scope="package")
def batch():
    """Padded sources and their lengths; of their outputs, some end early and some never."""
    return sources([5, 9, 3, 12, 7, 4])
