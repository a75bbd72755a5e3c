"""MPNet (Song et al. 2020): RoBERTa with a bias for each distance beside its learned positions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures import bert
from qkv.convert.architectures.architecture import Spare, Values, wanted
from qkv.convert.architectures.name_tables import Names, Part, Rule, Table, after
from qkv.convert.architectures.roberta import HEADS
from qkv.errors import UserError

PAD = 1  # positions begin after it, whatever the config says
BODY: Table = {
    **bert.EMBEDDINGS,
    "encoder.positions.table": Part("embeddings.position_embeddings", after(PAD + 1)),
    "encoder.positions.relative.table": "encoder.relative_attention_bias",
}
BLOCK: Table = {
    **bert.LAYER,
    "self_attention.query_key_value": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    "self_attention.output": "attention.attn.o",
    "self_attention_residual.norm": "attention.LayerNorm",
}
BUCKETS, FARTHEST = 32, 128  # in its code, not in its config


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """MPNet's config in our words."""
    wanted(config, "relative_attention_num_buckets", (BUCKETS,), BUCKETS)
    wanted(config, "pad_token_id", (PAD,), PAD)
    values = bert.gelu_encoder_values(config, "roberta-base", head, "MPNet")
    return {
        **values,
        "positions": "learned_relative",
        "relative_buckets": BUCKETS,
        "relative_length": FARTHEST,
        "norm_epsilon": config.get("layer_norm_eps", 1e-12),
        "pad_id": PAD,
        "n_segments": 0,
        "max_length": values["max_length"] - PAD - 1,
        "pooler": "tanh" if bert.has_pooler(names, head, ("sequence",)) else "none",
    }


def write_config(config: ModelConfig) -> Values:
    """MPNet's config, from ours."""
    if config.pad_id != PAD:
        raise UserError(f"MPNet's padding is the token {PAD}, but this model's is {config.pad_id}.")
    values = bert.encoder_config(config)
    del values["type_vocab_size"]
    return {
        **values,
        "pad_token_id": PAD,
        "max_position_embeddings": config.max_length + PAD + 1,
        "relative_attention_num_buckets": config.relative_buckets,
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where MPNet keeps each weight."""
    body = BODY if head == "sequence" else {**BODY, "pooler.dense": "pooler.dense"}
    yield from Names("encoder", "mpnet.", body, bert.LAYERS, BLOCK, HEADS)(config, head)
    yield from bert.masked_output(config, head, "lm_head.")


def own_spare(config: ModelConfig, head: str) -> Spare:
    """A pooler, which their body always has, and the masked head's other bias."""
    found = bert.spare(config, head, body="", masked="lm_head.", pooler="mpnet.pooler.dense")
    return {name: given for name, given in found.items() if "token_type" not in name}


MPNET = bert.like_bert(
    "MPNet",
    "mpnet",
    "MPNet",
    read_config,
    write_config,
    rules,
    copies=bert.masked_copies("mpnet.", "lm_head."),
    spare=own_spare,
    pair_separators=2,
)
