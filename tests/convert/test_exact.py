"""In float64, nothing hides behind rounding: outputs and gradients of checkpoints are theirs."""

import pytest

from qkv.convert.architectures import ARCHITECTURES
from tests.convert.exact import assert_exact
from tests.convert.small import small

ENCODERS = ["distilbert", "mpnet", "electra", "deberta"]
TRANSLATORS = ["mt5", "mbart", "m2m_100", "pegasus"]
CASES = [(name, head) for name in ENCODERS + TRANSLATORS for head in ARCHITECTURES[name].classes]


@pytest.mark.parametrize(("name", "head"), CASES)
def test_outputs_and_gradients(name, head):
    labels = {"sequence": 3, "token": 3, "answer": 2}
    sizes = {"num_labels": labels[head]} if head in labels else {}
    theirs = small(ARCHITECTURES[name].classes[head], **sizes)
    assert_exact(theirs, head, [7, 12, 1])
