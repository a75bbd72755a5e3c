"""In float64, nothing hides behind rounding: outputs and gradients of checkpoints are theirs."""

import pytest

from qkv.convert.architectures import ARCHITECTURES
from tests.convert.encoders import said
from tests.convert.seq2seq import teacher_forced
from tests.convert.small import small
from tests.parity.pairs import assert_same_gradients, with_ours

ENCODERS = ["distilbert", "mpnet", "electra", "deberta"]
TRANSLATORS = ["mt5", "mbart", "m2m_100", "pegasus"]
CASES = [(name, head) for name in ENCODERS + TRANSLATORS for head in ARCHITECTURES[name].classes]
LABELS = {"sequence": 3, "token": 3, "answer": 2}
IN_FLOAT32 = {"mt5": 1e-5, "deberta": 1e-5}  # whose norms are so, whatever the weights are


@pytest.mark.parametrize(("name", "head"), CASES)
def test_outputs_and_gradients(name, head):
    sizes = {"num_labels": LABELS[head]} if head in LABELS else {}
    pair = with_ours(small(ARCHITECTURES[name].classes[head], **sizes))
    theirs, ours = (model.double() for model in pair)
    if name in TRANSLATORS:
        outputs = [teacher_forced(ours, theirs, [7, 12, 1])]
    else:
        outputs = said(head, ours, theirs, [7, 12, 1], 0)
    limit = IN_FLOAT32.get(name, 1e-9)
    for mine, other in outputs:
        assert mine.shape == other.shape
        assert (mine - other).abs().max() <= limit * other.abs().max()
    # A bias of logits is no parameter of theirs.
    unused = ("output.projection.bias",)
    assert_same_gradients((theirs, ours), outputs, limit, least=0, unused=unused)
