"""One pass of a model with hooks that hand out quantities or change them.

The model knows nothing of this. Hooks (`hooks.py`) are attached while a pass is probed and removed
after it; a formula is computed beside the model's own path only where a step inside of it is asked
for (`opened.py`).
"""

from __future__ import annotations

from contextlib import ExitStack

from torch import Tensor

from qkv.inspect.trace.hooks import attach
from qkv.inspect.trace.inputs import Inputs
from qkv.inspect.trace.taps import AllSeen, Ask, Probe
from qkv.model import Decoder, EncoderDecoder, Model, evaluating

__all__ = ["Ask", "Probe", "forward", "run"]


def run(model: Model, inputs: Inputs, probe: Probe) -> None:
    """Run one teacher-forced pass with dropout off, as far as the probe needs it."""
    with evaluating(model), ExitStack() as stack:
        for remove in attach(model, probe):
            stack.callback(remove)
        try:
            forward(model, inputs)
        except AllSeen:
            return


def forward(model: Model, inputs: Inputs) -> Tensor:
    """Call the model on its inputs."""
    source, target = inputs.source, inputs.target
    if isinstance(model, EncoderDecoder):
        assert source is not None and target is not None
        return model(source.tokens, target.tokens, source.layout, target.layout)
    if isinstance(model, Decoder):
        assert target is not None
        return model(target.tokens, target.layout)
    assert source is not None
    return model(source.tokens, source.layout, inputs.segments)
