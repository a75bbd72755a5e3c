"""Architectures that cannot be read: each is told with what differs and what comes nearest."""

import pytest

from qkv.convert.architectures import ARCHITECTURES
from qkv.convert.architectures.unsupported import UNSUPPORTED, why_unsupported


def test_none_of_them_can_be_read():
    assert not UNSUPPORTED.keys() & ARCHITECTURES.keys()
    assert len(UNSUPPORTED) >= 25


@pytest.mark.parametrize("model_type", UNSUPPORTED)
def test_the_nearest_can_be_read(model_type):
    reason, near = UNSUPPORTED[model_type]
    sentence = why_unsupported(model_type, ARCHITECTURES)
    assert sentence.startswith(f": {reason}; the nearest that it reads is ")
    assert sentence.removesuffix(".").rpartition(" ")[2] in {*near} & ARCHITECTURES.keys()
