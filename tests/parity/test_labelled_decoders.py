"""Decoders under a head of labels against transformers' classifiers on copied weights."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from transformers import (
    GPT2ForSequenceClassification,
    LlamaForSequenceClassification,
    MistralForSequenceClassification,
    PreTrainedModel,
)

from qkv.model import Decoder, Encoder, Layout, equation, fast, use_path
from tests.parity.gpt import gpt2_pair
from tests.parity.llama import llama_pair

PAD, LABELS = 1, 3
PATHS = pytest.mark.parametrize("path", [fast, equation])
# Transformers computes Llama's angles and norms in float32 whatever the weights are.
TOLERANCES = {"gpt2": 1e-10, "llama": 1e-5, "tied llama": 1e-5, "mistral": 1e-5}
ALL = pytest.mark.parametrize("name", TOLERANCES)
Labellers = tuple[PreTrainedModel, Encoder]


def labellers(name: str, seed: int = 0) -> Labellers:
    """Both models in float64 and eval mode, with the weights of a pair of language models."""
    kind, decoders = {
        "gpt2": (GPT2ForSequenceClassification, lambda: gpt2_pair(seed)),
        "llama": (LlamaForSequenceClassification, lambda: llama_pair(seed)),
        "tied llama": (LlamaForSequenceClassification, lambda: llama_pair(seed, tied=True)),
        "mistral": (MistralForSequenceClassification, lambda: llama_pair(seed, window=3)),
    }[name]
    speaker, decoder = decoders()
    speaker.config.update({"num_labels": LABELS, "pad_token_id": PAD})
    theirs, ours = kind(speaker.config), body(decoder)
    theirs.base_model.load_state_dict(speaker.base_model.state_dict())
    torch.manual_seed(seed)
    with torch.no_grad():
        ours.head.projection.weight.copy_(theirs.score.weight.normal_(std=0.2))
    return theirs.double().eval(), ours.double().eval()


def body(decoder: Decoder) -> Encoder:
    """The decoder's layers as a causal encoder with labels."""
    config = dataclasses.replace(
        decoder.config,
        family="encoder",
        causal=True,
        pooling="last",
        head="sequence",
        n_encoder_layers=decoder.config.n_decoder_layers,
        n_labels=LABELS,
    )
    made = Encoder(config)
    weights = {
        name.replace("decoder.", "encoder."): weight
        for name, weight in decoder.state_dict().items()
        if not name.startswith("output.")
    }
    assert made.load_state_dict(weights, strict=False) == (["head.projection.weight"], [])
    return made


def both(pair: Labellers, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """What both say of texts with padding at the end, (B, C)."""
    theirs, ours = pair
    draw = torch.Generator().manual_seed(7)
    tokens = torch.randint(PAD + 1, 100, (len(lengths), max(lengths)), generator=draw)
    sizes = torch.tensor(lengths)
    real = torch.arange(max(lengths)) < sizes[:, None]
    tokens = tokens.where(real, PAD)
    other = theirs(input_ids=tokens, attention_mask=real.long(), use_cache=False).logits
    return ours(tokens, Layout() if real.all() else Layout(lengths=sizes)), other


@PATHS
@ALL
@pytest.mark.parametrize("lengths", [[9, 9, 9], [7, 1, 12, 4]], ids=str)
@torch.no_grad()
def test_logits_equal_transformers(name, lengths, path):
    pair = labellers(name, seed=3)
    with use_path(pair[1], path):
        mine, other = both(pair, lengths)
    assert mine.shape == (len(lengths), LABELS) and mine.abs().max() > 1
    torch.testing.assert_close(mine, other, atol=TOLERANCES[name], rtol=0)


@ALL
def test_gradients_equal_transformers(name):
    """Of the labels' matrix, of the norm under it, and of the embeddings under all layers."""
    theirs, ours = pair = labellers(name, seed=1)
    for logits in both(pair, [5, 9, 2]):
        logits.sin().sum().backward()
    trunk = theirs.base_model
    places = [
        (ours.head.projection.weight, theirs.score.weight),
        (ours.encoder.norm.weight, getattr(trunk, "ln_f", None) or trunk.norm),
        (ours.embedding.table.weight, theirs.get_input_embeddings()),
    ]
    for mine, part in places:
        expected = getattr(part, "weight", part).grad
        assert expected.abs().max() > 1e-3
        torch.testing.assert_close(mine.grad, expected, atol=100 * TOLERANCES[name], rtol=1e-5)
