"""BERT (Devlin et al. 2019), and what the models after it have in common with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import (
    THEIR_ACTIVATIONS,
    Architecture,
    Field,
    Fields,
    Spare,
    Values,
    read_fields,
    wanted,
    write_fields,
)
from qkv.convert.architectures.name_tables import FLIPPED, Names, Part, Rule, Table
from qkv.convert.tokenizers.frame import Frame
from qkv.errors import UserError

EMBEDDINGS: Table = {
    "embedding.table": "embeddings.word_embeddings",
    "encoder.positions.table": "embeddings.position_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "encoder.input_norm": "embeddings.LayerNorm",
}
LAYER: Table = {
    "self_attention.query_key_value": (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
    ),
    "self_attention.output": "attention.output.dense",
    "self_attention_residual.norm": "attention.output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
}
LAYERS = "encoder.layer.{}."
MASKED: Table = {
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
}
LABELS: Table = {"head.projection": "classifier"}
ANSWER: Table = {"head.projection": "qa_outputs"}
# Theirs says 0 for a true pair, ours 1.
PAIRS: Table = {"pair_head.projection": Part("cls.seq_relationship", FLIPPED)}
HEADS: Mapping[str, Table] = {
    "none": {},
    "masked": MASKED,
    "pairs": {**MASKED, **PAIRS},
    "sequence": LABELS,
    "token": LABELS,
    "answer": ANSWER,
}
GUESSES = "masked", "pairs"  # heads that guess hidden tokens
# 0, 1, 2, … and 0, 0, 0, …, which older files hold
POSITION_IDS = r"(.*\.)?embeddings\.(position|token_type)_ids"


BLOCK_FIELDS: Fields = {
    "n_encoder_layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "d_ff": "intermediate_size",
}
TEXT_FIELDS: Fields = {
    "vocab_size": "vocab_size",
    "max_length": Field("max_position_embeddings", 512),
    "tie": Field("tie_word_embeddings", True),
}


def _block_fields(preset: str) -> Fields:
    """The fields that all encoders of this line share; a preset has the defaults."""
    usual = PRESETS[preset]
    return {
        **BLOCK_FIELDS,
        "activation": Field("hidden_act", THEIR_ACTIVATIONS[usual["activation"]]),
        "norm_epsilon": Field("layer_norm_eps", usual["norm_epsilon"]),
        "dropout": Field("hidden_dropout_prob", usual["dropout"]),
        "attention_dropout": Field("attention_probs_dropout_prob", usual["dropout"]),
    }


def block_values(config: Mapping[str, Any], preset: str) -> Values:
    """The values that the configs of all encoders of this line share."""
    return {**PRESETS[preset], **read_fields(config, _block_fields(preset))}


def encoder_values(config: Mapping[str, Any], preset: str) -> Values:
    """The values that the configs of all text encoders share."""
    wanted(config, "is_decoder", (False,), False)
    return {
        **block_values(config, preset),
        **read_fields(config, TEXT_FIELDS),
        "n_segments": config.get("type_vocab_size", 2),
    }


def gelu_encoder_values(config: Mapping[str, Any], preset: str, head: str, name: str) -> Values:
    """Those values, of an architecture whose head for hidden tokens is always GELU."""
    values = encoder_values(config, preset)
    if head == "masked" and values["activation"] != "gelu":
        raise UserError(
            f"config.json: hidden_act is {config['hidden_act']!r}, but {name}'s head for hidden "
            f"tokens is always 'gelu', and here it would be the same as in the layers."
        )
    return values


def block_config(config: ModelConfig) -> Values:
    """The config fields that all encoders of this line share, from ours."""
    return write_fields(config, _block_fields("bert-base"))


def encoder_config(config: ModelConfig) -> Values:
    """The config fields that all text encoders share, from ours."""
    return {
        **block_config(config),
        **write_fields(config, TEXT_FIELDS),
        "type_vocab_size": max(1, config.n_segments),
    }


def has_pooler(names: Collection[str], head: str, needed: Collection[str]) -> bool:
    """Whether a layer stands between the text's vector and the head, or beside no head at all."""
    return head in needed or any(
        name.endswith(("pooler.dense.weight", "pooler.weight")) for name in names
    )


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """BERT's config in our words."""
    wanted(config, "position_embedding_type", ("absolute",), "absolute")
    pooler = has_pooler(names, head, ("sequence", "pairs"))
    return {**encoder_values(config, "bert-base"), "pooler": "tanh" if pooler else "none"}


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where BERT keeps each weight."""
    body = {**EMBEDDINGS, "pooler.dense": "pooler.dense"}
    yield from Names("encoder", "bert.", body, LAYERS, LAYER, HEADS)(config, head)
    yield from masked_output(config, head, "cls.predictions.")


def masked_output(config: ModelConfig, head: str, masked: str) -> Iterator[Rule]:
    """The last matrix of a head that guesses; where it is not tied, theirs has two biases.

    Then it is the matrix's own that counts.
    """
    if head in GUESSES:
        bias = "bias" if config.tie != "none" else "decoder.bias"
        yield Rule("head.projection.weight", (Part(f"{masked}decoder.weight"),))
        yield Rule("head.projection.bias", (Part(masked + bias),))


def masked_copies(body: str, masked: str) -> dict[str, str]:
    """What such a head may hold a second time."""
    return {
        f"{masked}decoder.weight": f"{body}embeddings.word_embeddings.weight",
        f"{masked}decoder.bias": f"{masked}bias",
        f"{masked}bias": f"{masked}decoder.bias",
    }


def spare(config: ModelConfig, head: str, *, body: str, masked: str, pooler: str) -> Spare:
    """One kind of segment and a pooler, which theirs have always, and that head's other bias."""
    tensors: dict[str, tuple[int, ...] | str] = {}
    if not config.n_segments:
        tensors[f"{body}embeddings.token_type_embeddings.weight"] = (1, config.embedding_width)
    if head == "none" and config.pooler == "none":
        width = config.d_model
        tensors |= {f"{pooler}.weight": (width, width), f"{pooler}.bias": (width,)}
    if head in GUESSES and config.tie == "none":
        tensors[f"{masked}bias"] = f"{masked}decoder.bias"
    return tensors


