"""BERT (Devlin et al. 2019), and the encoders that differ from it in a few parts and names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
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
    activation,
    wanted,
)
from qkv.convert.architectures.name_tables import FLIPPED, Module, Names, Part, Rule, Table, after
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
POOLER: Table = {"pooler.dense": "pooler.dense"}
LABELS: Table = {"head.projection": "classifier"}
ANSWER: Table = {"head.projection": "qa_outputs"}
MASKED: Table = {
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
}
LABEL_HEADS: Mapping[str, Table] = {"sequence": LABELS, "token": LABELS, "answer": ANSWER}
HEADS: Mapping[str, Table] = {
    **LABEL_HEADS,
    "masked": MASKED,
    # Theirs says 0 for a true pair, ours 1.
    "pairs": {**MASKED, "pair_head.projection": Module("cls.seq_relationship", FLIPPED)},
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
NO_DECODER = {"is_decoder": False}
ABSOLUTE = {**NO_DECODER, "position_embedding_type": "absolute"}


def block_fields(preset: str) -> Fields:
    """The fields that all encoders of this line share; a preset has the defaults."""
    usual = PRESETS[preset]
    return {
        **BLOCK_FIELDS,
        "activation": Field("hidden_act", THEIR_ACTIVATIONS[usual["activation"]]),
        "norm_epsilon": Field("layer_norm_eps", usual["norm_epsilon"]),
        "dropout": Field("hidden_dropout_prob", usual["dropout"]),
        "attention_dropout": Field("attention_probs_dropout_prob", usual["dropout"]),
    }


def text_fields(preset: str) -> Fields:
    """The fields that all text encoders share; theirs have one kind of segment at least."""
    segments = Field("type_vocab_size", 2, write=lambda count: max(1, count))
    return {**block_fields(preset), **TEXT_FIELDS, "n_segments": segments}


def has_pooler(names: Collection[str], head: str) -> bool:
    """Whether a layer stands between the text's vector and the head, or beside no head at all."""
    endings = ("pooler.dense.weight", "pooler.weight")
    return head in ("sequence", "pairs") or any(name.endswith(endings) for name in names)


