"""DeBERTa (He et al. 2021) and its later versions (2023): distances instead of places."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures import bert
from qkv.convert.architectures.architecture import Spare, Values, wanted
from qkv.convert.architectures.name_tables import (
    Names,
    Part,
    Rule,
    Table,
    by_head,
    modules,
)
from qkv.errors import UserError

BODY: Table = {
    **bert.EMBEDDINGS,
    "encoder.positions.table": "encoder.rel_embeddings",
    "encoder.positions.norm": "encoder.LayerNorm",
    "encoder.neighbours.convolution": "encoder.conv.conv",
    "encoder.neighbours.norm": "encoder.conv.LayerNorm",
}
BLOCK: Table = {
    **bert.LAYER,
    "self_attention.query_key_value": (
        "attention.self.query_proj",
        "attention.self.key_proj",
        "attention.self.value_proj",
    ),
}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """DeBERTa's config in our words."""
    _check(config)
    values = bert.encoder_values(config, "deberta-base")
    act = wanted(config, "pooler_hidden_act", ("gelu", "tanh"), "gelu")
    plain_head = not config.get("legacy", True)  # which has no matrix of its own
    return {
        **values,
        **_distances(config, values["max_length"]),
        "n_segments": config.get("type_vocab_size", 0),
        "convolution": config.get("conv_kernel_size", 0),
        "pooler": act if bert.has_pooler(names, head, ("sequence",)) else "none",
        "tie": "output" if plain_head else values["tie"],
    }


def _check(config: Mapping[str, Any]) -> None:
    """Refuse what is not as released models of later versions have it."""
    _check_both(config)
    wanted(config, "share_att_key", (True,), False)
    wanted(config, "norm_rel_ebd", ("layer_norm",), "none")
    if config.get("conv_kernel_size", 0):
        wanted(config, "conv_act", ("gelu",), "tanh")
        wanted(config, "conv_groups", (1,), 1)


def _check_both(config: Mapping[str, Any]) -> None:
    """Refuse what is not as released models of any version have it."""
    wanted(config, "relative_attention", (True,), False)
    wanted(config, "position_biased_input", (False,), True)
    for name in ("embedding_size", "pooler_hidden_size"):
        wanted(config, name, (config["hidden_size"],), config["hidden_size"])
    width = config["hidden_size"] // config["num_attention_heads"]
    wanted(config, "attention_head_size", (width,), width)
    kinds = config.get("pos_att_type") or []
    kinds = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    if {kind.strip() for kind in kinds} != {"c2p", "p2c"}:
        raise UserError(
            f"config.json: pos_att_type is {config.get('pos_att_type')!r}, but only 'c2p|p2c' can "
            f"be read."
        )


def _distances(config: Mapping[str, Any], max_length: int) -> Values:
    """Theirs has buckets, the far ones of which grow, or one for each distance."""
    farthest = config.get("max_relative_positions", -1)
    buckets = config.get("position_buckets", -1)
    if buckets > 0:
        return {"relative_buckets": buckets, "relative_length": max(farthest, 0)}
    return {"relative_buckets": farthest if farthest > 0 else max_length, "relative_length": 1}


def has_bucket_for_each(config: ModelConfig) -> bool:
    """Whether disentangled distances are told apart one by one, as far as there are buckets."""
    farthest = config.relative_length or config.n_positions
    return farthest - 1 <= config.relative_buckets // 2


