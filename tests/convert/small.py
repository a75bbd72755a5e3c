"""A small model of each architecture, and whether what is read of its folder says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from qkv.convert.model_folder import StoredModel
from qkv.model import Decoder, EncoderDecoder, Model
from tests.convert.encoders import TINY, said
from tests.convert.harness import assert_close, assert_round_trip, made, read
from tests.convert.seq2seq import same_logits
from tests.parity.pairs import both_logits

LENGTHS = [7, 12, 1]
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
    "Roberta": ROBERTA,
    "DebertaFor": {**TINY, **FIRST_DEBERTA},
    "DebertaModel": {**TINY, **FIRST_DEBERTA},
    "DebertaV2": {**TINY, **RELEASED_DEBERTA},
    "ModernBert": {
        **TINY,
        "num_hidden_layers": 4,
        "local_attention": 4,
        **IDS,
    },
    "ViT": VIT,
}


def small(class_name: str, **differences: Any) -> PreTrainedModel:
    """A small model of a class."""
    config = next(config for name, config in CONFIGS.items() if class_name.startswith(name))
    return made(class_name, {**config, **differences})


@torch.no_grad()
def assert_reads_same(
    theirs: PreTrainedModel, folder: Path, head: str = "none"
) -> tuple[StoredModel, Model]:
    """What is read from a folder says what a model does, and nothing is lost by an export."""
    source, ours = read(folder)
    if isinstance(ours, EncoderDecoder):
        same_logits(ours, theirs, LENGTHS)
    elif isinstance(ours, Decoder):
        assert_close(*both_logits((theirs, ours), LENGTHS))
    else:
        for mine, other in said(head, ours, theirs, LENGTHS, 0):
            assert_close(mine, other)
    assert_round_trip(source)
    return source, ours