def read_pooler(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """BERT's layer between a text's vector and the head."""
    return {"pooler": "tanh" if has_pooler(names, head) else "none"}


@dataclass(frozen=True)
class BertNames(Names):
    """Where encoders of this line keep each weight; `masked` begins the names of a masked head."""

    masked: str = ""

    def __call__(self, config: ModelConfig, head: str) -> Iterator[Rule]:
        """Rules for the body, the layers and the head.

        Where the last matrix of a head that guesses is not tied, theirs has two biases: then it is
        the matrix's own that counts.
        """
        yield from super().__call__(config, head)
        if self.masked and head in GUESSES:
            bias = "bias" if config.tie != "none" else "decoder.bias"
            yield Rule("head.projection.weight", (Part(f"{self.masked}decoder.weight"),))
            yield Rule("head.projection.bias", (Part(self.masked + bias),))


def masked_copies(body: str, masked: str) -> dict[str, str]:
    """What a head that guesses may hold a second time."""
    return {
        f"{masked}decoder.weight": f"{body}embeddings.word_embeddings.weight",
        f"{masked}decoder.bias": f"{masked}bias",
        f"{masked}bias": f"{masked}decoder.bias",
    }


def spare(
    config: ModelConfig, head: str, *, segments: str = "", pooler: str = "", masked: str = ""
) -> Spare:
    """What theirs have always, by its names: segments, a pooler, a masked head's other bias."""
    tensors: dict[str, tuple[int, ...] | str] = {}
    if segments and not config.n_segments:
        name = f"{segments}embeddings.token_type_embeddings.weight"
        tensors[name] = (1, config.embedding_width)
    if pooler and head == "none" and config.pooler == "none":
        width = config.d_model
        tensors |= {f"{pooler}.weight": (width, width), f"{pooler}.bias": (width,)}
    if masked and head in GUESSES and config.tie == "none":
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


BERT = Architecture(
    name="BERT",
    model_type="bert",
    family="encoder",
    classes={**label_classes("Bert"), "pairs": "BertForPreTraining"},
    values=PRESETS["bert-base"],
    fields=text_fields("bert-base"),
    needs=ABSOLUTE,
    read=read_pooler,
    rules=BertNames(
        "encoder", "bert.", {**EMBEDDINGS, **POOLER}, LAYERS, LAYER, HEADS, "cls.predictions."
    ),
    frame=frame,
    prefix="bert.",
    # The oldest checkpoints call a norm's weight and bias by the paper's letters.
    renamed=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    ignored=POSITION_IDS,
    copies=masked_copies("bert.", "cls.predictions."),
    spare=partial(spare, segments="bert.", pooler="bert.pooler.dense", masked="cls.predictions."),
)

# RoBERTa (Liu et al. 2019): BERT without segments, whose positions count from the padding's id


def roberta_heads(body: str) -> Mapping[str, Table]:
    """RoBERTa's heads; that of a whole text has the pooler, which else is the body's."""
    pooler: Table = {"pooler.dense": f"{body}pooler.dense"}
    return {
        "none": pooler,
        "masked": {"head.dense": "lm_head.dense", "head.norm": "lm_head.layer_norm", **pooler},
        "sequence": {"pooler.dense": "classifier.dense", "head.projection": "classifier.out_proj"},
        "token": {**LABELS, **pooler},
        "answer": {**ANSWER, **pooler},
    }


def check_gelu(config: Mapping[str, Any], head: str, name: str) -> None:
    """Refuse another activation where the head for hidden tokens is always GELU."""
    if head == "masked" and activation(config, "hidden_act", "gelu") != "gelu":
        raise UserError(
            f"config.json: hidden_act is {config['hidden_act']!r}, but {name}'s head for hidden "
            f"tokens is always 'gelu', and here it would be the same as in the layers."
        )


def read_roberta(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """RoBERTa's positions, which begin after the padding, and its pooler."""
    check_gelu(config, head, "RoBERTa")
    pad = config.get("pad_token_id", 1)
    length = config.get("max_position_embeddings", 512) - pad - 1
    return {"pad_id": pad, "max_length": length, **read_pooler(config, names, head)}


def write_roberta(config: ModelConfig) -> Values:
    """RoBERTa's padding and positions."""
    if config.pad_id in (config.bos_id, config.eos_id):
        raise UserError("RoBERTa has no place for a token that is also the padding.")
    length = config.max_length + config.pad_id + 1
    return {"pad_token_id": config.pad_id, "max_position_embeddings": length}


ROBERTA = replace(
    BERT,
    name="RoBERTa",
    model_type="roberta",
    classes=label_classes("Roberta"),
    values=PRESETS["roberta-base"],
    fields=text_fields("roberta-base"),
    read=read_roberta,
    write=write_roberta,
    rules=BertNames(
        "encoder",
        "roberta.",
        {
            **EMBEDDINGS,
            "encoder.positions.table": Module(
                "embeddings.position_embeddings", lambda config: after(config.pad_id + 1)
            ),
        },
        LAYERS,
        LAYER,
        roberta_heads("roberta."),
        "lm_head.",
    ),
    prefix="roberta.",
    renamed=(),
    copies=masked_copies("roberta.", "lm_head."),
    spare=partial(spare, segments="roberta.", pooler="roberta.pooler.dense", masked="lm_head."),
    pair_separators=2,
)
XLM_ROBERTA = replace(
    ROBERTA,
    name="XLM-RoBERTa",
    model_type="xlm-roberta",
    classes=label_classes("XLMRoberta"),
)
CAMEMBERT = replace(
    ROBERTA, name="CamemBERT", model_type="camembert", classes=label_classes("Camembert")
)

# MPNet (Song et al. 2020): RoBERTa with a bias for each distance beside its learned positions

PAD = 1  # positions begin after it, whatever the config says
PAD_WAY_OUT = (
    f"MPNet counts positions without the token {PAD}, whatever its config says: if its tokenizer "
    f"pads with that token, write pad_token_id = {PAD}, or else train it with one that does"
)
BUCKETS, FARTHEST = 32, 128  # in its code, not in its config


def read_mpnet(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """MPNet's positions, which begin after the padding, and its pooler."""
    check_gelu(config, head, "MPNet")
    wanted(config, "pad_token_id", (PAD,), PAD, PAD_WAY_OUT)
    length = config.get("max_position_embeddings", 512) - PAD - 1
    return {"max_length": length, **read_pooler(config, names, head)}


def write_mpnet(config: ModelConfig) -> Values:
    """MPNet's padding, positions and buckets."""
    if config.pad_id != PAD:
        raise UserError(f"MPNet's padding is the token {PAD}, but this model's is {config.pad_id}.")
    return {
        "pad_token_id": PAD,
        "max_position_embeddings": config.max_length + PAD + 1,
        "relative_attention_num_buckets": config.relative_buckets,
    }


MPNET = replace(
    ROBERTA,
    name="MPNet",
    model_type="mpnet",
    classes=label_classes("MPNet"),
    values={
        **PRESETS["roberta-base"],
        "positions": "learned_relative",
        "relative_buckets": BUCKETS,
        "relative_length": FARTHEST,
        "pad_id": PAD,
        "n_segments": 0,
    },
    fields={
        **block_fields("roberta-base"),
        **TEXT_FIELDS,
        "norm_epsilon": Field("layer_norm_eps", 1e-12),
    },
    needs={**NO_DECODER, "relative_attention_num_buckets": BUCKETS},
    read=read_mpnet,
    write=write_mpnet,
    rules=BertNames(
        "encoder",
        "mpnet.",
        {
            **EMBEDDINGS,
            "encoder.positions.table": Module("embeddings.position_embeddings", after(PAD + 1)),
            "encoder.positions.relative.table": "encoder.relative_attention_bias",
        },
        LAYERS,
        {
            **LAYER,
            "self_attention.query_key_value": tuple(f"attention.attn.{part}" for part in "qkv"),
            "self_attention.output": "attention.attn.o",
            "self_attention_residual.norm": "attention.LayerNorm",
        },
        roberta_heads("mpnet."),
        "lm_head.",
    ),
    prefix="mpnet.",
    copies=masked_copies("mpnet.", "lm_head."),
    spare=partial(spare, pooler="mpnet.pooler.dense", masked="lm_head."),
)

# ALBERT (Lan et al. 2020): one block for all layers, and narrow embeddings

ALBERT_LAYER: Table = {
    "self_attention.query_key_value": ("attention.query", "attention.key", "attention.value"),
    "self_attention.output": "attention.dense",
    "self_attention_residual.norm": "attention.LayerNorm",
    "feed_forward.inner": "ffn",
    "feed_forward.outer": "ffn_output",
    "feed_forward_residual.norm": "full_layer_layer_norm",
}
ALBERT_MASKED: Table = {"head.dense": "predictions.dense", "head.norm": "predictions.LayerNorm"}
# Theirs says 0 for texts in their order, ours 1.
IN_ORDER: Table = {"pair_head.projection": Module("sop_classifier.classifier", FLIPPED)}
ONE_GROUP = {"num_hidden_groups": 1, "inner_group_num": 1}

ALBERT = replace(
    BERT,
    name="ALBERT",
    model_type="albert",
    classes={**label_classes("Albert"), "pairs": "AlbertForPreTraining"},
    values=PRESETS["albert-base"],
    fields={**text_fields("albert-base"), "d_embedding": Field("embedding_size", 128)},
    needs={**ABSOLUTE, **ONE_GROUP},
    write=lambda config: {**ONE_GROUP, "classifier_dropout_prob": config.dropout},
    rules=BertNames(
        "encoder",
        "albert.",
        {
            **EMBEDDINGS,
            "encoder.widen": "encoder.embedding_hidden_mapping_in",
            "pooler.dense": "pooler",
        },
        "encoder.albert_layer_groups.0.albert_layers.0.",
        ALBERT_LAYER,
        {**LABEL_HEADS, "masked": ALBERT_MASKED, "pairs": {**ALBERT_MASKED, **IN_ORDER}},
        "predictions.",
    ),
    prefix="albert.",
    renamed=(),
    copies=masked_copies("albert.", "predictions."),
    spare=partial(spare, segments="albert.", pooler="albert.pooler", masked="predictions."),
)

# DistilBERT (Sanh et al. 2019): half of BERT's layers, without segments and without a pooler

DISTILBERT = replace(
    BERT,
    name="DistilBERT",
    model_type="distilbert",
    classes=label_classes("DistilBert"),
    values={**PRESETS["bert-base"], "n_segments": 0},
    fields={
        "n_encoder_layers": "n_layers",
        "d_model": "dim",
        "n_heads": "n_heads",
        "d_ff": "hidden_dim",
        "activation": Field("activation", "gelu"),
        **TEXT_FIELDS,
        "dropout": Field("dropout", PRESETS["bert-base"]["dropout"]),
        "attention_dropout": Field("attention_dropout", PRESETS["bert-base"]["attention_dropout"]),
    },
    needs={},
    # Positions that are waves lie in the file like others.
    read=lambda config, names, head: {"pooler": "relu" if head == "sequence" else "none"},
    write=lambda config: {
        "sinusoidal_pos_embds": False,
        "seq_classif_dropout": config.dropout,
        "qa_dropout": config.dropout,
    },
    rules=BertNames(
        "encoder",
        "distilbert.",
        EMBEDDINGS,
        "transformer.layer.{}.",
        {
            "self_attention.query_key_value": tuple(f"attention.{part}_lin" for part in "qkv"),
            "self_attention.output": "attention.out_lin",
            "self_attention_residual.norm": "sa_layer_norm",
            "feed_forward.inner": "ffn.lin1",
            "feed_forward.outer": "ffn.lin2",
            "feed_forward_residual.norm": "output_layer_norm",
        },
        {
            **LABEL_HEADS,
            "masked": {
                "head.dense": "vocab_transform",
                "head.norm": "vocab_layer_norm",
                "head.projection": "vocab_projector",
            },
            "sequence": {"pooler.dense": "pre_classifier", **LABELS},
        },
    ),
    prefix="distilbert.",
    renamed=(),
    copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    spare=Architecture.spare,
)

# ELECTRA (Clark et al. 2020): BERT without a pooler, narrow embeddings in small models. Of a
# discriminator the body is read: its head is a layer without a norm, and one sigmoid a token.


def read_electra(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """ELECTRA's narrower embeddings, and the layer under its labels."""
    check_gelu(config, head, "ELECTRA")
    width = config.get("embedding_size", 128)
    return {
        "d_embedding": 0 if width == config["hidden_size"] else width,
        "pooler": "gelu" if head == "sequence" else "none",
    }


ELECTRA = replace(
    BERT,
    name="ELECTRA",
    model_type="electra",
    classes=label_classes("Electra"),
    headless={"ElectraForPreTraining": "tells replaced tokens from others"},
    read=read_electra,
    write=lambda config: {"embedding_size": config.embedding_width},
    rules=BertNames(
        "encoder",
        "electra.",
        {**EMBEDDINGS, "encoder.widen": "embeddings_project"},
        LAYERS,
        LAYER,
        {
            **LABEL_HEADS,
            "masked": {
                "head.dense": "generator_predictions.dense",
                "head.norm": "generator_predictions.LayerNorm",
                "head.projection": "generator_lm_head",
            },
            "sequence": roberta_heads("")["sequence"],
        },
    ),
    prefix="electra.",
    renamed=(),
    ignored=rf"{POSITION_IDS}|discriminator_predictions\..*",
    copies={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    spare=partial(spare, segments="electra."),
)