def frame(config: ModelConfig) -> Frame:
    """[CLS] text [SEP], or [CLS] text [SEP] text [SEP]."""
    ends = (config.eos_id,)
    return Frame(
        (config.bos_id,),
        ends * config.pair_separators,
        ends,
        segments=config.n_segments > 1 and config.pair_separators == 1,
    )


def label_classes(name: str) -> dict[str, str]:
    """What the heads of most encoders are called."""
    return {
        "none": f"{name}Model",
        "masked": f"{name}ForMaskedLM",
        "sequence": f"{name}ForSequenceClassification",
        "token": f"{name}ForTokenClassification",
        "answer": f"{name}ForQuestionAnswering",
    }


def like_bert(
    name: str,
    model_type: str,
    class_prefix: str,
    read_config: Callable[[Mapping[str, Any], Collection[str], str], Values],
    write_config: Callable[[ModelConfig], Values],
    rules: Callable[[ModelConfig, str], Iterable[Rule]],
    **more: Any,
) -> Architecture:
    """An architecture of this line."""
    common = Architecture(
        name=name,
        model_type=model_type,
        family="encoder",
        classes=label_classes(class_prefix),
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        frame=frame,
        prefix=f"{model_type}.",
        ignored=POSITION_IDS,
    )
    return replace(common, **more)


BERT = like_bert(
    "BERT",
    "bert",
    "Bert",
    read_config,
    encoder_config,
    rules,
    classes={**label_classes("Bert"), "pairs": "BertForPreTraining"},
    # The oldest checkpoints call a norm's weight and bias by the paper's letters.
    renamed=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    copies=masked_copies("bert.", "cls.predictions."),
    spare=partial(spare, body="bert.", masked="cls.predictions.", pooler="bert.pooler.dense"),
)
