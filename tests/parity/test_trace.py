"""What is seen inside a loaded checkpoint is what transformers sees inside its own."""

from __future__ import annotations

import pytest
import torch

from qkv.inspect import Inputs, Side, Trace
from tests.convert.harness import assert_close, made, read, saved, texts
from tests.convert.small import FIRST_DEBERTA

ENCODER = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "vocab_size": 30,
    "max_position_embeddings": 16,
}
LLAMA = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "vocab_size": 30,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}
BART = {
    "d_model": 8,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 12,
    "decoder_ffn_dim": 12,
    "vocab_size": 30,
    "max_position_embeddings": 16,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
}
MARIAN = {**BART, "pad_token_id": 29, "decoder_start_token_id": 29, "eos_token_id": 0}
T5 = {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "vocab_size": 30}
GPT2 = {"n_embd": 8, "n_head": 2, "n_layer": 2, "vocab_size": 30, "n_positions": 16}
DEBERTA = {
    **ENCODER,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_buckets": 4,
    "max_relative_positions": -1,
}
LENGTHS = [7, 4]
EAGER = {"attn_implementation": "eager"}


def named(tokens: torch.Tensor) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(f"#{id}" for id in row) for row in tokens.tolist())


def opened(name: str, config: dict):
    theirs = made(name, {**config, **EAGER}, seed=3)
    with saved(theirs) as folder:
        _, ours = read(folder)
    return theirs, ours


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


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("BertForMaskedLM", ENCODER),
        ("RobertaForMaskedLM", {**ENCODER, "pad_token_id": 0}),
        ("AlbertForMaskedLM", {**ENCODER, "embedding_size": 6}),
        ("DebertaV2ForMaskedLM", DEBERTA),
        ("MPNetForMaskedLM", ENCODER),
        (
            "DebertaForMaskedLM",
            {**ENCODER, **FIRST_DEBERTA},
        ),
        ("ElectraForMaskedLM", {**ENCODER, "embedding_size": 6}),
        ("DistilBertForMaskedLM", {**ENCODER, "hidden_dim": 12}),
    ],
)
def test_encoders(name, config):
    theirs, ours = opened(name, config)
    tokens, real, layout = texts(LENGTHS, 30)
    with torch.no_grad():
        said = theirs(
            tokens, attention_mask=real, output_attentions=True, output_hidden_states=True
        )
    segments = torch.zeros_like(tokens)
    trace = Trace(ours, Inputs(source=Side(tokens, named(tokens), layout), segments=segments))
    assert_maps(trace, "encoder.{}.self_attention", said.attentions, real)
    assert_close(trace["logits"][real.bool()], said.logits[real.bool()])
    assert_stream(trace, "encoder", said.hidden_states, real, last_norm=False)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("GPT2LMHeadModel", GPT2),
        ("LlamaForCausalLM", LLAMA),
        ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 6}),
        ("GPTNeoXForCausalLM", {**LLAMA, "num_attention_heads": 2}),
        ("BloomForCausalLM", {"hidden_size": 8, "n_head": 2, "n_layer": 2, "vocab_size": 30}),
        ("Gemma2ForCausalLM", {**LLAMA, "head_dim": 6, "attn_logit_softcapping": 2.0}),
    ],
)
def test_decoders(name, config):
    theirs, ours = opened(name, config)
    tokens, real, layout = texts(LENGTHS, 30)
    with torch.no_grad():
        said = theirs(
            tokens, attention_mask=real, output_attentions=True, output_hidden_states=True
        )
    trace = Trace(ours, Inputs(target=Side(tokens, named(tokens), layout)))
    assert_maps(trace, "decoder.{}.self_attention", said.attentions, real)
    assert_stream(trace, "decoder", said.hidden_states, real, last_norm=True)
    assert_close(trace["logits"][real.bool()], said.logits[real.bool()])


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("MarianMTModel", MARIAN),
        ("BartForConditionalGeneration", BART),
        ("T5ForConditionalGeneration", T5),
        ("MBartForConditionalGeneration", BART),
        ("M2M100ForConditionalGeneration", BART),
        ("PegasusForConditionalGeneration", {**BART, "pad_token_id": 0}),
    ],
)
def test_encoder_decoders(name, config):
    theirs, ours = opened(name, config)
    source, real, layout = texts(LENGTHS, 29)
    target, target_real, target_layout = texts([5, 6], 29, seed=1)
    with torch.no_grad():
        said = theirs(
            input_ids=source,
            attention_mask=real,
            decoder_input_ids=target,
            output_attentions=True,
            output_hidden_states=True,
        )
    inputs = Inputs(
        source=Side(source, named(source), layout),
        target=Side(target, named(target), target_layout),
    )
    trace, last = Trace(ours, inputs), not name.startswith(("Marian", "Bart"))
    assert_maps(trace, "encoder.{}.self_attention", said.encoder_attentions, real)
    assert_maps(trace, "decoder.{}.self_attention", said.decoder_attentions, target_real)
    assert_maps(trace, "decoder.{}.cross_attention", said.cross_attentions, target_real)
    assert_stream(trace, "encoder", said.encoder_hidden_states, real, last)
    assert_stream(trace, "decoder", said.decoder_hidden_states, target_real, last)
    assert_close(trace["logits"][target_real.bool()], said.logits[target_real.bool()])