def write_config(config: ModelConfig) -> Values:
    """DeBERTa's config, from ours."""
    each = has_bucket_for_each(config)
    farthest = config.relative_buckets if each else config.relative_length or -1
    return {
        **bert.encoder_config(config),
        "type_vocab_size": config.n_segments,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "position_buckets": -1 if each else config.relative_buckets,
        "max_relative_positions": farthest,
        "conv_kernel_size": config.convolution,
        "conv_act": "gelu",
        "pooler_hidden_act": config.pooler.replace("none", "gelu"),
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where DeBERTa keeps each weight."""
    yield from _rules(config, head, BLOCK)


def _rules(config: ModelConfig, head: str, block: Table) -> Iterator[Rule]:
    """The rules that all versions share."""
    yield from Names("encoder", "deberta.", BODY, bert.LAYERS, block, bert.HEADS)(config, head)
    yield from modules(config, "", "", {"pooler.dense": "pooler.dense"})
    yield from bert.masked_output(config, head, "cls.predictions.")


def own_spare(config: ModelConfig, head: str) -> Spare:
    """Only the other bias: a model of theirs may have no segments and no pooler."""
    found = bert.spare(config, head, body="", masked="cls.predictions.", pooler="")
    return {name: given for name, given in found.items() if isinstance(given, str)}


DEBERTA = bert.like_bert(
    "DeBERTa",
    "deberta-v2",
    "DebertaV2",
    read_config,
    write_config,
    rules,
    prefix="deberta.",
    # The third version's own head, which later files have under BERT's names
    renamed=(
        (r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.", r"cls.predictions.transform.\1."),
        (r"^lm_predictions\.lm_head\.bias$", "cls.predictions.bias"),
    ),
    # What its pre-training needed beside the model
    ignored=r"mask_predictions\..*|(.*\.)?embeddings\.position_(ids|embeddings\..*)",
    copies=bert.masked_copies("deberta.", "cls.predictions."),
    spare=own_spare,
)


# The first version: queries, keys and values in one matrix by heads, keys without a bias, and
# distances by matrices of their own


def read_first_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """The first version's config in our words."""
    _check_both(config)
    wanted(config, "talking_head", (False,), False)
    values = bert.encoder_values(config, "deberta-base")
    farthest = config.get("max_relative_positions", -1)
    act = wanted(config, "pooler_hidden_act", ("gelu", "tanh"), "gelu")
    return {
        **values,
        "relative_buckets": farthest if farthest > 0 else values["max_length"],
        "relative_length": 1,  # each distance has its own
        "n_segments": config.get("type_vocab_size", 0),
        "position_norm": False,
        "position_projections": True,
        "key_bias": False,
        "pooler": act if bert.has_pooler(names, head, ("sequence",)) else "none",
        "tie": "output" if not config.get("legacy", True) else values["tie"],
    }


def write_first_config(config: ModelConfig) -> Values:
    """The first version's config, from ours."""
    if not has_bucket_for_each(config):
        raise UserError("DeBERTa's first version tells distances apart one by one.")
    return {
        **bert.encoder_config(config),
        "type_vocab_size": config.n_segments,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_biased_input": False,
        "max_relative_positions": config.relative_buckets,
        "pooler_hidden_act": config.pooler.replace("none", "gelu"),
    }


def first_rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where the first version keeps each weight."""
    block = {name: theirs for name, theirs in bert.LAYER.items() if not name.endswith("key_value")}
    yield from _rules(config, head, block)
    for layer in range(config.n_encoder_layers):
        ours = f"encoder.blocks.{layer}.self_attention."
        theirs = f"deberta.encoder.layer.{layer}.attention.self."
        form = by_head(config.n_heads)
        yield Rule(f"{ours}query_key_value.weight", (Part(f"{theirs}in_proj.weight", form),))
        yield Rule(f"{ours}bias.query", (Part(f"{theirs}q_bias"),))
        yield Rule(f"{ours}bias.value", (Part(f"{theirs}v_bias"),))
        projections = {
            "position_projections.query": "pos_q_proj",
            "position_projections.key": "pos_proj",
        }
        yield from modules(config, ours, theirs, projections)


DEBERTA_1 = dataclasses.replace(
    DEBERTA,
    name="DeBERTa v1",
    model_type="deberta",
    classes=bert.label_classes("Deberta"),
    read_config=read_first_config,
    write_config=write_first_config,
    rules=first_rules,
)
