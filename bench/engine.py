"""The engine under load on a GPU, with a Llama of 1.24 B weights in bfloat16.

    python -m bench.engine          # both rows
    python -m bench.engine --only arriving --save

Each row compares two uses of the same engine, so that the ratio tells what coming and going, or a
long context, costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from bench.infer import fresh, warm_engine
from bench.measure import Session, run, speed_parser, synchronize
from bench.train import PLAIN, TINY
from qkv.config import DecodeConfig, ModelConfig, preset
from qkv.decode import Engine, Request
from qkv.model import Decoder

RULES = DecodeConfig(beams=1)
IN_FLIGHT = 64


def body(session: Session) -> None:
    """Compare all rows that were asked for."""
    if session.wants("engine.arriving"):
        arriving(session)
    if session.wants("engine.context"):
        context(session)


def llama(session: Session, context: int) -> ModelConfig:
    sizes = {"vocab_size": 128_256, "max_length": context, **PLAIN}
    if session.quick:
        sizes |= {**TINY, "n_decoder_layers": 2, "vocab_size": 103}
    return preset("llama-1b", **sizes)


def arriving(session: Session) -> None:
    """Requests of mixed lengths, of which 64 are always under way, beside closed batches of 64."""
    config = llama(session, 2048)
    n_requests, longest = (256, 384) if not session.quick else (8, 12)
    in_flight = IN_FLIGHT if not session.quick else 4
    engine = Engine(fresh(Decoder, config, session))
    random = np.random.default_rng(0)
    lengths = random.integers(longest // 6, longest, n_requests)
    mixed = [request(config, random, int(x) // 3, int(x)) for x in lengths]
    mean = int(lengths.mean())
    even = [request(config, random, mean // 3, mean) for _ in range(in_flight)]
    for _ in range(1 if session.quick else 25):  # so often that steps of 64 rows are compiled
        served(engine, mixed[:in_flight], in_flight)
    while engine.is_compiling:
        time.sleep(0.1)
    rates = {
        "qkv": rate(lambda: served(engine, mixed, in_flight, drain=False)),
        "closed batches": rate(lambda: served(engine, even, in_flight)),
    }
    name = f"Llama 1.24B, {n_requests} requests of mixed lengths, {in_flight} under way"
    session.record("engine.arriving", name, rates.pop("qkv"), "tokens/s", rates)


def request(config: ModelConfig, random: np.random.Generator, n_prompt: int, limit: int) -> Request:
    """A random prompt after which nothing ends the text before its limit."""
    prompt = random.integers(config.vocab_size, size=max(1, n_prompt)).tolist()
    return Request(tuple(prompt), limit, (config.vocab_size,), RULES)


def served(engine: Engine, requests: Sequence[Request], in_flight: int, drain: bool = True) -> int:
    """Submit a request whenever one is done; return the tokens generated.

    Unless it is to `drain`, it ends with the last one submitted, while as many as ever are under
    way.
    """
    waiting = list(requests)
    handles = [engine.submit(waiting.pop()) for _ in range(min(in_flight, len(waiting)))]
    running = set(handles)
    while running and (drain or waiting):
        for event in engine.step():  # several of these may be of one request's last steps
            if event.handle.is_done and event.handle in running:
                running.discard(event.handle)
                if waiting:
                    handles.append(engine.submit(waiting.pop()))
                    running.add(handles[-1])
    n_tokens = sum(len(handle.tokens) for handle in handles)
    for handle in running:
        engine.cancel(handle)
    return n_tokens


def rate(work: Callable[[], int], repeats: int = 3) -> float:
    """Tokens per second of the fastest of some calls, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        n_tokens = work()
        synchronize()
        times.append((time.perf_counter() - start) / n_tokens)
    return round(1 / min(times), 1)


def context(session: Session) -> None:
    """A chat whose context has room for 8,192 tokens, 200 of them filled, beside one for 256."""
    rates = {}
    room, n_tokens = (8192, 200) if not session.quick else (64, 8)
    for name, size in {"qkv": room, "a context of 256": 256 if not session.quick else 32}.items():
        config = llama(session, size)
        engine = warm_engine(fresh(Decoder, config, session))
        random = np.random.default_rng(0)
        asked = request(config, random, n_tokens, size - n_tokens)
        n_heard = min(50, size - n_tokens)
        rates[name] = rate(lambda engine=engine, asked=asked, n=n_heard: heard(engine, asked, n))
    name = f"Llama 1.24B, a chat at {n_tokens} of {room:,} tokens"
    session.record("engine.context", name, rates.pop("qkv"), "tokens/s", rates)


def heard(engine: Engine, request: Request, n_tokens: int) -> int:
    """Listen to the first tokens of an answer."""
    stream = engine.stream(engine.submit(request))
    for _ in range(n_tokens):
        next(stream)
    stream.close()
    return n_tokens


def main(arguments: Sequence[str] | None = None) -> Session:
    return run(body, speed_parser("bench.engine", __doc__), arguments)


if __name__ == "__main__":
    main()
