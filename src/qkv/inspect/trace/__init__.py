"""What is recorded of one pass and how: inputs, notation, probe, changes, archive."""

from qkv.inspect.trace.archive import SavedTrace, load_trace
from qkv.inspect.trace.inputs import Inputs, Side, pad_labels
from qkv.inspect.trace.notation import Quantity
from qkv.inspect.trace.trace import Trace

__all__ = ["Inputs", "Quantity", "SavedTrace", "Side", "Trace", "load_trace", "pad_labels"]
