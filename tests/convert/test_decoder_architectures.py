"""What is particular in decoders that are Llama or GPT-2 with other parts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, GemmaTokenizer

from qkv.model import build_model
from qkv.tasks import load
from tests.convert.harness import assert_close, read, saved
from tests.convert.small import VARIANTS, small
from tests.parity.pairs import both_logits

pytestmark = pytest.mark.filterwarnings("ignore:Left out of config.json")  # of long contexts


@torch.no_grad()
def test_longer_contexts_have_the_long_factors_of_longrope():
    """Theirs change angles with a text's length; ours have one context, which may be longer."""
    name, differences = VARIANTS["phi-3, longrope"]
    theirs = small(name, **differences)
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
