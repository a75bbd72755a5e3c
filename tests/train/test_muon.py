"""Muon: orthogonal updates for the matrices inside blocks, AdamW for all else."""

import pytest
import torch

from qkv.config import TrainConfig, preset
from qkv.model import Decoder, build_model
from qkv.train import build_optimizer
from qkv.train.checkpoint import load_checkpoint, save_checkpoint
from qkv.train.loop import Progress
from qkv.train.muon import SIZE, Muon, block_matrices, newton_schulz, orthogonal

SETTINGS = {"optimizer": "muon", "weight_decay": 0.1}


def tiny(seed: int = 0, **differences: object) -> Decoder:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 20, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "d_ff": 24}
    return Decoder(preset("llama-tiny", **{**sizes, "n_decoder_layers": 2, **differences}))


def optimizer_of(model: torch.nn.Module, rate: float = 0.01, **settings: object) -> Muon:
    optimizer = build_optimizer(model, TrainConfig(**{**SETTINGS, **settings}))
    for group in optimizer.param_groups:
        group["lr"] = rate
    return optimizer


def give_gradients(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (40, 8), (1, 30)])
@pytest.mark.parametrize("condition", [1.0, 100.0])
def test_singular_values_come_near_one(shape, condition):
    generator = torch.Generator().manual_seed(1)
    left, _, right = torch.randn(shape, generator=generator).svd()
    spread = torch.linspace(1, 1 / condition, min(shape))
    found = newton_schulz((left @ spread.diag() @ right.mT)[None])[0].float()
    assert torch.linalg.svdvals(found).min() > 0.3 and torch.linalg.svdvals(found).max() < 1.4
    # the directions stay: each singular vector goes to its own
    assert (left.mT @ found @ right).diagonal().min() > 0.3


def test_it_equals_the_iteration_in_float64():
    matrix = torch.randn(3, 12, 20, generator=torch.Generator().manual_seed(2))
    expected = []
    for one in matrix.double():
        x = one / one.norm()
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        expected.append(x)
    found = newton_schulz(matrix).double()
    assert (found - torch.stack(expected)).abs().max() < 0.03  # bfloat16, where the CPU has it


def test_matrices_together_are_the_same_as_alone():
    generator = torch.Generator().manual_seed(3)
    shapes = [(8, 8), (4, 8), (8, 8), (8, 4)]
    matrices = [torch.randn(shape, generator=generator) for shape in shapes]
    for one, together in zip(matrices, orthogonal(matrices), strict=True):
        torch.testing.assert_close(orthogonal([one])[0], together, atol=1e-2, rtol=0)
    size = orthogonal(matrices)[1].float().square().mean().sqrt()
    assert size == pytest.approx(SIZE, rel=0.3)


def test_which_matrices_it_serves():
    model = tiny()
    served = {id(parameter): parts for parameter, parts in block_matrices(model)}
    found = {n: served[id(p)] for n, p in model.named_parameters() if id(p) in served}
    assert all(name.startswith("decoder.blocks") for name in found)
    assert len(found) == 2 * 4
    assert found["decoder.blocks.0.self_attention.query_key_value.weight"] == (16, 8, 8)
    assert found["decoder.blocks.0.feed_forward.inner.weight"] == (24, 24)
    assert found["decoder.blocks.0.feed_forward.outer.weight"] == (16,)
    both = build_model(preset("transformer-tiny", vocab_size=20))
    parts = [parts for parameter, parts in block_matrices(both)]
    assert parts.count((128, 128)) == 2 and parts.count((128, 128, 128)) == 4


def test_fused_matrices_move_apart():
    """Another gradient of q leaves the moves of k and v as they are."""
    moves = []
    for factor in (1.0, -5.0):
        model = tiny()
        weight = model.decoder.blocks[0].self_attention.query_key_value.weight
        before = weight.detach().clone()
        optimizer = optimizer_of(model)
        give_gradients(model, 4)
        weight.grad[:16] *= factor
        weight.grad[3] += factor
        optimizer.step()
        moves.append(weight.detach() - before)
    assert (moves[0][:16] - moves[1][:16]).abs().max() > 1e-3
    torch.testing.assert_close(moves[0][16:], moves[1][16:], atol=1e-6, rtol=0)


def test_all_else_is_adamw():
    ours, theirs = tiny(), tiny()
    muon, adamw = optimizer_of(ours), optimizer_of(theirs, optimizer="adamw")
    for seed in range(3):
        for model, optimizer in ((ours, muon), (theirs, adamw)):
            give_gradients(model, seed)
            optimizer.step()
    served = {id(parameter) for parameter, _ in block_matrices(ours)}
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other) == (id(one) not in served)


def test_weight_decay_shrinks_matrices_alone():
    model = tiny()
    optimizer = optimizer_of(model, rate=0.1, weight_decay=0.5)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        expected = before[name] * (0.95 if parameter.ndim > 1 else 1.0)
        torch.testing.assert_close(parameter.detach(), expected)


def test_a_saved_optimiser_goes_on_exactly(tmp_path):
    whole, cut = tiny(), tiny()
    steady, first = optimizer_of(whole), optimizer_of(cut)
    for seed in range(6):
        give_gradients(whole, seed)
        steady.step()
    for seed in range(3):
        give_gradients(cut, seed)
        first.step()
    path = save_checkpoint(tmp_path, cut, first, Progress(step=3))
    fresh = tiny(seed=9)
    again = optimizer_of(fresh)
    load_checkpoint(path, fresh, again)
    for seed in range(3, 6):
        give_gradients(fresh, seed)
        again.step()
    for one, other in zip(whole.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(one, other)
