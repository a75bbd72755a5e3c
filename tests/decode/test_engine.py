"""The engine: each request gets what it would get alone, whoever else runs beside it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import DecodeConfig, preset
from qkv.decode import Engine, Request, lane, recording
from qkv.errors import UserError
from qkv.model import Decoder, EncoderDecoder, evaluating, use_path
from qkv.model.attention import equation

VOCABULARY, CONTEXT = 40, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "max_length": CONTEXT,
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 24,
    "n_decoder_layers": 2,
}


def spread(model):
    """Random weights that are large enough for outputs to differ and to end at different steps."""
    torch.manual_seed(4)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.35)
    return model.double().eval()


MODELS = {
    "llama": spread(Decoder(preset("llama-tiny", **SIZES, n_kv_heads=2))),
    "window": spread(Decoder(preset("llama-tiny", **SIZES, window=5))),
    "gpt2": spread(Decoder(preset("gpt2", **SIZES))),
    "transformer": spread(EncoderDecoder(preset("transformer-small", **SIZES, n_encoder_layers=1))),
    "t5": spread(
        EncoderDecoder(
            preset("transformer-small", **SIZES, n_encoder_layers=1, positions="relative")
        )
    ),
}
TOKEN = st.integers(4, VOCABULARY - 1)
SEARCHES = st.one_of(
    st.builds(
        DecodeConfig,
        beams=st.integers(1, 4),
        length_penalty=st.sampled_from([0.0, 1.0, 1.5]),
        early_stopping=st.sampled_from([True, False, "never"]),
        repetition_penalty=st.sampled_from([1.0, 1.4]),
        no_repeat=st.integers(0, 3),
        min_length=st.integers(0, 3),
        force_end=st.booleans(),
    ),
    st.builds(
        DecodeConfig,
        beams=st.just(1),
        sample=st.just(True),
        temperature=st.sampled_from([0.0, 0.7, 1.0, 1.6]),
        top_k=st.sampled_from([0, 1, 5, 99]),
        top_p=st.sampled_from([0.5, 0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.2]),
        repetition_penalty=st.sampled_from([1.0, 1.4]),
        seed=st.integers(0, 3),
    ),
)


@st.composite
def requests(draw, model):
    source = ()
    if isinstance(model, EncoderDecoder):
        source = tuple(draw(st.lists(TOKEN, min_size=1, max_size=9)))
        prompt = (model.config.bos_id, *draw(st.lists(TOKEN, max_size=2)))
    else:
        shared = [7, 8, 9] * draw(st.sampled_from([0, 0, 8]))
        prompt = (*shared, *draw(st.lists(TOKEN, min_size=1, max_size=12)))
    return Request(
        prompt,
        draw(st.integers(1, 12)),
        draw(st.sampled_from([(model.config.eos_id,), (model.config.eos_id, 5)])),
        draw(SEARCHES),
        source,
        draw(st.sampled_from([(), (6,), (6, 11)])),
        draw(st.integers(0, 5)),
        keep=draw(st.booleans()) and not source,
    )


def alone(model, request):
    (handle,) = Engine(model).run([request])
    return handle


def assert_same(handle, expected):
    assert handle.tokens == expected.tokens
    assert handle.reason == expected.reason
    assert [x.tokens for x in handle.hypotheses] == [x.tokens for x in expected.hypotheses]
    for one, other in zip(handle.hypotheses, expected.hypotheses, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-9)
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-9)


@pytest.fixture(scope="module", params=["rows as they come", "rows ahead"])
def allocation(request):
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "rows as they come":
            patched.setattr(lane, "BYTES_AHEAD", 0)
        yield request.param


@settings(max_examples=25)
@given(data=st.data(), name=st.sampled_from(sorted(MODELS)), rows=st.sampled_from([1, 3, 8, 128]))
def test_joins_leaves_and_cancels_change_no_other_request(allocation, data, name, rows):
    model = MODELS[name]
    max_bytes, fixed = data.draw(st.sampled_from([1, 20_000, None])), data.draw(st.booleans())
    engine = Engine(model, max_rows=rows, max_bytes=max_bytes, fixed=fixed)
    handles, cancelled = [], {}
    for _ in range(data.draw(st.integers(1, 10))):
        for request in data.draw(st.lists(requests(model), max_size=3)):
            handles.append(engine.submit(request))
        for _ in range(data.draw(st.integers(0, 4))):
            engine.step()
        if handles and data.draw(st.integers(0, 3)) == 0:
            handle = data.draw(st.sampled_from(handles))
            if not handle.is_done:
                engine.cancel(handle)
                cancelled[handle] = len(handle.tokens)
    while not all(handle.is_done for handle in handles):
        engine.step()
    for handle in handles:
        expected = alone(model, handle.request)
        if handle in cancelled:
            assert handle.reason == "cancelled"
            assert handle.tokens == expected.tokens[: cancelled[handle]]
        else:
            assert_same(handle, expected)


@settings(max_examples=12)
@given(data=st.data(), name=st.sampled_from(["llama", "window", "gpt2"]))
def test_a_long_prompt_is_read_in_parts_while_others_go_on(data, name):
    model = MODELS[name]
    rules = DecodeConfig(beams=1)
    first = Request((3, 5), 40, (VOCABULARY,), rules)
    long = Request(tuple(data.draw(st.lists(TOKEN, min_size=30, max_size=50))), 8, (2,), rules)
    engine = Engine(model, chunk=data.draw(st.integers(2, 20)))
    running = engine.submit(first)
    engine.step()
    waiting = engine.submit(long)
    n_before = len(running.tokens)
    while not waiting.tokens:
        engine.step()
    assert len(running.tokens) - n_before >= (len(long.prompt) - 1) // engine.chunk
    while not (running.is_done and waiting.is_done):
        engine.step()
    assert_same(running, alone(model, first))
    assert_same(waiting, alone(model, long))


def test_rows_that_run_together_forbid_n_grams_of_their_own_sizes():
    model = MODELS["llama"]
    rules = [DecodeConfig(beams=1, no_repeat=n, repetition_penalty=0.5) for n in (0, 1, 2, 3)]
    requests = [Request((7, 8, 9), 14, (VOCABULARY,), rule) for rule in rules]
    for handle, request in zip(Engine(model).run(requests), requests, strict=True):
        assert_same(handle, alone(model, request))


def test_what_was_read_is_kept_for_prompts_that_begin_with_it():
    model = MODELS["llama"]
    engine = Engine(model)
    rules = DecodeConfig(beams=1)
    begin = tuple(range(4, 30))
    first = engine.submit(Request(begin, 4, (VOCABULARY,), rules, keep=True))
    assert [event.token for event in engine.stream(first)] == first.tokens
    assert first.n_read == len(begin) - 1
    longer = Request((*begin, *first.tokens, 7, 9), 4, (VOCABULARY,), rules, keep=True)
    second = engine.submit(longer)
    list(engine.stream(second))
    assert second.n_read == 2  # the last chosen token, and the one before the last
    assert_same(second, alone(model, longer))
    other = Request((3, *begin), 4, (VOCABULARY,), rules)
    assert_same(engine.run([other])[0], alone(model, other))


@pytest.mark.parametrize("limit", range(5, 18))
def test_what_was_read_is_kept_whoever_joins_as_it_ends(limit):
    """Of fixed shape, it may end in a step that was launched ahead."""
    model = MODELS["llama"]
    engine = Engine(model, fixed=True)
    rules = DecodeConfig(beams=1)
    begin = tuple(range(4, 30))
    first = engine.submit(Request(begin, limit, (VOCABULARY,), rules, keep=True))
    engine.step()
    engine.run([Request((9, 3), 4, (VOCABULARY,), rules) for _ in range(3)])
    longer = Request((*begin, *first.tokens, 7, 9), 4, (VOCABULARY,), rules)
    (second,) = engine.run([longer])
    assert second.n_read == 2
    assert_same(second, alone(model, longer))


def test_nothing_is_kept_of_weights_that_were_changed():
    model = spread(Decoder(preset("gpt2", **SIZES)))
    engine = Engine(model)
    request = Request(tuple(range(4, 30)), 4, (VOCABULARY,), DecodeConfig(beams=1), keep=True)
    engine.run([request])
    with torch.no_grad():
        for weight in model.decoder.parameters():
            weight += 0.3 * torch.randn_like(weight)
    (handle,) = engine.run([request])
    assert handle.n_read == len(request.prompt) - 1
    assert_same(handle, alone(model, request))


def test_equal_beginnings_are_read_once():
    model = MODELS["gpt2"]
    shared = tuple(range(4, 34))
    prompts = [(*shared, token, 9) for token in range(4, 12)]
    requests = [Request(prompt, 5, (2,), DecodeConfig(beams=1)) for prompt in prompts]
    read, plain = [], model.hidden

    def counting(tokens, *args, **keywords):
        read.append(tokens.numel())
        return plain(tokens, *args, **keywords)

    model.hidden = counting
    try:
        handles = Engine(model).run(requests)
    finally:
        del model.hidden
    assert read[:2] == [len(shared), len(prompts)]
    for handle, request in zip(handles, requests, strict=True):
        assert_same(handle, alone(model, request))


def test_two_streams_at_once_write_their_own_texts():
    model = MODELS["llama"]
    engine = Engine(model)
    asked = [Request((3, start), 12, (VOCABULARY,), DecodeConfig(beams=1)) for start in (5, 9)]
    streams = [engine.stream(engine.submit(request)) for request in asked]
    found = [[], []]
    for _ in range(12):
        for tokens, stream in zip(found, streams, strict=True):
            tokens.append(next(stream).token)
    assert found == [alone(model, request).tokens for request in asked]


def test_a_stream_that_nobody_hears_out_frees_its_row():
    model = MODELS["llama"]
    engine = Engine(model, max_rows=1)
    first = engine.submit(Request((3, 5), 40, (VOCABULARY,), DecodeConfig(beams=1)))
    stream = engine.stream(first)
    next(stream)
    stream.close()
    assert first.reason == "cancelled"
    second = engine.submit(Request((3, 6), 2, (VOCABULARY,), DecodeConfig(beams=1)))
    assert len(list(engine.stream(second))) == 2


def test_threads_share_an_engine_and_a_model_that_is_looked_into():
    """Eight threads stream while another one runs passes on the equation's path."""
    model = MODELS["gpt2"]
    engine = Engine(model)
    asked = [
        Request((3, 5 + number), 10, (VOCABULARY,), DecodeConfig(beams=1, sample=number % 2 == 1))
        for number in range(8)
    ]
    is_over = threading.Event()

    def stream(request):
        return [event.token for event in engine.stream(engine.submit(request))]

    def look():
        while not is_over.is_set():
            with evaluating(model), use_path(model, equation), torch.no_grad():
                model(torch.tensor([[3, 4, 5]]))

    with ThreadPoolExecutor(9) as threads:
        looking = threads.submit(look)
        try:
            found = list(threads.map(stream, asked))
        finally:
            is_over.set()
        looking.result()
    assert found == [alone(model, request).tokens for request in asked]


