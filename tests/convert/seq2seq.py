"""What the tests of encoder-decoders share: what both say, and what both write."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from qkv.config import DecodeConfig
from qkv.decode import generate
from qkv.model import EncoderDecoder
from tests.convert.harness import OLDER_PEER, assert_close, texts, until


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
        ends = (config.eos_id, config.pad_id)
        texts_there = [until(ends, row[1:]) for row in output.tolist()]  # after the start
        assert [one[0].tokens for one in found] == texts_there
