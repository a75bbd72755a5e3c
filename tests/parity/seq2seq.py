"""An encoder-decoder of transformers', ours with the same weights, and how both compare."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qkv.model import EncoderDecoder, use_path
from tests.convert.harness import read, saved, texts

TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-10}
Pair = tuple[PreTrainedModel, EncoderDecoder]


def pair_of(theirs: PreTrainedModel) -> Pair:
    """Both, in eval mode and float32."""
    with saved(theirs) as folder:
        ours = read(folder)[1]
    assert isinstance(ours, EncoderDecoder)
    return theirs.eval(), ours.eval()


def both_logits(
    pair: Pair, lengths: list[int], n_target: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Teacher-forced logits of both on padded sources."""
    theirs, ours = pair
    source, seen, layout = texts(lengths, ours.config.vocab_size, seed)
    target, _, _ = texts([n_target] * len(lengths), ours.config.vocab_size, seed + 1)
    said = theirs(input_ids=source, attention_mask=seen, decoder_input_ids=target).logits
    return ours(source, target, layout), said


@torch.no_grad()
def assert_same_logits(pair: Pair, dtype, path, lengths: list[int], n_target: int, seed=0) -> None:
    theirs, ours = (model.to(dtype) for model in pair)
    with use_path(ours, path):
        mine, said = both_logits((theirs, ours), lengths, n_target, seed)
    torch.testing.assert_close(mine, said, atol=TOLERANCES[dtype], rtol=0)


def assert_same_gradients(pair: Pair, rules, path) -> None:
    """Of every weight; `rules` say where theirs stand."""
    theirs, ours = (model.double() for model in pair)
    with use_path(ours, path):
        mine, said = both_logits((theirs, ours), [5, 9, 2], 7)
    cotangent = torch.randn_like(mine)
    (mine * cotangent).mean().backward()
    (said * cotangent).mean().backward()
    their_gradients = {name: one.grad for name, one in theirs.named_parameters()}
    compared = {}
    for rule in rules:
        if all(piece.name in their_gradients for piece in rule.pieces):
            compared[rule.ours] = rule.read(their_gradients)
    missing = set()
    for name, parameter in ours.named_parameters():
        if name not in compared:
            missing.add(name)
            continue
        torch.testing.assert_close(parameter.grad, compared[name], atol=1e-10, rtol=0)
    assert missing <= {"output.projection.bias"}  # no parameter of theirs
