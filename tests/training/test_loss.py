"""The loss that never holds all logits, against torch's own on logits that are all there."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.training import consistent_cross_entropy, cross_entropy, loss

BATCH, LENGTH, D_MODEL, VOCAB = 3, 7, 8, 19


def inputs(dtype: torch.dtype, bias: bool = True) -> list[Tensor | None]:
    hidden = torch.randn(BATCH, LENGTH, D_MODEL, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCAB, D_MODEL, dtype=dtype, requires_grad=True)
    return [hidden, weight, torch.randn(VOCAB, dtype=dtype, requires_grad=True) if bias else None]


def some_labels() -> Tensor:
    labels = torch.randint(VOCAB, (BATCH, LENGTH))
    labels[1, 4:] = -100
    labels[2, 0] = -100
    return labels


def reference(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    cap: float = 0.0,
) -> Tensor:
    logits = F.linear(hidden, weight, bias).flatten(0, 1).double()
    logits = cap * torch.tanh(logits / cap) if cap else logits
    return F.cross_entropy(
        logits, labels.flatten(), label_smoothing=smoothing, ignore_index=-100, reduction="sum"
    )


def gradients(total: Tensor, inputs: list[Tensor | None]) -> list[Tensor]:
    # A slope other than 1 shows whether the gradient that comes from above is passed on.
    return list(torch.autograd.grad(total * 0.7, [x for x in inputs if x is not None]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("elements", [1, 5 * VOCAB, 1000 * VOCAB])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("alignment", [1, 8])
@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_it_equals_torch_in_value_and_gradients(
    dtype: torch.dtype,
    smoothing: float,
    elements: int,
    bias: bool,
    alignment: int,
    cap: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(loss.CHUNK_ELEMENTS, "cpu", elements)
    monkeypatch.setitem(loss.ALIGNMENT, "cpu", alignment)
    given, labels = inputs(dtype, bias), some_labels()
    found = cross_entropy(*given, labels, smoothing, cap)
    expected = reference(*given, labels, smoothing, cap)
    assert found.dtype == dtype
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {}
    torch.testing.assert_close(found, expected.to(dtype), **tolerance)
    for ours, theirs in zip(gradients(found, given), gradients(expected, given), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, **tolerance)


def rdrop_reference(
    passes: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    cap: float,
    consistency: float,
) -> Tensor:
    """Half of R-Drop's loss, with torch's own divergences of logits that are all there."""
    counted = labels >= 0
    logits = F.linear(passes[:, counted], weight, bias)
    logits = cap * torch.tanh(logits / cap) if cap else logits
    first, second = logits.log_softmax(dim=-1)
    losses = [
        F.cross_entropy(each, labels[counted], label_smoothing=smoothing, reduction="sum")
        for each in logits
    ]
    forth = F.kl_div(second, first, log_target=True, reduction="sum")
    back = F.kl_div(first, second, log_target=True, reduction="sum")
    return sum(losses) / 2 + consistency * (forth + back) / 4


@pytest.mark.parametrize("consistency", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("elements", [1, 5 * VOCAB, 1000 * VOCAB])
@pytest.mark.parametrize("alignment", [1, 8])
@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize("compiling", [False, True])
def test_two_passes_equal_r_drop_in_value_and_gradients(
    consistency: float,
    elements: int,
    alignment: int,
    cap: float,
    compiling: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(loss.CHUNK_ELEMENTS, "cpu", elements)
    monkeypatch.setitem(loss.ALIGNMENT, "cpu", alignment)
    # A compiled step keeps the labels that do not count, as a GPU does.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    _, weight, bias = inputs(torch.float64)
    passes = torch.randn(2, BATCH, LENGTH, D_MODEL, dtype=torch.float64, requires_grad=True)
    settings = some_labels(), 0.1, cap, consistency
    found = consistent_cross_entropy(passes, weight, bias, *settings)
    expected = rdrop_reference(passes, weight, bias, *settings)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    given = [passes, weight, bias]
    for ours, theirs in zip(gradients(found, given), gradients(expected, given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("elements", [3 * VOCAB, 1000 * VOCAB])
def test_in_mixed_precision_only_the_products_are_rounded(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loss.CHUNK_ELEMENTS, "cpu", elements)
    given, labels = inputs(torch.float32), some_labels()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = cross_entropy(*given, labels, 0.1)
        expected = reference(*given, labels, 0.1)
    exact = reference(*given, labels, 0.1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)  # same bf16 logits
    for ours, theirs in zip(gradients(found, given), gradients(exact, given), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)


def test_labels_that_do_not_count_have_no_influence() -> None:
    given = inputs(torch.float64)
    hidden, weight, bias = given
    nothing = torch.full((BATCH, LENGTH), -100)
    empty = cross_entropy(hidden, weight, bias, nothing, 0.1)
    assert empty.item() == 0
    assert all(gradient.abs().max() == 0 for gradient in gradients(empty, given))
    labels = some_labels()
    gradient = gradients(cross_entropy(hidden, weight, bias, labels, 0.1), given)[0]
    assert (gradient[labels == -100] == 0).all()
    assert (gradient[labels != -100] != 0).any(dim=-1).all()


def spy(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Note how many logits each chunk has, and whether its gradient is taken."""
    seen = []
    plain = loss._loss_and_slope

    def noting(logits: Tensor, *others):  # type: ignore[no-untyped-def]
        seen.append((logits.numel(), others[-1]))
        return plain(logits, *others)

    monkeypatch.setattr(loss, "_loss_and_slope", noting)
    return seen


@pytest.mark.parametrize("tokens_at_once", [1, 4, 21, 100])
def test_no_chunk_is_larger_than_the_limit(
    tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = spy(monkeypatch)
    limit = tokens_at_once * VOCAB + 3
    monkeypatch.setitem(loss.CHUNK_ELEMENTS, "cpu", limit)
    cross_entropy(*inputs(torch.float32), some_labels(), 0.1).backward()
    sizes = [size for size, _ in seen]
    assert max(sizes) <= limit
    n_labels = int((some_labels() >= 0).sum())  # what does not count has no logits
    assert sum(sizes) == n_labels * VOCAB
    assert len(sizes) == -(-n_labels // tokens_at_once)


def test_no_gradient_is_worked_out_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spy(monkeypatch)
    given, labels = inputs(torch.float32), some_labels()
    with torch.no_grad():
        found = cross_entropy(*given, labels, 0.1)
    assert not found.requires_grad
    assert not any(wanted for _, wanted in seen)
    torch.testing.assert_close(found, cross_entropy(*given, labels, 0.1).detach())


def test_large_logits_do_not_overflow() -> None:
    hidden = torch.full((1, 2, D_MODEL), 1e4)
    weight = torch.randn(VOCAB, D_MODEL)
    labels = torch.tensor([[0, 1]])
    found = cross_entropy(hidden, weight, None, labels, 0.1)
    torch.testing.assert_close(found, reference(hidden, weight, None, labels, 0.1).float())
