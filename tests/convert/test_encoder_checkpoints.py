"""What is particular in files of ALBERT, DistilBERT, ELECTRA, MPNet, ModernBERT and DeBERTa."""

import pytest
import torch
from safetensors.torch import load_file
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from qkv.config import preset
from qkv.convert.architectures.bert import BUCKETS, FARTHEST
from qkv.convert.architectures.deberta import DEBERTA
from qkv.convert.huggingface.fitting import misfits
from qkv.convert.opening import open_model
from qkv.errors import UserError
from qkv.model.positions.relative import buckets
from tests.convert.encoders import said
from tests.convert.harness import assert_close, assert_round_trip, change, read, saved
from tests.convert.small import assert_reads_same, small

READ = [
    ("AlbertModel", {}, {"shared_layers": True, "d_embedding": 4}),
    ("AlbertModel", {"embedding_size": 8}, {"d_embedding": 8}),  # widened all the same
    ("ElectraModel", {"embedding_size": 8}, {"d_embedding": 0}),  # as wide as the model
    (
        "DistilBertForSequenceClassification",
        {},
        {"n_segments": 0, "pooler": "relu", "norm_epsilon": 1e-12},
    ),
    ("RobertaModel", {}, {"max_length": 14, "pair_separators": 2}),
]


@pytest.mark.parametrize(("class_name", "differences", "expected"), READ)
def test_what_is_read(class_name, differences, expected):
    with saved(small(class_name, **differences)) as folder:
        source = open_model(folder)
        assert_round_trip(source)
    assert source.content["model"].items() >= expected.items()


@torch.no_grad()
def test_positions_that_are_waves_lie_in_the_file():
    theirs = small("DistilBertModel", sinusoidal_pos_embds=True)
    with saved(theirs) as folder:
        assert_reads_same(theirs, folder)


@torch.no_grad()
def test_of_a_discriminator_the_body_is_read():
    theirs = small("ElectraForPreTraining")
    sentence = "head of ElectraForPreTraining, which tells replaced tokens from others, is left out"
    with saved(theirs) as folder, pytest.warns(UserWarning, match=sentence):
        source, ours = read(folder)
    assert source.content["task"] == "embed"
    for mine, other in said("none", ours, theirs.electra, [7, 12, 1], 0):
        assert_close(mine, other)
    with saved(theirs) as folder, pytest.warns(UserWarning, match=sentence):
        assert_round_trip(read(folder)[0])


def test_a_body_that_has_no_head_is_read_without_a_word(recwarn: pytest.WarningsRecorder):
    with saved(small("ElectraModel")) as folder:
        read(folder)
    assert not [w for w in recwarn.list if "is left out" in str(w.message)]


def test_the_buckets_of_long_texts():
    apart = torch.arange(1, 600)
    theirs = MPNetEncoder.relative_position_bucket(-apart)
    assert torch.equal(buckets(apart, BUCKETS // 2, FARTHEST), theirs)


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


@torch.no_grad()
def test_the_third_versions_own_head_is_read():
    theirs = small("DebertaV2ForMaskedLM", legacy=False, tie_word_embeddings=False)
    with saved(theirs) as folder:
        stored = load_file(folder / "model.safetensors")
        assert any(name.startswith("lm_predictions") for name in stored)
        assert_reads_same(theirs, folder, "masked")


def test_what_pre_training_left_beside_the_model_is_ignored():
    with saved(small("DebertaV2ForMaskedLM", legacy=False)) as folder:
        more = {
            "mask_predictions.dense.weight": torch.ones(8, 8),
            "mask_predictions.classifier.bias": torch.ones(1),
            "deberta.embeddings.position_embeddings.weight": torch.ones(16, 8),
            "deberta.embeddings.position_ids": torch.arange(16)[None],
        }
        # Released files say no class.
        change(folder, lambda weights: {**weights, **more}, ["architectures"])
        source, ours = read(folder)
    assert source.content["task"] == "embed" and ours.config.head == "none"


@pytest.mark.parametrize(
    "changed, reasons",
    [
        ({}, []),
        ({"relative_buckets": 500}, []),  # each distance has its own
        ({"relative_buckets": 8, "relative_length": 3}, []),
        ({"relative_buckets": 8, "relative_length": 300}, []),
        ({"convolution": 3}, []),
        ({"embedding_norm": False}, ["embedding_norm = False"]),
        ({"d_embedding": 4}, ["d_embedding = 4"]),
    ],
    ids=str,
)
def test_which_of_our_configs_it_can_say(changed, reasons):
    config = preset(
        "deberta-mini", **{"d_model": 8, "n_heads": 2, "n_encoder_layers": 1, **changed}
    )
    assert misfits(DEBERTA, config, "none") == reasons


def test_a_bias_of_keys_is_left_out_of_encoders_only():
    with pytest.raises(UserError, match="key_bias = false is for encoders"):
        preset("gpt2", key_bias=False)
