"""Memory and speed beside recorded figures; layouts and budgets by what must hold."""

from __future__ import annotations

from typing import Any

import pytest

from qkv.config import Recipe, preset, recipe_from
from qkv.errors import UserError
from qkv.plan.budget import FLOPS_PER_WEIGHT, compute_optimal, expected_loss
from qkv.plan.hardware import GIB, GPUS, find_hardware, system_memory
from qkv.plan.layout import best_layout, layouts
from qkv.plan.memory import lora_parameters
from qkv.plan.passes import Product
from qkv.plan.speed import efficiency
from qkv.run.resources import RunPlan, numerics_of, plan_run, typical_batch


def gpt2(rows: int, **train: Any) -> Recipe:
    """GPT-2 124M as docs/benchmarks.md trains it: T=1024, a vocabulary of 50,304, no dropout."""
    return recipe_from(
        {
            "task": "generate",
            "data": {"across": True},
            "tokenizer": {"vocab_size": 50_304},
            "model": {"preset": "gpt2", "dropout": 0.0, "attention_dropout": 0.0},
            "train": {"batch_tokens": rows * 1024, "packing": "off", **train},
        }
    )


def llama_7b(**train: Any) -> RunPlan:
    recipe = {"task": "generate", "model": {"preset": "llama-7b"}}
    vocabulary = {"tokenizer": {"vocab_size": 32_000}}
    return plan_run(recipe_from({**recipe, **vocabulary, "train": train}), "h100")


def test_memory_of_gpt2_is_that_recorded_on_an_h200() -> None:
    memory = plan_run(gpt2(16), "h200").memory
    allocated = memory.peak - memory.libraries  # what torch's own counter sees
    assert allocated / GIB == pytest.approx(9.3, rel=0.05)


def test_speed_of_gpt2_is_near_that_recorded_on_an_h200() -> None:
    plan = plan_run(gpt2(16), "h200")
    assert plan.tokens / plan.seconds == pytest.approx(508_000, rel=0.15)


def test_speed_of_transformer_base_is_near_that_recorded_on_an_h200() -> None:
    recipe = {"model": {"preset": "transformer-base"}, "tokenizer": {"vocab_size": 32_768}}
    plan = plan_run(recipe_from({**recipe, "train": {"batch_tokens": 32_768}}), "h200", length=64)
    assert plan.tokens / plan.seconds == pytest.approx(857_000, rel=0.15)


def test_recomputation_saves_memory_and_costs_operations() -> None:
    plain, again = plan_run(gpt2(64), "h200"), plan_run(gpt2(64, recompute=True), "h200")
    assert again.memory.peak < 0.5 * plain.memory.peak
    assert 1.2 * plain.flops < again.flops < 4 / 3 * plain.flops
    assert again.seconds > plain.seconds


def test_gradients_stay_where_a_step_has_several_batches() -> None:
    one, two = plan_run(gpt2(16), "h200"), plan_run(gpt2(16, accumulate=2), "h200")
    assert two.memory.peak - one.memory.peak == pytest.approx(one.memory.gradients, rel=0.01)
    assert two.flops == 2 * one.flops


def test_largest_batch_fits_and_a_larger_one_does_not() -> None:
    plan = plan_run(gpt2(1), "4090")
    rows = plan.largest_batch // 1024
    assert plan.with_rows(rows).memory.peak < plan.hardware.memory
    assert plan.with_rows(2 * rows).memory.peak > plan.hardware.memory


def test_muon_keeps_one_moment_of_the_blocks() -> None:
    adam, muon = plan_run(gpt2(1), "h100"), plan_run(gpt2(1, optimizer="muon"), "h100")
    assert muon.memory.optimizer < adam.memory.optimizer == 8 * adam.trained


