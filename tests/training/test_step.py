"""One step: the gradient does not depend on how its pairs lie in memory or are split."""

from functools import partial

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from qkv.config import TrainConfig
from qkv.data.batch import Batch
from qkv.training import accumulate, build_loss, layout_of, mean_loss
from tests.training.helpers import CPU, packed, padded, small_model, some_texts

SMOOTHING = 0.1
TEXTS = some_texts(13)
SPLITS = {
    "whole": [TEXTS],
    "two": [TEXTS[:4], TEXTS[4:]],
    "three": [TEXTS[:1], TEXTS[1:8], TEXTS[8:]],
    "other order": [TEXTS[:6:-1], TEXTS[:7]],
    "one by one": [[text] for text in TEXTS],
}


def loss_and_gradients(batches: list[Batch], **model: object) -> tuple[Tensor, list[Tensor]]:
    model = small_model(dropout=0.0, **model).double()
    loss = accumulate(build_loss(model, TrainConfig(precision="float32"), CPU), batches, SMOOTHING)
    return loss, [p.grad for p in model.parameters()]


def assert_close(found: tuple[Tensor, list[Tensor]], expected: tuple[Tensor, list[Tensor]]) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("lay", [padded, packed])
def test_loss_and_gradients_do_not_depend_on_the_split(split, lay) -> None:
    whole = loss_and_gradients([padded(TEXTS)])
    assert whole[0] > 1
    assert_close(loss_and_gradients([lay(texts) for texts in split]), whole)


def test_the_loss_is_the_mean_over_labels_of_torch_s_cross_entropy() -> None:
    batch = padded(TEXTS)
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


def test_validation_is_without_dropout_and_without_smoothing() -> None:
    batches = [padded(texts) for texts in SPLITS["three"]]
    plain, dropping = small_model(dropout=0.0), small_model(dropout=0.5)
    assert all(map(torch.equal, plain.parameters(), dropping.parameters()))
    config = TrainConfig(precision="float32", label_smoothing=0.3)
    found = mean_loss(dropping, build_loss(dropping, config, CPU), batches)
    loss = accumulate(build_loss(plain, config, CPU), batches, smoothing=0.0)
    assert found == pytest.approx(loss.item(), rel=1e-6)
    assert dropping.training
    assert all(p.grad is None for p in dropping.parameters())


def test_mixed_precision_reaches_the_products_and_the_weights_stay_exact() -> None:
    seen: set[torch.dtype] = set()

    class Noting(torch.nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            seen.add(result.dtype)
            return result

    model = small_model(dropout=0.0)
    inner = model.encoder.blocks[0].feed_forward.inner
    inner.__class__ = Noting
    loss_sum = build_loss(model, TrainConfig(precision="bfloat16"), CPU)
    loss = accumulate(loss_sum, [padded(TEXTS[:2])], SMOOTHING)
    assert seen == {torch.bfloat16}
    assert loss.dtype == torch.float32
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_each_of_many_models_in_a_process_has_compiled_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch compiles the same code for eight kinds of arguments and runs others as they are."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    config = TrainConfig(precision="float32", compile="on")
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for width in (8, 16, 24, 32):
            model = small_model(d_model=width)
            loss_sum = build_loss(model, config, CPU, one_shape=True)
            accumulate(loss_sum, [padded(TEXTS[:3])], SMOOTHING)
            assert all(p.grad is not None for p in model.parameters())


def test_padded_batches_of_other_sizes_are_not_compiled_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    loss_sum = build_loss(small_model(), TrainConfig(precision="float32", compile="on"), CPU)
    kinds = []
    for n in (3, 5, 7, 4):
        accumulate(loss_sum, [padded(TEXTS[:n])], SMOOTHING)
        kinds.append(counter.frame_count)
    assert kinds == [kinds[0]] * 4
