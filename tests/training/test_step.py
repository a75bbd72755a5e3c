"""One step: the gradient does not depend on how its pairs lie in memory or are split."""

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.config import TrainConfig
from qkv.data import Batch, packed_batch, packed_shape, padded_batch
from qkv.model import EncoderDecoder
from qkv.training import accumulate, build_loss, layout_of, mean_loss, with_wrong_sources
from tests.training.helpers import CPU, SPECIAL, small_model, some_pairs

SMOOTHING = 0.1
PAIRS = some_pairs(13)
SPLITS = {
    "whole": [list(range(13))],
    "two": [list(range(4)), list(range(4, 13))],
    "three": [[0], list(range(1, 8)), list(range(8, 13))],
    "other order": [list(range(12, 6, -1)), list(range(7))],
    "one by one": [[index] for index in range(13)],
}


def padded(indices: list[int]) -> Batch:
    return padded_batch(PAIRS, indices, SPECIAL)


def packed(indices: list[int]) -> Batch:
    return packed_batch(PAIRS, indices, SPECIAL, packed_shape(PAIRS, 64))


def loss_and_gradients(batches: list[Batch], **model: object) -> tuple[Tensor, list[Tensor]]:
    model = small_model(dropout=0.0, **model).double()
    loss = accumulate(build_loss(model, TrainConfig(precision="float32"), CPU), batches, SMOOTHING)
    return loss, [p.grad for p in model.parameters()]


def assert_close(one: tuple[Tensor, list[Tensor]], other: tuple[Tensor, list[Tensor]]) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("lay", [padded, packed])
def test_loss_and_gradients_do_not_depend_on_the_split(split, lay) -> None:
    whole = loss_and_gradients([padded(SPLITS["whole"][0])])
    assert whole[0] > 1
    assert_close(loss_and_gradients([lay(indices) for indices in split]), whole)


def test_the_loss_is_the_mean_over_labels_of_torch_s_cross_entropy() -> None:
    batch = padded(SPLITS["whole"][0])
    model = small_model(dropout=0.0, output_bias=True).double()
    torch.nn.init.normal_(model.output.projection.bias)
    logits = model(
        batch.source.tokens,
        batch.target.tokens,
        source_layout=layout_of(batch.source),
        target_layout=layout_of(batch.target),
    )
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.labels.flatten(), label_smoothing=SMOOTHING
    )
    loss_sum = build_loss(model, TrainConfig(precision="float32"), CPU)
    found = accumulate(loss_sum, [batch], SMOOTHING)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)
    assert model.output.projection.bias.grad.abs().min() > 0


def test_gradients_of_several_batches_are_summed_and_none_is_left_over() -> None:
    """Twice the same pairs is the same mean: the labels of the whole step are counted."""
    once, twice = [padded([0, 1, 2])], [padded([0, 1, 2]), padded([0, 1, 2])]
    assert_close(loss_and_gradients(twice), loss_and_gradients(once))


def test_validation_is_without_dropout_and_without_smoothing() -> None:
    batches = [padded(indices) for indices in SPLITS["three"]]
    plain, dropping = small_model(dropout=0.0), small_model(dropout=0.5)
    assert all(map(torch.equal, plain.parameters(), dropping.parameters()))
    config = TrainConfig(precision="float32", label_smoothing=0.3)
    found = mean_loss(dropping, build_loss(dropping, config, CPU), batches)
    loss = accumulate(build_loss(plain, config, CPU), batches, smoothing=0.0)
    assert found == pytest.approx(loss.item(), rel=1e-6)
    assert dropping.training
    assert all(p.grad is None for p in dropping.parameters())


def test_wrong_sources_are_those_of_a_neighbour() -> None:
    batch = padded([0, 1, 2, 3])
    wrong = with_wrong_sources(batch)
    for row in range(4):
        n = int(wrong.source.lengths[row])
        expected = [*PAIRS.source[(row - 1) % 4], SPECIAL.eos]
        assert np.array_equal(wrong.source.tokens[row, :n], expected)
    assert wrong.labels is batch.labels


def test_mixed_precision_reaches_the_products_and_the_weights_stay_exact() -> None:
    seen: set[torch.dtype] = set()

    class Noting(torch.nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            seen.add(result.dtype)
            return result

    model: EncoderDecoder = small_model(dropout=0.0)
    inner = model.encoder.blocks[0].feed_forward.inner
    inner.__class__ = Noting
    loss_sum = build_loss(model, TrainConfig(precision="bfloat16"), CPU)
    loss = accumulate(loss_sum, [padded([0, 1])], SMOOTHING)
    assert seen == {torch.bfloat16}
    assert loss.dtype == torch.float32
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
