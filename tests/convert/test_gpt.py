"""GPT's and GPT-2's checkpoints, both ways."""

import torch

from qkv.config import preset
from qkv.convert.architectures.gpt import GPT, GPT2
from qkv.convert.huggingface.fitting import misfits
from tests.convert.harness import made, read, saved

SMALL = {"n_embd": 16, "n_head": 2, "n_layer": 2, "vocab_size": 30, "n_positions": 16}
CLASSES = {"gpt": "OpenAIGPTLMHeadModel", "gpt2": "GPT2LMHeadModel"}


def test_ids_that_nobody_said():
    """The first GPT has no special tokens: no text begins or ends with an id that is no token's."""
    theirs = made(CLASSES["gpt"], SMALL)
    with saved(theirs) as folder:
        source, _ = read(folder)
    size = SMALL["vocab_size"]
    found = [source.content["model"][name] for name in ("pad_id", "bos_id", "eos_id")]
    assert found == [0, size, size]
    assert source.content["bos"] is False


def test_what_each_can_say():
    """GPT is post-norm and four times as wide; GPT-2 is neither."""
    for name, mine, other in (("gpt", GPT, GPT2), ("gpt2", GPT2, GPT)):
        assert not misfits(mine, preset(name), "causal")
        assert any("norm_position" in said for said in misfits(other, preset(name), "causal"))
    assert misfits(GPT, preset("gpt", d_ff=100), "causal") == ["d_ff = 100"]
    assert not misfits(GPT2, preset("gpt2", d_ff=100), "causal")
    assert misfits(GPT, preset("gpt", activation="gelu"), "causal") == ["activation = 'gelu'"]
    assert misfits(GPT2, preset("gpt2", window=3), "causal") == [
        "window = 3",
        "window_layers = 'all'",
    ]
    assert not misfits(GPT2, preset("gpt2", tie="all"), "causal")


@torch.no_grad()
def test_ids_that_a_small_vocabulary_lacks_are_as_if_there_were_none():
    """A GPT-2 that somebody made small keeps 50256 in its config: its texts just never end."""
    with saved(made(CLASSES["gpt2"], SMALL)) as folder:
        _, ours = read(folder)
    assert {ours.config.eos_id, ours.config.bos_id} == {ours.config.vocab_size}
