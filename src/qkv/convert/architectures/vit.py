"""ViT (Dosovitskiy et al. 2021): an encoder of images."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import Architecture, Field, Values, wanted
from qkv.convert.architectures.bert import LABELS, LAYERS, block_fields, has_pooler, spare
from qkv.convert.architectures.name_tables import IN_A_ROW, Form, Module, Names, Part, Rule, Table
from qkv.errors import UserError


def kernel(config: ModelConfig) -> Form:
    """What we multiply flat patches with is a kernel there."""
    shape = config.n_channels, config.patch_size, config.patch_size
    return Form(
        lambda theirs: theirs.flatten(1) if theirs.ndim > 1 else theirs,
        lambda ours: ours.unflatten(1, shape) if ours.ndim > 1 else ours,
    )


BODY: Table = {
    "embedding.projection": Module("embeddings.patch_embeddings.projection", kernel),
    "encoder.norm": "layernorm",
    "pooler.dense": "pooler.dense",
}
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
NAMES = Names("encoder", "vit.", BODY, LAYERS, LAYER, {"image": LABELS})


def read(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """ViT's images and pooler."""
    wanted(config, "pooler_output_size", (config["hidden_size"],), config["hidden_size"])
    act = wanted(config, "pooler_act", ("tanh", "gelu"), "tanh")
    return {
        "image_size": _side(config, "image_size", 224),
        "patch_size": _side(config, "patch_size", 16),
        "pooler": act if head == "none" and has_pooler(names, head) else "none",
    }


def _side(config: Mapping[str, Any], name: str, default: int) -> int:
    """Their height and width, which are one number where they are equal."""
    given = config.get(name, default)
    sides = given if isinstance(given, list) else [given]
    if len(set(sides)) != 1:
        raise UserError(f"config.json: {name} is {given}, but only squares can be read.")
    return int(sides[0])


def write(config: ModelConfig) -> Values:
    """ViT's images and pooler, from ours."""
    return {
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "qkv_bias": True,
        "pooler_act": config.pooler.replace("none", "tanh"),
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where ViT keeps each weight; two of them are no modules there."""
    yield Rule("embedding.first", (Part("vit.embeddings.cls_token", FIRST),))
    positions = Part("vit.embeddings.position_embeddings", IN_A_ROW)
    yield Rule("encoder.positions.table.weight", (positions,))
    yield from NAMES(config, head)


VIT = Architecture(
    name="ViT",
    model_type="vit",
    family="encoder",
    classes={"none": "ViTModel", "image": "ViTForImageClassification"},
    values=PRESETS["vit-base"],
    fields={**block_fields("vit-base"), "n_channels": Field("num_channels", 3)},
    needs={"qkv_bias": True},
    read=read,
    write=write,
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
    # A model of theirs without a head always has a pooler.
    spare=partial(spare, pooler="vit.pooler.dense"),
)
