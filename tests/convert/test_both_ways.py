"""Checkpoints of every architecture and head: theirs read here, written again, and read there.

No field of their configs is as usual, and every weight matters.
"""

import json

import pytest
import torch

from qkv.model import Decoder, EncoderDecoder
from tests.convert.both import assert_same_search, same_texts
from tests.convert.harness import (
    OLDER_PEER,
    assert_close,
    assert_comes_back,
    exported,
    loaded,
    read,
    saved,
)
from tests.convert.small import UNUSUAL, answers, cases, model_of

pytestmark = pytest.mark.filterwarnings("ignore:Left out of")  # of long contexts, and of decoding
CASES = cases(UNUSUAL)
LENGTHS = [9, 4, 1]


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_both_ways(case):
    class_name, head, _ = CASES[case]
    if OLDER_PEER and case.startswith("modernbert"):
        pytest.skip("transformers 5.12 differs from its own files")
    theirs = model_of(CASES[case])
    with saved(theirs, shards="labels" not in case) as folder:
        source, ours = read(folder)
        with exported(source) as again:
            written = json.loads((again / "config.json").read_text())["architectures"]
            assert written == [class_name]
            back = loaded(again, class_name)
            assert_comes_back(source, again)
    for model in (theirs, back):
        for mine, other in answers(head, ours, model, LENGTHS):
            assert_close(mine, other)
    if isinstance(ours, EncoderDecoder):
        # Their cache has as many layers as the encoder.
        cache = ours.config.n_decoder_layers <= ours.config.n_encoder_layers
        same_texts(ours, theirs, LENGTHS, use_cache=cache)
        same_texts(ours, back, LENGTHS, searches=[1], use_cache=cache)
    elif isinstance(ours, Decoder):
        assert_same_search(theirs, ours)
