"""DeBERTa (He et al. 2021) and its later versions (2023): distances instead of places."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures import bert
from qkv.convert.architectures.architecture import Field, Values, wanted
from qkv.convert.architectures.bert import BertNames
from qkv.convert.architectures.name_tables import Part, Rule, Table, by_head
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
HEADS = {head: {**table, **bert.POOLER} for head, table in {"none": {}, **bert.HEADS}.items()}
# What configs of all versions say; they do so, for these are not their defaults
ALWAYS: Values = {"relative_attention": True, "position_biased_input": False}
LATER: Values = {**ALWAYS, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
DEFAULTS = {"position_biased_input": True, "norm_rel_ebd": "none"}  # else False
WAYS_OUT = {
    "position_biased_input": (
        "take a model that does not add positions to its embeddings, as none of the released ones "
        "does, or train yours again with position_biased_input = false"
    )
}


def read_both(config: Mapping[str, Any], names: Collection[str], head: str, says: Values) -> Values:
    """Refuse what is not as released models have it, and read what all versions share."""
    for name, value in says.items():
        wanted(config, name, (value,), DEFAULTS.get(name, False), WAYS_OUT.get(name, ""))
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
    act = wanted(config, "pooler_hidden_act", ("gelu", "tanh"), "gelu")
    farthest = config.get("max_relative_positions", -1)
    length = config.get("max_position_embeddings", 512)
    values: Values = {
        "relative_buckets": farthest if farthest > 0 else length,
        "relative_length": 1,  # each distance has its own
        "pooler": act if bert.has_pooler(names, head) else "none",
    }
    plain_head = not config.get("legacy", True)  # which has no matrix of its own
    return {**values, "tie": "output"} if plain_head else values


def read(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """The later versions: far distances may share buckets, which grow."""
    values = read_both(config, names, head, LATER)
    if config.get("conv_kernel_size", 0):
        wanted(config, "conv_act", ("gelu",), "tanh")
        wanted(config, "conv_groups", (1,), 1)
    buckets = config.get("position_buckets", -1)
    if buckets <= 0:
        return values
    farthest = config.get("max_relative_positions", -1)
    return {**values, "relative_buckets": buckets, "relative_length": max(farthest, 0)}


def has_bucket_for_each(config: ModelConfig) -> bool:
    """Whether disentangled distances are told apart one by one, as far as there are buckets."""
    farthest = config.relative_length or config.n_positions
    return farthest - 1 <= config.relative_buckets // 2


def write_both(config: ModelConfig) -> Values:
    """The fields that all versions share."""
    return {
        **ALWAYS,
        "pos_att_type": ["c2p", "p2c"],
        "max_relative_positions": config.relative_buckets,
        "pooler_hidden_act": config.pooler.replace("none", "gelu"),
    }


def write(config: ModelConfig) -> Values:
    """The fields of the later versions."""
    buckets = {
        "position_buckets": config.relative_buckets,
        "max_relative_positions": config.relative_length or -1,
    }
    each = {"position_buckets": -1}
    return {
        **write_both(config),
        **LATER,
        **(each if has_bucket_for_each(config) else buckets),
        "conv_act": "gelu",
    }


RULES = BertNames("encoder", "deberta.", BODY, bert.LAYERS, BLOCK, HEADS, "cls.predictions.")
DEBERTA = replace(
    bert.BERT,
    name="DeBERTa",
    model_type="deberta-v2",
    classes=bert.label_classes("DebertaV2"),
    values=PRESETS["deberta-base"],
    fields={
        **bert.text_fields("deberta-base"),
        "n_segments": Field("type_vocab_size", 0),
        "convolution": Field("conv_kernel_size", 0),
    },
    needs=bert.NO_DECODER,
    read=read,
    write=write,
    rules=RULES,
    prefix="deberta.",
    # The third version's own head, which later files have under BERT's names
    renamed=(
        (r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.", r"cls.predictions.transform.\1."),
        (r"^lm_predictions\.lm_head\.bias$", "cls.predictions.bias"),
    ),
    # What its pre-training needed beside the model
    ignored=r"mask_predictions\..*|(.*\.)?embeddings\.position_(ids|embeddings\..*)",
    copies=bert.masked_copies("deberta.", "cls.predictions."),
    spare=partial(bert.spare, masked="cls.predictions."),  # there may be no segments and no pooler
)


# The first version: queries, keys and values in one matrix by heads, keys without a bias, and
# distances by matrices of their own


def read_first(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """The first version, in which each distance has its own vector."""
    return read_both(config, names, head, ALWAYS)


def write_first(config: ModelConfig) -> Values:
    """The fields of the first version."""
    if not has_bucket_for_each(config):
        raise UserError("DeBERTa's first version tells distances apart one by one.")
    return write_both(config)


def first_rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where the first version keeps each weight; queries and values have biases of their own."""
    block: Table = {
        **{name: theirs for name, theirs in bert.LAYER.items() if not name.endswith("key_value")},
        "self_attention.position_projections.query": "attention.self.pos_q_proj",
        "self_attention.position_projections.key": "attention.self.pos_proj",
    }
    yield from replace(RULES, block=block)(config, head)
    for layer in range(config.n_encoder_layers):
        ours = f"encoder.blocks.{layer}.self_attention."
        theirs = f"deberta.encoder.layer.{layer}.attention.self."
        fused = Part(f"{theirs}in_proj.weight", by_head(config.n_heads))
        yield Rule(f"{ours}query_key_value.weight", (fused,))
        yield Rule(f"{ours}bias.query", (Part(f"{theirs}q_bias"),))
        yield Rule(f"{ours}bias.value", (Part(f"{theirs}v_bias"),))


DEBERTA_1 = replace(
    DEBERTA,
    name="DeBERTa v1",
    model_type="deberta",
    classes=bert.label_classes("Deberta"),
    values={
        **PRESETS["deberta-base"],
        "position_norm": False,
        "position_projections": True,
        "key_bias": False,
    },
    fields={**bert.text_fields("deberta-base"), "n_segments": Field("type_vocab_size", 0)},
    needs={**bert.NO_DECODER, "talking_head": False},
    read=read_first,
    write=write_first,
    rules=first_rules,
)
