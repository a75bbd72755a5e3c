"""A decoder's body under a classification head, as GPT was first used (Radford et al. 2018)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Architecture, Values
from qkv.convert.architectures.bert import frame
from qkv.convert.architectures.name_tables import Rule, Table, modules

LABELS: Table = {"head.projection": "score"}


def causal_classifier(decoder: Architecture) -> Architecture:
    """A decoder architecture with a classification head: our causal encoder."""

    def read(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
        values = decoder.read_config(config, names, head)
        return {**values, "n_encoder_layers": values["n_decoder_layers"]}

    def write(config: ModelConfig) -> Values:
        return decoder.write_config(_as_deep(config))

    def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
        for rule in decoder.rules(_as_deep(config), head):
            ours = rule.ours.replace("decoder.", "encoder.", 1)
            yield dataclasses.replace(rule, ours=ours)
        yield from modules(config, "", "", LABELS)

    return dataclasses.replace(
        decoder,
        name=f"{decoder.name} with labels",
        family="encoder",
        causal=True,
        classes={"sequence": f"{decoder.bodies[0].removesuffix('Model')}ForSequenceClassification"},
        bodies=(),
        values={"causal": True, "pooling": "last"},
        fields={},
        read=read,
        write=write,
        rules=rules,
        frame=frame,
    )


def _as_deep(config: ModelConfig) -> ModelConfig:
    """With as many layers in the stack that theirs has as in the one that ours has."""
    return dataclasses.replace(config, n_decoder_layers=config.n_encoder_layers)
