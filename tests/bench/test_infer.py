"""Decoding and embedding benchmarks compare sides that give the same results."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.infer import (
    made_up_texts,
    main,
    same_tokens,
    same_vectors,
    their_embedding,
    their_tokenizer,
)
from bench.peers import masked_peer
from qkv.config import TokenizerConfig, preset
from qkv.model import Encoder
from qkv.tasks import Encoder as EncoderTask
from qkv.text import train_tokenizer

TINY = {"d_model": 32, "n_heads": 4, "d_ff": 48, "n_encoder_layers": 2, "max_length": 96}


def test_each_row_compares_equal_results():
    session = main(["--device", "cpu", "--quick"])
    rows = {one.key: one for one in session.records}
    searches = [f"{kind}.{n}" for kind in ("beam", "greedy") for n in ("many", "one")]
    assert list(rows) == [
        *(f"decode.translate.{search}" for search in searches),
        *(f"decode.translate-int8.{search}" for search in searches),
        "decode.gpt2.one",
        "decode.llama.one",
        "embed.bert.as-they-come",
        "embed.bert.sorted",
    ]
    assert rows["decode.gpt2.one"].check == "8 of 8 tokens the same"
    assert len(rows["decode.llama.one"].peers) == 2
    assert rows["embed.bert.sorted"].check.startswith("unit vectors at most")


@pytest.mark.parametrize("by_length", [False, True])
def test_a_peer_with_our_weights_gives_the_same_vectors(by_length):
    texts = made_up_texts(40, 12)
    torch.manual_seed(0)
    options = {"vocab_size": 400, "pooler": "none", "head": "masked"}
    model = Encoder(preset("bert-mini", **TINY, **options)).double().eval()
    task = EncoderTask(model, train_tokenizer(texts, TokenizerConfig(vocab_size=400)))
    theirs = masked_peer(model).eval().bert
    embedding = their_embedding(theirs, their_tokenizer(task.tokenizer), texts, by_length)
    mine, other = task.embed(texts), embedding()
    torch.testing.assert_close(other, mine, atol=1e-6, rtol=0)
    likeness = mine @ mine.T
    assert likeness.triu(1).max() < 0.999  # or else the wrong text's vector would do


def test_sides_that_disagree_are_found():
    outputs = {"qkv": [[1, 2, 3]], "static cache": [[1, 2, 4]]}
    assert same_tokens(outputs, 3, exact=False) == "2 of 3 tokens the same"
    with pytest.raises(AssertionError, match="other tokens"):
        same_tokens(outputs, 3, exact=True)
    with pytest.raises(AssertionError, match="stopped early"):
        same_tokens(outputs, 4, exact=False)
    vectors = {"qkv": direction(0.0), "peer": direction(0.01)}
    with pytest.raises(AssertionError, match="vectors differ"):
        same_vectors(vectors, exact=True)
    assert same_vectors(vectors, exact=False) == "unit vectors at most 1e-02 apart"


def direction(turned: float) -> Tensor:
    return F.normalize(torch.tensor([[1.0, turned]]), dim=-1)
