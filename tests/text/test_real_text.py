"""On real text, not only on what a test makes up."""

from pathlib import Path

import pytest

from qkv.config import TokenizerConfig
from qkv.data import read_lines
from qkv.text import train_tokenizer


@pytest.mark.parametrize(
    "name",
    ["tatoeba_en_zh/valid.zh", "tatoeba_en_de/valid.de", "multi30k/valid.cs", "multi30k/valid.fr"],
)
@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_every_line_comes_back(shared_data: Path, name: str, kind: str) -> None:
    lines = read_lines(shared_data / name)
    half = len(lines) // 2  # the other half has words and characters that were never seen
    config = TokenizerConfig(kind=kind, vocab_size=1000, normalize="none")  # type: ignore[arg-type]
    tokenizer = train_tokenizer(lines[:half], config)
    ids = tokenizer.encode_many(lines)
    assert [tokenizer.decode(sentence) for sentence in ids] == lines
    assert not any(tokenizer.unk_id in sentence for sentence in ids)
