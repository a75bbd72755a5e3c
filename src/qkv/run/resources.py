"""What a recipe's run will take, before it starts; and batches that fit into the memory."""

from __future__ import annotations

import dataclasses
import math
import os
from functools import partial
from typing import Any

import numpy as np
import torch

from qkv.config import TASKS, ModelConfig, Recipe, TrainConfig, recipe_from
from qkv.data.order import is_even
from qkv.device import is_half, pick_device
from qkv.errors import UserError
from qkv.plan.hardware import GIB, Hardware, device_memory, find_hardware
from qkv.plan.passes import BatchSize, Numerics
from qkv.plan.run_plan import ROOM, RunPlan
from qkv.run.job import Job, describe_model
from qkv.run.measured_steps import measure_step, rows_together
from qkv.run.start import open_start

CLEARLY = 1.1  # times the memory that a run must need before it is refused


def plan_run(
    recipe: Recipe, device: str = "auto", length: int = 0, measure: bool = False
) -> RunPlan:
    """Plan the run of a recipe on a device of the table or of this machine.

    Data is not read: sequences have `length` tokens, or what is typical for the task, and the
    vocabulary has the size that the recipe asks for. A step is timed on a CPU and, to `measure`, on
    this machine's GPU, when its `seconds` are read; for any other GPU it is estimated.
    """
    name = str(pick_device(recipe.train.device)) if device == "auto" else device.lower()
    hardware = find_hardware(name)
    spec = TASKS[recipe.task]
    start = open_start(recipe, spec.family)
    config = describe_model(recipe, start, None, spec.n_labels)
    numerics = numerics_of(recipe.train, hardware.is_gpu)
    size = typical_batch(recipe, config, hardware.is_gpu, length)
    can_compile = size.packed or recipe.task in ("generate", "fill")  # batches of one shape
    compiled = hardware.is_gpu and recipe.train.compile != "off" and can_compile
    plan = RunPlan(recipe, config, size, numerics, hardware, compiled)
    if measure and name not in ("cpu", "cuda") and device != "auto":
        raise UserError(f"--measure takes steps on this machine, not on {device!r}; leave one out.")
    if hardware.is_gpu and not measure:
        return plan
    steps = partial(measure_step, recipe, config, size, torch.device(name), start)
    return dataclasses.replace(plan, measure=steps)


def numerics_of(train: TrainConfig, gpu: bool) -> Numerics:
    """Say in which precision a run computes and, with LoRA, holds its frozen weights."""
    half = is_half(train, torch.device("cpu")) or (gpu and train.precision == "auto")
    lora = train.lora_rank > 0
    coarse = lora and (train.lora_base == "bf16" or (train.lora_base != "fp32" and gpu))
    return Numerics(
        "cuda" if gpu else "cpu",
        half,
        frozen=lora,
        stream=2 if coarse else 4,
        lora_rank=train.lora_rank,
        lora_dropout=train.lora_dropout > 0,
    )


def typical_batch(recipe: Recipe, config: ModelConfig, gpu: bool, length: int = 0) -> BatchSize:
    """Lay out a typical batch of a recipe, of sequences of `length` tokens where that is given."""
    task, spec = recipe.task, TASKS[recipe.task]
    longest = min(recipe.data.max_length or config.max_length, config.max_length)
    usual = min(longest, spec.length or longest)
    length = min(length, config.max_length) if length else usual
    if config.patch_size:
        length = config.n_positions
    target, source = length, length if config.family == "encoder-decoder" else 0
    if task == "denoise" and recipe.denoise.kind == "spans":
        share = recipe.denoise.hidden_share
        spans = max(1, math.ceil(length * share / recipe.denoise.span_length))
        source = length - math.ceil(length * share) + spans
        target = math.ceil(length * share) + spans + 1
    packing = recipe.train.packing == "on" or (recipe.train.packing == "auto" and gpu)
    packed = packing and config.can_pack and spec.reads("train", "packing")
    return _full_batch(recipe, target, source, packed)


