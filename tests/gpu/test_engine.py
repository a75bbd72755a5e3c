"""The engine on a GPU: recorded and compiled steps give what a CPU gives, whoever runs beside."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from qkv.config import DecodeConfig, preset
from qkv.decode import Engine, Request
from qkv.model import Decoder, EncoderDecoder, row_attention
from qkv.model.positions import Angles

VOCABULARY, CONTEXT = 60, 128
SIZES = {"vocab_size": VOCABULARY, "max_length": CONTEXT, "d_model": 64, "n_heads": 4, "d_ff": 96}
SIZES |= {"n_decoder_layers": 2, "dropout": 0.0, "attention_dropout": 0.0}
SOURCES = {**SIZES, "n_encoder_layers": 2}
MODELS = {
    "llama": lambda: Decoder(preset("llama-tiny", **SIZES, n_kv_heads=2)),
    "window": lambda: Decoder(preset("llama-tiny", **SIZES, window=5)),
    "gemma": lambda: Decoder(
        preset(
            "llama-tiny",
            **SIZES,
            window=6,
            window_layers="wf",
            score_cap=20.0,
            logit_cap=15.0,
            norm_position="both",
            query_key_norm=True,
            rotary_window_base=500.0,
        )
    ),
    "bloom": lambda: Decoder(preset("gpt2", **SIZES, positions="alibi")),
    "mixtral": lambda: Decoder(preset("llama-tiny", **SIZES, n_experts=4, n_experts_used=2)),
    "gpt2": lambda: Decoder(preset("gpt2", **SIZES)),
    "transformer": lambda: EncoderDecoder(preset("transformer-small", **SOURCES)),
    "t5": lambda: EncoderDecoder(preset("transformer-small", **SOURCES, positions="relative")),
}
SEARCHES = [
    DecodeConfig(beams=1),
    DecodeConfig(beams=4, length_penalty=1.0, early_stopping=False),
    DecodeConfig(beams=3, no_repeat=2, repetition_penalty=1.3, min_length=3, force_end=True),
    DecodeConfig(beams=1, sample=True, temperature=0.8, top_k=7, seed=3),
    DecodeConfig(beams=1, sample=True, top_p=0.9, min_p=0.05, seed=4, repetition_penalty=1.2),
]


def twins(name):
    """The same weights on both devices, so large that outputs differ."""
    torch.manual_seed(5)
    model = MODELS[name]()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    on_gpu = type(model)(model.config).cuda()
    on_gpu.load_state_dict(model.state_dict())
    return model.eval(), on_gpu.eval()


@pytest.fixture(scope="module", params=MODELS)
def models(request):
    return twins(request.param)


def requests(model, count, limit=20):
    draw = torch.Generator().manual_seed(count)

    def tokens(longest):
        length = int(torch.randint(1, longest + 1, (1,), generator=draw))
        return tuple(torch.randint(4, VOCABULARY, (length,), generator=draw).tolist())

    has_source = isinstance(model, EncoderDecoder)
    return [
        Request(
            (model.config.bos_id,) if has_source else tokens(40),
            1 + (7 * number) % limit,
            (model.config.eos_id, 5),
            SEARCHES[number % len(SEARCHES)],
            tokens(30) if has_source else (),
            (6,) if number % 3 else (),
            id=number,
        )
        for number in range(count)
    ]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert [x.tokens for x in one.hypotheses] == [x.tokens for x in other.hypotheses]
        scores = [x.score for x in one.hypotheses]
        assert scores == pytest.approx([x.score for x in other.hypotheses], abs=1e-3)


def test_requests_of_all_kinds_get_what_a_cpu_gives(models):
    on_cpu, on_gpu = models
    asked = requests(on_cpu, 25)
    expected = Engine(on_cpu).run(asked)
    engine = Engine(on_gpu)
    for _ in range(2):  # the second time, all steps are there
        assert_same(engine.run(asked), expected)


def test_requests_that_come_and_go(models):
    on_cpu, on_gpu = models
    asked = requests(on_cpu, 20)
    expected = Engine(on_cpu).run(asked)
    engine = Engine(on_gpu, max_rows=12)
    handles = []
    for request in asked:
        handles.append(engine.submit(request))
        engine.step()
    while not all(handle.is_done for handle in handles):
        engine.step()
    assert_same(handles, expected)


def test_two_streams_at_once(models):
    on_cpu, on_gpu = models
    asked = [x for x in requests(on_cpu, 10) if x.beams == 1][:2]
    expected = Engine(on_cpu).run(asked)
    engine = Engine(on_gpu)
    handles = [engine.submit(request) for request in asked]
    streams = [engine.stream(handle) for handle in handles]
    found = [[], []]
    while any(not handle.is_done or handle.events for handle in handles):
        for tokens, stream in zip(found, streams, strict=True):
            event = next(stream, None)
            if event is not None:
                tokens.append(event.token)
    assert found == [handle.tokens for handle in expected]


def test_two_models_at_once():
    """Each in a thread of its own, as in a server: both record their steps."""
    pairs = [twins(name) for name in ("llama", "transformer")]
    asked = [requests(on_cpu, 8) for on_cpu, _ in pairs]
    expected = [Engine(on_cpu).run(some) for (on_cpu, _), some in zip(pairs, asked, strict=True)]
    with ThreadPoolExecutor(len(pairs)) as threads:
        runs = [
            threads.submit(Engine(on_gpu).run, some)
            for (_, on_gpu), some in zip(pairs, asked, strict=True)
        ]
    for run, handles in zip(runs, expected, strict=True):
        assert_same(run.result(), handles)


COMPILED = [("llama", 0, 1), ("llama", 3, 3), ("transformer", 1, 3), ("t5", 2, 2)]


@pytest.mark.parametrize(("name", "search", "rows"), COMPILED, ids=str)
def test_compiled_steps(name, search, rows):
    """Greedy search of one row, sampling, beams, and rules."""
    on_cpu, on_gpu = twins(name)
    asked = [
        Request(x.prompt, 20, x.ends, SEARCHES[search], x.source, (6,), x.id)
        for x in requests(on_cpu, rows)
    ]
    expected = Engine(on_cpu).run(asked)
    engine = Engine(on_gpu, compiled=True)
    for _ in range(2):
        assert_same(engine.run(asked), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "window", "n_turned"),
    [
        ((1, 8, 2, 1, 64), 0, 64),
        ((3, 4, 4, 1, 80), 0, 0),
        ((5, 8, 1, 4, 32), 0, 8),
        ((2, 4, 2, 1, 128), 9, 128),
    ],
    ids=str,
)
@torch.inference_mode()
def test_the_kernel_is_the_equation(dtype, shape, window, n_turned):
    """Rows that have filled differently many slots, with beams or a window, turned or not."""
    n_rows, n_heads, n_groups, n_tokens, size = shape
    n_slots, generator = 300, torch.Generator("cuda").manual_seed(1)

    def normal(*sizes):
        return torch.randn(sizes, generator=generator, device="cuda", dtype=dtype)

    query, keys = (
        normal(n_rows, n_heads, n_tokens, size),
        normal(2, n_rows, n_groups, n_slots, size),
    )
    new = normal(2, n_rows, n_groups, n_tokens, size)
    lengths = torch.tensor([0, 17, 64, 280, 129][:n_rows], device="cuda")
    slots = torch.arange(n_slots, device="cuda")
    visible = slots < lengths[:, None, None]
    if window:
        visible = visible & (slots > lengths[:, None, None] - window)
    chosen = None
    if n_tokens > 1:
        shape = (n_rows, n_tokens, n_slots)
        chosen = torch.rand(shape, generator=generator, device="cuda") < 0.5
        visible = visible & chosen
    angle = normal(n_rows, 1, n_tokens, n_turned // 2).float()
    sine, cosine = angle.sin(), angle.cos()
    store, angles = keys.clone(), None
    if n_turned:
        angles = Angles(torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1))
    ended = torch.zeros(n_rows * n_groups, dtype=torch.int32, device="cuda")
    for _ in range(2):  # what it counts in is as before
        found = row_attention.extend_and_attend(
            torch.cat([query, new[0]], dim=1),
            new[1],
            (store[0], store[1]),
            lengths,
            chosen,
            0.2,
            window,
            angles,
            ended,
        )

    def turned(x):
        first, second, rest = x.split([n_turned // 2, n_turned // 2, size - n_turned], dim=-1)
        pairs = torch.complex(first.double(), second.double()) * torch.exp(1j * angle.double())
        return torch.cat([pairs.real, pairs.imag, rest.double()], dim=-1).to(dtype)

    query, new = turned(query), torch.stack([turned(new[0]), new[1]])
    own = torch.eye(n_tokens, dtype=torch.bool, device="cuda")[None].expand(n_rows, -1, -1)
    mask = torch.cat([visible.expand(-1, n_tokens, -1), own], dim=2)[:, None]
    key, value = torch.cat([keys, new], dim=3).double().repeat_interleave(n_heads // n_groups, 2)
    scores = query.double() @ key.transpose(2, 3) * 0.2
    expected = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ value
    close = {"atol": 2e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    torch.testing.assert_close(found.double(), expected, **close)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(store[:, row, :, length : length + n_tokens], new[:, row])
        assert torch.equal(store[:, row, :, :length], keys[:, row, :, :length])
    turned = keys[0].transpose(1, 2).contiguous().transpose(1, 2)  # other strides than the values
    alone = row_attention.attend(query, turned, keys[1], lengths.clamp(min=1), 0.2)
    seen = (slots < lengths.clamp(min=1)[:, None])[:, None, None]
    key, value = keys.double().repeat_interleave(n_heads // n_groups, 2)
    scores = (query.double() @ key.transpose(2, 3) * 0.2).masked_fill(~seen, float("-inf"))
    torch.testing.assert_close(alone.double(), scores.softmax(dim=-1) @ value, **close)
