"""A feed-forward layer of experts, of which each token uses a few (Shazeer et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model.feed_forward import FeedForward


class Router(nn.Module):
    """Share of each expert in a token's output: the k largest of softmax(x·W_R), renormalised."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_used = config.n_experts_used
        self.projection = nn.Linear(config.d_model, config.n_experts, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, X) for X experts, with zeros for those that are not chosen."""
        logits = self.projection(x)
        exact = torch.promote_types(logits.dtype, torch.float32)
        shares = torch.softmax(logits, dim=-1, dtype=exact)
        largest, chosen = shares.topk(self.n_used, dim=-1)
        largest = largest / largest.sum(dim=-1, keepdim=True)
        return torch.zeros_like(shares).scatter(-1, chosen, largest).to(x.dtype)


class Experts(nn.Module):
    """Σ share_i · FFN_i(x) over the experts that the router chooses for a token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.router = Router(config)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(config.n_experts))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to each position by itself, (B, T, D)."""
        shares = self.router(x).flatten(0, -2)  # (N, X)
        tokens = x.flatten(0, -2)  # (N, D)
        total = torch.zeros_like(tokens)
        for expert, share in zip(self.experts, shares.unbind(-1), strict=True):
            if _needs_fixed_shapes(tokens):
                total = total + expert(tokens) * share[:, None]
                continue
            chosen = share.nonzero()[:, 0]
            if len(chosen) or torch.is_grad_enabled():  # where an idle expert has a gradient of 0
                output = expert(tokens[chosen]) * share[chosen, None]
                total = total.index_add(0, chosen, output.to(total.dtype))
        return total.view(x.shape)


def _needs_fixed_shapes(x: Tensor) -> bool:
    """Whether code is recorded that must not depend on values: then each expert sees all tokens."""
    recorded = x.is_cuda and torch.cuda.is_current_stream_capturing()
    return recorded or torch.compiler.is_compiling()
