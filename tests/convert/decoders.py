"""What the tests of all decoders share: both ways, with the same logits and the same search."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from qkv.config import DecodeConfig
from qkv.decode import complete
from qkv.model import Decoder
from tests.convert.harness import until

PROMPTS = [[5, 6, 7, 8, 9], [11], [12, 13, 14, 15, 16, 17]]


def assert_same_search(theirs: PreTrainedModel, ours: Decoder) -> None:
    """From prompts that we take together and they one by one: greedy, and one with beams."""
    for beams, n_prompts in ((1, 3), (4, 1)):
        found = complete(ours, PROMPTS, DecodeConfig(beams=beams, max_length=8))
        for prompt, (one, *_) in list(zip(PROMPTS, found, strict=True))[:n_prompts]:
            assert one.tokens == their_search(theirs, prompt, beams)


def their_search(model: PreTrainedModel, prompt: Sequence[int], beams: int) -> list[int]:
    """What comes before the end that their own config says, if it says any."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=8,
        num_beams=beams,
        do_sample=False,
    )
    return until(model.generation_config.eos_token_id, output[0].tolist()[len(prompt) :])
