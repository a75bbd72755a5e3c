"""ModernBERT's checkpoints, both ways."""

import pytest
import torch
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from qkv.convert.architectures.modernbert import MODERNBERT
from qkv.proofs import verify
from tests.convert.decoders import KeepDouble, in_double
from tests.convert.encoders import heads_go_both_ways, said, sizes
from tests.convert.harness import change, made, older_peer, read, saved
from tests.convert.small import CONFIGS, assert_reads_same, small
from tests.convert.test_decoder_architectures import byte_tokenizer

SMALL = CONFIGS["ModernBert"]


@st.composite
def configs(draw, head) -> dict:
    found = draw(sizes())
    return {
        **{
            key: value
            for key, value in found.items()
            if key not in ("hidden_act", "layer_norm_eps")
        },
        **{f"{part}_activation": found["hidden_act"] for part in ("hidden", "classifier")},
        "norm_eps": found["layer_norm_eps"],
        "vocab_size": draw(st.integers(20, 50)),
        "max_position_embeddings": 16,
        "local_attention": draw(st.sampled_from([2, 4, 5, 128])),
        "global_attn_every_n_layers": draw(st.integers(1, 3)),
        "classifier_pooling": draw(st.sampled_from(["cls", "mean"])),
        "tie_word_embeddings": draw(st.booleans()),
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 300.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
        },
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


test_both_ways = older_peer(heads_go_both_ways(MODERNBERT, configs))


@pytest.mark.parametrize("head", MODERNBERT.classes)
def test_float64(head):
    theirs = made(MODERNBERT.classes[head], SMALL, seed=1)
    with saved(theirs) as folder:
        _, ours = read(folder)
    with KeepDouble(), torch.no_grad():
        for mine, other in said(head, ours.double(), in_double(theirs), [12, 3], 0):
            torch.testing.assert_close(mine, other, atol=1e-9 * other.abs().max().item(), rtol=0)


def test_older_configs_say_angles_and_windows_in_other_words():
    types = {"full_attention": 300.0, "sliding_attention": 30.0}
    angles = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in types.items()}
    theirs = small("ModernBertForMaskedLM", rope_parameters=angles)
    with saved(theirs) as folder:
        older = {"global_rope_theta": 300.0, "local_rope_theta": 30.0}
        change(
            folder, drop=["rope_parameters", "layer_types"], global_attn_every_n_layers=3, **older
        )
        _, ours = assert_reads_same(theirs, folder, "masked")
        assert ours.config.window_layers == "fww"


def test_verify(tmp_path):
    """Packed texts have windows within each of them, and 8 bits serve too."""
    words = byte_tokenizer()
    backend = words.backend_tokenizer
    backend.add_special_tokens(["<mask>"])
    words = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        cls_token="<s>",
        sep_token="</s>",
        mask_token="<mask>",
    )
    sizes = {"vocab_size": len(words), "max_position_embeddings": 64}
    made("ModernBertForMaskedLM", {**SMALL, **sizes}, seed=2).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    proofs = verify(tmp_path, "cpu", dtype="int8")
    assert not [proof for proof in proofs if proof.passed is False]
