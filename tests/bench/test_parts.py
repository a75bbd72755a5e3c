"""Our loss and our Muon compute what torch's own do."""

import pytest
import torch

from bench.measure import peak_memory
from bench.parts import main


def test_all_ways_to_the_loss_agree_and_whole_weights_move_as_torch_moves_them():
    rows = {one.key: one.ours for one in main(["--device", "cpu", "--quick"]).records}
    losses = [columns for key, columns in rows.items() if "loss-float32" in key]
    assert len(losses) >= 4  # each way, without and with label smoothing
    assert all(float(columns["error of the gradients"]) < 1e-5 for columns in losses)
    moves = {
        key.rpartition(".")[2]: float(columns["largest difference of a move"])
        for key, columns in rows.items()
        if key.startswith("parts.muon")
    }
    if hasattr(torch.optim, "Muon"):
        assert moves["qkv-whole-weights"] < 0.05 < moves["qkv"]  # torch computes in bfloat16


def test_memory_is_the_most_at_once():
    cpu = torch.device("cpu")
    assert peak_memory(lambda: torch.zeros(2**18).sum(), cpu) == pytest.approx(1, abs=0.01)
    both = peak_memory(lambda: (torch.zeros(2**18) + 1).mul(2).sum(), cpu)
    assert both == pytest.approx(2, abs=0.01)
