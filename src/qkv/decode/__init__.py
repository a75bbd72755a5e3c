"""Weights to ids: logits processors, greedy search and sampling, beam search, streaming."""

from qkv.decode.captured.beam import Beam, BeamState
from qkv.decode.captured.graph import Graphs
from qkv.decode.captured.greedy import Draw, Greedy, GreedyState
from qkv.decode.captured.state import Search, State, Task
from qkv.decode.captured.step import PromptBatch, advance, decode_one, prefill
from qkv.decode.captured.stream import Remembered, stream
from qkv.decode.closed_batch import complete, generate
from qkv.decode.engine import Engine
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.prompts import Generative
from qkv.decode.request import Event, Handle, Request

__all__ = [
    "Beam",
    "BeamState",
    "Draw",
    "Engine",
    "Event",
    "Generative",
    "Graphs",
    "Greedy",
    "GreedyState",
    "Handle",
    "Hypothesis",
    "PromptBatch",
    "Remembered",
    "Request",
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
