"""DPO beside peft: both sides see the same pairs, compute the same loss and are scored alike."""

import json
from pathlib import Path

import pytest
import torch

import bench.lora as lora
import bench.prefer as prefer
from bench.measure import product_job


@pytest.fixture(scope="module")
def session():
    return prefer.main(["--device", "cpu", "--quick"])


def test_each_row_has_our_figures_and_the_peer_s(session):
    rows = {row.key: row for row in session.records}
    assert list(rows) == [
        "prefer.speed.step",
        "prefer.memory.step",
        "prefer.quality.qkv",
        "prefer.quality.peft",
    ]
    speed = rows["prefer.speed.step"]
    assert speed.ratio == pytest.approx(speed.ours / speed.peers["peft"], abs=1e-3)
    assert speed.check.startswith("log P of the same answers within")
    assert rows["prefer.memory.step"].ours.keys() == {"qkv", "peft"}
    for side in ("qkv", "peft"):
        assert rows[f"prefer.quality.{side}"].ours["loss"] == pytest.approx(0.693, abs=0.01)


def test_the_peer_s_loss_and_gradients_are_ours(session, tmp_path: Path):
    start = lora.random_base(session, tmp_path / "base")
    records = prefer.write_pairs(tmp_path / "pairs.jsonl", 40)
    job = product_job(prefer.recipe_of(session, start, records), tmp_path / "job")
    peer = prefer.DpoPeer(start, session.device)
    [batch] = next(job.stream.steps_from())
    ours, theirs = dict(job.model.named_parameters()), dict(peer.model.named_parameters())
    layer, other = "decoder.blocks.0.feed_forward.outer.", "model.layers.0.mlp.down_proj."
    values = torch.randn_like(ours[f"{layer}lora_A"]), torch.randn_like(ours[f"{layer}lora_B.0"])
    names = f"base_model.model.{other}lora_A.default.weight", f"{layer}lora_A"
    with torch.no_grad():
        for value, kind, mine in zip(values, "AB", ("lora_A", "lora_B.0"), strict=True):
            ours[f"{layer}{mine}"].copy_(value)
            theirs[f"base_model.model.{other}lora_{kind}.default.weight"].copy_(value)
    losses = job.objective(job.model, batch, 0.0), peer.loss_sum(batch)
    assert float(losses[1].detach()) == pytest.approx(float(losses[0].detach()), rel=1e-4)
    for loss in losses:
        loss.backward()
    gradient = ours[names[1]].grad
    assert gradient is not None and gradient.abs().max() > 1e-4
    torch.testing.assert_close(theirs[names[0]].grad, gradient, rtol=1e-3, atol=1e-5)


def test_a_chosen_answer_has_more_words_of_the_first_kind(tmp_path: Path):
    lines = prefer.write_pairs(tmp_path / "pairs.jsonl", 200).read_text().splitlines()
    wins = 0
    for pair in map(json.loads, lines):
        shares = [
            sum(int(word[1:]) < 100 for word in words) / len(words)
            for words in (pair["chosen"].split(), pair["rejected"].split())
        ]
        wins += shares[0] > shares[1]
    assert 150 < wins < 195


def test_lora_needs_no_pulled_model(tmp_path: Path):
    session = lora.main(["--device", "cpu", "--quick", "--only", "lora.small", "--model", "random"])
    rows = {row.key: row.ours for row in session.records}
    assert list(rows) == [
        f"lora.small.{kind}" for kind in ("speed.step", "memory.step", "loss.valid")
    ]
    losses = rows["lora.small.loss.valid"]
    assert losses["qkv"] == pytest.approx(losses["peft"], rel=0.01)
    assert losses["before"] == pytest.approx(losses["peft"], rel=0.1)
