"""Weights to ids: sampling rules, greedy, beam, generate."""

from qkv.decode.beam import Beam, BeamState
from qkv.decode.generate import generate
from qkv.decode.graph import Graphs
from qkv.decode.greedy import Draw, Greedy, GreedyState
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.state import Search, State, Task
from qkv.decode.step import advance, decode_one, prefill

__all__ = [
    "Beam",
    "BeamState",
    "Draw",
    "Graphs",
    "Greedy",
    "GreedyState",
    "Hypothesis",
    "Search",
    "State",
    "Task",
    "advance",
    "decode_one",
    "generate",
    "prefill",
]
