"""Weights to ids: logits processors, greedy search and sampling, beam search, streaming."""

from qkv.decode.beam import Beam, BeamState
from qkv.decode.generate import complete, generate
from qkv.decode.graph import Graphs
from qkv.decode.greedy import Draw, Greedy, GreedyState
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.state import Search, State, Task
from qkv.decode.step import Generative, PromptBatch, advance, decode_one, prefill
from qkv.decode.stream import Remembered, stream

__all__ = [
    "Beam",
    "BeamState",
    "Draw",
    "Generative",
    "Graphs",
    "Greedy",
    "GreedyState",
    "Hypothesis",
    "PromptBatch",
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
