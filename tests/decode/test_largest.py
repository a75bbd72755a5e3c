"""The largest of many scores, against torch's own `topk` and `argmax`."""

import pytest
import torch

from qkv.decode.largest import likeliest, top_scores


@pytest.mark.parametrize("vocab_size", [3, 128, 3001, 4096, 50_000])
@pytest.mark.parametrize("count", [1, 8])
def test_top_scores_are_those_of_all_hypotheses_together(vocab_size, count):
    torch.manual_seed(0)
    scores, added = torch.randn(3, 4, vocab_size), torch.randn(3, 4)
    added[0, 1:] = float("-inf")  # as before the first step
    scores[1, 2, -1] = 9.0  # at the very end
    values, index = top_scores(scores, added, count)
    expected = (scores + added[..., None]).flatten(1)
    torch.testing.assert_close(values, expected.topk(count).values, rtol=0, atol=0)
    assert torch.equal(expected.gather(1, index), values)


def test_what_is_not_a_number_comes_first():
    scores = torch.randn(1, 4, 5000)
    scores[0, 3, 4999] = float("nan")
    values, index = top_scores(scores, torch.zeros(1, 4), 8)
    assert values[0, 0].isnan() and index[0, 0] == 4 * 5000 - 1


@pytest.mark.parametrize("shape", [(2, 1, 7), (3, 1, 50_001), (4, 1, 65_536)])
def test_the_likeliest_is_the_first_of_the_largest(shape):
    torch.manual_seed(0)
    scores = torch.randn(shape)
    assert torch.equal(likeliest(scores), scores.argmax(dim=-1))
    scores[..., [1, 5, -1]] = 9.0
    assert (likeliest(scores) == 1).all()
    scores[..., 1:6] = 0.0
    assert (likeliest(scores) == shape[-1] - 1).all()
