"""Training a language model: from text to a folder that goes on with it."""

import math
import re
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import torch

import qkv
from qkv.model import Decoder
from qkv.tasks import LanguageModel
from tests.run.common import read_log, validations, write_lines
from tests.run.language_tiny import job, learned

SENTENCE = re.compile(r"the (\w+) sees the (\w+)\.")


def test_a_run_learns_its_language_and_is_scored(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = learned(tmp_path_factory)
    measured = validations(done.folder)
    assert [record["step"] for record in measured] == [50, 100, 150, 200]
    for record in measured:
        assert record["perplexity"] == pytest.approx(math.exp(record["valid_loss"]))
        assert 0 < record["bits_per_byte"] < 8
    assert read_log(done.folder)[0]["loss"] > 2 * measured[0]["valid_loss"]
    best = min(measured, key=lambda record: record["valid_loss"])
    names = ["valid_loss", "perplexity", "bits_per_byte"]
    scores = [score.value for score in done.scores["valid"]]
    assert scores == pytest.approx([best[name] for name in names])

    model = qkv.load(done.folder)
    assert isinstance(model, LanguageModel)
    draws = {"sample": True, "temperature": 0.5, "max_length": 30}
    found = [model.generate("the cat sees", **draws, seed=seed) for seed in range(10)]
    assert sum(bool(SENTENCE.match("the cat sees" + text)) for text in found) >= 8
    likely, odd = model.score(["the cat sees the dog.", "the the dog sees. cat"])
    assert likely.bits_per_byte < odd.bits_per_byte / 3


@pytest.mark.parametrize("kind", ["char", "bpe"])
@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("bos", [True, False])
def test_scores_count_the_predicted_tokens_and_their_bytes(
    tmp_path: Path, bos: bool, across: bool, kind: str
) -> None:
    """Documents that fit one window: token by token, from the model's logits."""
    documents = ["the cat 我", "我 sees", "é is a dog"]
    path = write_lines(tmp_path / "valid.txt", documents)
    made = job(
        tmp_path, data_valid_text=str(path), data_bos=bos, data_across=across, tokenizer_kind=kind
    )
    model, tokenizer = made.result, made.tokenizer
    rows = [[*model.encode(text), tokenizer.eos_id] for text in documents]
    assert sum(map(len, rows)) <= made.config.max_length
    seen = [list(chain(*rows))] if across else rows  # what is read together
    pairs = [pair for row in seen for pair in log_probabilities(model.model, row)]
    nats = [-value for token, value in pairs if token != tokenizer.bos_id]
    n_bytes = sum(len(text.encode()) for text in documents)
    if not bos:  # the first token of what is read together is predicted from nothing
        first = tokenizer.tokens([row[0] for row in rows])
        by_kind = {"char": ["t", "<0xE6>", "<0xC3>"], "bpe": ["▁the", "<0xE6>", "▁"]}
        assert first == by_kind[kind]
        sizes = {"char": [1, 1, 1], "bpe": [3, 1, 0]}[kind]
        n_bytes -= sum(sizes[: len(seen)])
    scores = made.evaluate()
    assert scores["valid_loss"] == pytest.approx(sum(nats) / len(nats))
    assert scores["bits_per_byte"] == pytest.approx(sum(nats) / math.log(2) / n_bytes)
    if not across:  # as the model itself says of each document
        likely = model.likelihoods(rows)
        assert -sum(row.log_probability for row in likely) == pytest.approx(sum(nats))
        assert sum(row.n_tokens for row in likely) == len(nats)
        assert sum(row.n_bytes for row in likely) == n_bytes


def log_probabilities(model: Decoder, tokens: list[int]) -> list[tuple[int, float]]:
    """Each token but the first, and its log-probability after those before it."""
    with torch.no_grad():
        table = model.eval()(torch.tensor([tokens])).log_softmax(-1)[0].tolist()
    return [(token, row[token]) for row, token in zip(table[:-1], tokens[1:], strict=True)]


def test_the_baseline_is_the_frequency_of_tokens(tmp_path: Path) -> None:
    said: list[str] = []
    made = job(tmp_path, said=said)
    tokens = made.corpus.train
    counts = Counter(tokens.read(0, len(tokens)).tolist())
    share = [count / len(tokens) for count in counts.values()]
    assert made.baseline() == pytest.approx(-sum(p * math.log(p) for p in share))
    told = r"train: [\d,]+ tokens in 19\d documents; valid: [\d,]+ tokens"
    assert any(re.fullmatch(told, line) for line in said)
