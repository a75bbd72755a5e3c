"""How long a training step takes a GPU: products, attention, elementwise work, the update."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkv.config import ModelConfig
from qkv.plan.passes import Product

if TYPE_CHECKING:
    from qkv.plan.run_plan import RunPlan

# A GPU's share of its peak in a product whose inner and outer widths are both large, and the width
# at which it reaches half of that. Fitted to an H200: 792 TFLOP/s at 8192³, about 650 in GPT-2.
BEST_SHARE, HALF_WIDTH = 0.81, 96
# The same for fused attention, of whose products a causal mask skips half: 18 ms of GPT-2's step.
ATTENTION_SHARE, HALF_LENGTH, ATTENTION_TILE = 0.25, 64, 128
READ_SHARE = 0.87  # of the memory's bandwidth that is reached: 4.19 of 4.8 TB/s on an H200
# Bytes moved for each byte that is saved, forward and backward, by kernels that a compiler has
# fused; between the elementwise work of GPT-2 (28 ms) and of Transformer-base (19 ms) on an H200
MOVED = 4.7
EAGER = 2.0  # times as many without a compiler
LOGIT_MOVED = 10.0  # bytes for each logit
BETWEEN = 1.08  # times the kernels' own time, because of what happens between them
UPDATE_MOVED = 40.0  # bytes for each trained weight: AdamW's reads and writes, and clipping
LAUNCH = 6e-6  # seconds that a kernel takes at least, without a compiler
KERNELS = 60  # of a block, forward and backward


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step, by what they are spent on."""

    products: float
    attention: float
    elementwise: float
    update: float
    waiting: float = 0.0  # on kernels that are too small to fill the device

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        work = self.products + self.attention + self.elementwise
        return max(work, self.waiting) + self.update


def step_time(plan: RunPlan) -> StepTime:
    """Estimate one optimizer step on one GPU."""
    config, size, numerics, cost = plan.config, plan.size, plan.numerics, plan.cost
    hardware, recompute, batches = plan.hardware, plan.train.recompute, plan.train.accumulate
    peak = hardware.half if numerics.half else hardware.single
    bandwidth = hardware.bandwidth * READ_SHARE
    around = Counter(cost.around.products)
    products = attention = 0.0
    for product, count in Counter(cost.products()).items():
        forwards = 1 + (recompute and product not in around)  # blocks are computed again
        if product.scores:
            attention += count * _attention_seconds(config, product, forwards, peak)
            continue
        flops = count * product.flops * (forwards + product.gradients)
        # A small product is bound by the weight that it reads.
        weight = product.inner * product.columns * numerics.product
        reads = count * (forwards + product.gradients) * weight / bandwidth
        products += max(flops / (peak * efficiency(product)), reads)
    times = 1 + recompute / 2
    moved = MOVED * cost.saved() * times
    has_logits = config.family != "encoder" or config.head == "masked"
    logits = size.labels * config.vocab_size * LOGIT_MOVED if has_logits else 0.0
    elementwise = BETWEEN * (moved * (1.0 if plan.compiled else EAGER) + logits) / bandwidth
    kernels = KERNELS * len(cost.blocks) * cost.passes * times
    waiting = 0.0 if plan.compiled else kernels * LAUNCH
    update = plan.trained * UPDATE_MOVED / bandwidth
    return StepTime(
        batches * BETWEEN * products,
        batches * BETWEEN * attention,
        batches * elementwise,
        update,
        batches * waiting,
    )


def efficiency(product: Product) -> float:
    """Share of a GPU's peak that a product of these sizes reaches."""
    share = BEST_SHARE
    for width in (product.inner, product.columns):
        share *= width / (width + HALF_WIDTH)
    return share * product.rows / (product.rows + HALF_WIDTH)


def _attention_seconds(config: ModelConfig, product: Product, forwards: int, peak: float) -> float:
    """Seconds of one of attention's two products; kernels work on tiles, and compute QKᵀ again."""
    tile = ATTENTION_TILE
    queries = product.rows
    keys = product.columns if product.inner == config.d_head else product.inner
    padded = -(-queries // tile) * tile * (-(-keys // tile) * tile)
    skipped = 0.5 if config.family == "decoder" and queries > tile else 1.0
    flops = 2.0 * padded * config.d_head * product.count * skipped * (forwards + 2.5)
    share = ATTENTION_SHARE * queries / (queries + HALF_LENGTH)
    return flops / (peak * share)
