"""What the tests of encoder-decoders share: what both say, and what both write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from qkv.config import DecodeConfig
from qkv.decode import generate
from qkv.model import EncoderDecoder
from tests.convert.harness import (
    OLDER_PEER,
    assert_close,
    assert_comes_back,
    exported,
    loaded,
    made,
    read,
    saved,
    texts,
)

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=3)


@st.composite
def bart_sizes(draw: st.DrawFn, head_sizes: Sequence[int]) -> dict[str, Any]:
    """What configs of BART and Marian have in common."""
    heads, width = draw(st.sampled_from([1, 2, 4])), draw(st.integers(5, 20))
    return {
        "vocab_size": draw(st.integers(20, 40)),
        "d_model": heads * draw(st.sampled_from(head_sizes)),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": width,
        "decoder_ffn_dim": width,
        "encoder_layers": draw(st.integers(1, 3)),
        "decoder_layers": draw(st.integers(1, 3)),
        "activation_function": draw(st.sampled_from(["silu", "swish", "relu", "gelu", "gelu_new"])),
        "scale_embedding": draw(st.booleans()),
        "tie_word_embeddings": draw(st.booleans()),
        "max_position_embeddings": draw(st.integers(12, 20)),
    }


def teacher_forced(
    ours: EncoderDecoder, theirs: PreTrainedModel, lengths: list[int], seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Logits of both at the real tokens of padded targets, after padded sources."""
    config = ours.config
    source, real, layout = texts(lengths, config.source_vocab_size or config.vocab_size, seed)
    target, target_real, target_layout = texts(lengths[::-1], config.vocab_size, seed + 1)
    other = theirs(
        input_ids=source,
        attention_mask=real,
        decoder_input_ids=target,
        decoder_attention_mask=target_real,
    ).logits
    mine = ours(source, target, layout, target_layout)
    return mine[target_real.bool()], other[target_real.bool()]


def same_logits(*case: Any) -> None:
    """Teacher-forced logits are the same."""
    assert_close(*teacher_forced(*case))


def same_texts(
    ours: EncoderDecoder,
    theirs: PreTrainedModel,
    lengths: list[int],
    seed: int = 0,
    searches: Sequence[int] = (1, 4),
    **more: Any,
) -> None:
    """Greedy and by four beams, from the architecture's own start, and without padding."""
    config = ours.config
    source, real, layout = texts(lengths, config.source_vocab_size or config.vocab_size, seed)
    apart = config.source_vocab_size not in (0, config.vocab_size)
    for beams in (1,) if OLDER_PEER and apart else searches:
        never = sorted({config.pad_id, config.bos_id} - {config.eos_id})
        given = [] if config.start_id < 0 else [config.start_id]
        output = theirs.generate(
            source,
            attention_mask=real,
            num_beams=beams,
            do_sample=False,
            max_length=None,
            max_new_tokens=6 + len(given),
            suppress_tokens=never,
            forced_eos_token_id=None,
            forced_bos_token_id=given[0] if given else None,
            **more,
        )
        found = generate(
            ours,
            source,
            layout.lengths,
            DecodeConfig(beams, max_length=6),
            prefix=given,
            suppress=never,
        )
        assert [one[0].tokens for one in found] == [_text(row, ours) for row in output]


def _text(row: Tensor, ours: EncoderDecoder) -> list[int]:
    """What stands after the start and before EOS or padding."""
    config, tokens = ours.config, row.tolist()[1:]
    ends = [place for place, id in enumerate(tokens) if id in (config.eos_id, config.pad_id)]
    return tokens[: ends[0]] if ends else tokens


@torch.no_grad()
def draw_bias(model: PreTrainedModel, seed: int) -> None:
    """A bias on the logits, which is no parameter of theirs."""
    draw = torch.Generator().manual_seed(seed)
    model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=draw))


def goes_both_ways(
    class_name: str, configs: st.SearchStrategy[dict[str, Any]]
) -> Callable[[], None]:
    """A test of an architecture that has a bias on its logits."""

    @settings(max_examples=4)
    @given(config=configs, lengths=LENGTHS, seed=st.integers(0, 99), shards=st.booleans())
    @torch.no_grad()
    def test(config, lengths, seed, shards):
        theirs = made(class_name, config, seed)
        draw_bias(theirs, seed)
        assert_both_ways(theirs, lengths, seed, shards)

    return test


def assert_both_ways(
    theirs: PreTrainedModel, lengths: list[int], seed: int, shards: bool, **more: Any
) -> None:
    """Their folder says and writes the same here, ours there, and nothing is lost between."""
    with saved(theirs, shards) as folder:
        source, ours = read(folder)
        assert isinstance(ours, EncoderDecoder)
        same_logits(ours, theirs, lengths, seed)
        same_texts(ours, theirs, lengths, seed, **more)
        with exported(source) as again:
            back = loaded(again, type(theirs).__name__)
            same_logits(ours, back, lengths, seed)
            same_texts(ours, back, lengths, seed, searches=[1], **more)
            assert_comes_back(source, again)
