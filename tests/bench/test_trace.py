"""What looking inside costs is measured on the right work."""

import torch

from bench.trace import largest_difference, main, works


def test_both_sides_give_the_same_maps():
    arms = works(torch.device("cpu"), (2, 32, 2, 16))
    assert largest_difference(arms) < 1e-5
    assert len(arms["weights of all layers and heads"]()) == 2


def test_the_command_records_a_row_for_each_work():
    session = main(["--quick", "--device", "cpu"])
    first, *_, last = session.records
    assert first.name == "forward pass" and "output_attentions" in last.name
    assert first.ours["× forward pass"] == 1