def test_threads_run_batches_of_their_own_on_one_engine():
    model = MODELS["transformer"]
    engine = Engine(model, max_rows=6)
    asked = [
        [
            Request((model.config.bos_id,), 9, (2,), DecodeConfig(beams=1 + n % 3), (5 + n, batch))
            for n in range(7)
        ]
        for batch in range(4, 8)
    ]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(engine.run, asked))
    for handles, requests in zip(found, asked, strict=True):
        for handle, request in zip(handles, requests, strict=True):
            assert_same(handle, alone(model, request))


@pytest.mark.parametrize("beams", [1, 3])
def test_logits_that_are_no_numbers_are_refused_and_the_engine_goes_on(beams):
    model = spread(Decoder(preset("gpt2", **SIZES)))
    engine = Engine(model)
    weight = model.output.projection.weight
    before = weight[5].clone()
    with torch.no_grad():
        weight[5] = float("nan")
    request = Request((3, 4), 5, (2,), DecodeConfig(beams=beams))
    handle = engine.submit(request)
    with pytest.raises(UserError, match="not numbers"):
        engine.step()
    assert handle.reason == "cancelled"
    with pytest.raises(UserError, match="not numbers"):
        list(engine.stream(handle))
    with torch.no_grad():
        weight[5] = before
    assert_same(engine.run([request])[0], alone(model, request))


