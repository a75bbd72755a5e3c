"""Training benchmarks take the product's steps, and give both sides the same work."""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import qkv
from bench.measure import product_trainer
from bench.peers import causal_peer, masked_peer
from bench.train import (
    BERT,
    Case,
    Rows,
    causal_loss,
    first_losses,
    in_rows,
    items_of,
    main,
    masked_loss,
    model_flops,
    recipe_of,
    tiny,
)
from qkv.config import preset
from qkv.data import IGNORE
from qkv.model import Decoder, Encoder
from qkv.run.resources import plan_run

TINY = {"vocab_size": 61, "d_model": 32, "n_heads": 4, "d_ff": 48, "max_length": 16, "dropout": 0.0}
CASES = {
    "translate": tiny(Case("t", "t", "translate", {"preset": "transformer-tiny"}, 0, 0, 0)),
    "generate": tiny(Case("g", "g", "generate", {"preset": "gpt2"}, 0, 0, 0)),
    "fill": tiny(Case("f", "f", "fill", {"preset": "bert-mini", **BERT}, 0, 0, 0)),
}


def shaken(model: torch.nn.Module) -> torch.nn.Module:
    """Norms and biases that matter, so that each must find its counterpart in the peer."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.double()


@pytest.mark.parametrize(
    ("name", "different"),
    [
        ("gpt2", {"attention_dropout": 0.0}),
        ("llama-7b", {"n_kv_heads": 2}),  # an output matrix of its own
        ("llama-1b", {"n_kv_heads": 2}),  # tied, and its angles scaled
    ],
)
def test_a_causal_peer_with_our_weights_computes_the_same(name, different):
    ours = shaken(Decoder(preset(name, **TINY, n_decoder_layers=2, **different)))
    theirs = causal_peer(ours)
    tokens, labels = torch.randint(61, (2, 2, 16))
    logits = ours(tokens)
    torch.testing.assert_close(theirs(input_ids=tokens).logits, logits, atol=1e-5, rtol=1e-5)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    found = causal_loss(theirs)(tokens, None, labels)
    torch.testing.assert_close(found.double(), loss, atol=1e-5, rtol=1e-5)


def test_a_masked_peer_with_our_weights_has_the_same_loss_and_gradients():
    sizes = {**TINY, "n_encoder_layers": 2, "head": "masked", "attention_dropout": 0.0}
    ours = shaken(Encoder(preset("bert-mini", **{**sizes, "pooler": "none"})))
    theirs = masked_peer(ours)
    tokens, labels = torch.randint(5, 61, (2, 2, 16))
    labels[:, ::2] = IGNORE
    mask = torch.ones_like(tokens)
    other = masked_loss(theirs)(tokens, mask, labels)
    mine = F.cross_entropy(ours(tokens).flatten(0, 1), labels.flatten())
    torch.testing.assert_close(other, mine, atol=1e-9, rtol=0)
    [grad] = torch.autograd.grad(mine, [ours.encoder.blocks[0].feed_forward.inner.weight])
    [same] = torch.autograd.grad(other, [theirs.bert.encoder.layer[0].intermediate.dense.weight])
    assert grad.abs().max() > 1e-3
    torch.testing.assert_close(same, grad, atol=1e-9, rtol=0)


@pytest.mark.parametrize("task", CASES)
def test_a_timed_step_is_the_first_step_of_qkv_train(task, tmp_path):
    recipe = recipe_of(CASES[task], tmp_path, "cpu")
    trainer = product_trainer(recipe, tmp_path / "timed")
    trainer.take_step(next(trainer.stream.steps_from(0)))
    settings = {"steps": 1, "valid_every": 1, "tensorboard": False}
    once = recipe_with(recipe, **settings)
    qkv.train(once, tmp_path / "run")
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    first = next(line for line in map(json.loads, lines) if "loss" in line)
    assert float(trainer.pending[0]["loss"]) == pytest.approx(first["loss"], rel=1e-6)


def recipe_with(recipe, **settings):
    return replace(recipe, train=replace(recipe.train, **settings))


def test_a_timed_step_is_compiled_as_that_of_qkv_train(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "compile", lambda work, **how: calls.append(how) or work)
    recipe = recipe_of(CASES["translate"], tmp_path, "cpu")
    steps = {"steps": 1, "valid_every": 1, "tensorboard": False}
    recipe = recipe_with(recipe, compile="on", packing="on", **steps)
    product_trainer(recipe, tmp_path / "timed")
    qkv.train(recipe, tmp_path / "run")
    assert calls == [{"dynamic": False}] * 2


@pytest.mark.parametrize("task", CASES)
def test_batches_without_padding_have_no_padding(task, tmp_path):
    trainer = product_trainer(recipe_of(CASES[task], tmp_path, "cpu"), tmp_path)
    [batch] = next(trainer.stream.steps_from(0))
    items = items_of(batch, trainer.model.config.pad_id)
    assert {len(item.tokens) for item in items} == {16} and len(items) == 4
    assert Rows.of(items, 0, 1).mask is None


@pytest.mark.parametrize("task", ["translate", "fill"])
def test_packed_and_padded_batches_hold_the_same_items(task, tmp_path):
    case = Case(**{**vars(CASES[task]), "real": True})
    recipe = recipe_of(case, tmp_path, "cpu")
    found = []
    for packing in ("off", "on"):
        trainer = product_trainer(recipe_with(recipe, packing=packing), tmp_path)
        batches = [next(trainer.stream.steps_from(step))[0] for step in range(3)]
        assert (batches[0].target.offsets is not None) == (packing == "on")
        items = [item for batch in batches for item in items_of(batch, 0)]
        assert all((item.tokens != 0).all() for item in items)
        n_labels = sum(int((item.labels != IGNORE).sum()) for item in items)
        assert n_labels == sum(batch.n_labels for batch in batches)
        found.append(items)
    if task == "translate":
        texts = [{tuple(item.source.tolist()) for item in items} for items in found]
        assert texts[0] & texts[1]


def test_rows_are_padded_to_the_longest_and_labels_stay_with_their_tokens(tmp_path):
    case = Case(**{**vars(CASES["fill"]), "real": True})
    trainer = product_trainer(recipe_of(case, tmp_path, "cpu"), tmp_path)
    items = [item for n in range(3) for item in items_of(next(trainer.stream.steps_from(n))[0], 0)]
    rows = next(in_rows(items, 12, 0, 12))
    assert rows.tokens.shape == rows.labels.shape == (12, 24)
    assert rows.mask is not None and int(rows.mask.sum()) == rows.n_tokens
    assert torch.equal(rows.mask, (rows.tokens != 0).long())
    hidden = rows.labels != IGNORE
    assert hidden.any() and not (hidden & (rows.mask == 0)).any()


def test_sides_that_disagree_are_found(tmp_path, monkeypatch):
    trainer = product_trainer(recipe_of(CASES["fill"], tmp_path, "cpu"), tmp_path)
    [batch] = next(trainer.stream.steps_from(0))
    assert first_losses(trainer, CASES["fill"], batch).startswith("loss of the same batch")
    honest = trainer.layout.loss_sum
    trainer.layout.loss_sum = lambda *given: 2 * honest(*given)
    with pytest.raises(AssertionError, match="losses differ"):
        first_losses(trainer, CASES["fill"], batch)


def test_each_row_has_our_rate_and_the_peers(capsys):
    session = main(["--device", "cpu", "--quick"])
    kinds = ["translate.equal", "gpt2.8", "llama.8", "bert.equal", "translate.real", "bert.real"]
    assert [one.key for one in session.records] == [f"train.{kind}" for kind in kinds]
    for one in session.records:
        assert one.ratio == pytest.approx(one.ours / max(one.peers.values()), abs=1e-3)
        assert one.check.startswith("loss of the same batch") or "translate" in one.key
        assert one.command == "python -m bench.train --device cpu --quick"
        assert one.details["peak MiB"].keys() == {"qkv", *one.peers}
        assert all(one.details["peak MiB"].values()) and "MFU, %" not in one.details
    assert "MarianMTModel float32" in session.records[0].peers
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_a_profile_lists_what_takes_our_time(capsys):
    session = main(["--device", "cpu", "--quick", "--profile", "--only", "gpt2"])
    assert session.records == [] and "aten::" in capsys.readouterr().out


def test_nothing_is_written_unless_asked_for(monkeypatch):
    saved = []
    monkeypatch.setattr("bench.measure.save", saved.extend)
    main(["--device", "cpu", "--quick", "--only", "gpt2"])
    assert saved == []
    main(["--device", "cpu", "--quick", "--only", "gpt2", "--save"])
    assert [one.key for one in saved] == ["train.gpt2.8"]


def test_operations_are_those_of_the_plan_and_none_are_for_padding(tmp_path):
    recipe = recipe_of(CASES["generate"], tmp_path, "cpu")
    trainer = product_trainer(recipe, tmp_path)
    [batch] = next(trainer.stream.steps_from(0))
    items = items_of(batch, trainer.model.config.pad_id)
    planned = plan_run(recipe, "cpu", length=16)
    assert planned.size.rows == len(items)
    assert model_flops(trainer.model.config, items) == pytest.approx(planned.flops, rel=0.01)
    assert model_flops(trainer.model.config, items[:2]) * 2 == model_flops(
        trainer.model.config, items
    )
