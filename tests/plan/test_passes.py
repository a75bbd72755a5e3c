"""Plans equal what torch counts: parameters, saved bytes, operations."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from qkv.config import PRESETS, ModelConfig, preset, recipe_from
from qkv.model import build_model
from qkv.plan.parameters import count_parameters
from qkv.plan.passes import BatchSize, Numerics, pass_cost
from tests.plan.saved_bytes import counted_flops, planned_bytes, saved_bytes

TASKS = {"encoder-decoder": "translate", "decoder": "generate", "encoder": "fill"}
SMALL: dict[str, Any] = {"d_model": 32, "n_heads": 4, "d_ff": 64, "d_key": 0, "vocab_size": 120}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped": ("llama-tiny", {"n_kv_heads": 2}),
    "windows": ("gpt2-mini", {"window": 8, "attention_dropout": 0.0}),
    "capped": ("llama-tiny", {"score_cap": 50.0}),
    "alibi": ("llama-tiny", {"positions": "alibi"}),
    "query_key_norm": ("llama-tiny", {"query_key_norm": True}),
    "gemma": ("llama-tiny", {"norm_position": "both", "norm": "rms_plus_one"}),
    "parallel": ("gpt2-mini", {"parallel": True}),
    "mpnet": ("bert-tiny", {"positions": "learned_relative"}),
    "dropped": ("t5-mini", {"attention_dropout": 0.1}),
}


def small(name: str, **differences: Any) -> ModelConfig:
    values = {**SMALL, "max_length": 64, **differences}
    layers = {"n_encoder_layers": 2, "n_decoder_layers": 2}
    family = PRESETS[name].get("family", "encoder-decoder").split("-")
    values |= {f"n_{stack}_layers": layers[f"n_{stack}_layers"] for stack in family}
    config = preset(name, **values)
    return dataclasses.replace(config, head="masked") if config.family == "encoder" else config


def batch(config: ModelConfig, rows: int = 4, length: int = 32, **more: Any) -> BatchSize:
    source = length if config.family == "encoder-decoder" else 0
    labels = rows * length // 6 if config.family == "encoder" else rows * length
    return BatchSize(rows, length, source, labels, **more)


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_those_of_the_model(name: str) -> None:
    smaller = {"d_model": 32, "n_heads": 4, "d_ff": 64, "d_key": 0, "n_kv_heads": 0}
    config = preset(name, **smaller, max_length=64, vocab_size=PRESETS[name].get("vocab_size", 90))
    counted = sum(parameter.numel() for parameter in build_model(config).parameters())
    assert sum(count_parameters(config).values()) == counted


def test_parts_of_gpt2_are_those_of_the_paper() -> None:
    counts = count_parameters(preset("gpt2", vocab_size=50_257))
    assert counts["embeddings"] == (50_257 + 1024) * 768
    assert counts["attention"] == 12 * (768 * 2304 + 2304 + 768 * 768 + 768)
    assert counts["feed-forward"] == 12 * (2 * 768 * 3072 + 3072 + 768)
    assert counts["norms"] == 25 * 2 * 768
    assert sum(counts.values()) == 124_439_808  # as published


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["transformer-tiny", "gpt2-mini", "llama-tiny", "bert-tiny", "t5-mini", "bart-mini"]
)
def test_saved_bytes_are_those_of_autograd(name: str, precision: str) -> None:
    config = small(name, d_model=64, d_ff=192)
    recipe, size = recipe_from({"task": TASKS[config.family]}), batch(config)
    real = saved_bytes(recipe, config, size, precision)
    assert planned_bytes(config, size, precision) == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize("name", ["albert-mini", "deberta-mini", "roberta-mini", *VARIANTS])
def test_rarer_parts_are_within_five_percent(name: str) -> None:
    base, differences = VARIANTS.get(name, (name, {}))
    more = {"d_embedding": 16} if name == "albert-mini" else {}
    config = small(base, **differences, **more)
    recipe, size = recipe_from({"task": TASKS[config.family]}), batch(config)
    real = saved_bytes(recipe, config, size, "float32")
    assert planned_bytes(config, size, "float32") == pytest.approx(real, rel=0.05)


def test_rows_of_several_documents_keep_their_masks() -> None:
    config = small("llama-tiny", d_model=32)
    recipe, size = recipe_from({"task": "generate"}), batch(config, length=64, separated=True)
    real = saved_bytes(recipe, config, size, "float32")
    assert planned_bytes(config, size, "float32") == pytest.approx(real, rel=0.01)
    plain = planned_bytes(config, dataclasses.replace(size, separated=False), "float32")
    assert plain < 0.97 * real  # so that the test can tell


@pytest.mark.parametrize("name", ["transformer-tiny", "gpt2-mini", "llama-tiny", "bert-tiny"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    config = small(name)
    recipe, size = recipe_from({"task": TASKS[config.family]}), batch(config)
    assert pass_cost(config, size, Numerics()).flops() == counted_flops(recipe, config, size)


def test_flops_of_grouped_heads_and_wide_heads() -> None:
    config = small("llama-tiny", n_kv_heads=2, d_key=24)
    recipe, size = recipe_from({"task": "generate"}), batch(config, rows=3, length=20)
    assert pass_cost(config, size, Numerics()).flops() == counted_flops(recipe, config, size)


def test_flops_of_images() -> None:
    config = preset("vit-tiny", head="sequence", n_labels=10)
    recipe = recipe_from({"task": "classify", "model": {"preset": "vit-tiny"}})
    size = BatchSize(5, config.n_positions, labels=5)
    planned = pass_cost(config, size, Numerics()).flops()
    # A first token stands before the patches, which no product makes.
    assert planned == pytest.approx(counted_flops(recipe, config, size), rel=0.01)


def test_recomputation_keeps_inputs_of_blocks_and_computes_blocks_twice() -> None:
    config = small("gpt2-mini", n_decoder_layers=2)
    size = batch(config)
    cost = pass_cost(config, size, Numerics())
    blocks = sum(product.flops for block in cost.blocks for product in block.products)
    assert cost.flops(recompute=True) == cost.flops() + blocks
    inside = sum(block.saved for block in cost.blocks)
    assert cost.saved() - cost.saved(recompute=True) == pytest.approx(
        inside / 2 - 2 * size.tokens * config.d_model * 4
    )
