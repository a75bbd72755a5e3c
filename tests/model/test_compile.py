"""Training on packed batches and decoding with a fixed cache compile once, without breaks.

`aot_eager` traces forward and backward as a compiler would, and runs what it traced by hand.
"""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

from qkv.decode.prompts import empty_store
from qkv.model import Layout, NewTokens
from tests.model.tiny import assert_same, padded, sequences, tiny_model, tokens

N_TOKENS, LONGEST = 24, 12


@pytest.fixture
def counter():
    torch._dynamo.reset()
    yield CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()


def assert_compiles_once(counter, loss, weights, batches) -> None:
    """One graph for all batches, with the loss and the gradients of plain code."""
    compiled, weights = torch.compile(loss, fullgraph=True, backend=counter), list(weights)
    for batch in batches:
        results = []
        for run in (compiled, loss):
            result = run(*batch)
            results.append((result, *torch.autograd.grad(result, weights)))
        torch.testing.assert_close(*results, atol=1e-11, rtol=0)
    assert counter.frame_count == 1


def packed_side(sizes: list[int]) -> tuple[torch.Tensor, Layout]:
    """Tokens of one shape always; only the offsets' values change."""
    assert sum(sizes) == N_TOKENS and len(sizes) == 4
    offsets = torch.tensor([0, *sizes]).cumsum(0).to(torch.int32)
    return tokens(1, N_TOKENS), Layout(offsets=offsets, longest=LONGEST)


BATCHES = [
    ([6, 6, 6, 6], [6, 6, 6, 6]),
    ([12, 1, 10, 1], [3, 9, 0, 12]),
    ([0, 12, 0, 12], [12, 4, 7, 1]),
    ([1, 2, 10, 11], [7, 7, 5, 5]),
]


def test_packed_training_pass(counter):
    choices = {"norm_position": "pre", "n_kv_heads": 2}
    model = tiny_model(n_encoder_layers=1, n_decoder_layers=1, **choices)

    def loss(source, target, labels, source_layout, target_layout):
        logits = model(source, target, source_layout, target_layout)
        return F.cross_entropy(logits[0], labels)

    batches = []
    for sizes in BATCHES:
        (source, source_layout), (target, target_layout) = map(packed_side, sizes)
        batches.append((source, target, tokens(N_TOKENS), source_layout, target_layout))
    assert_compiles_once(counter, loss, model.parameters(), batches)


ENCODERS = {
    "albert": {"shared_layers": True, "d_embedding": 6, "pooler": "tanh", "n_segments": 2},
    "deberta": {"positions": "disentangled", "relative_buckets": 8, "embedding_norm": True},
    "rotary": {"positions": "rotary", "norm_position": "pre", "norm": "rms", "n_segments": 2},
}


@pytest.mark.parametrize(
    ("name", "head"), [("albert", "sequence"), ("deberta", "masked"), ("rotary", "sequence")]
)
def test_training_pass_of_an_encoder(counter, name, head):
    choices = {**ENCODERS[name], "n_encoder_layers": 1, "pooling": "mean"}
    model = tiny_model(family="encoder", n_labels=3, head=head, **choices)

    def loss(text, segments, labels, layout):
        said = model(text, layout, segments)
        return F.cross_entropy(said if head == "sequence" else said[0], labels)

    batches = []
    for sizes, _ in BATCHES:
        text, layout = packed_side(sizes)
        labels = torch.randint(3, (4 if head == "sequence" else N_TOKENS,))
        batches.append((text, torch.randint(2, text.shape), labels, layout))
    assert_compiles_once(counter, loss, model.encoder.parameters(), batches)


GEMMA3 = {
    "norm": "rms_plus_one",
    "norm_position": "both",
    "query_key_norm": True,
    "positions": "rotary",
    "window": 3,
    "window_layers": "wf",
    "rotary_window_base": 30.0,
}
PARTS = {
    "gemma 3": GEMMA3,
    "gpt-neox": {
        "positions": "rotary",
        "rotary_share": 0.5,
        "norm_position": "pre",
        "parallel": True,
    },
    "smollm3 and mixtral": {
        "positions": "rotary",
        "rotary_layers": "rn",
        "n_experts": 3,
        "n_experts_used": 2,
        "gated": True,
        "bias": False,
    },
}
UNPACKED = {
    "gemma 2": {**GEMMA3, "score_cap": 2.0, "logit_cap": 3.0},
    "bloom": {"positions": "alibi", "embedding_norm": True},
}


@pytest.mark.parametrize("parts", [*PARTS, "gemma 2 and bloom"])
def test_training_pass_of_a_decoder(counter, parts):
    """Packed where it can be, else in full rows."""
    choices = {**PARTS, "gemma 2 and bloom": {**UNPACKED["gemma 2"], **UNPACKED["bloom"]}}[parts]
    kinds = len(choices.get("window_layers", choices.get("rotary_layers", "r")))
    model = tiny_model(family="decoder", n_decoder_layers=kinds, **choices)
    assert model.config.can_pack == (parts in PARTS)

    def loss(text, labels, layout):
        return F.cross_entropy(model(text, layout)[0], labels)

    batches = []
    for sizes, _ in BATCHES:
        text, layout = packed_side(sizes)
        batches.append((text, tokens(N_TOKENS), layout if parts in PARTS else Layout()))
    assert_compiles_once(counter, loss, model.parameters(), batches)


@torch.no_grad()
def test_decoding_step(counter):
    """Eight steps of two beams for each of two sources, each step in the same shapes."""
    model = tiny_model()
    source, layout = padded(sequences([5, 2]))
    memory, target = model.remember(source, layout), tokens(4, 8)
    store, start = empty_store(model, 4, 10), torch.zeros(4, dtype=torch.int64)

    def step(newest, memory, start):
        new = NewTokens(store, start, 10)
        return model.output(model.decode(newest, memory, cache=new))

    compiled = torch.compile(step, fullgraph=True, backend=counter)
    tokens_by_step = enumerate(target.split(1, 1))
    found = torch.cat([compiled(token, memory, start + at) for at, token in tokens_by_step], dim=1)
    assert_same(found, model.output(model.decode(target, memory)))
    assert counter.frame_count == 1


@pytest.mark.parametrize("parts", ["learned", "gpt-neox", "smollm3 and mixtral", *UNPACKED])
@torch.no_grad()
def test_decoding_step_of_a_decoder(counter, parts):
    choices = {"learned": {"positions": "learned"}, **PARTS, **UNPACKED}[parts]
    kinds = len(choices.get("window_layers", choices.get("rotary_layers", "r")))
    model = tiny_model(family="decoder", n_kv_heads=2, n_decoder_layers=kinds, **choices)
    text = tokens(3, 9)
    store, start = empty_store(model, 3, 9), torch.full((3,), 3)
    model(text[:, :3], cache=NewTokens(store, 0, 3))
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    steps = [
        compiled(token, cache=NewTokens(store, start + at, 9))
        for at, token in enumerate(text[:, 3:].split(1, 1))
    ]
    assert_same(torch.cat(steps, dim=1), model(text)[:, 3:])
    assert counter.frame_count == 1
