"""What is seen inside a loaded checkpoint is what transformers sees inside its own."""

from __future__ import annotations

import pytest
import torch

from qkv.inspect import Inputs, Side, Trace
from qkv.model import Decoder
from tests.convert.harness import assert_close, texts
from tests.convert.small import small
from tests.parity.pairs import with_ours

LENGTHS = [7, 4]
SHOWN = {"output_attentions": True, "output_hidden_states": True}
ONE_STACK = [
    "BertForMaskedLM",
    "RobertaForMaskedLM",
    "AlbertForMaskedLM",
    "DebertaV2ForMaskedLM",
    "MPNetForMaskedLM",
    "DebertaForMaskedLM",
    "ElectraForMaskedLM",
    "DistilBertForMaskedLM",
    "ModernBertForMaskedLM",
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "GPTNeoXForCausalLM",
    "BloomForCausalLM",
    "Gemma2ForCausalLM",
]
TWO_STACKS = [
    "MarianMTModel",
    "BartForConditionalGeneration",
    "T5ForConditionalGeneration",
    "MBartForConditionalGeneration",
    "M2M100ForConditionalGeneration",
    "PegasusForConditionalGeneration",
]


def opened(name: str):
    more = {"attn_logit_softcapping": 2.0} if name.startswith("Gemma2") else {}
    return with_ours(small(name, attn_implementation="eager", **more))


def named(tokens: torch.Tensor) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(f"#{id}" for id in row) for row in tokens.tolist())


def assert_maps(trace: Trace, at: str, maps, real: torch.Tensor) -> None:
    for layer, theirs in enumerate(maps):
        ours = trace[f"{at.format(layer)}.weights"]
        wanted = real.bool()[:, None, :, None].expand_as(ours)
        assert_close(ours[wanted], theirs[wanted])


def assert_stream(trace: Trace, stack: str, states, real: torch.Tensor, last_norm: bool) -> None:
    side = "source" if stack == "encoder" else "target"
    keys = [f"{side}.input", *trace.keys(f"{stack}.*.feed_forward.residual")]
    if last_norm:  # theirs ends with what stands after the norm
        keys[-1] = f"{stack}.output"
    assert len(states) == len(keys)
    for key, theirs in zip(keys, states, strict=True):
        assert_close(trace[key][real.bool()], theirs[real.bool()])


@pytest.mark.parametrize("name", ONE_STACK)
def test_one_stack(name):
    theirs, ours = opened(name)
    tokens, real, layout = texts(LENGTHS, ours.config.vocab_size)
    with torch.no_grad():
        said = theirs(tokens, attention_mask=real, **SHOWN)
    side = Side(tokens, named(tokens), layout)
    stack, inputs = "encoder", Inputs(source=side, segments=torch.zeros_like(tokens))
    if isinstance(ours, Decoder):
        stack, inputs = "decoder", Inputs(target=side)
    trace, last_norm = Trace(ours, inputs), ours.config.norm_position != "post"
    assert_maps(trace, f"{stack}.{{}}.self_attention", said.attentions, real)
    assert_stream(trace, stack, said.hidden_states, real, last_norm)
    assert_close(trace["logits"][real.bool()], said.logits[real.bool()])


@pytest.mark.parametrize("name", TWO_STACKS)
def test_encoder_decoders(name):
    theirs, ours = opened(name)
    size = ours.config.vocab_size - 1  # the last one is Marian's padding
    source, real, layout = texts(LENGTHS, size)
    target, target_real, target_layout = texts([5, 6], size, seed=1)
    with torch.no_grad():
        said = theirs(
            input_ids=source,
            attention_mask=real,
            decoder_input_ids=target,
            **SHOWN,
        )
    inputs = Inputs(
        source=Side(source, named(source), layout),
        target=Side(target, named(target), target_layout),
    )
    trace, last = Trace(ours, inputs), ours.config.norm_position != "post"
    assert_maps(trace, "encoder.{}.self_attention", said.encoder_attentions, real)
    assert_maps(trace, "decoder.{}.self_attention", said.decoder_attentions, target_real)
    assert_maps(trace, "decoder.{}.cross_attention", said.cross_attentions, target_real)
    assert_stream(trace, "encoder", said.encoder_hidden_states, real, last)
    assert_stream(trace, "decoder", said.decoder_hidden_states, target_real, last)
    assert_close(trace["logits"][target_real.bool()], said.logits[target_real.bool()])
