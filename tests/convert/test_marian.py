"""Marian's checkpoints, both ways, and our own translators as Marian's."""

import warnings
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from qkv.config import DecodeConfig, preset
from qkv.convert.huggingface.generation_config import read_generation
from qkv.convert.model_folder import StoredModel
from qkv.errors import UserError
from qkv.model import EncoderDecoder
from tests.convert.harness import assert_comes_back, draw_weights, exported, loaded
from tests.convert.seq2seq import same_logits, same_texts

NAME = "MarianMTModel"
PRE = "PegasusForConditionalGeneration"  # what computes a pre-norm translator


def translator(seed: int, **differences) -> tuple[StoredModel, EncoderDecoder]:
    """A small model of our own, and what its folder would say."""
    config = preset(
        "transformer-tiny",
        vocab_size=30,
        d_model=24,
        d_ff=20,
        max_length=40,
        **{"eos_id": 3, **differences},
    )
    model = EncoderDecoder(config)
    draw_weights(model, seed)
    decode = {**asdict(DecodeConfig(beams=2)), "stop": []}
    content = {"task": "translate", "model": config.to_dict(), "decode": decode}
    weights = {name: one.detach() for name, one in model.named_parameters()}
    return StoredModel(Path("nowhere"), content, None, lambda: weights), model.eval()


CHOICES = {
    "all": {},
    "output": {"tie": "output"},
    "inputs": {"tie": "inputs", "output_bias": True},
    "none": {"tie": "none"},
    "separate vocabularies": {"tie": "output", "source_vocab_size": 25},
    "separate vocabularies of one size": {"tie": "none", "source_vocab_size": 30},
    "in halves": {"positions": "sinusoidal_halves", "output_bias": True, "activation": "silu"},
    "norms in front": {"norm_position": "pre", "output_bias": True},
    "ids of its own": {"pad_id": 29, "bos_id": 29, "eos_id": 0, "embedding_scale": False},
}


@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
@torch.no_grad()
def test_our_own_translators(choices):
    """With the paper's order of sines and cosines too, and back to the same bits."""
    source, ours = translator(1, **choices)
    with exported(source) as folder:
        theirs = loaded(folder, PRE if "norm_position" in choices else NAME)
        same_logits(ours, theirs, [7, 1, 12, 4])
        same_texts(ours, theirs, [7, 1, 12, 4])
        assert_comes_back(source, folder)


def test_how_published_translators_are_decoded():
    """Their limit is all that the model has room for, so ours follows from the source."""
    said = {
        "bad_words_ids": [[58100]],
        "bos_token_id": 0,
        "decoder_start_token_id": 58100,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "max_length": 512,
        "num_beams": 6,
        "pad_token_id": 58100,
        "renormalize_logits": True,
    }
    ids = {"vocab_size": 58101, "pad_id": 58100, "bos_id": 58100, "eos_id": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # for padding is never written anyway
        model = preset("transformer-base", max_length=512, **ids)
        assert read_generation(said, model) == {"beams": 6, "force_end": True}


@pytest.mark.parametrize(
    ("difference", "reason"),
    [
        ({"norm_position": "pre", "gated": True}, "gated = True"),
        ({"gated": True}, "gated = True"),
        ({"norm_epsilon": 1e-3}, "norm_epsilon = 0.001"),
        ({"start_id": 2}, "start_id = 2"),
    ],
    ids=str,
)
def test_what_marian_cannot_say_is_named(difference, reason):
    source, _ = translator(0, **difference)
    with pytest.raises(UserError, match=reason), exported(source):
        pass
