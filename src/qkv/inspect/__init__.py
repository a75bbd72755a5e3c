"""What happened inside a model: traces of a pass, answers about it, figures and pages."""

from qkv.data import IGNORE
from qkv.inspect.answers.importance import head_importance, log_probability, patching_map
from qkv.inspect.trace import Inputs, Quantity, SavedTrace, Side, Trace, load_trace, pad_labels

__all__ = [
    "IGNORE",
    "Inputs",
    "Quantity",
    "SavedTrace",
    "Side",
    "Trace",
    "head_importance",
    "load_trace",
    "log_probability",
    "pad_labels",
    "patching_map",
]
