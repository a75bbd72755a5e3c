"""ViT (Dosovitskiy et al. 2021): an encoder of images."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Architecture, Spare, Values, wanted
from qkv.convert.architectures.bert import LABELS, LAYERS, block_config, block_values, has_pooler
from qkv.convert.architectures.name_tables import (
    IN_A_ROW,
    Form,
    Names,
    Part,
    Rule,
    Table,
)
from qkv.errors import UserError

BODY: Table = {"encoder.norm": "layernorm", "pooler.dense": "pooler.dense"}
LAYER: Table = {
    "self_attention.query_key_value": (
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
    ),
    "self_attention.output": "attention.output.dense",
    "self_attention_residual.norm": "layernorm_before",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "feed_forward_residual.norm": "layernorm_after",
}
FIRST = Form(lambda theirs: theirs[0, 0], lambda ours: ours[None, None])


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """ViT's config in our words."""
    wanted(config, "qkv_bias", (True,), True)
    wanted(config, "pooler_output_size", (config["hidden_size"],), config["hidden_size"])
    act = wanted(config, "pooler_act", ("tanh", "gelu"), "tanh")
    return {
        **block_values(config, "vit-base"),
        "image_size": _side(config, "image_size", 224),
        "patch_size": _side(config, "patch_size", 16),
        "n_channels": config.get("num_channels", 3),
        "pooler": act if head == "none" and has_pooler(names, head, ()) else "none",
    }


def _side(config: Mapping[str, Any], name: str, default: int) -> int:
    """Their height and width, which are one number where they are equal."""
    given = config.get(name, default)
    sides = given if isinstance(given, list) else [given]
    if len(set(sides)) != 1:
        raise UserError(f"config.json: {name} is {given}, but only squares can be read.")
    return int(sides[0])


def write_config(config: ModelConfig) -> Values:
    """ViT's config, from ours."""
    return {
        **block_config(config),
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_channels": config.n_channels,
        "qkv_bias": True,
        "pooler_act": config.pooler.replace("none", "tanh"),
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where ViT keeps each weight; what we multiply flat patches with is a kernel there."""
    shape = config.n_channels, config.patch_size, config.patch_size
    kernel = Form(lambda theirs: theirs.flatten(1), lambda ours: ours.unflatten(1, shape))
    patches = "vit.embeddings.patch_embeddings.projection."
    yield Rule("embedding.projection.weight", (Part(f"{patches}weight", kernel),))
    yield Rule("embedding.projection.bias", (Part(f"{patches}bias"),))
    yield Rule("embedding.first", (Part("vit.embeddings.cls_token", FIRST),))
    positions = Part("vit.embeddings.position_embeddings", IN_A_ROW)
    yield Rule("encoder.positions.table.weight", (positions,))
    names = Names("encoder", "vit.", BODY, LAYERS, LAYER, {"image": LABELS})
    yield from names(config, head)


def spare(config: ModelConfig, head: str) -> Spare:
    """A pooler, which a model of theirs without a head always has."""
    width = config.d_model
    if head != "none" or config.pooler != "none":
        return {}
    return {"vit.pooler.dense.weight": (width, width), "vit.pooler.dense.bias": (width,)}


VIT = Architecture(
    name="ViT",
    model_type="vit",
    family="encoder",
    classes={"none": "ViTModel", "image": "ViTForImageClassification"},
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    prefix="vit.",
    # As transformers 5 calls them in memory, and some write them
    renamed=(
        (r"(^|\.)layers\.(\d+)\.", r"\1encoder.layer.\2."),
        (r"attention\.q_proj\.", "attention.attention.query."),
        (r"attention\.k_proj\.", "attention.attention.key."),
        (r"attention\.v_proj\.", "attention.attention.value."),
        (r"attention\.o_proj\.", "attention.output.dense."),
        (r"mlp\.fc1\.", "intermediate.dense."),
        (r"mlp\.fc2\.", "output.dense."),
    ),
    # Of the pre-training that guesses hidden patches
    ignored=r"(vit\.)?embeddings\.mask_token",
    spare=spare,
)
