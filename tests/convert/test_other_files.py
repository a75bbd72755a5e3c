"""Checkpoints as others wrote them: in older words, with copies and remains, or a part alone."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor

from qkv.errors import UserError
from tests.convert.harness import Edit, change, read, saved
from tests.convert.small import ANGLES, assert_reads_same, model_of, small

BART, BART_TABLE = "BartForConditionalGeneration", "model.shared.weight"
BERT, BERT_TABLE = "BertForMaskedLM", "bert.embeddings.word_embeddings.weight"
PRE_TRAINING, BERT_COPY = "BertForPreTraining", "cls.predictions.decoder.weight"
BIAS, SECOND_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"
GPT, GPT2, GPT2_TABLE = "OpenAIGPTLMHeadModel", "GPT2LMHeadModel", "transformer.wte.weight"
LLAMA, LLAMA_TABLE = "LlamaForCausalLM", "model.embed_tokens.weight"
T5, T5_TABLE = "T5ForConditionalGeneration", "shared.weight"
OUTPUT = "lm_head.weight"
TIED, UNTIED = ({"tie_word_embeddings": tied} for tied in (True, False))
EXACT_GELU = {"dense_act_fn": "gelu", **UNTIED}
COUNTS = torch.arange(16)[None]
SIDES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")


class File(NamedTuple):
    """A class of theirs, and how its folder differs from what transformers writes today."""

    class_name: str
    head: str = ""  # of an encoder; with "none", its body is what counts
    differences: Mapping[str, Any] = {}  # of its small config
    weights: Edit = lambda before: before
    drop: Sequence[str] = ()  # fields of config.json
    config: Mapping[str, Any] = {}
    expected: Mapping[str, Any] = {}  # of what we read


def called(class_name: str) -> dict[str, Any]:
    """The class that config.json says."""
    return {"architectures": [class_name]}


def renamed(*patterns: tuple[str, str]) -> Edit:
    """Tensors under other names."""

    def edit(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, weight in weights.items():
            for pattern, other in patterns:
                name = re.sub(pattern, other, name)
            found[name] = weight
        return found

    return edit


def with_more(more: Mapping[str, Tensor | str], lost: Sequence[str] = ()) -> Edit:
    """More tensors, or copies of the tensors that are named; `lost` are not stored."""

    def edit(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        added = {
            name: weights[one].clone() if isinstance(one, str) else one
            for name, one in more.items()
        }
        return {name: one for name, one in weights.items() if name not in lost} | added

    return edit


def without_prefix(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """GPT's and GPT-2's as they were published, with what a token may see and 0, 1, 2, …"""
    masks = {
        f"h.{layer}.attn.{kind}": torch.ones(1, 1, 16, 16)
        for layer in range(2)
        for kind in ("bias", "masked_bias")
    }
    bare = renamed((r"^transformer\.", ""))(weights)
    return bare | masks | {"position_ids": torch.arange(16)}


def older_angles(name: str, rope: Mapping[str, Any]) -> File:
    """Llama's angles in two places; the kind of scaling was called its type."""
    rest = {key: value for key, value in rope.items() if key != "rope_type"}
    scaling = {name: rope["rope_type"], **rest} if rest else None
    return File(
        LLAMA,
        differences={"rope_parameters": {**rope, "rope_theta": 300.0}},
        drop=["rope_parameters", "head_dim"],
        config={"rope_theta": 300.0, "rope_scaling": scaling},
        expected={"rotary_base": 300.0},
    )


def older_t5(apart: bool) -> File:
    """T5 with repeated matrices and one that nobody reads; tying tells whether it scales."""
    unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    sides = {f"{side}.embed_tokens.weight": T5_TABLE for side in ("encoder", "decoder")}
    return File(
        T5,
        differences={"tie_word_embeddings": not apart},
        weights=with_more({**sides, unread: torch.ones(32, 2)}),
        drop=["scale_decoder_outputs", "dense_act_fn", "is_gated_act", "num_decoder_layers"],
        config={"tie_word_embeddings": not apart, **called("T5WithLMHeadModel")},
    )


