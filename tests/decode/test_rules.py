"""Each rule against the warper of the same name in `transformers`, and their order."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from qkv.config import DecodeConfig
from qkv.decode import Request, rules
from qkv.decode.row_rules import RowRules, Sampling

CASES = [
    (rules.temperature, TemperatureLogitsWarper, [0.1, 0.7, 1.0, 3.0]),
    (rules.top_k, TopKLogitsWarper, [1, 2, 7, 50, 1000]),
    (rules.top_p, TopPLogitsWarper, [0.0, 0.01, 0.5, 0.9, 0.999, 1.0]),
    (rules.min_p, MinPLogitsWarper, [0.0, 0.01, 0.3, 1.0]),
]


@pytest.mark.parametrize(("rule", "warper", "values"), CASES)
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_rules_equal_warpers(rule, warper, values, spread):
    logits = spread * torch.randn(8, 50)
    logits[0] = logits[0].round()  # ties
    logits[1, 10:] = float("-inf")  # as another rule may leave it
    before = logits.clone()
    for value in values:
        assert torch.equal(rule(logits, value), warper(value)(None, logits))
    assert torch.equal(logits, before), "a rule must not change what it is given"


@pytest.mark.parametrize(("rule", "values"), [(rule, values) for rule, _, values in CASES])
def test_rules_take_any_leading_shape(rule, values):
    logits = torch.randn(2, 3, 20)
    flat = rule(logits.flatten(0, 1), values[1])
    assert torch.equal(rule(logits, values[1]).flatten(0, 1), flat)


@given(
    temperature=st.floats(0.2, 3.0),
    top_k=st.integers(0, 20),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.9),
    seed=st.integers(0, 99),
)
def test_all_rules_in_order(pair, temperature, top_k, top_p, min_p, seed):
    logits = 2 * torch.randn(4, 30, generator=torch.Generator().manual_seed(seed))
    config = GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        num_beams=1,
    )
    warpers = pair[0]._get_logits_processor(config, device="cpu", logits_processor=[])
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    request = Request((1,), 1, (0,), DecodeConfig(sample=True, **settings))
    found = Sampling.of([request] * len(logits), torch.device("cpu")).restrict(logits)
    torch.testing.assert_close(found, warpers(None, logits))


@given(
    past=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    before=st.integers(0, 9),
    n=st.integers(1, 6),
    vocab_size=st.integers(4, 6),
)
def test_no_run_comes_twice(past, before, n, vocab_size):
    logits = torch.randn(1, 2, vocab_size)
    tokens = torch.tensor([past, past[::-1]])
    found = rules.no_repeat(logits, F.pad(tokens, (before, 0), value=-1)[None], n)
    assert torch.equal(found[0], NoRepeatNGramLogitsProcessor(n)(tokens, logits[0]))
    for row, hidden in zip(tokens.tolist(), found[0].isneginf(), strict=True):
        runs = {(*row[at : at + n],) for at in range(len(row) - n + 1)}
        new = [(*row[len(row) - n + 1 :], token) for token in range(vocab_size)]
        assert hidden.tolist() == [run in runs for run in new]


def rows(*requests: Request) -> RowRules:
    return RowRules.of(requests, lambda: [], 6, torch.device("cpu"))


def test_rules_of_one_row_change_no_other():
    """Suppressed tokens, an end that is early, and one that is forced."""
    plain, early, late = DecodeConfig(), DecodeConfig(min_length=3), DecodeConfig(force_end=True)
    found = rows(
        Request((1,), 9, (4,), plain, suppress=(1, 4)),
        Request((1,), 9, (4,), early),
        Request((1,), 3, (4,), late),
        Request((1,), 9, (6,), DecodeConfig(min_length=3, force_end=True)),  # no token at all
    )
    scores = torch.randn(4, 2, 6)
    expected = scores.clone()
    expected[0, :, [1, 4]] = float("-inf")
    expected[1, :, 4] = float("-inf")
    expected[2] = torch.where(torch.arange(6) == 4, 0.0, float("-inf"))
    step = torch.full((4,), 2)
    assert torch.equal(found.restrict(found.suppress(scores.clone()), step), expected)
