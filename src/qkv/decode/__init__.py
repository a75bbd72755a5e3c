"""Weights to ids: sampling rules, greedy, beam, generate."""

from qkv.decode.beam import Beam, BeamState
from qkv.decode.generate import complete, generate
from qkv.decode.graph import Graphs
from qkv.decode.greedy import Draw, Greedy, GreedyState
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.state import Search, State, Task
from qkv.decode.step import Batch, Generative, advance, decode_one, prefill
from qkv.decode.stream import Remembered, stream

__all__ = [
    "Batch",
    "Beam",
    "BeamState",
    "Draw",
    "Generative",
    "Graphs",
    "Greedy",
    "GreedyState",
    "Hypothesis",
    "Remembered",
    "Search",
    "State",
    "Task",
    "advance",
    "complete",
    "decode_one",
    "generate",
    "prefill",
    "stream",
]
