"""GPT's and GPT-2's checkpoints, both ways."""

import json
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from qkv.config import preset
from qkv.convert.architectures.gpt import GPT, GPT2
from qkv.convert.huggingface.fitting import misfits
from qkv.errors import UserError
from tests.convert.decoders import assert_both_ways, assert_reads_same
from tests.convert.harness import made, read, saved

SMALL = {"n_embd": 16, "n_head": 2, "n_layer": 2, "vocab_size": 30, "n_positions": 16}
CLASSES = {"gpt": "OpenAIGPTLMHeadModel", "gpt2": "GPT2LMHeadModel"}


@st.composite
def configs(draw) -> dict:
    heads = draw(st.sampled_from([1, 2, 4]))
    return {
        "n_embd": heads * draw(st.sampled_from([4, 6])),
        "n_head": heads,
        "n_layer": draw(st.integers(1, 3)),
        "vocab_size": draw(st.integers(20, 50)),
        "n_positions": draw(st.integers(16, 20)),
        "layer_norm_epsilon": draw(st.sampled_from([1e-5, 1e-3])),
        "tie_word_embeddings": draw(st.booleans()),
    }


LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=3)


@settings(max_examples=4)
@given(
    config=configs(),
    lengths=LENGTHS,
    seed=st.integers(0, 99),
    shards=st.booleans(),
    afn=st.sampled_from(["gelu", "relu", "silu"]),
)
@torch.no_grad()
def test_gpt_both_ways(config, lengths, seed, shards, afn):
    assert_both_ways(CLASSES["gpt"], {**config, "afn": afn}, lengths, seed, shards)


@settings(max_examples=4)
@given(
    config=configs(),
    lengths=LENGTHS,
    seed=st.integers(0, 99),
    shards=st.booleans(),
    activation=st.sampled_from(["gelu_new", "gelu", "relu", "silu"]),
    inner=st.sampled_from([None, 7, 32]),
    scaled=st.booleans(),
    ids=st.permutations([0, 1, 2]),
)
@torch.no_grad()
def test_gpt2_both_ways(config, lengths, seed, shards, activation, inner, scaled, ids):
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    config |= {
        "activation_function": activation,
        "n_inner": inner,
        "scale_attn_weights": scaled,
        **dict(zip(names, ids, strict=True)),
    }
    assert_both_ways(CLASSES["gpt2"], config, lengths, seed, shards)


@contextmanager
def changed(name, rename, config=None):
    """A model, and its folder with tensors renamed, added or left out, and another config."""
    theirs = made(CLASSES[name], {**SMALL, "bos_token_id": 1, "eos_token_id": 2})
    with saved(theirs) as folder:
        file = folder / "model.safetensors"
        save_file(rename(load_file(file)), file, {"format": "pt"})
        said = json.loads((folder / "config.json").read_text()) | (config or {})
        (folder / "config.json").write_text(json.dumps(said))
        yield theirs, folder


@pytest.mark.parametrize("name", CLASSES)
def test_old_files_have_no_prefix_but_what_is_not_learnt(name):
    """As the published files are."""

    def old(tensors):
        masks = {
            f"h.{layer}.attn.{kind}": torch.ones(1, 1, 16, 16)
            for layer in range(2)
            for kind in ("bias", "masked_bias")
        }
        masks["position_ids"] = torch.arange(16)
        return {key.removeprefix("transformer."): one for key, one in tensors.items()} | masks

    with changed(name, old) as (theirs, folder):
        assert_reads_same(theirs, folder)


@pytest.mark.parametrize("name", CLASSES)
def test_a_body_alone_is_read(name):
    body = {"gpt": "OpenAIGPTModel", "gpt2": "GPT2Model"}[name]

    def alone(tensors):
        return {key.removeprefix("transformer."): one for key, one in tensors.items()}

    with changed(name, alone, {"architectures": [body]}) as (theirs, folder):
        assert_reads_same(theirs, folder)


def test_an_output_may_be_stored_though_tied():
    def copied(tensors):
        return {**tensors, "lm_head.weight": tensors["transformer.wte.weight"].clone()}

    def only_output(tensors):
        return {
            {"transformer.wte.weight": "lm_head.weight"}.get(key, key): one
            for key, one in tensors.items()
        }

    for rename in (copied, only_output):
        with changed("gpt2", rename) as (theirs, folder):
            assert_reads_same(theirs, folder)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"activation_function": "tanh"}, "activation_function is 'tanh'"),
        ({"architectures": ["GPT2ForTokenClassification"]}, "GPT2ForTokenClassification"),
        ({"architectures": ["GPT2ForSequenceClassification"]}, "missing score.weight"),
        ({"n_layer": 3}, "missing transformer.h.2.attn.c_attn.bias"),
        ({"n_layer": 1}, "unexpected transformer.h.1.attn.c_attn.bias"),
        ({"n_inner": 60}, "transformer.h.0.mlp.c_fc.weight is [16, 64] but should be [16, 60]"),
    ],
)
def test_what_cannot_be_read_is_named(config, said):
    with changed("gpt2", lambda tensors: tensors, config) as (_, folder):
        with pytest.raises(UserError) as caught:
            read(folder)
        assert said in str(caught.value)


def test_ids_that_nobody_said():
    """The first GPT has no special tokens: no text begins or ends with an id that is no token's."""
    theirs = made(CLASSES["gpt"], SMALL)
    with saved(theirs) as folder:
        source, _ = read(folder)
    size = SMALL["vocab_size"]
    found = [source.content["model"][name] for name in ("pad_id", "bos_id", "eos_id")]
    assert found == [0, size, size]
    assert source.content["bos"] is False


def test_what_each_can_say():
    """GPT is post-norm and four times as wide; GPT-2 is neither."""
    for name, mine, other in (("gpt", GPT, GPT2), ("gpt2", GPT2, GPT)):
        assert not misfits(mine, preset(name), "causal")
        assert any("norm_position" in said for said in misfits(other, preset(name), "causal"))
    assert misfits(GPT, preset("gpt", d_ff=100), "causal") == ["d_ff = 100"]
    assert not misfits(GPT2, preset("gpt2", d_ff=100), "causal")
    assert misfits(GPT, preset("gpt", activation="gelu"), "causal") == ["activation = 'gelu'"]
    assert misfits(GPT2, preset("gpt2", window=3), "causal") == [
        "window = 3",
        "window_layers = 'all'",
    ]
    assert not misfits(GPT2, preset("gpt2", tie="all"), "causal")


@torch.no_grad()
def test_ids_that_a_small_vocabulary_lacks_are_as_if_there_were_none():
    """A GPT-2 that somebody made small keeps 50256 in its config: its texts just never end."""
    assert_both_ways(CLASSES["gpt2"], SMALL, [5, 9, 1], seed=2, shards=False)
    with saved(made(CLASSES["gpt2"], SMALL)) as folder:
        _, ours = read(folder)
    assert {ours.config.eos_id, ours.config.bos_id} == {ours.config.vocab_size}