RATES = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(2) for n in range(2)}
BASES = {"full_attention": 300.0, "sliding_attention": 30.0}
OLDER_BASES = {"global_rope_theta": 300.0, "local_rope_theta": 30.0}
NO_ENDS, GPT2_ENDS = (dict.fromkeys(("bos_token_id", "eos_token_id"), id) for id in (None, 50_256))
NO_IDS = {"pad_id": 0, "bos_id": 30, "eos_id": 30, "bos": False}  # no token has the id 30
BERT_UNSAID = (
    *("layer_norm_eps", "hidden_act", "type_vocab_size", "architectures", "tie_word_embeddings"),
    *("max_position_embeddings", "pad_token_id", "hidden_dropout_prob"),
)
LETTERS = (r"LayerNorm\.weight", "LayerNorm.gamma"), (r"LayerNorm\.bias", "LayerNorm.beta")
VIT_IN_MEMORY = (
    (r"encoder\.layer\.", "layers."),
    (r"attention\.attention\.query", "attention.q_proj"),
    (r"attention\.attention\.key", "attention.k_proj"),
    (r"attention\.attention\.value", "attention.v_proj"),
    (r"attention\.output\.dense", "attention.o_proj"),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"output\.dense", "mlp.fc2"),
)
ACTIVATIONS = (
    *("gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"),
    *("gelu_accurate", "swish"),
)
BESIDE_DEBERTA = {
    "mask_predictions.dense.weight": torch.ones(8, 8),
    "mask_predictions.classifier.bias": torch.ones(1),
    "deberta.embeddings.position_embeddings.weight": torch.ones(16, 8),
    "deberta.embeddings.position_ids": torch.arange(16)[None],
}
FILES = [
    # The norms by the paper's letters; all that was pre-trained, called by a part of it
    File(PRE_TRAINING, "pairs", weights=renamed(*LETTERS)),
    File(PRE_TRAINING, "pairs", config=called(BERT), expected={"pair_head": True}),
    File(PRE_TRAINING, "none", config=called("BertModel"), expected={"pair_head": False}),
    # 0, 1, 2, … and 0, 0, 0, …
    File("BertModel", "none", weights=with_more({"embeddings.position_ids": COUNTS})),
    File("BertModel", "none", weights=with_more({"embeddings.token_type_ids": 0 * COUNTS})),
    *(File("BertModel", "none", {"hidden_act": name}) for name in ACTIVATIONS),
    File("BertModel", "none", {"max_position_embeddings": 512}, drop=BERT_UNSAID),
    File(BERT, "masked", weights=with_more({BERT_COPY: BERT_TABLE}), expected={"tie": "output"}),
    File(BERT, "masked", weights=with_more({SECOND_BIAS: BIAS})),
    File(BERT, "masked", weights=with_more({SECOND_BIAS: torch.ones(30)})),  # which nobody reads
    File(BERT, "masked", weights=with_more({BERT_COPY: BERT_TABLE, SECOND_BIAS: BIAS})),
    File(BERT, "masked", weights=with_more({SECOND_BIAS: BIAS}, lost=[BIAS])),
    File("RobertaModel", "none", expected={"max_length": 14, "pair_separators": 2}),
    File("RobertaModel", "none", drop=["pad_token_id"], expected={"pad_id": 1}),
    File("AlbertModel", "none", expected={"shared_layers": True, "d_embedding": 4}),
    # Widened all the same, and as wide as the model
    File("AlbertModel", "none", {"embedding_size": 8}, expected={"d_embedding": 8}),
    File("ElectraModel", "none", {"embedding_size": 8}, expected={"d_embedding": 0}),
    File(
        "DistilBertForSequenceClassification",
        "sequence",
        expected={"n_segments": 0, "pooler": "relu", "norm_epsilon": 1e-12},
    ),
    File("DistilBertModel", "none", {"sinusoidal_pos_embds": True}),
    File(
        "ModernBertForMaskedLM",
        "masked",
        {
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": base} for kind, base in BASES.items()
            }
        },
        drop=["rope_parameters", "layer_types"],
        config={"global_attn_every_n_layers": 3, **OLDER_BASES},
        expected={"window_layers": "fww"},
    ),
    # The third version's own head; what pre-training left, and no class, as in released files
    File("DebertaV2ForMaskedLM", "masked", {"legacy": False, "tie_word_embeddings": False}),
    File(
        "DebertaV2ForMaskedLM",
        "none",
        {"legacy": False},
        with_more(BESIDE_DEBERTA),
        ["architectures"],
        expected={"task": "embed", "head": "none"},
    ),
    File("ViTModel", "none", weights=renamed(*VIT_IN_MEMORY)),
    File("ViTForImageClassification", "image", weights=renamed(*VIT_IN_MEMORY)),
    File("ViTModel", "none", {"image_size": [6, 6]}, expected={"image_size": 6}),
    # The first GPT has no special tokens; GPT-2's 50256 often stays in a small model's config.
    File(GPT, differences=NO_ENDS, expected=NO_IDS),
    File(GPT2, differences=GPT2_ENDS, expected=NO_IDS),
    File(GPT, weights=without_prefix),
    File(GPT2, weights=without_prefix),
    File(GPT2, weights=with_more({OUTPUT: GPT2_TABLE}), expected={"tie": "output"}),
    File(GPT2, weights=with_more({OUTPUT: GPT2_TABLE}, [GPT2_TABLE]), expected={"tie": "output"}),
    File(GPT, "", TIED, renamed((r"^transformer\.", "")), config=called("OpenAIGPTModel")),
    File(GPT2, "", TIED, renamed((r"^transformer\.", "")), config=called("GPT2Model")),
    File(LLAMA, "", TIED, renamed((r"^model\.", "")), config=called("LlamaModel")),
    *(
        older_angles(name, rope)
        for rope in ({"rope_type": "default"}, *ANGLES.values())
        for name in ("type", "rope_type")
    ),
    # Without groups, with angles among the weights, a copy of the output, and no padding
    File(
        LLAMA,
        "",
        {"num_key_value_heads": 4, **TIED},
        with_more({**RATES, OUTPUT: LLAMA_TABLE}),
        ["num_key_value_heads", "attention_bias", "mlp_bias"],
        {"pad_token_id": -1},
        {"tie": "output", "pad_id": 2, "eos_id": 2},
    ),
    # A window's width, and layers without one
    File(
        "MistralForCausalLM",
        differences={"sliding_window": None},
        config={"sliding_window": 3, "layer_types": ["full_attention"] * 2},
        expected={"window": 0},
    ),
    File(
        BART,
        weights=with_more(dict.fromkeys((*SIDES, OUTPUT), BART_TABLE), [BART_TABLE]),
        expected={"tie": "all"},
    ),
    older_t5(apart=False),
    older_t5(apart=True),
    File(T5, weights=with_more({OUTPUT: T5_TABLE}, [T5_TABLE]), expected={"tie": "all"}),
    *(
        File(T5, "", {**EXACT_GELU, **said}, expected={"activation": "gelu", "gated": True})
        for said in (
            {"feed_forward_proj": "gated-gelu"},
            {"feed_forward_proj": "relu", "is_gated_act": True},
        )
    ),
    File(
        "MT5ForConditionalGeneration",
        differences=UNTIED,
        drop=["dense_act_fn", "is_gated_act", "feed_forward_proj"],
        expected={"tie": "inputs", "gated": True, "output_scale": False},
    ),
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.class_name)
@torch.no_grad()
def test_a_file_of_others_says_what_its_model_does(file):
    theirs = model_of((file.class_name, file.head, dict(file.differences)))
    with saved(theirs) as folder:
        change(folder, file.weights, file.drop, **file.config)
        model = theirs.base_model if file.head == "none" else theirs
        source, _ = assert_reads_same(model, folder, file.head)
    found = {**source.content["model"], **source.content}
    assert {name: found[name] for name in file.expected} == file.expected


