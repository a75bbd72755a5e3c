"""Padding for a causal classifier: transformers labels the last token that is not padding."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.weights import read_fitting
from qkv.tasks import Tokenizers
from qkv.tasks.classify import Classes
from qkv.tasks.folder import Source, load_config, load_section, load_tokenizers
from qkv.text import PAD, Tokenizer

TABLE = "embedding.table.weight"


def with_padding(source: Source) -> Source:
    """The same model, whose padding is not the token that its texts end with.

    It is another special token, or a new one where there is no other.
    """
    _, config, _ = load_config(source)
    if not config.causal:
        return source
    _, _, after = load_section(source, "classify", Classes).frame or ((), (), (config.eos_id,))
    if config.pad_id not in after[-1:]:
        return source
    tokenizer = copy.deepcopy(load_tokenizers(source, config).target)
    if {*tokenizer.special_ids} <= {*after}:
        tokenizer.add_special([PAD])
    others = [name for name in tokenizer.special_names if tokenizer.special_id(name) not in after]
    padded = Tokenizer(tokenizer._backend, {**tokenizer.names, "padding": others[0]})
    size = max(config.vocab_size, len(padded))
    model = {**config.to_dict(), "pad_id": padded.pad_id, "vocab_size": size}
    return dataclasses.replace(
        source,
        content={**source.content, "model": model},
        read_tokenizers=lambda: Tokenizers(padded, padded),
        read_weights=lambda: _grown(source, config, size),
    )


def _grown(source: Source, config: ModelConfig, size: int) -> dict[str, Tensor]:
    weights = dict(read_fitting(source, config))
    table = weights[TABLE]
    new = table.new_zeros(size - config.vocab_size, table.shape[1])
    return {**weights, TABLE: torch.cat([table, new])}