def test_an_8_bit_state_takes_a_quarter_of_the_memory() -> None:
    plain, small = (plan_run(gpt2(1, optimizer_state=x), "h100") for x in ("float32", "int8"))
    assert small.memory.optimizer == pytest.approx(plain.memory.optimizer / 4, rel=0.02)
    assert plain.memory.peak - small.memory.peak == pytest.approx(
        plain.memory.optimizer - small.memory.optimizer
    )


def test_frozen_weights_have_no_gradients() -> None:
    whole, part = plan_run(gpt2(1), "h100"), plan_run(gpt2(1, freeze=["embedding"]), "h100")
    assert whole.trained - part.trained == 50_304 * 768
    assert part.memory.gradients < whole.memory.gradients


def test_lora_counts_a_pair_for_each_matrix() -> None:
    plan = llama_7b()
    train = recipe_from({"train": {"lora_rank": 8, "start_from": "x"}}).train
    d_model, d_ff = 4096, 11_008
    matrices = 4 * 2 * d_model + 3 * (d_model + d_ff)
    assert lora_parameters(plan.config, train) == 32 * 8 * matrices


def test_lora_of_an_8b_llama_is_near_what_was_recorded_on_an_h200() -> None:
    sizes = {"n_kv_heads": 8, "d_ff": 14_336, "vocab_size": 128_256, "max_length": 8192}
    train = {"start_from": "llama", "lora_rank": 16, "recompute": True, "batch_tokens": 8192}
    recipe = recipe_from({"task": "instruct", "train": train})
    config, numerics = preset("llama-7b", **sizes), numerics_of(recipe.train, gpu=True)
    size = typical_batch(recipe, config, gpu=True, length=200)
    plan = RunPlan(recipe, config, size, numerics, GPUS["h200"], compiled=False)
    assert plan.memory.weights / GIB == pytest.approx(15.12, rel=0.01)
    assert (plan.memory.peak - plan.memory.libraries) / GIB == pytest.approx(22.27, rel=0.05)
    assert plan.tokens / plan.seconds == pytest.approx(13_159, rel=0.2)


def test_products_use_a_gpu_better_the_larger_they_are() -> None:
    shares = [efficiency(Product(size, size, size)) for size in (64, 256, 1024, 8192)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(792 / 989, rel=0.05)  # measured at 8192³ on an H200


def test_what_does_not_fit_on_one_gpu_is_laid_out_on_more() -> None:
    work = llama_7b(batch_tokens=4096)
    assert best_layout(work, 1) is None
    found = best_layout(work, 8)
    assert found is not None and found.shard * found.tensor > 1
    assert found.memory <= GPUS["h100"].memory
    assert found.gpus == 8


def test_efficiency_never_rises_with_more_gpus() -> None:
    work = plan_run(gpt2(16), "h100")
    found = [best_layout(work, count) for count in (1, 8, 64, 512, 4096)]
    shares = [layout.efficiency for layout in found if layout is not None]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] > 0.5


def test_layouts_use_every_gpu_and_tensors_stay_within_a_node() -> None:
    small = recipe_from({"task": "classify", "model": {"preset": "bert-tiny"}})  # waits for kernels
    for layout in (*layouts(llama_7b(), 64), *layouts(plan_run(small, "h100"), 64)):
        assert layout.gpus == 64
        assert layout.tensor <= 8
        assert 0 < layout.efficiency <= 1


def test_compute_optimal_size_is_the_minimum() -> None:
    best = compute_optimal(1e21)
    assert best.parameters * best.tokens * FLOPS_PER_WEIGHT == pytest.approx(1e21)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert expected_loss(best.parameters * factor, best.tokens / factor) > best.loss
    assert 15 < best.tokens / best.parameters < 30  # about 20, as the paper's first two fits


def test_devices_by_name() -> None:
    assert find_hardware("RTX 4090") == find_hardware("4090")
    assert find_hardware("cpu").memory == system_memory()
    with pytest.raises(UserError, match=r"Unknown device 'abacus'.*h200"):
        find_hardware("abacus")