# A matrix that is tied may be stored twice, or under either name; but then it is one


@pytest.mark.parametrize(
    ("class_name", "table", "copy"),
    [
        (BART, BART_TABLE, OUTPUT),
        (BART, BART_TABLE, SIDES[1]),
        (BERT, BERT_TABLE, BERT_COPY),
        (LLAMA, LLAMA_TABLE, OUTPUT),
    ],
)
def test_a_copy_that_differs_is_refused_unless_the_config_says_so(class_name, table, copy):
    """transformers sets it free, whatever the config says."""
    with saved(small(class_name, tie_word_embeddings=True)) as folder:
        change(folder, lambda weights: {**weights, copy: weights[table] + 1})
        with pytest.raises(UserError, match=f"{copy} and {table} differ"):
            read(folder)
        if copy in SIDES:
            return
        theirs = getattr(transformers, class_name).from_pretrained(folder).eval()
        change(folder, tie_word_embeddings=False)
        assert_reads_same(theirs, folder, "masked" if class_name == BERT else "")


@pytest.mark.parametrize(
    ("class_name", "body", "lost"),
    [
        (LLAMA, "", LLAMA_TABLE),
        (LLAMA, "", OUTPUT),
        (LLAMA, "LlamaModel", OUTPUT),
        (GPT, "OpenAIGPTModel", OUTPUT),
        (GPT2, "GPT2Model", OUTPUT),
    ],
)
def test_of_two_matrices_that_are_not_tied_none_stands_for_the_other(class_name, body, lost):
    with saved(small(class_name, tie_word_embeddings=False)) as folder:
        named = {"architectures": [body]} if body else {}
        change(folder, with_more({}, [lost]), **named)
        with pytest.raises(UserError, match=f"missing {lost}"):
            read(folder)
