"""What is particular in files of encoder-decoders, and our own translators as theirs."""

import json
import warnings
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from qkv.config import DecodeConfig, preset
from qkv.convert.huggingface.generation_config import read_generation
from qkv.convert.model_folder import StoredModel
from qkv.errors import UserError
from qkv.model import EncoderDecoder, parameter_shapes
from tests.convert.both import same_logits, same_texts
from tests.convert.harness import (
    assert_comes_back,
    assert_round_trip,
    change,
    draw_weights,
    exported,
    loaded,
    made,
    read,
    saved,
)
from tests.convert.small import BART as SMALL
from tests.convert.small import small

BART, MARIAN = "BartForConditionalGeneration", "MarianMTModel"
PRE = "PegasusForConditionalGeneration"  # what computes a pre-norm translator


@torch.no_grad()
def test_a_body_alone_has_all_weights():
    """So BART itself was published."""
    theirs = made("BartModel", SMALL)
    with saved(theirs) as folder:
        source, ours = read(folder)
        assert not ours.config.output_bias
        with exported(source) as again:
            back = loaded(again, BART)
            same_logits(ours, back, [5, 12])
            assert torch.equal(back.model.shared.weight, theirs.shared.weight)
            assert not back.final_logits_bias.any()
        assert_round_trip(source)


@torch.no_grad()
def test_an_output_apart_from_embeddings_that_are_one():
    """As transformers 4 wrote it: one matrix for both sides, and one for the output."""
    theirs = made(BART, {**SMALL, "tie_word_embeddings": False})
    theirs.model.encoder.embed_tokens.weight = theirs.model.shared.weight
    theirs.model.decoder.embed_tokens.weight = theirs.model.shared.weight
    with saved(theirs) as folder:
        source, ours = read(folder)
        assert ours.config.tie == "inputs"
        same_logits(ours, theirs, [5, 12])
        with exported(source) as again:
            same_logits(ours, loaded(again, BART), [5, 12])
        assert_round_trip(source)


def test_the_start_is_before_each_text_and_no_other_token_may_be_forced():
    theirs = made(BART, SMALL)
    theirs.generation_config.forced_bos_token_id = 0
    with saved(theirs) as folder:
        source, ours = read(folder)
        assert (ours.config.start_id, ours.config.bos_id, ours.config.eos_id) == (0, 2, 2)
        with exported(source) as again:
            said = json.loads((again / "generation_config.json").read_text())
            assert (said["forced_bos_token_id"], said["decoder_start_token_id"]) == (0, 2)
        change(folder, forced_bos_token_id=7)
        with pytest.raises(UserError, match="forced_bos_token_id is 7"):
            read(folder)


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
        theirs = loaded(folder, PRE if "norm_position" in choices else MARIAN)
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


@torch.no_grad()
def test_waves_of_m2m100_begin_after_the_padding():
    theirs = small("M2M100ForConditionalGeneration", pad_token_id=4, max_position_embeddings=200)
    with saved(theirs) as folder:
        _, ours = read(folder)
    table = theirs.model.encoder.embed_positions.weights
    assert len(table) == 202  # theirs makes more when a text needs them
    assert torch.equal(ours.encoder.positions.table[:197], table[5:])


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
