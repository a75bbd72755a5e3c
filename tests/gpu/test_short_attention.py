"""The kernel for short packed sequences: the equation, forward and backward."""

import pytest
import torch

from qkv.model import Layout, Mask, equation, fast
from qkv.model.mask import cross_mask, self_mask

LENGTHS = {32: (5, 32, 1, 17), 64: (33, 64, 2, 0, 40), 128: (128, 3, 70, 0, 31, 64)}


def layout(lengths: tuple[int, ...]) -> Layout:
    offsets = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    return Layout(offsets=offsets, longest=max(lengths))


def heads(n_tokens: int, n_heads: int, d_head: int, seed: int) -> torch.Tensor:
    draw = torch.Generator("cuda").manual_seed(seed)
    fused = torch.randn((1, n_tokens, n_heads, d_head), generator=draw, device="cuda")
    return fused.transpose(1, 2).detach()


def results(attend, inputs, mask: Mask, slope) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    output = attend(*leaves, mask, 0.3)
    output.backward(slope.to(output.dtype))
    return [output.detach().double(), *(leaf.grad.double() for leaf in leaves)]


@pytest.mark.parametrize("longest", LENGTHS)
@pytest.mark.parametrize("kind", ["causal", "both ways", "cross"])
@pytest.mark.parametrize(("n_heads", "n_groups", "d_head"), [(4, 4, 64), (6, 2, 32), (2, 1, 128)])
def test_outputs_and_gradients_are_those_of_the_equation(longest, kind, n_heads, n_groups, d_head):
    lengths = LENGTHS[longest]
    queries = layout(lengths)
    keys = layout(tuple(reversed(lengths))) if kind == "cross" else queries
    mask = cross_mask(queries, keys) if kind == "cross" else self_mask(queries, kind == "causal")
    inputs = [
        heads(sum(lengths), count, d_head, seed).bfloat16()
        for seed, count in enumerate((n_heads, n_groups, n_groups))
    ]
    slope = heads(sum(lengths), n_heads, d_head, 9)
    found = results(fast, inputs, mask, slope)
    exact = results(equation, [x.double() for x in inputs], mask, slope.bfloat16())
    rough = results(equation, inputs, mask, slope)
    for ours, expected, others in zip(found, exact, rough, strict=True):
        error, usual = ((x - expected).norm() / expected.norm() for x in (ours, others))
        assert error < 1.5 * usual + 1e-3, (error, usual)  # as exact as the equation in bfloat16