@pytest.mark.parametrize(("prompt", "limit"), [((3,), 0), ((), 3), ((3, 4), CONTEXT - 1)])
def test_a_request_that_cannot_run_is_refused(prompt, limit):
    request = Request(prompt, limit, (2,), DecodeConfig(beams=1))
    engine = Engine(MODELS["gpt2"])
    for send in (engine.submit, lambda request: engine.run([request])):
        with pytest.raises(UserError, match=r"at least one token|context of 64"):
            send(request)


def test_a_request_may_be_cancelled_while_its_prompt_is_read():
    model = MODELS["gpt2"]
    engine = Engine(model, chunk=4)
    rules = DecodeConfig(beams=1)
    running = engine.submit(Request((3, 5), 30, (VOCABULARY,), rules))
    engine.step()
    reading = engine.submit(Request(tuple(range(4, 34)), 9, (VOCABULARY,), rules, keep=True))
    engine.step()
    engine.cancel(reading)
    while not running.is_done:
        engine.step()
    assert (reading.tokens, reading.reason) == ([], "cancelled")
    assert_same(running, alone(model, running.request))


@pytest.mark.parametrize("fixed", [False, True])
def test_the_likeliest_tokens_are_reported_to_those_who_ask(fixed):
    model = MODELS["llama"]
    engine = Engine(model, fixed=fixed)
    rules = DecodeConfig(beams=1)
    ends = (model.config.eos_id,)
    plain = Request((7, 8, 9), 6, ends, rules)
    asked = Request((7, 8, 9), 6, ends, rules, suppress=(11,), n_top=3)
    first, second = engine.submit(plain), engine.submit(asked)
    while not (first.is_done and second.is_done):
        engine.step()
    assert all(event.top == () for event in first.events)
    tokens = list(asked.prompt)
    for event in second.events:
        with torch.no_grad():
            expected = model(torch.tensor([tokens]))[0, -1].float().log_softmax(-1)
        expected[11] = -torch.inf
        values, ids = expected.topk(3)
        assert [token for token, _ in event.top] == ids.tolist()
        assert [value for _, value in event.top] == pytest.approx(values.tolist(), abs=1e-5)
        assert event.top[0] == (event.token, event.log_probability)  # greedy: the likeliest
        tokens.append(event.token)


def test_steps_are_recorded_once_and_those_in_use_are_kept(monkeypatch):
    monkeypatch.setattr(recording, "MOST", 2)
    engine = Engine(MODELS["llama"], fixed=True)
    made = {}
    for n_rows in (1, 2, 1, 5, 1):  # of five rows at last, which drops the step of two
        engine.run([Request((7, 8), 4, (99,), DecodeConfig(beams=1))] * n_rows)
        found = engine._lanes[1].recording
        assert made.setdefault(n_rows, found) is found
    engine.run([Request((7, 8), 4, (99,), DecodeConfig(beams=1))] * 2)
    assert engine._lanes[1].recording is not made[2]


def test_rows_and_those_that_wait_are_counted():
    model = MODELS["llama"]
    engine = Engine(model, max_rows=2)
    requests = [Request((7, 8), 4, (99,), DecodeConfig(beams=1)) for _ in range(3)]
    handles = [engine.submit(request) for request in requests]
    assert (engine.n_rows, engine.n_waiting) == (0, 3)
    engine.step()
    assert (engine.n_rows, engine.n_waiting) == (2, 1)
    while not all(handle.is_done for handle in handles):
        engine.step()
    assert (engine.n_rows, engine.n_waiting) == (0, 0)
