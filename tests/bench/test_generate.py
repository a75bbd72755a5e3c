"""The language-model benchmark measures the same work on both sides."""

import json

import pytest
import torch
import torch.nn.functional as F

from bench.generate import compared_losses, compared_tokens, main
from bench.measure import Row
from bench.peers import causal_loss, causal_peer
from qkv.config import preset
from qkv.model import Decoder

TINY = {
    "vocab_size": 61,
    "d_model": 32,
    "n_heads": 4,
    "d_ff": 48,
    "n_decoder_layers": 2,
    "max_length": 16,
    "dropout": 0.0,
}
CLOSE = {"atol": 1e-5, "rtol": 1e-5}  # transformers turns q and k in float32


@pytest.mark.parametrize(
    ("name", "different"),
    [
        ("gpt2", {"attention_dropout": 0.0}),
        ("llama-7b", {"n_kv_heads": 2}),  # an output matrix of its own
        ("llama-1b", {"n_kv_heads": 2}),  # tied, and its angles scaled
    ],
)
def test_a_peer_with_our_weights_computes_the_same(name, different):
    torch.manual_seed(0)
    ours = Decoder(preset(name, **{**TINY, **different})).double()
    with torch.no_grad():
        for parameter in ours.parameters():  # norms and biases too must find their place
            parameter += 0.1 * torch.randn_like(parameter)
    theirs = causal_peer(ours)
    tokens = torch.randint(61, (2, 16))
    logits, labels = ours(tokens), torch.randint(61, (2, 16))
    torch.testing.assert_close(theirs(input_ids=tokens).logits, logits, **CLOSE)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(causal_loss(theirs, tokens, labels).double(), loss, **CLOSE)


@pytest.mark.parametrize("what", ["train", "decode"])
def test_each_model_gets_a_row_in_which_both_sides_agree(what, capsys):
    main([what, "--device", "cpu", "--quick", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["work"].split(", ")[:2] for row in rows] == [
        [what, "GPT-2 tiny"],
        [what, "Llama tiny"],
    ]
    for row in rows:
        best = max(rate for name, rate in row["rates"].items() if name != "qkv")
        assert row["ratio"] == pytest.approx(row["rates"]["qkv"] / best)
        assert len(row["rates"]) == 3
        if what == "decode":
            assert row["check"] == "8 of 8 tokens the same"


def test_a_table_has_a_header_and_can_be_had_for_one_model(capsys):
    main(["decode", "--device", "cpu", "--quick", "--model", "llama", "--batch", "2", "3"])
    machine, empty, header, rule, two, three = capsys.readouterr().out.splitlines()
    assert "transformers" in machine and not empty
    assert header.count("|") == rule.count("|") == two.count("|") == three.count("|") == 6
    assert "Llama tiny, 3 × (4 + 8)" in three


def test_a_profile_lists_what_takes_our_time(capsys):
    main(["train", "--device", "cpu", "--quick", "--model", "gpt2", "--profile"])
    printed = capsys.readouterr().out
    assert "aten::" in printed and "|" not in printed


def test_a_row_compares_with_the_best_peer():
    row = Row("decode", {"qkv": 30.0, "slow": 10.0, "quick": 20.0}, "fine")
    assert row.as_table() == "| decode | 30 | quick 20 | 1.50 | fine |"
    assert json.loads(row.as_json("a laptop")) == {
        "work": "decode",
        "rates": {"qkv": 30.0, "slow": 10.0, "quick": 20.0},
        "check": "fine",
        "ratio": 1.5,
        "machine": "a laptop",
    }


def test_sides_that_disagree_are_found():
    outputs = {"qkv": [[1, 2, 3]], "static cache": [[1, 2, 4]]}
    assert compared_tokens(outputs, 3, exact=False) == "2 of 3 tokens the same"
    with pytest.raises(AssertionError, match="other tokens"):
        compared_tokens(outputs, 3, exact=True)
    with pytest.raises(AssertionError, match="stopped early"):
        compared_tokens(outputs, 4, exact=False)
    losses = {"qkv": [torch.tensor(4.0)], "peer": [torch.tensor(4.2)]}
    with pytest.raises(AssertionError, match="losses differ"):
        compared_losses(losses)
