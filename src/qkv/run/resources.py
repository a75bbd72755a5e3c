"""What a recipe's run will take, before it starts; and batches that fit into the memory."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import torch

from qkv.config import PRESETS, ModelConfig, Recipe, TrainConfig, recipe_from
from qkv.convert import open_model
from qkv.convert.model_folder import load_config
from qkv.data.order import is_even
from qkv.device import has_bfloat16, pick_device
from qkv.errors import UserError
from qkv.plan.hardware import GIB, Hardware, device_memory, find_hardware
from qkv.plan.passes import BatchSize, Numerics
from qkv.plan.run_plan import ROOM, RunPlan
from qkv.run.job import NO_HEAD, Job
from qkv.run.measured_steps import measure_step

WINDOWED = ("generate", "fill", "denoise")  # tasks that cut text into windows of one length
TYPICAL = {"translate": 32, "classify": 64, "tag": 32, "embed": 32}  # tokens of a sequence
OTHERS = 256  # questions with texts, conversations, preferences
N_LABELS = {"classify": 2, "tag": 9, "answer": 2}  # where the data, which is not read, decides
CLEARLY = 1.1  # times the memory that a run must need before it is refused


def plan_run(
    recipe: Recipe, device: str = "auto", length: int = 0, measure: bool = False
) -> RunPlan:
    """Plan the run of a recipe on a device of the table or of this machine.

    Data is not read: sequences have `length` tokens, or what is typical for the task, and the
    vocabulary has the size that the recipe asks for.
    """
    name = str(pick_device(recipe.train.device)) if device == "auto" else device
    hardware = find_hardware(name)
    config = planned_config(recipe)
    numerics = numerics_of(recipe.train, hardware.is_gpu)
    size = typical_batch(recipe, config, hardware.is_gpu, length)
    can_compile = size.packed or (recipe.task in WINDOWED and recipe.task != "denoise")
    compiled = hardware.is_gpu and recipe.train.compile != "off" and can_compile
    plan = RunPlan(recipe, config, size, numerics, hardware, compiled)
    if not measure:
        return plan
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"--measure takes steps on this machine, not on {device!r}; leave one out.")
    if recipe.train.lora_rank:
        raise UserError("--measure takes steps of fresh weights; leave it out for LoRA.")
    spent = measure_step(recipe, config, size, torch.device(name))
    return dataclasses.replace(plan, measured=spent)


def planned_config(recipe: Recipe) -> ModelConfig:
    """Describe the model of a recipe without its data: vocabulary and labels as far as known."""
    head: dict[str, Any] = {}
    if recipe.task in N_LABELS:
        kind = "sequence" if recipe.task == "classify" else "token"
        head = {**NO_HEAD, "head": kind, "n_labels": N_LABELS[recipe.task]}
    if recipe.task == "fill":
        head = {**NO_HEAD, "head": "masked", "pair_head": recipe.mask.pairs != "none"}
    if recipe.train.start_from:
        config = load_config(open_model(recipe.train.start_from))[1]
        return dataclasses.replace(config, **head, d_vector=0) if head else config
    values = {**PRESETS[recipe.preset], **head, **recipe.model}
    if not values.get("patch_size"):
        values["vocab_size"] = recipe.tokenizer.vocab_size
        translates = values.get("family", "encoder-decoder") == "encoder-decoder"
        if translates and not recipe.tokenizer.shared:
            values = {"tie": "output", **values, "source_vocab_size": values["vocab_size"]}
    return ModelConfig.from_dict(values, "[model]")


def numerics_of(train: TrainConfig, gpu: bool) -> Numerics:
    """Say in which precision a run computes and, with LoRA, holds its frozen weights."""
    half = train.precision == "bfloat16"
    if train.precision == "auto":
        half = gpu or has_bfloat16(torch.device("cpu"))
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
    task, longest = recipe.task, recipe.data.max_length or config.max_length
    longest = min(longest, config.max_length)
    usual = longest if task in WINDOWED else min(longest, TYPICAL.get(task, OTHERS))
    length = min(length, config.max_length) if length else usual
    if config.patch_size:
        length = config.n_positions
    target, source = length, length if config.family == "encoder-decoder" else 0
    if task == "denoise" and recipe.denoise.kind == "spans":
        share = recipe.denoise.hidden_share
        spans = max(1, math.ceil(length * share / recipe.denoise.span_length))
        source = length - math.ceil(length * share) + spans
        target = math.ceil(length * share) + spans + 1
    rows = max(1, recipe.train.batch_tokens // max(target, source))
    packing = recipe.train.packing == "on" or (recipe.train.packing == "auto" and gpu)
    packed = packing and config.can_pack and task in ("translate", "instruct", *WINDOWED)
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
    plan = _plan_of_job(job)
    available = device_memory(device)
    room = available * ROOM[device.type]
    if plan.memory.peak <= room:
        return recipe
    if recipe.train.batch_tokens == recipe_from({"task": recipe.task}).train.batch_tokens:
        fitting = plan.largest_rows(room) * plan.width
        if fitting:
            return _with_smaller_batches(job, fitting, plan.memory.peak, available)
    if plan.memory.peak > available * CLEARLY:
        raise UserError(_refusal(plan, available))
    return recipe


def _with_smaller_batches(job: Job, fitting: int, needed: float, available: int) -> Recipe:
    train = job.recipe.train
    parts = -(-train.batch_tokens // fitting)
    smaller = dataclasses.replace(
        train,
        batch_tokens=-(-train.batch_tokens // parts),
        accumulate=train.accumulate * parts,
    )
    job.say(
        f"batches of {train.batch_tokens:,} tokens need about {needed / GIB:,.1f} of the "
        f"{available / GIB:,.1f} GiB of {job.device}, which is too much: each step takes "
        f"{smaller.accumulate} of {smaller.batch_tokens:,}"
    )
    return dataclasses.replace(job.recipe, train=smaller)


def _plan_of_job(job: Job) -> RunPlan:
    """Plan a job whose items are encoded, so that lengths and vocabulary are known."""
    recipe, items, gpu = job.recipe, job.train_items, job.device.type == "cuda"
    config = job.config
    longest = max(1, int(items.target_sizes.max()), int(items.source_sizes.max()))
    size = typical_batch(recipe, config, gpu, longest)
    fills = job.packed or is_even(items)  # else an epoch's end ends a batch
    rows = size.rows if fills else min(size.rows, len(items))
    size = dataclasses.replace(size, rows=rows, packed=job.packed)
    size = dataclasses.replace(size, **_labels(recipe, size))
    hardware = Hardware(str(job.device), 0.0, 0.0, 0.0, device_memory(job.device))
    return RunPlan(recipe, config, size, numerics_of(recipe.train, gpu), hardware, False)


def _refusal(plan: RunPlan, available: int) -> str:
    """One sentence: the memory needed, the memory there, and the way out."""
    train, memory = plan.train, plan.memory
    need = f"The run needs about {memory.peak / GIB:,.1f} GiB"
    there = f"{plan.hardware.name} has {available / GIB:,.1f} GiB"
    rows = plan.largest_rows(available * ROOM[plan.numerics.device])
    if rows:
        return (
            f"{need} of memory for batches of {train.batch_tokens:,} tokens, but {there}; set "
            f"train.batch_tokens to {rows * plan.width:,} and raise train.accumulate in return"
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
