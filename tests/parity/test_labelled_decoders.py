"""Decoders under a head of labels against transformers' classifiers on the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.model import Layout, equation, fast, use_path
from tests.parity.pairs import GPT, LLAMA, Pair, assert_same_gradients, pair_of

PAD = 1
LABELS = {"num_labels": 3, "pad_token_id": PAD}
PATHS = pytest.mark.parametrize("path", [fast, equation])
# Transformers computes Llama's angles and norms in float32 whatever the weights are.
TOLERANCES = {"gpt2": 1e-10, "llama": 1e-5, "tied llama": 1e-5, "mistral": 1e-5}
ALL = pytest.mark.parametrize("name", TOLERANCES)
ANGLES = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
MODELS = {
    "gpt2": ("GPT2", GPT),
    "llama": ("Llama", {**LLAMA, **ANGLES}),
    "tied llama": ("Llama", {**LLAMA, **ANGLES, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {**LLAMA, **ANGLES, "sliding_window": 3}),
}


def labellers(name: str, seed: int = 0) -> Pair:
    """Both models in float64 and eval mode."""
    kind, config = MODELS[name]
    pair = pair_of(f"{kind}ForSequenceClassification", {**config, **LABELS}, seed)
    return tuple(model.double() for model in pair)


def both(pair: Pair, lengths: list[int]) -> tuple[Tensor, Tensor]:
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
    assert mine.shape == (len(lengths), 3) and mine.abs().max() > 1
    torch.testing.assert_close(mine, other, atol=TOLERANCES[name], rtol=0)


@ALL
def test_gradients_equal_transformers(name):
    """Of every weight, though theirs gives none to the padding's row of the embeddings."""
    pair = labellers(name, seed=1)
    outputs = both(pair, [5, 9, 2])
    table = "embedding.table.weight"
    assert_same_gradients(pair, [outputs], atol=100 * TOLERANCES[name], unused=(table,))
    theirs = pair[0].get_input_embeddings().weight.grad
    mine = pair[1].embedding.table.weight.grad
    torch.testing.assert_close(
        mine[PAD + 1 :], theirs[PAD + 1 :], atol=100 * TOLERANCES[name], rtol=1e-5
    )
