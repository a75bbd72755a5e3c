"""How long a training step takes: products, attention, elementwise work, the optimizer's update."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkv.config import ModelConfig
from qkv.plan.cpu_probe import CpuProbe
from qkv.plan.passes import Product

if TYPE_CHECKING:
    from qkv.plan.run_plan import RunPlan

# A GPU's share of its peak in a product whose inner and outer widths are both large, and the width
# at which it reaches half of that. Fitted to an H200: 792 TFLOP/s at 8192³, about 650 in GPT-2.
BEST_SHARE, HALF_WIDTH = 0.81, 96
# The same for fused attention, of whose products a causal mask skips half: 18 ms of GPT-2's step.
ATTENTION_SHARE, HALF_LENGTH, ATTENTION_TILE = 0.25, 64, 128
READ_SHARE = 0.87  # of the memory's bandwidth that is reached: 4.19 of 4.8 TB/s on an H200
# Bytes moved for each element, forward and backward, by kernels that a compiler has fused; fitted
# to the elementwise work of GPT-2 (28 ms) and of Transformer-base (19 ms) on an H200
MOVED = {"norm": 32.0, "dropout": 16.0, "activation": 14.0, "added": 12.0}
EAGER = 2.0  # times as many without a compiler
LOGIT_MOVED = 10.0  # bytes for each logit
BETWEEN = 1.08  # times the kernels' own time, because of what happens between them
# On a CPU: times the work that is probed, because of copies and sums of gradients, which are not;
# four small models took 0.97 to 1.19 times as long
UNCOUNTED = 1.12
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
    """Estimate one optimizer step on one device; on a CPU, its kinds of work are probed."""
    if plan.hardware.is_gpu:
        time = _gpu_time(plan)
        update = plan.trained * UPDATE_MOVED / (plan.hardware.bandwidth * READ_SHARE)
    else:
        probe = CpuProbe(plan.config, plan.numerics.half, plan.train)
        time, update = _cpu_time(plan, probe), plan.trained * probe.update
    batches = plan.train.accumulate
    return StepTime(
        batches * time.products,
        batches * time.attention,
        batches * time.elementwise,
        update,
        batches * time.waiting,
    )


def efficiency(product: Product) -> float:
    """Share of a GPU's peak that a product of these sizes reaches."""
    share = BEST_SHARE
    for width in (product.inner, product.columns):
        share *= width / (width + HALF_WIDTH)
    return share * product.rows / (product.rows + HALF_WIDTH)


def _again(recompute: bool, product: Product, around: Counter[Product]) -> int:
    """Forward passes of a product: one more where blocks are computed again."""
    return 1 + (recompute and product not in around)


def _gpu_time(plan: RunPlan) -> StepTime:
    config, size, numerics, cost = plan.config, plan.size, plan.numerics, plan.cost
    hardware, recompute = plan.hardware, plan.train.recompute
    peak = hardware.half if numerics.half else hardware.single
    bandwidth = hardware.bandwidth * READ_SHARE
    around = Counter(cost.around.products)
    products = attention = 0.0
    for product, count in Counter(cost.products()).items():
        forwards = _again(recompute, product, around)
        if product.scores:
            attention += count * _attention_seconds(config, product, forwards, peak)
            continue
        flops = count * product.flops * (forwards + product.gradients)
        # A small product is bound by the weight that it reads.
        weight = product.inner * product.columns * numerics.product
        reads = count * (forwards + product.gradients) * weight / bandwidth
        products += max(flops / (peak * efficiency(product)), reads)
    work, times = cost.elements(), 1 + recompute / 2
    moved = sum(count * MOVED[kind] for kind, count in work.items()) * times
    logits = size.labels * config.vocab_size * LOGIT_MOVED if _has_logits(config) else 0.0
    elementwise = BETWEEN * (moved * (1.0 if plan.compiled else EAGER) + logits) / bandwidth
    kernels = KERNELS * len(cost.blocks) * cost.passes * times
    waiting = 0.0 if plan.compiled else kernels * LAUNCH
    return StepTime(BETWEEN * products, BETWEEN * attention, elementwise, 0.0, waiting)


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


def _has_logits(config: ModelConfig) -> bool:
    return config.family != "encoder" or config.head == "masked"


def _cpu_time(plan: RunPlan, probe: CpuProbe) -> StepTime:
    cost, recompute = plan.cost, plan.train.recompute
    around = Counter(cost.around.products)
    products = attention = 0.0
    for product, count in Counter(cost.products()).items():
        forwards = _again(recompute, product, around)
        share = count * (forwards + product.gradients) / 3
        if product.scores:
            attention += share * probe.attention(product)
        else:
            products += share * probe.product(product)
    work = cost.elements()
    elementwise = sum(count * probe.elements[kind] for kind, count in work.items())
    if _has_logits(plan.config):
        elementwise += plan.size.labels * plan.config.vocab_size * probe.logit
    again = 1 + recompute / 2
    times = (UNCOUNTED * products, UNCOUNTED * attention, UNCOUNTED * elementwise * again)
    return StepTime(*times, update=0.0)
