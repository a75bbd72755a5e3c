"""BART (Lewis et al. 2020): learnt positions, a norm on the embeddings, <s> before each text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import Architecture, Spare, Values, wanted
from qkv.convert.architectures.marian import COPIES, SHARED, SOURCE, both_config, both_values
from qkv.convert.architectures.marian import rules as common_rules
from qkv.convert.architectures.marian import spare as common_spare
from qkv.convert.architectures.name_tables import Part, Rule, Table, after, modules
from qkv.convert.tokenizers.frame import Frame

INPUT: Table = {
    "positions.table": Part("embed_positions", after(2)),
    "input_norm": "layernorm_embedding",
}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """BART's config in our words."""
    wanted(config, "static_position_embeddings", (False,), False)
    wanted(config, "normalize_embedding", (True,), True)
    # Its tokenizer puts <s> before every text, targets in training too; to force it where a text is
    # generated, or to leave it to the model, makes no difference once that has learnt it.
    start = config.get("bos_token_id", 0)
    if start is not None:
        wanted(config, "forced_bos_token_id", (start,), start)
    return {
        **PRESETS["bart-base"],
        **both_values(config, names),
        "start_id": -1 if start is None else start,
    }


def write_config(config: ModelConfig) -> Values:
    """BART's config, from ours."""
    return {
        **both_config(config),
        "bos_token_id": None if config.start_id < 0 else config.start_id,
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where BART keeps each weight."""
    yield from common_rules(config, head)
    for side in ("encoder.", "decoder."):
        yield from modules(config, side, f"model.{side}", INPUT)


def spare(config: ModelConfig, head: str) -> Spare:
    """The shared embedding is there even where nobody reads it."""
    return {SHARED: SOURCE} if config.tie == "none" else common_spare(config, head)


def frame(config: ModelConfig) -> Frame:
    """<s> text </s>, or <s> text </s></s> text </s>."""
    start = () if config.start_id < 0 else (config.start_id,)
    return Frame(start, (config.eos_id,) * 2, (config.eos_id,))


BART = Architecture(
    name="BART",
    model_type="bart",
    family="encoder-decoder",
    classes={"seq2seq": "BartForConditionalGeneration"},
    # What Lewis et al. published is tied, so that the body is all there is.
    bodies=("BartModel",),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    frame=frame,
    prefix="model.",
    ignored=r"(model\.)?(encoder|decoder)\.version",
    copies=COPIES,
    spare=spare,
)
