"""Decoders that are Llama or GPT-2 with other parts: the same numbers both ways."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, GemmaTokenizer, PreTrainedTokenizerFast

from qkv.convert.architectures import CAUSAL_CLASSIFIERS
from qkv.convert.gguf.gguf_tokenizer import QWEN2
from qkv.model import build_model
from qkv.proofs import ROWS, verify
from qkv.tasks import load
from tests.convert.decoders import assert_both_ways, assert_same_in_double
from tests.convert.harness import assert_close, made, read, saved
from tests.convert.small import CONFIGS, IDS, assert_reads_same, small
from tests.parity.pairs import both_logits

LENGTHS = [9, 4, 1]
SLIDING = ["full_attention", "sliding_attention", "sliding_attention"]
# Their class, and what differs from the small config of its line
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-neox": ("GPTNeoXForCausalLM", {}),
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
    "gpt-neo": ("GPTNeoForCausalLM", {}),
    "gpt-neo, other windows": (
        "GPTNeoForCausalLM",
        {"num_layers": 3, "attention_types": [[["local"], 1], [["global", "local"], 1]]},
    ),
    "opt": ("OPTForCausalLM", {}),
    "opt, no biases": ("OPTForCausalLM", {"enable_bias": False, "activation_function": "gelu"}),
    "gemma": ("GemmaForCausalLM", {}),
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
    "gemma 3": ("Gemma3ForCausalLM", {}),
    "gemma 3, scaled": (
        "Gemma3ForCausalLM",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 300.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
    ),
    "mixtral": ("MixtralForCausalLM", {}),
    "mixtral, window": (
        "MixtralForCausalLM",
        {"num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 4},
    ),
    "bloom": ("BloomForCausalLM", {}),
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
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3, windows": (
        "Qwen3ForCausalLM",
        {
            "use_sliding_window": True,
            "sliding_window": 4,
            "num_hidden_layers": 3,
            "layer_types": SLIDING,
        },
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore:Left out of config.json")  # of long contexts
EVERY = pytest.mark.parametrize("case", CASES)


def config_of(case: str) -> tuple[str, dict[str, Any]]:
    name, differences = CASES[case]
    usual = next(config for line, config in CONFIGS.items() if name.startswith(line))
    return name, {**usual, **IDS, **differences}


@EVERY
def test_float64(case):
    name, config = config_of(case)  # without padding, whose embedding has no gradient there
    assert_same_in_double(made(name, {**config, "pad_token_id": None}, seed=1), LENGTHS)


@EVERY
@torch.no_grad()
def test_both_ways(case):
    assert_both_ways(*config_of(case), lengths=LENGTHS, seed=2, shards=False)


@torch.no_grad()
def test_longer_contexts_have_the_long_factors_of_longrope():
    """Theirs change angles with a text's length; ours have one context, which may be longer."""
    name, config = config_of("phi-3, longrope")
    theirs = made(name, config, seed=4)
    with saved(theirs) as folder:
        _, ours = read(folder)
    assert ours.config.max_length == 32
    longer = build_model(dataclasses.replace(ours.config, max_length=64)).eval()
    longer.load_state_dict(ours.state_dict())
    assert_close(*both_logits((theirs, longer), [40, 37]))


@torch.no_grad()
def test_gemma_rounds_the_scale_of_its_embeddings():
    """√24 is 4.90625 in bfloat16, and 4.8989795 in float32."""
    theirs = small("GemmaForCausalLM", hidden_size=24)
    with saved(theirs) as folder:
        _, ours = read(folder)
    tokens = torch.arange(30)
    for dtype in (torch.bfloat16, torch.float32):
        expected = theirs.to(dtype).model.embed_tokens(tokens)
        assert torch.equal(ours.to(dtype).embedding(tokens), expected)


@pytest.mark.parametrize("kind", CAUSAL_CLASSIFIERS)
def test_classifiers(kind):
    name = CAUSAL_CLASSIFIERS[kind].classes["sequence"]
    theirs = small(name, **IDS, num_labels=3)
    with saved(theirs) as folder:
        assert_reads_same(theirs, folder, "sequence")
    assert_same_in_double(theirs, LENGTHS, "sequence")


@pytest.mark.parametrize("case", ["gpt-neox", "gemma 2", "mixtral", "bloom", "qwen3, windows"])
def test_verify(case, tmp_path):
    """Those that differ most from one another pass what `qkv verify` proves, in 8 bits too."""
    name, config = config_of(case)
    words = byte_tokenizer()
    made(name, {**config, "vocab_size": len(words)}, seed=3).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    proofs = verify(tmp_path, "cpu", dtype="int8")
    assert not [proof for proof in proofs if proof.passed is False]
    assert len(proofs) == len(ROWS)


SENTENCES = ["a cat sat", "  two  spaces\nand a line ", "我爱你 é"]


def assert_same_tokens(folder: Path, name: str, differences: dict[str, Any]) -> None:
    """A model's folder with a tokenizer in it gives texts the ids that transformers gives them."""
    words = AutoTokenizer.from_pretrained(folder)
    small(name, vocab_size=len(words), **differences).save_pretrained(folder)
    ours = load(folder, "cpu")
    for text in SENTENCES:
        assert ours.encode(text) == words(text).input_ids
        assert ours.tokenizer.decode(ours.tokenizer.encode(text)) == text


def test_gemma_tokenizer(tmp_path):
    """Pieces with bytes for what has none; spaces stay as they are, and BOS comes first."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    letters = ["▁", "a", "c", "t", "s", "ca", "▁a", "cat", "▁cat"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = [("c", "a"), ("▁", "a"), ("ca", "t"), ("▁", "cat")]
    GemmaTokenizer({piece: id for id, piece in enumerate(pieces)}, merges).save_pretrained(tmp_path)
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    assert_same_tokens(tmp_path, "Gemma3ForCausalLM", ids)


def test_opt_tokenizer(tmp_path):
    """GPT-2's files without a tokenizer.json, and settings that put BOS first."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", "<pad>", "</s>", *alphabet, "at"]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na t\n")
    said = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    kind = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**said, **kind}))
    ids = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2}
    assert_same_tokens(tmp_path, "OPTForCausalLM", ids)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes without merges, cut as Qwen's are: transformers reads its folders in this way alone."""
    special = ["<pad>", "<s>", "</s>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: id for id, token in enumerate([*special, *alphabet])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(Regex(QWEN2), "isolated")
    runs = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, runs])
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
