"""Both perplexities are of the same tokens, and found as the definition has it."""

import math
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import qkv
from bench.perplexity import batches, main, perplexity, windows
from qkv.config import TokenizerConfig
from qkv.text import train_tokenizer

TEXT = "the cat sees a bird and the bird sees the cat , but no fish is seen by any of them . " * 9


@cache
def some_weights() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    some_weights().save_pretrained(tmp_path / "model")
    tokenizer = train_tokenizer([TEXT], TokenizerConfig(vocab_size=300))
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def test_both_sides_find_the_same_and_it_is_the_mean_loss(folder):
    model, text = str(folder / "model"), str(folder / "text.txt")
    asked = ["--model", model, "--text", text, "--window", "16", "--batch", "2"]
    [record] = main([*asked, "--device", "cpu"]).records
    n_tokens, ours, theirs = record.ours.values()
    assert ours == pytest.approx(theirs, rel=1e-5)
    tokens = qkv.load(model, "cpu").encode(TEXT)
    assert len(tokens) == n_tokens > 60
    losses = []
    for row in windows(tokens, 16):
        logits = some_weights()(input_ids=torch.tensor([row])).logits[0, :-1]
        losses += (-logits.log_softmax(-1)[range(len(row) - 1), row[1:]]).tolist()
    assert theirs == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)


def test_a_limit_counts_tokens_and_too_few_are_refused(folder):
    asked = ["--model", str(folder / "model"), "--text", str(folder / "text.txt"), "--limit"]
    [record] = main([*asked, "20"]).records
    assert record.ours["tokens"] == 20
    with pytest.raises(SystemExit, match="holds 1 tokens"):
        main([*asked, "1"])


def test_windows_hold_each_token_once_and_nobody_pads():
    rows = windows(list(range(11)), 4)
    assert rows == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert list(batches(rows, 5)) == [rows[:2], rows[2:]]
    assert list(batches(rows[:2], 1)) == [rows[:1], rows[1:2]]
    assert windows(list(range(9)), 4) == rows[:2]  # nothing comes before the ninth in its window


def test_equal_chances_are_as_many_as_there_are_tokens():
    rows = windows(list(range(11)), 4)
    found = perplexity(lambda some: math.log(7) * sum(len(row) - 1 for row in some), rows, 1)
    assert found == pytest.approx(7)
