"""Exported decoders against the rules by which vLLM reads a folder."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from qkv.convert.architectures import ARCHITECTURES
from qkv.convert.vllm import BY_TRANSFORMERS, NAMES, vllm_problems
from qkv.errors import UserError
from tests.convert.harness import change, exported, read, saved
from tests.convert.small import small

DECODERS = sorted(
    record.classes["causal"] for record in ARCHITECTURES.values() if "causal" in record.classes
)
UNREAD = ("GPTNeoForCausalLM", "OpenAIGPTLMHeadModel")


def test_every_decoder_is_in_the_tables_or_known_to_be_missing() -> None:
    assert sorted([*NAMES, *BY_TRANSFORMERS, *UNREAD]) == DECODERS


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_exported_can_be_read(name: str) -> None:
    with saved(small(name)) as folder, exported(read(folder)[0]) as written:
        problems = vllm_problems(written)
    if name in UNREAD:
        assert len(problems) == 1
        assert "has no" in problems[0]
    else:
        assert problems == []


def test_each_broken_rule_is_told() -> None:
    with saved(small("LlamaForCausalLM")) as folder, exported(read(folder)[0]) as written:
        (written / "tokenizer.json").unlink()
        path = written / "model.safetensors"

        def with_another(before: dict[str, Tensor]) -> dict[str, Tensor]:
            return before | {"model.layers.0.extra.weight": before["model.norm.weight"].clone()}

        change(written, with_another)
        problems = " ".join(vllm_problems(written))
        assert "no weight model.layers.0.extra.weight (1 such)" in problems
        assert "There is no tokenizer.json" in problems
        tensors = load_file(path)
        tensors.pop("lm_head.weight", None)
        save_file(tensors, path, {"format": "pt"})
        change(written, tie_word_embeddings=False)
        assert "needs lm_head.weight" in " ".join(vllm_problems(written))


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no architecture"):
        vllm_problems(tmp_path)
