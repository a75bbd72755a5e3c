"""What happened inside: traces, maps, lenses, trees, and figures of them."""

from qkv.data import IGNORE
from qkv.inspect.attribution import Attribution
from qkv.inspect.compare import Comparison, Difference
from qkv.inspect.drift import Drift
from qkv.inspect.importance import head_importance, log_probability, patching_map
from qkv.inspect.lens import Lens
from qkv.inspect.notation import Quantity
from qkv.inspect.reading import Reading, Side, lay, lay_labels
from qkv.inspect.save import save_figure
from qkv.inspect.saved import SavedTrace, load_trace
from qkv.inspect.steps import Candidate, Step
from qkv.inspect.style import COLOURS, DIVERGING, MARKERS, new_figure, styled
from qkv.inspect.trace import Trace

__all__ = [
    "COLOURS",
    "DIVERGING",
    "IGNORE",
    "MARKERS",
    "Attribution",
    "Candidate",
    "Comparison",
    "Difference",
    "Drift",
    "Lens",
    "Quantity",
    "Reading",
    "SavedTrace",
    "Side",
    "Step",
    "Trace",
    "head_importance",
    "lay",
    "lay_labels",
    "load_trace",
    "log_probability",
    "new_figure",
    "patching_map",
    "save_figure",
    "styled",
]
