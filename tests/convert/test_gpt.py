"""GPT's and GPT-2's checkpoints, both ways."""

import pytest

from qkv.config import preset
from qkv.convert.architectures.gpt import GPT, GPT2
from qkv.convert.huggingface.fitting import misfits
from tests.convert.harness import read, saved
from tests.convert.small import small


@pytest.mark.parametrize(
    ("class_name", "id"), [("OpenAIGPTLMHeadModel", None), ("GPT2LMHeadModel", 50_256)]
)
def test_ids_that_nobody_said_or_that_a_small_vocabulary_lacks(class_name, id):
    """No text begins or ends with an id that is no token's; GPT-2's 50256 often stays in a config.

    The first GPT has no special tokens.
    """
    with saved(small(class_name, bos_token_id=id, eos_token_id=id)) as folder:
        source, ours = read(folder)
    config, size = ours.config, ours.config.vocab_size
    assert (config.pad_id, config.bos_id, config.eos_id) == (0, size, size)
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