def _full_batch(recipe: Recipe, target: int, source: int, packed: bool) -> BatchSize:
    """Lay out as many sequences of these lengths as `batch_tokens` has room for."""
    task, together = recipe.task, rows_together(recipe.task)
    rows = max(1, recipe.train.batch_tokens // (together * max(target, source))) * together
    across = task != "generate" or recipe.data.across
    size = BatchSize(rows, target, source, separated=not (across or packed), packed=packed)
    return dataclasses.replace(size, **_labels(recipe, size))


def _labels(recipe: Recipe, size: BatchSize) -> dict[str, Any]:
    """How many labels a batch has, and how often the model runs through it."""
    task = recipe.task
    labels = {
        "fill": math.ceil(size.tokens * recipe.mask.share),
        "classify": size.rows,
        "embed": size.rows,
        "prefer": size.tokens // 2,
    }.get(task, size.tokens)
    twice = task == "embed" or recipe.train.consistency > 0
    return {"labels": labels, "passes": 2 if twice else 1, "whole_logits": task == "prefer"}


# In training


def fit_memory(job: Job) -> Recipe:
    """Return the job's recipe, with smaller batches where the default ones would not fit.

    A step then has as many tokens as before, in more batches. A run that clearly cannot fit is
    refused. What the items need is computed from their real lengths.
    """
    recipe, device = job.recipe, job.device
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # several workers share weights and batches
        return recipe
    plan = plan_of_job(job)
    available = device_memory(device)
    room = available * ROOM[device.type]
    if plan.memory.peak <= room:
        return recipe
    if recipe.train.batch_tokens == recipe_from({"task": recipe.task}).train.batch_tokens:
        fitting = plan.largest_rows(room) * plan.size.width
        if fitting:
            return _with_smaller_batches(job, fitting, plan.memory.peak, available)
    if plan.memory.peak > available * CLEARLY:
        raise UserError(_refusal(plan, available))
    return recipe


def _with_smaller_batches(job: Job, fitting: int, needed: float, available: int) -> Recipe:
    train = job.recipe.train
    parts = -(-train.batch_tokens // fitting)
    smaller = dataclasses.replace(
        train, batch_tokens=-(-train.batch_tokens // parts), accumulate=train.accumulate * parts
    )
    job.say(
        f"batches of {train.batch_tokens:,} tokens need about {needed / GIB:,.1f} of the "
        f"{available / GIB:,.1f} GiB of {job.device}, which is too much: each step takes "
        f"{smaller.accumulate} of {smaller.batch_tokens:,}"
    )
    return dataclasses.replace(job.recipe, train=smaller)


def plan_of_job(job: Job) -> RunPlan:
    """Plan a job whose items are encoded, so that lengths and vocabulary are known."""
    recipe, items, config = job.recipe, job.train_items, job.config
    together = rows_together(recipe.task)  # an item is so many sequences
    target, source = max(1, int(items.target_sizes.max()) // together), 0
    if config.family == "encoder-decoder":
        # A batch of short items may have a larger share of its tokens on one side.
        widths = np.maximum(items.target_sizes, items.source_sizes)
        shares = (sizes / widths for sizes in (items.target_sizes, items.source_sizes))
        target, source = (math.ceil(widths.max() * share.max()) for share in shares)
    size = _full_batch(recipe, target, source, job.packed)
    if not (job.packed or is_even(items)):  # then an epoch's end ends a batch
        size = size.with_rows(min(size.rows, together * len(items)))
    hardware = Hardware(str(job.device), 0.0, 0.0, 0.0, device_memory(job.device))
    numerics = numerics_of(recipe.train, job.device.type == "cuda")
    return RunPlan(recipe, config, size, numerics, hardware, False)


def _refusal(plan: RunPlan, available: int) -> str:
    """One sentence: the memory needed, the memory there, and the way out."""
    train, memory = plan.train, plan.memory
    need = f"The run needs about {memory.peak / GIB:,.1f} GiB"
    there = f"{plan.hardware.name} has {available / GIB:,.1f} GiB"
    rows = plan.largest_rows(available * ROOM[plan.numerics.device])
    if rows:
        return (
            f"{need} of memory for batches of {train.batch_tokens:,} tokens, but {there}; set "
            f"train.batch_tokens to {rows * plan.size.width:,} and raise train.accumulate in return"
            f"{'' if train.recompute else ', or set train.recompute = true'}."
        )
    fixed = memory.weights + memory.gradients + memory.optimizer
    way = (
        "choose a smaller model"
        if train.lora_rank
        else ("choose a smaller model, or start from a trained one with train.lora_rank")
    )
    return (
        f"{need} of memory, {fixed / GIB:,.1f} of them for weights, gradients and the optimizer's "
        f"state alone, but {there}; {way}."
    )
