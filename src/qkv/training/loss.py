"""Cross-entropy with label smoothing, computed together with the output projection."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.model.soft_cap import soft_cap

# Logits that stand in memory at one time. A GPU wants large products; a CPU wants them in cache.
CHUNK_ELEMENTS = {"cuda": 2**29, "cpu": 2**22}
# Where W_out learns, each chunk adds to its whole gradient: a GPU is faster with fewer of them.
LARGER_IF_LEARNING = {"cuda": 2}
# A GPU multiplies by a matrix whose rows are a multiple of this much faster than by one of 50,257.
ALIGNMENT = {"cuda": 64}


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float = 0.0,
    cap: float = 0.0,
) -> Tensor:
    """Summed loss of `hidden`·Wᵀ + b against `labels`, a float32 scalar; negative labels count not.

    The target is (1-ε) on the label plus ε spread evenly over the vocabulary. With a cap, logits
    are squashed to ±cap. The logits are made, used and dropped a chunk of tokens at a time, so that
    they never stand in memory whole, and their gradient is taken at once while they are there.
    """
    return consistent_cross_entropy(hidden[None], weight, bias, labels, smoothing, cap)


def consistent_cross_entropy(
    passes: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float = 0.0,
    cap: float = 0.0,
    consistency: float = 0.0,
) -> Tensor:
    """Summed `cross_entropy` of P passes over the same labels, their mean, plus their divergence.

    `passes` is (P, …, D). Of two passes, `consistency` / 4 · (KL(p, q) + KL(q, p)) is added for
    each label (half of R-Drop's loss: Liang et al. 2021), chunk by chunk as well.
    """
    passes, labels = passes.flatten(1, -2), labels.flatten()  # (P, N, D), (N,)
    counted = labels >= 0
    if _all_count(passes) and not counted.all():
        passes, labels = passes[:, counted], labels[counted]
    if torch.is_autocast_enabled(passes.device.type):
        dtype = torch.get_autocast_dtype(passes.device.type)
        passes, weight = passes.to(dtype), weight.to(dtype)
    loss: Tensor = _ProjectedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        passes, weight, bias, labels, smoothing, cap, consistency, torch.is_grad_enabled()
    )
    return loss


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        passes: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        cap: float,
        consistency: float,
        learning: bool,
    ) -> Tensor:
        # Weights ask for a gradient even where nobody will take one, as in validation.
        needs_gradient = learning and any(ctx.needs_input_grad)
        exact = torch.promote_types(passes.dtype, torch.float32)
        loss = passes.new_zeros((), dtype=exact)
        grad_passes = torch.empty_like(passes) if needs_gradient else None
        # A frozen matrix needs none, and its gradient would be as large as itself.
        learns = ctx.needs_input_grad if needs_gradient else (False,) * 3
        grad_weight = torch.zeros_like(weight, dtype=exact) if learns[1] else None
        grad_bias = torch.zeros_like(bias) if bias is not None and learns[2] else None
        n_tokens, unit = weight.shape[0], ALIGNMENT.get(passes.device.type, 1)
        size = -(-n_tokens // unit) * unit
        wide, offset = _padded(weight, bias, size)
        elements = chunk_elements(passes.device.type, learns=grad_weight is not None)
        n_together = max(1, elements // (passes.shape[0] * size))
        # Chunks are counted: a compiler takes the bounds of a range for constants.
        for number in range(-(-passes.shape[1] // n_together)):
            part = slice(number * n_together, (number + 1) * n_together)
            hidden = passes[:, part]
            logits = F.linear(hidden, wide, offset)  # (P, n, V)
            chunk_loss, slope = _loss_and_slope(
                logits, labels[part], smoothing, cap, consistency, n_tokens, needs_gradient
            )
            loss = loss + chunk_loss
            if slope is None or grad_passes is None:
                continue
            grad_passes[:, part] = slope @ wide
            slope = slope.flatten(0, 1)
            if grad_weight is not None:
                _add_product(grad_weight, slope, hidden.flatten(0, 1))
            if grad_bias is not None:
                grad_bias += slope.sum(0)[:n_tokens]
        if needs_gradient:
            ctx.save_for_backward(grad_passes, grad_weight, grad_bias)
            ctx.dtype = weight.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_passes, grad_weight, grad_bias = ctx.saved_tensors
        return (
            _scaled(grad_passes, grad),
            None if grad_weight is None else _scaled(grad_weight, grad).to(ctx.dtype),
            None if grad_bias is None else _scaled(grad_bias, grad),
            None,
            None,
            None,
            None,
            None,
        )


def _add_product(grad_weight: Tensor, slope: Tensor, hidden: Tensor) -> None:
    """Add slopeᵀ·hidden to the gradient of W_out, with no second matrix of its size if possible."""
    if slope.dtype == grad_weight.dtype and not torch.compiler.is_compiling():
        torch.addmm(grad_weight, slope[:, : len(grad_weight)].T, hidden, out=grad_weight)
    else:
        grad_weight += (slope.T @ hidden)[: len(grad_weight)]


def _scaled(gradient: Tensor, factor: Tensor) -> Tensor:
    """Multiply in place: that of W_out is as large as W_out itself, and not needed again."""
    factor = factor.to(gradient.dtype)
    return gradient * factor if torch.compiler.is_compiling() else gradient.mul_(factor)


def _padded(weight: Tensor, bias: Tensor | None, size: int) -> tuple[Tensor, Tensor | None]:
    """Rows of zeros up to `size`: logits of tokens that there are not, hidden further down."""
    more = size - weight.shape[0]
    bias = None if bias is None else bias.to(weight.dtype)
    if not more:
        return weight, bias
    return F.pad(weight, (0, 0, 0, more)), None if bias is None else F.pad(bias, (0, more))


def chunk_elements(device: str, learns: bool) -> int:
    """Return how many logits stand in memory at one time."""
    return CHUNK_ELEMENTS.get(device, 2**24) * (LARGER_IF_LEARNING.get(device, 1) if learns else 1)


def _loss_and_slope(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    cap: float,
    consistency: float,
    n_tokens: int,
    needs_gradient: bool,
) -> tuple[Tensor, Tensor | None]:
    """The chunk's summed loss, and its gradient by the logits: P - target, times the cap's."""
    n_passes = len(logits)
    exact = soft_cap(logits.to(torch.promote_types(logits.dtype, torch.float32)), cap)
    steepness = 1 - (exact / cap) ** 2 if cap and needs_gradient else None
    padding = None
    if n_tokens < logits.shape[-1]:
        padding = torch.arange(logits.shape[-1], device=logits.device) >= n_tokens
        exact = exact.masked_fill(padding, float("-inf"))
    counts = labels >= 0
    label = labels.clamp(min=0)[:, None].expand(n_passes, -1, 1)
    slope, log_total = _softmax(exact)
    nll = log_total - exact.gather(-1, label)
    loss = nll
    if smoothing:
        even = log_total - exact[..., :n_tokens].mean(dim=-1, keepdim=True)
        loss = (1 - smoothing) * nll + smoothing * even
    loss = loss.squeeze(-1).mean(dim=0)
    agree = n_passes == 2 and consistency > 0
    if agree:
        divergence, divergence_slope = _divergence_and_slope(exact - log_total, padding)
        loss = loss + consistency / 4 * divergence
    total = (loss * counts).sum()
    if not needs_gradient:
        return total, None
    if torch.compiler.is_compiling():  # one kernel does all; scattering would need one of its own
        is_label = torch.arange(logits.shape[-1], device=logits.device) == label
        slope = slope - is_label.to(slope.dtype) * (1 - smoothing) - smoothing / n_tokens
    else:
        slope.sub_(smoothing / n_tokens).scatter_add_(
            -1, label, torch.full_like(log_total, smoothing - 1)
        )
    slope = slope if padding is None else slope.masked_fill(padding, 0.0)
    if n_passes > 1:
        slope = slope / n_passes
    if agree:
        slope = slope + consistency / 4 * divergence_slope
    slope = slope if steepness is None else slope * steepness
    if not _all_count(logits):
        slope = slope * counts[:, None]
    return total, slope.to(logits.dtype)


def _all_count(x: Tensor) -> bool:
    """Whether labels that do not count were left out: a GPU would wait to know how many."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over the last dimension, and the logarithm of its denominator."""
    if torch.compiler.is_compiling():  # which leaves out what is not needed, and joins the rest
        log_total = logits.logsumexp(dim=-1, keepdim=True)
        return (logits - log_total).exp(), log_total
    # Exponentials take most of the time: the largest one's logarithm tells the sum of all.
    p = logits.softmax(dim=-1)
    return p, logits.amax(dim=-1, keepdim=True) - p.amax(dim=-1, keepdim=True).log()


def _divergence_and_slope(log_p: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
    """KL(p, q) + KL(q, p) of each token (N,), and its gradient by both passes' logits (2, N, V).

    With d = log p - log q, the gradient by the logits of p is p·(d - KL(p, q)) + p - q.
    """
    p = log_p.exp()
    other = p.flip(0)
    difference = log_p - log_p.flip(0)  # d, and -d for the other pass
    if padding is not None:
        difference = difference.masked_fill(padding, 0.0)  # of two infinities
    divergence = (p * difference).sum(dim=-1, keepdim=True)  # KL(p, q), KL(q, p)
    return divergence.sum(dim=0).squeeze(-1), p * (difference - divergence) + p - other
