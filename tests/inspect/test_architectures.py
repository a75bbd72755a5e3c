"""Every quantity and weight that a trace lists can be had, for every architecture that is read."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from qkv.convert.architectures import ARCHITECTURES
from qkv.inspect import Inputs, Side, Trace
from qkv.inspect.trace.edit import Edit
from qkv.inspect.trace.weights import Weight
from qkv.model import Decoder, EncoderDecoder, Model
from tests.convert.harness import read, saved, texts
from tests.convert.small import CONFIGS, small

NAMES = [
    (name, head)
    for name, architecture in ARCHITECTURES.items()
    for head, class_name in architecture.classes.items()
    if head in ("masked", "sequence", "pairs", "image", "causal", "seq2seq")
    and class_name.startswith(tuple(CONFIGS))
]


def read_tokens(size: int, seed: int) -> Side:
    tokens, _, layout = texts([5, 3], size, seed)
    return Side(tokens, tuple(tuple(f"#{id}" for id in row) for row in tokens.tolist()), layout)


def inputs_of(model: Model) -> Inputs:
    """Texts or images with labels of the kind that the model predicts."""
    config = model.config
    draw = torch.Generator().manual_seed(3)
    if isinstance(model, EncoderDecoder | Decoder):
        target, _, _ = texts([5, 3], config.vocab_size, 4)
        source = read_tokens(config.source_vocab_size or config.vocab_size, 1)
        is_pair = isinstance(model, EncoderDecoder)
        return Inputs(
            source=source if is_pair else None,
            target=read_tokens(config.vocab_size, 2),
            labels=target,
        )
    if config.patch_size:
        shape = (2, config.n_channels, config.image_size, config.image_size)
        names = tuple(map(str, range(config.n_positions)))
        source = Side(torch.randn(shape, generator=draw), (names, names))
    else:
        source = read_tokens(config.vocab_size, 1)
    if config.head == "masked":
        return Inputs(source=source, labels=texts([5, 3], config.vocab_size, 4)[0])
    labels = torch.tensor([0, config.n_labels - 1])
    return Inputs(source=source, labels=labels, output_kind="class")


@cache
def opened(name: str, head: str) -> Trace:
    with saved(small(ARCHITECTURES[name].classes[head])) as folder:
        _, model = read(folder)
    return Trace(model, inputs_of(model))


@pytest.mark.parametrize(("name", "head"), NAMES)
def test_every_name_can_be_had_in_its_shape(name, head):
    trace = opened(name, head)
    for key, value in trace.peek(trace.names()).items():
        assert tuple(value.shape) == trace.shape(key), key
        assert not value.isnan().any(), key
    patterns = ["gradient.*", "gradient.*.?_*", "gradient.*.gamma", "gradient.*.beta"]
    keys = [key for pattern in patterns for key in trace.names(pattern)]
    for key, value in trace.peek(keys).items():
        assert tuple(value.shape) == trace.shape(key), key
        assert value.isfinite().all(), key


@pytest.mark.parametrize(("name", "head"), NAMES)
def test_every_parameter_has_a_name(name, head):
    trace = opened(name, head)
    weights = [x for x in trace.quantities.values() if isinstance(x, Weight)]
    sizes = {id(parameter): parameter.numel() for parameter in trace.model.parameters()}
    count = dict.fromkeys((id(weight.parameter()) for weight in weights), 0)
    for weight in weights:
        count[id(weight.parameter())] += trace[weight.key].numel()
    assert count.keys() == sizes.keys()
    config = trace.model.config
    if config.shared_layers or config.tie != "none":
        assert all(count[parameter] >= size for parameter, size in sizes.items())
    else:
        assert count == sizes  # fused matrices are split without rest


@pytest.mark.parametrize(("name", "head"), NAMES)
def test_a_pass_with_every_step_replaced_by_itself_is_the_same(name, head):
    trace = opened(name, head)
    keys = [key for key, quantity in trace.quantities.items() if quantity.make is None]
    edits = [Edit(key, lambda value: value.clone()) for key in keys]
    changed = Trace(trace.model, trace.inputs, edits)
    torch.testing.assert_close(changed["logits"], trace["logits"], rtol=1e-4, atol=1e-4)
