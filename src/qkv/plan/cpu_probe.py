"""A short probe of this CPU: what one product, one attention, one element takes here and now."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import ModelConfig, TrainConfig
from qkv.model import Mask, fast
from qkv.model.dropout import dropout
from qkv.model.feed_forward import ACTIVATIONS
from qkv.plan.passes import Product
from qkv.training.loss import cross_entropy
from qkv.training.optimizer import adamw

PROBE_FLOPS = 8e8  # of the forward pass of one probed product
PROBE_ELEMENTS = 2**20
REPEATS = 3


def seconds(work: Callable[[], object]) -> float:
    """Time a piece of work: the middle one of a few, after one that does not count."""
    work()
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return sorted(times)[REPEATS // 2]


@dataclass
class CpuProbe:
    """Times the kinds of work of a model; each is measured once, when it is first asked for."""

    config: ModelConfig
    half: bool = False
    train: TrainConfig = field(default_factory=TrainConfig)
    _products: dict[tuple[int, int, int], float] = field(default_factory=dict)
    _attentions: dict[tuple[int, int], float] = field(default_factory=dict)

    def product(self, product: Product) -> float:
        """Seconds of a product and both of its gradients."""
        inner, columns = product.inner, product.columns
        rows = max(1, min(product.rows, int(PROBE_FLOPS / (2 * inner * columns)) or 1, 4096))
        key = rows, inner, columns
        if key not in self._products:
            self._products[key] = self._time_product(*key) / rows
        return self._products[key] * product.rows * product.count

    def _time_product(self, rows: int, inner: int, columns: int) -> float:
        dtype = torch.bfloat16 if self.half else torch.float32
        x, gradient = torch.randn(rows, inner, dtype=dtype), torch.randn(rows, columns, dtype=dtype)
        weight = torch.randn(columns, inner, dtype=dtype)

        def work() -> None:
            F.linear(x, weight)
            gradient @ weight
            gradient.T @ x

        return seconds(work)

    def attention(self, product: Product) -> float:
        """Seconds of one of attention's two products with its gradients: half of the kernel's."""
        d_head = self.config.d_head
        keys = product.columns if product.inner == d_head else product.inner
        key = product.rows, keys
        if key not in self._attentions:
            self._attentions[key] = self._time_attention(*key)
        return self._attentions[key] * product.count / 2

    def _time_attention(self, queries: int, keys: int) -> float:
        """Seconds for each head of each row."""
        config = self.config
        flops = 4 * queries * keys * config.d_head * config.n_heads
        rows = max(1, min(32, int(PROBE_FLOPS / flops)))
        dtype = torch.bfloat16 if self.half else torch.float32
        query, key, value = (
            torch.randn(
                rows, config.n_heads, length, config.d_head, dtype=dtype, requires_grad=True
            )
            for length in (queries, keys, keys)
        )
        mask = Mask(causal=config.family == "decoder" and queries == keys)

        def work() -> Tensor:
            heads = fast(query, key, value, mask, 1.0, dropout=config.attention_dropout)
            heads.backward(heads.detach())
            return heads

        return seconds(work) / (rows * config.n_heads)

    @cached_property
    def elements(self) -> dict[str, float]:
        """Seconds of each kind of elementwise work, forward and backward, for one element."""
        width = self.config.d_model
        x = torch.randn(max(1, PROBE_ELEMENTS // width), width, requires_grad=True)
        gain = torch.ones(width, requires_grad=True)

        def backward(compute: Callable[[Tensor], Tensor]) -> float:
            def work() -> None:
                made = compute(x)
                made.backward(x.detach())

            return seconds(work) / x.numel()

        if self.config.norm == "layer":
            norm = backward(lambda x: F.layer_norm(x, (width,), gain, gain))
        else:
            norm = backward(lambda x: F.rms_norm(x, (width,), gain))
        return {
            "norm": norm,
            "dropout": backward(lambda x: dropout(x, 0.1)),
            "activation": backward(ACTIVATIONS[self.config.activation]),
            "added": backward(lambda x: x + 1),
        }

    @cached_property
    def logit(self) -> float:
        """Seconds of the loss for one logit, without its products."""
        vocab_size = min(self.config.vocab_size, 8192)
        labels = torch.zeros(max(1, PROBE_ELEMENTS // vocab_size), dtype=torch.long)
        hidden = torch.randn(len(labels), 1, requires_grad=True)
        weight = torch.randn(vocab_size, 1)
        spent = seconds(lambda: cross_entropy(hidden, weight, None, labels, 0.1).backward())
        return spent / (len(labels) * vocab_size)

    @cached_property
    def update(self) -> float:
        """Seconds of clipping and of AdamW for one weight."""
        weight = torch.nn.Parameter(torch.randn(PROBE_ELEMENTS))
        optimizer = adamw([weight], self.train)

        def work() -> None:
            weight.grad = torch.ones_like(weight)
            torch.nn.utils.clip_grad_norm_([weight], 1.0)
            optimizer.step()

        return seconds(work) / PROBE_ELEMENTS
