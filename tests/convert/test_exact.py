"""In float64, nothing hides behind rounding: outputs and gradients of checkpoints are theirs."""

import pytest

from qkv.convert.architectures import ARCHITECTURES
from tests.convert.exact import assert_exact
from tests.convert.small import small

ENCODERS = ["distilbert", "mpnet"]
CASES = [(name, head) for name in ENCODERS for head in ARCHITECTURES[name].classes]


@pytest.mark.parametrize(("name", "head"), CASES)
def test_outputs_and_gradients(name, head):
    n_labels = {} if head in ("none", "masked") else {"num_labels": 2 if head == "answer" else 3}
    theirs = small(ARCHITECTURES[name].classes[head], **n_labels)
    assert_exact(theirs, head, [7, 12, 1])
