"""T5's checkpoints and those of its version 1.1, both ways."""

import pytest
import torch

from qkv.config import preset
from qkv.convert.architectures.t5 import T5
from qkv.convert.huggingface.fitting import fitting
from qkv.errors import UserError
from qkv.model import parameter_shapes
from tests.convert.harness import change, saved
from tests.convert.small import assert_reads_same, model_of

NAME = "T5ForConditionalGeneration"


@pytest.mark.parametrize("apart", [False, True])
@torch.no_grad()
def test_files_of_older_versions(apart):
    """They repeat matrices, have one that nobody reads, and tell by tying whether to scale."""
    theirs = model_of((NAME, "seq2seq", {"tie_word_embeddings": not apart}))
    unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    unsaid = ("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "num_decoder_layers")
    said = {"tie_word_embeddings": not apart, "architectures": ["T5WithLMHeadModel"]}

    def old(weights):
        sides = (f"{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
        copies = {name: weights["shared.weight"].clone() for name in sides}
        return {**weights, **copies, unread: torch.ones(32, 2)}

    with saved(theirs) as folder:
        change(folder, old, unsaid, **said)
        assert_reads_same(theirs, folder)


@pytest.mark.parametrize(
    "said",
    [{"feed_forward_proj": "gated-gelu"}, {"feed_forward_proj": "relu", "is_gated_act": True}],
    ids=str,
)
@torch.no_grad()
def test_the_exact_gelu_can_be_a_gate(said):
    differences = {**said, "dense_act_fn": "gelu", "tie_word_embeddings": False}
    theirs = model_of((NAME, "seq2seq", differences))
    with saved(theirs) as folder:
        _, ours = assert_reads_same(theirs, folder)
    assert (ours.config.activation, ours.config.gated) == ("gelu", True)


@pytest.mark.parametrize(("buckets", "farthest"), [(3, 20), (16, 8), (32, 9)])
def test_buckets_of_which_theirs_makes_no_sense(buckets, farthest):
    sizes = {"relative_buckets": buckets, "relative_length": farthest}
    with pytest.raises(UserError, match=f"{buckets} buckets for distances up to {farthest}"):
        fitting(preset("t5-small", **sizes), "translate")
    assert fitting(preset("t5-small"), "translate")[0] is T5


def test_buckets_are_no_reason_where_positions_are_others():
    """Each config has a number of them, which only relative positions look at."""
    with pytest.raises(UserError, match="Marian comes near, but has no positions = 'rotary'"):
        fitting(preset("transformer-tiny", positions="rotary", max_length=32), "translate")


@pytest.mark.parametrize(
    ("name", "n_weights"),
    [
        ("t5-small", 60_506_624),
        ("t5-base", 222_903_552),
        ("t5-gated-small", 76_961_152),
        ("t5-gated-base", 247_577_856),
    ],
)
def test_presets_have_as_many_weights_as_the_published_models(name, n_weights):
    shapes = parameter_shapes(preset(name, vocab_size=32_128))
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == n_weights
