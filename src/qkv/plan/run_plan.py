"""The plan of a run on one device: its sizes, memory, operations and time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from qkv.config import ModelConfig, Recipe, TrainConfig
from qkv.plan.hardware import Hardware
from qkv.plan.memory import Memory, memory_of, trained_parameters
from qkv.plan.parameters import count_parameters
from qkv.plan.passes import BatchSize, Numerics, PassCost, pass_cost
from qkv.plan.speed import StepTime, step_time

# Share of the memory that a chosen batch may fill; a CPU's heap keeps much of what is freed
ROOM = {"cuda": 0.92, "cpu": 0.75}


@dataclass(frozen=True)
class RunPlan:
    """What a run takes on one device."""

    recipe: Recipe
    config: ModelConfig
    size: BatchSize
    numerics: Numerics
    hardware: Hardware
    compiled: bool
    measure: Callable[[], float] | None = None
    """Takes a few steps on this machine; returns the seconds of one."""

    @property
    def train(self) -> TrainConfig:
        """The settings of training."""
        return self.recipe.train

    @cached_property
    def cost(self) -> PassCost:
        """Products and saved bytes of one batch."""
        return pass_cost(self.config, self.size, self.numerics)

    @cached_property
    def parameters(self) -> dict[str, int]:
        """Parameters of each part."""
        return count_parameters(self.config)

    @cached_property
    def trained(self) -> int:
        """Parameters that training changes."""
        return trained_parameters(self.config, self.train)

    @cached_property
    def memory(self) -> Memory:
        """Bytes on the device."""
        return memory_of(self)

    @cached_property
    def time(self) -> StepTime:
        """Seconds of a step on a GPU, estimated."""
        return step_time(self)

    @cached_property
    def seconds(self) -> float | None:
        """Seconds of a step, measured or else estimated; None on a CPU that it does not fit."""
        if self.measure and self.is_measured:
            return self.measure()
        return self.time.total if self.hardware.is_gpu else None

    @property
    def is_measured(self) -> bool:
        """Whether a step is taken on this machine, as is asked for and possible."""
        return self.measure is not None and self.largest_batch > 0

    @property
    def flops(self) -> int:
        """Operations of a step."""
        return self.cost.flops(self.train.recompute) * self.train.accumulate

    @property
    def tokens(self) -> int:
        """Target tokens of a step."""
        return self.size.tokens * self.train.accumulate

    @property
    def layers(self) -> int:
        """Blocks of all stacks."""
        return len(self.cost.blocks)

    def with_rows(self, rows: int) -> RunPlan:
        """Plan this run with another number of sequences in a batch."""
        return dataclasses.replace(self, size=self.size.with_rows(rows), measure=None)

    def largest_rows(self, memory: float) -> int:
        """Sequences of the largest batch whose peak stays below this; 0 where not even one does."""
        low, high = 0, 1
        while high <= 2**24 and self.with_rows(high).memory.peak <= memory:
            low, high = high, 2 * high
        while high - low > max(1, low // 100):
            middle = (low + high) // 2
            fits = self.with_rows(middle).memory.peak <= memory
            low, high = (middle, high) if fits else (low, middle)
        return low

    @property
    def largest_batch(self) -> int:
        """The largest `batch_tokens` that fits into the device's memory; 0 where none does."""
        room = self.hardware.memory * ROOM[self.numerics.device]
        return self.largest_rows(room) * self.size.width
