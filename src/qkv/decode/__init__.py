"""Weights to ids: one engine, whose searches and samples are requests that come and go."""

from qkv.decode.closed_batch import complete, generate
from qkv.decode.engine import Engine
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.prompts import Generative, empty_store
from qkv.decode.request import Event, Handle, Request

__all__ = [
    "Engine",
    "Event",
    "Generative",
    "Handle",
    "Hypothesis",
    "Request",
    "complete",
    "empty_store",
    "generate",
]
