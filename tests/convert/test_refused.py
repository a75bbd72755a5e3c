"""What cannot be read of other people's checkpoints is named, whatever their architecture."""

import re

import pytest

from qkv.convert.architectures import ARCHITECTURES
from qkv.convert.architectures.llama import MISTRAL
from qkv.convert.architectures.unsupported import UNSUPPORTED, why_unsupported
from qkv.errors import UserError
from tests.convert import small
from tests.convert.harness import change, read, saved

GPT2, LLAMA, MARIAN = "GPT2LMHeadModel", "LlamaForCausalLM", "MarianMTModel"
ALBERT, BERT, ROBERTA = "AlbertModel", "BertModel", "RobertaForMaskedLM"
DEBERTA, VIT = "DebertaV2Model", "ViTModel"
BERT_LABELS, VIT_LABELS = "BertForSequenceClassification", "ViTForImageClassification"
QWEN2, QWEN3, NEOX = "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GPTNeoXForCausalLM"
NEO, OPT, BLOOM = "GPTNeoForCausalLM", "OPTForCausalLM", "BloomForCausalLM"
GEMMA, GEMMA2, GEMMA3 = (f"Gemma{version}ForCausalLM" for version in ("", "2", "3"))
PHI3, SMOLLM3, MIXTRAL = "Phi3ForCausalLM", "SmolLM3ForCausalLM", "MixtralForCausalLM"
MODERNBERT, MPNET, DEBERTA_1 = "ModernBertForMaskedLM", "MPNetModel", "DebertaModel"
MBART, PEGASUS = (f"{name}ForConditionalGeneration" for name in ("MBart", "Pegasus"))
SCALED_WINDOWS = {"sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10.0}}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 32,
    "short_factor": [1.0, 1.0, 1.0],
    "long_factor": [1.0, 2.0],
}
YARN = {"type": "yarn", "factor": 4.0}
CONVOLUTION = {"conv_kernel_size": 3, "conv_act": "gelu"}
TWICE = "id2label names a label twice, or one is empty"
# Class, what its config.json says instead, and what is said of that
REFUSED = [
    (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx is True"),
    (GPT2, {"add_cross_attention": True}, "add_cross_attention is True"),
    (GPT2, {"activation_function": "tanh"}, "activation_function is 'tanh'"),
    (GPT2, {"architectures": ["GPT2ForTokenClassification"]}, "GPT2ForTokenClass"),
    (GPT2, {"architectures": ["GPT2ForSequenceClassification"]}, "missing score.weight"),
    (GPT2, {"n_layer": 3}, "missing transformer.h.2.attn.c_attn.bias"),
    (GPT2, {"n_layer": 1}, "unexpected transformer.h.1.attn.c_attn.bias"),
    (GPT2, {"n_inner": 60}, "mlp.c_fc.weight is [16, 64] but should be [16, 60]"),
    (LLAMA, {"rope_scaling": {"rope_type": "longrope"}}, "(rope_type) is 'longrope'"),
    (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    (LLAMA, {"rope_scaling": {**YARN, "attention_factor": 2.0}}, "scores by 2 squared"),
    (LLAMA, {"rope_scaling": {**YARN, "truncate": False}}, "truncate is False"),
    (LLAMA, {"attention_bias": True}, "missing model.layers.0.self_attn.k_proj.bias"),
    (LLAMA, {"attention_bias": True, "mlp_bias": True}, "missing model.layers.0.mlp.down"),
    (LLAMA, {"num_attention_heads": 3}, "not a multiple of num_attention_heads"),
    (LLAMA, {"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
    (LLAMA, {"num_key_value_heads": 4}, "k_proj.weight is [8, 16] but should be [16, 16]"),
    (LLAMA, {"architectures": ["LlamaForTokenClassification"]}, "LlamaForTokenClass"),
    (LLAMA, {"drop": ["intermediate_size"]}, "does not say 'intermediate_size'"),
    (QWEN2, {"layer_types": ["full_attention"]}, "layer_types has 1 layers, but num_hidden_l"),
    (QWEN2, {"layer_types": ["full_attention", "chunked_attention"]}, "'chunked_attention'"),
    (QWEN3, {"attention_bias": True}, "attention_bias is True"),
    (NEOX, {"attention_bias": False}, "attention_bias is False"),
    (NEO, {"attention_types": [[["global"], 3]]}, "attention_types has 3 layers"),
    (NEO, {"attention_types": [[["dilated"], 2]]}, "must list layers that are global or local"),
    (OPT, {"word_embed_proj_dim": 8}, "word_embed_proj_dim is 8, but only 16"),
    (OPT, {"do_layer_norm_before": False}, "do_layer_norm_before is False"),
    (GEMMA, {"attention_bias": True}, "attention_bias is True"),
    (GEMMA2, {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    (GEMMA3, {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping is 30.0"),
    (GEMMA3, {"rope_parameters": SCALED_WINDOWS}, "rope_type is 'linear', but only 'default'"),
    (PHI3, {"rope_scaling": {"rope_type": "llama3"}}, "rope_type is 'llama3'"),
    (PHI3, {"rope_scaling": {**LONGROPE, "attention_factor": 3.0}}, "scores by 3 squared"),
    (PHI3, {"rope_scaling": LONGROPE}, "have 3 and 2 numbers, but must have 2 above 0"),
    (SMOLLM3, {"no_rope_layers": [1]}, "no_rope_layers is [1]"),
    (MIXTRAL, {"num_experts_per_tok": 4}, "n_experts_used (4) is more than n_experts (3)"),
    (BLOOM, {"apply_residual_connection_post_layernorm": True}, "post_layernorm is True"),
    (MODERNBERT, {"norm_bias": True}, "norm_bias is True"),
    (MODERNBERT, {"classifier_activation": "relu"}, "classifier_activation is 'relu'"),
    (MODERNBERT, {"decoder_bias": False}, "decoder_bias is False"),
    (MARIAN, {"normalize_before": True}, "normalize_before"),
    (MARIAN, {"decoder_ffn_dim": 9}, "decoder_ffn_dim"),
    (MARIAN, {"normalize_embedding": True}, "normalize_embedding"),
    (ALBERT, {"num_hidden_groups": 2}, "num_hidden_groups is 2, but only 1 can be read"),
    (ALBERT, {"inner_group_num": 2}, "inner_group_num is 2, but only 1 can be read"),
    (BERT, {"position_embedding_type": "relative_key"}, "is 'relative_key'"),
    (BERT, {"is_decoder": True}, "is_decoder is True"),
    (BERT, {"hidden_act": "mish"}, "hidden_act is 'mish', but only 'relu'"),
    (BERT_LABELS, {"problem_type": "ranking"}, "problem_type is 'ranking', but only"),
    (BERT_LABELS, {"problem_type": "regression"}, "id2label (or num_labels) has 2 outputs"),
    (BERT_LABELS, {"id2label": {"0": "a", "1": "a"}}, TWICE),
    (BERT_LABELS, {"id2label": {"0": "a", "1": ""}}, TWICE),
    (VIT_LABELS, {"problem_type": "multi_label_classification"}, "is 'multi_label_classif"),
    (ROBERTA, {"hidden_act": "relu"}, "always 'gelu'"),
    (DEBERTA, {"relative_attention": False}, "relative_attention is False"),
    (DEBERTA, {"share_att_key": False}, "share_att_key is False"),
    (DEBERTA, {"norm_rel_ebd": "none"}, "norm_rel_ebd is 'none'"),
    (DEBERTA, {"position_biased_input": True}, "can be read; take a model that does not add"),
    (DEBERTA, {"pos_att_type": ["c2p"]}, "pos_att_type is ['c2p']"),
    (DEBERTA, {"embedding_size": 4}, "embedding_size is 4, but only 8"),
    (DEBERTA, {**CONVOLUTION, "conv_act": "tanh"}, "conv_act is 'tanh'"),
    (DEBERTA, {**CONVOLUTION, "conv_groups": 2}, "conv_groups is 2"),
    (DEBERTA, {**CONVOLUTION, "conv_kernel_size": 4}, "convolution is 4"),
    (DEBERTA, {"pooler_hidden_act": "relu"}, "pooler_hidden_act is 'relu'"),
    (DEBERTA, {"attention_head_size": 6}, "attention_head_size is 6"),
    (VIT, {"qkv_bias": False}, "qkv_bias is False"),
    (VIT, {"image_size": [6, 4]}, "image_size is [6, 4], but only squares"),
    (VIT, {"image_size": 7}, "must be a multiple of patch_size"),
    (VIT, {"pooler_act": "relu"}, "pooler_act is 'relu'"),
    (VIT, {"pooler_output_size": 4}, "pooler_output_size is 4"),
    (MPNET, {"relative_attention_num_buckets": 16}, "num_buckets is 16, but only 32"),
    (MPNET, {"pad_token_id": 0}, "is 0, but only 1 can be read; MPNet counts positions without"),
    ("MPNetForMaskedLM", {"hidden_act": "relu"}, "always 'gelu'"),
    ("ElectraForMaskedLM", {"hidden_act": "relu"}, "always 'gelu'"),
    (DEBERTA_1, {"talking_head": True}, "talking_head is True"),
    (DEBERTA_1, {"pos_att_type": ["c2p"]}, "pos_att_type is ['c2p']"),
    (DEBERTA_1, {"position_biased_input": True}, "can be read; take a model that does not add"),
    (MBART, {"normalize_before": False}, "normalize_before is False"),
    (MBART, {"static_position_embeddings": True}, "static_position_embeddings is True"),
    (PEGASUS, {"normalize_embedding": True}, "normalize_embedding is True"),
    (PEGASUS, {"add_final_layer_norm": False}, "add_final_layer_norm is False"),
    ("M2M100ForConditionalGeneration", {"decoder_ffn_dim": 9}, "decoder_ffn_dim is 9"),
]


@pytest.mark.parametrize(("class_name", "changed", "message"), REFUSED)
def test_what_cannot_be_read_is_named(class_name, changed, message):
    with saved(small.small(class_name)) as folder:
        change(folder, **changed)
        with pytest.raises(UserError, match=re.escape(message)):
            read(folder)


def test_mixed_layers_are_refused():
    kinds = ["sliding_attention", "full_attention"]
    with pytest.raises(UserError, match="layer_types"):
        MISTRAL.read_config({**small.LLAMA, "layer_types": kinds}, (), "causal")


# Architectures that cannot be read: each is told with what differs and what comes nearest


def test_none_of_them_can_be_read():
    assert not UNSUPPORTED.keys() & ARCHITECTURES.keys()
    assert len(UNSUPPORTED) >= 25


@pytest.mark.parametrize("model_type", UNSUPPORTED)
def test_the_nearest_can_be_read(model_type):
    reason, near = UNSUPPORTED[model_type]
    sentence = why_unsupported(model_type, ARCHITECTURES)
    assert sentence.startswith(f": {reason}; the nearest that it reads is ")
    assert sentence.removesuffix(".").rpartition(" ")[2] in {*near} & ARCHITECTURES.keys()
