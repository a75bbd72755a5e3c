"""Layouts of a run on many GPUs, and how much of their time is left for computing.

The network model: GPUs of a node are connected by links, nodes by a network with a port for each
GPU. A ring all-reduce moves 2·(g - 1)/g of its bytes through every member of a group of g, a gather
or a scatter half of that. An all-reduce waits for messages along a tree, log₂ g times; a gather
along a ring, once for each member. Gradients and sharded weights travel while blocks are computed:
what takes longer than the computation costs time, and so does a share of what is hidden, because
both use the same processors and memory. A tensor-parallel layer waits for its sums. Left out:
stragglers, reading of data, checkpoints, and networks whose ports are shared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from qkv.plan.hardware import Hardware
from qkv.plan.passes import FLOAT, Product
from qkv.plan.run_plan import RunPlan
from qkv.plan.speed import efficiency

LINK_WAIT, NETWORK_WAIT = 3e-6, 8e-6  # seconds of a message
HIDDEN = 0.9  # of the computation's time that communication can hide behind
DISTURBED = 0.15  # of the time of hidden communication that the computation loses
SPLIT = 2 / 3  # of a block's activations that tensor parallelism divides; norms see all of them
USABLE = 0.95  # of a GPU's memory; the rest is lost between its blocks


@dataclass(frozen=True)
class Layout:
    """GPUs as replicas (data) of shards of tensor-parallel groups, and what a step takes."""

    data: int
    shard: int
    tensor: int
    compute: float  # seconds of a step
    waiting: float  # seconds of a step for other GPUs
    memory: float  # bytes on each GPU
    tokens: int  # of a step on all GPUs
    alone: float  # tokens/s of one GPU without communication, which updates its share of weights

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.data * self.shard * self.tensor

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.compute + self.waiting

    @property
    def tokens_per_second(self) -> float:
        """Target tokens a second on all GPUs."""
        return self.tokens / self.seconds

    @property
    def efficiency(self) -> float:
        """Speed relative to as many GPUs without communication and with whole products."""
        return self.tokens_per_second / (self.gpus * self.alone)


def best_layout(work: RunPlan, gpus: int) -> Layout | None:
    """The fastest layout on so many GPUs whose memory suffices; None where none does."""
    fitting = [x for x in layouts(work, gpus) if x.memory <= work.hardware.memory * USABLE]
    return max(fitting, key=lambda layout: layout.tokens_per_second, default=None)


def layouts(work: RunPlan, gpus: int) -> Iterator[Layout]:
    """All layouts on so many GPUs: tensor within a node, shards within nodes or over all."""
    per_node = work.hardware.per_node
    for tensor in (t for t in (1, 2, 4, 8) if t <= per_node and work.config.kv_heads % t == 0):
        if gpus % tensor:
            continue
        rest = gpus // tensor
        shards = {2**power for power in range(rest.bit_length()) if rest % 2**power == 0}
        for shard in sorted(shards | {rest}):
            yield _layout(work, rest // shard, shard, tensor)


def _layout(work: RunPlan, data: int, shard: int, tensor: int) -> Layout:
    update = work.time.update / (shard * tensor)
    compute = _compute(work, tensor) + update
    waiting = _sums(work, tensor)
    overlapped = _gathers(work, shard, tensor) + _all_reduce(work, data, shard, tensor)
    exposed = max(0.0, overlapped - HIDDEN * compute)
    waiting += exposed + DISTURBED * (overlapped - exposed)
    return Layout(
        data,
        shard,
        tensor,
        compute,
        waiting,
        _memory(work, shard, tensor, alone=data * shard * tensor == 1),
        work.tokens * data * shard,
        work.tokens / (work.time.total - work.time.update + update),
    )


def _compute(work: RunPlan, tensor: int) -> float:
    """Seconds of computing, the update aside; divided products use a GPU worse."""
    if tensor == 1:
        return work.time.total - work.time.update
    blocks = [product for block in work.cost.blocks for product in block.products]
    weights = [product for product in blocks if not product.scores]
    whole = sum(product.flops / efficiency(product) for product in weights)
    parts = sum(p.flops / efficiency(p) for p in (_divided(p, work, tensor) for p in weights))
    time = work.time
    inside = sum(product.flops for product in weights)
    everything = inside + sum(p.flops for p in work.cost.around.products)
    block_share = inside / everything
    products = time.products * (block_share * parts / whole + (1 - block_share) / tensor)
    elementwise = time.elementwise * (1 - SPLIT + SPLIT / tensor)
    return max(products + time.attention / tensor + elementwise, time.waiting)


def _divided(product: Product, work: RunPlan, tensor: int) -> Product:
    """A product's part on one of the GPUs: columns are divided, or rows of what leads back to D."""
    if product.columns == work.config.d_model:
        return replace(product, inner=-(-product.inner // tensor))
    return replace(product, columns=-(-product.columns // tensor))


def _memory(work: RunPlan, shard: int, tensor: int, alone: bool) -> float:
    memory, parts = work.memory, shard * tensor
    divided = replace(
        memory,
        weights=memory.weights / parts,
        gradients=memory.gradients / parts,
        optimizer=memory.optimizer / parts,
        copies=memory.copies / tensor if shard == 1 else 2 * memory.copies / work.layers / tensor,
        activations=memory.activations * (1 - SPLIT + SPLIT / tensor),
        logits=memory.logits / tensor,
        keeps_gradients=memory.keeps_gradients or not alone,
    )
    return divided.peak


def _bandwidth(hardware: Hardware, group: int, stride: int) -> float:
    """Bytes/s of each member of a group whose members are `stride` GPUs apart."""
    if group * stride <= hardware.per_node:
        return hardware.link
    in_node = max(1, hardware.per_node // stride)
    return min(hardware.link, hardware.network * in_node)


def _tree_wait(hardware: Hardware, group: int, stride: int) -> float:
    """Seconds of messages along a tree of a group's members."""
    in_node = group * stride <= hardware.per_node
    return (LINK_WAIT if in_node else NETWORK_WAIT) * math.log2(max(2, group))


def _ring_wait(hardware: Hardware, group: int, stride: int) -> float:
    """Seconds of messages along a ring, within nodes and from node to node."""
    n_nodes = max(1, group * stride // hardware.per_node)
    return (group - n_nodes) * LINK_WAIT + (n_nodes - 1) * NETWORK_WAIT


def _sums(work: RunPlan, tensor: int) -> float:
    """Seconds of tensor parallelism's sums: two in a block, forward and again backward."""
    if tensor == 1:
        return 0.0
    n_bytes = work.size.tokens * work.config.d_model * work.numerics.product
    seconds = 2 * (tensor - 1) / tensor * n_bytes / work.hardware.link
    count = 4 * work.layers * work.train.accumulate * (1.5 if work.train.recompute else 1)
    return count * (seconds + _tree_wait(work.hardware, tensor, 1))


def _gathers(work: RunPlan, shard: int, tensor: int) -> float:
    """Seconds in which sharded weights are gathered, twice a batch, and gradients scattered."""
    if shard == 1:
        return 0.0
    share = (shard - 1) / shard
    weights = work.memory.weights / FLOAT * work.numerics.product / tensor
    moved = 2 * work.train.accumulate * weights + work.trained * FLOAT / tensor
    count = work.layers * (2 * work.train.accumulate + 1)
    waits = count * _ring_wait(work.hardware, shard, tensor)
    return share * moved / _bandwidth(work.hardware, shard, tensor) + waits


def _all_reduce(work: RunPlan, data: int, shard: int, tensor: int) -> float:
    """Seconds in which replicas sum up their gradients."""
    if data == 1:
        return 0.0
    moved = 2 * (data - 1) / data * work.trained * FLOAT / (shard * tensor)
    stride = shard * tensor
    waits = work.layers * _tree_wait(work.hardware, data, stride)
    return moved / _bandwidth(work.hardware, data, stride) + waits
