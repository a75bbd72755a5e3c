"""What looking inside costs is measured on the right work."""

import sys

import pytest
import torch

from bench.trace import Living, largest_difference, main, most_memory, works

CPU = torch.device("cpu")


def test_living_bytes_are_counted_and_given_back():
    with Living() as living:
        first = torch.zeros(1000)  # 4,000 bytes
        view = first.view(10, 100)
        assert living.now == 4000
        second = first + 1
        assert living.now == 8000
        del first
        assert living.now == 8000  # the view holds it
        del view
        assert living.now == 4000
        del second
    assert living.now == 0 and living.most == 8000


def test_memory_is_the_most_at_once():
    assert most_memory(lambda: torch.zeros(2**18).sum(), CPU) == pytest.approx(1, abs=0.01)


def test_both_sides_give_the_same_maps():
    arms = works(CPU, (2, 32, 2, 16))
    assert largest_difference(arms) < 1e-5
    assert len(arms["weights of all layers and heads"]()) == 2


def test_the_command_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr("bench.trace.REPEATS", 1)
    monkeypatch.setattr("bench.trace.compiled_before_and_after", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["trace", "--quick"])
    main()
    said = capsys.readouterr().out
    assert "| forward pass |" in said and "output_attentions" in said
