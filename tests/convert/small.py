"""A small model of each architecture, and whether what is read of its folder says the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from qkv.convert.architectures import ARCHITECTURES, CAUSAL_CLASSIFIERS
from qkv.convert.model_folder import StoredModel
from qkv.model import Decoder, EncoderDecoder, Model
from tests.convert.both import said, teacher_forced
from tests.convert.harness import assert_close, assert_round_trip, made, read
from tests.parity.pairs import both_logits

LENGTHS = [7, 12, 1]
TINY = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "vocab_size": 30,
    "max_position_embeddings": 16,
}
GPT = {
    "n_embd": 16,
    "n_head": 2,
    "n_layer": 2,
    "vocab_size": 30,
    "n_positions": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "vocab_size": 30,
    "max_position_embeddings": 32,
}
GEMMA = {**LLAMA, "head_dim": 6}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT_NEO = {
    "hidden_size": 16,
    "num_heads": 2,
    "num_layers": 2,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 3,
    "vocab_size": 30,
    "max_position_embeddings": 32,
}
BART = {
    "vocab_size": 20,
    "d_model": 8,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "max_position_embeddings": 12,
}
T5 = {
    "vocab_size": 20,
    "d_model": 8,
    "num_heads": 2,
    "d_kv": 3,
    "num_layers": 1,
    "d_ff": 8,
    "n_positions": 30,
    "decoder_start_token_id": 0,
}
ROBERTA = {**TINY, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
RELEASED_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": "c2p|p2c",
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
    "position_buckets": 4,
}
FIRST_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
VIT = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "image_size": 6,
    "patch_size": 2,
}
# By how the names of their classes begin
CONFIGS: dict[str, dict[str, Any]] = {
    "OpenAIGPT": GPT,
    "GPT2": GPT,
    "Llama": LLAMA,
    "Mistral": LLAMA,
    "GPTNeoX": {**LLAMA, "num_attention_heads": 2, "intermediate_size": 20},
    "GPTNeo": GPT_NEO,
    "OPT": {**LLAMA, "ffn_dim": 20, "word_embed_proj_dim": 16},
    "Gemma3": {
        **GEMMA,
        "query_pre_attn_scalar": 9,
        "num_hidden_layers": 3,
        "sliding_window": 3,
        "sliding_window_pattern": 3,
    },
    "Gemma2": {**GEMMA, "query_pre_attn_scalar": 9, "sliding_window": 3},
    "Gemma": GEMMA,
    "Phi3": {**LLAMA, **IDS},
    "SmolLM3": {**LLAMA, **IDS, "no_rope_layer_interval": 2},
    "Mixtral": {**LLAMA, "num_local_experts": 3},
    "Bloom": {"hidden_size": 16, "n_head": 4, "n_layer": 2, "vocab_size": 30, "seq_length": 32},
    "Qwen2": LLAMA,
    "Qwen3": {**LLAMA, "head_dim": 6},
    "Bart": BART,
    "MBart": BART,
    "M2M100": BART,
    "Pegasus": {**BART, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1},
    "MT5": T5,
    "Marian": {**BART, "pad_token_id": 19, "decoder_start_token_id": 19},
    "T5": T5,
    "Bert": TINY,
    "DistilBert": {**TINY, "hidden_dim": 12},
    "Electra": {**TINY, "embedding_size": 4},
    "MPNet": {**TINY, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    "Albert": {**TINY, "embedding_size": 4},
    **dict.fromkeys(("Roberta", "XLMRoberta", "Camembert"), ROBERTA),
    "DebertaFor": {**TINY, **FIRST_DEBERTA},
    "DebertaModel": {**TINY, **FIRST_DEBERTA},
    "DebertaV2": {**TINY, **RELEASED_DEBERTA},
    "ModernBert": {**TINY, "num_hidden_layers": 4, "local_attention": 4, **IDS},
    "ViT": VIT,
}

TRAINED = {"original_max_position_embeddings": 16}
ANGLES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, **TRAINED},
    "yarn, other ramp": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        **TRAINED,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        **TRAINED,
    },
    "llama3, other bounds": {
        "rope_type": "llama3",
        "factor": 2.0,
        "low_freq_factor": 0.5,
        "high_freq_factor": 9.0,
        **TRAINED,
    },
}
SLIDING = ["full_attention", "sliding_attention", "sliding_attention"]
# Further choices that an architecture has: a class of theirs, and what differs from its config
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-neox, one after the other": (
        "GPTNeoXForCausalLM",
        {
            "use_parallel_residual": False,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "linear",
                "factor": 2.0,
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "gpt-neo, other windows": (
        "GPTNeoForCausalLM",
        {"num_layers": 3, "attention_types": [[["local"], 1], [["global", "local"], 1]]},
    ),
    "opt, no biases": ("OPTForCausalLM", {"enable_bias": False, "activation_function": "gelu"}),
    "gemma 2": (
        "Gemma2ForCausalLM",
        {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma 2, without caps": (
        "Gemma2ForCausalLM",
        {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "query_pre_attn_scalar": 6,
        },
    ),
    "gemma 3, scaled": (
        "Gemma3ForCausalLM",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 300.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
    ),
    "mixtral, window": (
        "MixtralForCausalLM",
        {"num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 4},
    ),
    "bloom, three heads": ("BloomForCausalLM", {"hidden_size": 12, "n_head": 3}),
    "phi-3": ("Phi3ForCausalLM", {"sliding_window": 5}),
    "phi-3, longrope": (
        "Phi3ForCausalLM",
        {
            "hidden_size": 32,
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.3, 2.0],
                "long_factor": [2.0, 4.0, 8.0],
            },
        },
    ),
    "smollm3": ("SmolLM3ForCausalLM", {"num_hidden_layers": 3}),
    "smollm3, windows": (
        "SmolLM3ForCausalLM",
        {
            "no_rope_layers": [1, 0],
            "use_sliding_window": True,
            "sliding_window": 3,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2, windows": (
        "Qwen2ForCausalLM",
        {
            "use_sliding_window": True,
            "sliding_window": 3,
            "max_window_layers": 1,
            "num_hidden_layers": 3,
        },
    ),
    "qwen3, windows": (
        "Qwen3ForCausalLM",
        {
            "use_sliding_window": True,
            "sliding_window": 4,
            "num_hidden_layers": 3,
            "layer_types": SLIDING,
        },
    ),
    **{
        f"llama, {name}": ("LlamaForCausalLM", {"rope_parameters": {**angles, "rope_theta": 100.0}})
        for name, angles in ANGLES.items()
    },
    "llama, a key for each head": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "llama, one key for all": (
        "LlamaForCausalLM",
        {"num_key_value_heads": 1, "num_hidden_layers": 1},
    ),
    "llama, tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "mistral, window": ("MistralForCausalLM", {"sliding_window": 3}),
    "mistral, narrow window": (
        "MistralForCausalLM",
        {"sliding_window": 2, "num_key_value_heads": 4},
    ),
    "gpt-2, ids that it lacks": (
        "GPT2LMHeadModel",
        {"bos_token_id": 50_256, "eos_token_id": 50_256},
    ),
    "gpt-2, one head": ("GPT2LMHeadModel", {"n_head": 1, "n_layer": 1, "n_inner": 20}),
    "t5, version 1.1": (
        "T5ForConditionalGeneration",
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "t5, wide heads": ("T5ForConditionalGeneration", {"d_kv": 11, "num_heads": 3}),
    "t5, few buckets": (
        "T5ForConditionalGeneration",
        {"relative_attention_num_buckets": 5, "relative_attention_max_distance": 4},
    ),
    "bart, scaled": (
        "BartForConditionalGeneration",
        {"scale_embedding": True, "activation_function": "relu", "decoder_layers": 3},
    ),
    "bart, nothing tied": ("BartForConditionalGeneration", {"tie_word_embeddings": False}),
    "marian, deep encoder": (
        "MarianMTModel",
        {"encoder_layers": 3, "activation_function": "gelu", "scale_embedding": True},
    ),
    "bert, five kinds of segments": ("BertForPreTraining", {"type_vocab_size": 5}),
    "albert, wide embeddings": ("AlbertForPreTraining", {"embedding_size": 48}),
    **{
        f"deberta, {buckets} buckets up to {farthest}": (
            "DebertaV2ForMaskedLM",
            {"position_buckets": buckets, "max_relative_positions": farthest},
        )
        for buckets, farthest in ((2, -1), (6, 9), (7, 16), (64, -1))
    },
    "vit, grey, one patch": ("ViTForImageClassification", {"num_channels": 1, "patch_size": 6}),
    "vit, patches of one pixel": ("ViTModel", {"image_size": 5, "patch_size": 1}),
}


def small(class_name: str, **differences: Any) -> PreTrainedModel:
    """A small model of a class."""
    config = next(config for name, config in CONFIGS.items() if class_name.startswith(name))
    return made(class_name, {**config, **differences})


# By model type: nothing as most configs have it, so that no field can be forgotten
_ENCODER = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "intermediate_size": 7,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-3,
}
_BERT = {
    **_ENCODER,
    "vocab_size": 41,
    "max_position_embeddings": 19,
    "type_vocab_size": 3,
    "tie_word_embeddings": False,
}
_OTHER_IDS = {"pad_token_id": 2, "bos_token_id": 1, "eos_token_id": 0}
_GPT = {
    "n_embd": 12,
    "n_head": 3,
    "n_layer": 3,
    "vocab_size": 41,
    "n_positions": 19,
    "layer_norm_epsilon": 1e-3,
    "tie_word_embeddings": False,
}
_LLAMA = {
    "hidden_size": 12,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 7,
    "vocab_size": 41,
    "hidden_act": "gelu",
    "rms_norm_eps": 1e-2,
    "tie_word_embeddings": True,
    **_OTHER_IDS,
}
_BART = {
    "vocab_size": 33,
    "d_model": 12,
    **{f"{side}_attention_heads": 3 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 7 for side in ("encoder", "decoder")},
    "encoder_layers": 2,
    "decoder_layers": 3,
    "activation_function": "relu",
    "scale_embedding": True,
    "tie_word_embeddings": False,
    "max_position_embeddings": 19,
}
_T5 = {
    "vocab_size": 33,
    "d_model": 10,
    "num_heads": 3,
    "d_kv": 5,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "d_ff": 7,
    "feed_forward_proj": "gated-silu",
    "relative_attention_num_buckets": 7,
    "relative_attention_max_distance": 9,
    "layer_norm_epsilon": 1e-3,
}
_TWO_BASES = {
    kind: {"rope_type": "default", "rope_theta": base}
    for kind, base in (("full_attention", 300.0), ("sliding_attention", 30.0))
}
_CLOSE = {"position_buckets": 5, "max_relative_positions": 10}
UNUSUAL: dict[str, dict[str, Any]] = {
    "bert": _BERT,
    **{
        name: {**_BERT, "type_vocab_size": 1, **_OTHER_IDS}
        for name in ("roberta", "xlm-roberta", "camembert")
    },
    "mpnet": {**_BERT, "pad_token_id": 1},
    "albert": {**_BERT, "embedding_size": 5},
    "electra": {**_BERT, "embedding_size": 5},
    "distilbert": {**_BERT, "hidden_dim": 7, "activation": "relu"},
    "deberta-v2": {**_BERT, **_CLOSE, "conv_kernel_size": 3, "conv_act": "gelu"},
    "deberta": {**_BERT, "max_relative_positions": 6, "pooler_hidden_act": "gelu"},
    "modernbert": {
        **{name: value for name, value in _BERT.items() if name != "hidden_act"},
        **dict.fromkeys(("hidden_activation", "classifier_activation"), "relu"),
        "norm_eps": 1e-3,
        "local_attention": 5,
        "global_attn_every_n_layers": 2,
        "classifier_pooling": "mean",
        "rope_parameters": _TWO_BASES,
    },
    "vit": {**_ENCODER, "image_size": 9, "patch_size": 3, "num_channels": 2},
    "openai-gpt": {**_GPT, "afn": "relu"},
    "gpt2": {
        **_GPT,
        "activation_function": "relu",
        "n_inner": 7,
        "scale_attn_weights": False,
        **_OTHER_IDS,
    },
    "llama": {**_LLAMA, "attention_bias": True, "mlp_bias": True},
    "mistral": {**_LLAMA, "sliding_window": 3},
    "bart": {**_BART, "bos_token_id": 3},
    "mbart": {**_BART, "decoder_start_token_id": 2},
    "m2m_100": {**_BART, "scale_embedding": False},
    "pegasus": _BART,
    "marian": {**_BART, "decoder_vocab_size": 25, "share_encoder_decoder_embeddings": False},
    "t5": {**_T5, "n_positions": 16},
    "mt5": _T5,
}
ALWAYS_GELU = ("roberta", "xlm-roberta", "camembert", "mpnet", "electra")  # under a masked head
LABELS = {"sequence": 3, "token": 3, "image": 3, "answer": 2, "pairs": 2}
Case = tuple[str, str, dict[str, Any]]
"""A class of theirs, the head that it has here, and what differs from its small config."""


def cases(differences: Mapping[str, Mapping[str, Any]]) -> dict[str, Case]:
    """All heads of all architectures, with what differs by model type; and all variants."""
    found: dict[str, Case] = {}
    for name, architecture in ARCHITECTURES.items():
        more = differences.get(name, {})
        for head, class_name in architecture.classes.items():
            found[f"{name}, {head}"] = class_name, head, {**more}
            if name in ALWAYS_GELU and head == "masked" and "hidden_act" in more:
                found[f"{name}, {head}"][2]["hidden_act"] = "gelu"
    for name, classifier in CAUSAL_CLASSIFIERS.items():
        found[f"{name}, labels"] = classifier.classes["sequence"], "sequence", IDS
    known = {class_name: head for class_name, head, _ in found.values()}
    types = {x: name for name, known in ARCHITECTURES.items() for x in known.classes.values()}
    for name, (class_name, variant) in VARIANTS.items():
        usual = differences.get(types[class_name], {}) if differences is not UNUSUAL else {}
        found[name] = class_name, known[class_name], {**usual, **variant}
    for _, head, values in found.values():
        if head in LABELS:
            values["num_labels"] = LABELS[head]
    return found


def model_of(case: Case) -> PreTrainedModel:
    """The model of a case, with all that is no parameter of theirs drawn too."""
    class_name, _, differences = case
    theirs = small(class_name, **differences)
    draw = torch.Generator().manual_seed(1)
    if class_name.startswith(("T5", "MT5")) and differences.get("tie_word_embeddings") is False:
        weight = torch.randn(theirs.lm_head.weight.shape, generator=draw)
        theirs.lm_head.weight = nn.Parameter(weight)  # which transformers 5 knows from files only
    if "final_logits_bias" in dict(theirs.named_buffers()):
        theirs.final_logits_bias.copy_(torch.randn(theirs.final_logits_bias.shape, generator=draw))
    return theirs


def answers(
    head: str, ours: Any, theirs: PreTrainedModel, lengths: list[int]
) -> list[tuple[Tensor, Tensor]]:
    """What both say of the same padded texts, whatever they are."""
    if isinstance(ours, EncoderDecoder):
        return [teacher_forced(ours, theirs, lengths)]
    if isinstance(ours, Decoder):
        return [both_logits((theirs, ours), lengths)]
    return said(head, ours, theirs, lengths, 0)


@torch.no_grad()
def assert_reads_same(
    theirs: PreTrainedModel, folder: Path, head: str = "none"
) -> tuple[StoredModel, Model]:
    """What is read from a folder says what a model does, and nothing is lost by an export."""
    source, ours = read(folder)
    for mine, other in answers(head, ours, theirs, LENGTHS):
        assert_close(mine, other)
    assert_round_trip(source)
    return source, ours
