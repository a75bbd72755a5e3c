"""The encoder benchmark measures the same work on both sides."""

import json
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.encode import (
    PLAIN,
    STEPS,
    as_rows,
    batches,
    fitting_rows,
    fresh_model,
    made_up_texts,
    main,
    n_real,
    same_loss,
    same_vectors,
    their_embedding,
    their_loss,
    their_tokenizer,
)
from bench.peers import masked_peer
from qkv.config import TokenizerConfig, preset
from qkv.data import IGNORE
from qkv.model import Encoder
from qkv.tasks import Encoder as EncoderTask
from qkv.text import train_tokenizer
from qkv.training import masked_tokens

CPU = torch.device("cpu")
TINY = {
    "vocab_size": 400,
    "d_model": 32,
    "n_heads": 4,
    "d_ff": 48,
    "n_encoder_layers": 2,
    "max_length": 96,
}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setitem(STEPS, "cpu", 3)


@cache
def lively() -> Encoder:
    """Norms and biases that matter, so that each must find its place in the peer."""
    model = fresh_model(preset("bert-mini", **TINY, **PLAIN), CPU, torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def some_lengths() -> np.ndarray:
    return np.random.default_rng(0).integers(4, 17, 400)


def test_a_peer_with_our_weights_has_the_same_loss_and_gradients():
    ours = lively()
    theirs = masked_peer(ours)
    for batch in batches(ours.config, some_lengths(), 64, CPU)[1]:
        mine = masked_tokens()(ours, batch, 0.0) / batch.n_labels
        other = their_loss(theirs, as_rows(batch, ours.config.pad_id, 8))
        torch.testing.assert_close(other, mine, atol=1e-9, rtol=0)
    [grad] = torch.autograd.grad(mine, [ours.encoder.blocks[0].feed_forward.inner.weight])
    [same] = torch.autograd.grad(other, [theirs.bert.encoder.layer[0].intermediate.dense.weight])
    assert grad.abs().max() > 1e-3
    torch.testing.assert_close(same, grad, atol=1e-9, rtol=0)


@pytest.mark.parametrize("by_length", [False, True])
def test_a_peer_with_our_weights_gives_the_same_vectors(by_length):
    texts = made_up_texts(40, 12)
    task = EncoderTask(lively(), train_tokenizer(texts, TokenizerConfig(vocab_size=400)))
    theirs = masked_peer(task.model).eval().bert
    embedding = their_embedding(theirs, their_tokenizer(task.tokenizer), texts, by_length)
    mine, other = task.embed(texts), embedding()
    torch.testing.assert_close(other, mine, atol=1e-6, rtol=0)
    likeness = mine @ mine.T
    assert likeness.triu(1).max() < 0.999  # or else the wrong text's vector would do


def test_both_sides_get_steps_of_the_same_places():
    lengths = some_lengths()
    ours, theirs = batches(lively().config, lengths, 128, CPU)
    assert len(ours) == len(theirs)
    for batch in ours:
        assert 100 < batch.target.tokens.numel() <= 128
    rows = fitting_rows(lengths, 128)
    assert {len(batch.target.tokens) for batch in theirs} == {rows}
    places = [batch.target.tokens.numel() for batch in theirs]
    assert 110 < np.mean(places) < 140
    assert (
        n_real(ours, 0)
        > n_real(theirs, 0)
        == sum(int(batch.target.lengths.sum()) for batch in theirs)
    )


def test_rows_of_one_length_fill_their_places():
    assert fitting_rows(np.full(100, 8), 64) == 8
    assert fitting_rows(np.full(100, 8), 71) == 8
    assert fitting_rows(np.array([2, 4] * 50), 12) == 3  # of which one is long, nearly always


def test_labels_stand_where_tokens_are_hidden_and_nowhere_else():
    batch = batches(lively().config, some_lengths(), 64, CPU)[1][0]
    tokens, real, labels = as_rows(batch, 0, 8)
    assert tokens.shape == real.shape == labels.shape and tokens.shape[1] % 8 == 0
    assert int((labels != IGNORE).sum()) == batch.n_labels
    assert torch.equal(real.sum(dim=1), batch.target.lengths)
    assert torch.equal(real, (tokens != 0).long())
    assert not (labels[real == 0] != IGNORE).any()
    hidden = labels != IGNORE
    assert (tokens == 4)[~hidden].sum() == 0 and (tokens == 4)[hidden].any()


def test_full_rows_need_no_mask():
    ours = lively()
    full = batches(ours.config, np.full(200, 16), 64, CPU)[1][0]
    inputs = as_rows(full, 0, 8)
    assert inputs[1] is None
    assert same_loss(ours, masked_peer(ours), full, inputs)


@pytest.mark.parametrize(("what", "n_rates"), [("train", 3), ("embed", 2)])
def test_each_kind_of_work_gets_two_rows(what, n_rates, capsys):
    main([what, "--device", "cpu", "--quick", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["work"].split(", ")[:2] for row in rows] == [[what, "BERT tiny"]] * 2
    for row in rows:
        best = max(rate for name, rate in row["rates"].items() if name != "qkv")
        assert row["ratio"] == pytest.approx(row["rates"]["qkv"] / best)
        assert len(row["rates"]) == n_rates
        assert row["check"].startswith("loss of the" if what == "train" else "vectors of length 1")


def test_a_table_has_a_header_and_other_batches_can_be_had(capsys):
    main(["train", "--device", "cpu", "--quick", "--batch", "3"])
    machine, empty, header, rule, full, real = capsys.readouterr().out.splitlines()
    assert "transformers" in machine and not empty
    assert header.count("|") == rule.count("|") == full.count("|") == real.count("|") == 6
    assert "BERT tiny, 3 × 16" in full and "48 places, lengths as in real text" in real


@pytest.mark.parametrize("what", ["train", "embed"])
def test_a_profile_lists_what_takes_our_time(what, capsys):
    main([what, "--device", "cpu", "--quick", "--profile"])
    printed = capsys.readouterr().out
    assert "aten::" in printed and "|" not in printed


def test_sides_that_disagree_are_found():
    ours = lively()
    theirs = masked_peer(ours)
    with torch.no_grad():
        theirs.bert.encoder.layer[0].output.dense.weight[0] += 1.0
    batch = batches(ours.config, some_lengths(), 64, CPU)[1][0]
    inputs = as_rows(batch, 0, 1)
    assert same_loss(ours, masked_peer(ours), batch, inputs).startswith("loss of the same batch")
    with pytest.raises(AssertionError, match="losses differ"):
        same_loss(ours, theirs, batch, inputs)
    with pytest.raises(AssertionError, match="vectors differ"):
        same_vectors({"qkv": directions(0.0), "peer": directions(0.01)}, torch.float32)
    assert same_vectors({"qkv": directions(0.0), "peer": directions(0.01)}, torch.bfloat16)


def directions(turned: float) -> Tensor:
    return F.normalize(torch.tensor([[1.0, turned]]), dim=-1)
