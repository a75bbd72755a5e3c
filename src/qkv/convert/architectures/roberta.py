"""RoBERTa (Liu et al. 2019): BERT without segments, whose positions count from the padding's id."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures import bert
from qkv.convert.architectures.architecture import Values, wanted
from qkv.convert.architectures.name_tables import Names, Part, Rule, Table, after
from qkv.errors import UserError

HEADS: Mapping[str, Table] = {
    "none": {},
    "masked": {"head.dense": "lm_head.dense", "head.norm": "lm_head.layer_norm"},
    "sequence": {"pooler.dense": "classifier.dense", "head.projection": "classifier.out_proj"},
    "token": bert.LABELS,
    "answer": bert.ANSWER,
}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """RoBERTa's config in our words."""
    wanted(config, "position_embedding_type", ("absolute",), "absolute")
    values = bert.gelu_encoder_values(config, "roberta-base", head, "RoBERTa")
    pad = config.get("pad_token_id", 1)
    return {
        **values,
        "pad_id": pad,
        "max_length": values["max_length"] - pad - 1,
        "pooler": "tanh" if bert.has_pooler(names, head, ("sequence",)) else "none",
    }


def write_config(config: ModelConfig) -> Values:
    """RoBERTa's config, from ours."""
    if config.pad_id in (config.bos_id, config.eos_id):
        raise UserError("RoBERTa has no place for a token that is also the padding.")
    return {
        **bert.encoder_config(config),
        "pad_token_id": config.pad_id,
        "max_position_embeddings": config.max_length + config.pad_id + 1,
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where RoBERTa keeps each weight."""
    positions = Part("embeddings.position_embeddings", after(config.pad_id + 1))
    body = {**bert.EMBEDDINGS, "encoder.positions.table": positions}
    if head != "sequence":  # whose own is used
        body["pooler.dense"] = "pooler.dense"
    yield from Names("encoder", "roberta.", body, bert.LAYERS, bert.LAYER, HEADS)(config, head)
    yield from bert.masked_output(config, head, "lm_head.")


ROBERTA = bert.like_bert(
    "RoBERTa",
    "roberta",
    "Roberta",
    read_config,
    write_config,
    rules,
    copies=bert.masked_copies("roberta.", "lm_head."),
    spare=partial(bert.spare, body="roberta.", masked="lm_head.", pooler="roberta.pooler.dense"),
    pair_separators=2,
)
XLM_ROBERTA = dataclasses.replace(
    ROBERTA, name="XLM-RoBERTa", model_type="xlm-roberta", classes=bert.label_classes("XLMRoberta")
)
CAMEMBERT = dataclasses.replace(
    ROBERTA, name="CamemBERT", model_type="camembert", classes=bert.label_classes("Camembert")
)
