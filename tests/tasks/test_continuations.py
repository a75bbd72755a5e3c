"""What texts have in common is read once, and nothing else changes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import preset
from qkv.decode.prompts import LEAST_SHARED, common
from qkv.model import Decoder
from qkv.tasks import likelihood
from qkv.tasks.likelihood import continuation_log_probabilities

VOCABULARY = 30
TOKENS = st.lists(st.integers(3, VOCABULARY - 1), max_size=8)


def decoder(**choices: object) -> Decoder:
    torch.manual_seed(3)
    sizes = {"vocab_size": VOCABULARY, "max_length": 60, "d_model": 16, "n_heads": 2, "d_ff": 24}
    model = Decoder(preset("llama-tiny", **{**sizes, "n_decoder_layers": 2, **choices}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.double().eval()


MODELS = [decoder(), decoder(positions="learned", n_kv_heads=1), decoder(window=5)]


@torch.no_grad()
def alone(model: Decoder, tokens: list[int], start: int) -> list[float]:
    logits = model(torch.tensor([tokens]))[0].log_softmax(-1)
    return [float(logits[place - 1, tokens[place]]) for place in range(start, len(tokens))]


@settings(max_examples=40)
@given(
    shared=st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=LEAST_SHARED + 9),
    prompts=st.lists(TOKENS, min_size=1, max_size=4),
    options=st.lists(TOKENS.filter(bool), min_size=1, max_size=3),
    which=st.integers(0, len(MODELS) - 1),
    budget=st.sampled_from([1, 20, 4096]),
)
def test_each_sequence_as_if_alone(shared, prompts, options, which, budget):
    model = MODELS[which]
    sequences = [[*shared, *prompt, *option] for prompt in prompts for option in options]
    starts = [len(shared) + len(prompt) for prompt in prompts for _ in options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(likelihood.BATCH_TOKENS, "cpu", budget)
        found = continuation_log_probabilities(model, sequences, starts)
    for tokens, start, gained in zip(sequences, starts, found, strict=True):
        assert gained == pytest.approx(alone(model, tokens, start), abs=1e-6)


@pytest.mark.parametrize("length", [LEAST_SHARED - 2, LEAST_SHARED + 3])
def test_what_is_shared_is_read_once(monkeypatch, length):
    """Twenty examples before fifty questions: of these alone there are fifty rows."""
    model, seen = MODELS[0], []
    hidden = model.hidden

    def counted(tokens, *more, **named):
        seen.append(tokens.numel())
        return hidden(tokens, *more, **named)

    monkeypatch.setattr(model, "hidden", counted)
    sequences = [
        [3] * length + [4, 5 + number, option] for number in range(20) for option in (6, 7)
    ]
    continuation_log_probabilities(model, sequences, [length + 2] * 40)
    # Two options of one token each are one row, and the beginning stands in none of them.
    assert sum(seen) == (length + 1 + 20 if length >= LEAST_SHARED else 20 * (length + 2))


def test_what_is_common():
    assert common([[1, 2, 3], [1, 2, 4, 5], [1, 2]]) == 2
    assert common([[1], [2]]) == 0
    assert common([[7, 8]]) == 2
    assert continuation_log_probabilities(MODELS[0], [], []) == []
