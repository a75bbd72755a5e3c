"""The server under load: clients at once with mixed tasks and lengths, beside one at a time.

    python -m bench.serve                        # a minute, 16 clients
    python -m bench.serve --clients 32 --seconds 600 --save

`qkv serve` runs in a process of its own with the packaged translator, a language model and a
classifier (both of random weights). Each request is first answered alone; with many clients at
once, every answer must be the same. Both are measured in turns, so that other load affects both
alike. It fails on an error, a wrong answer, or memory that grows.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
import torch

from bench.measure import Session, parser, run
from qkv.config import DecodeConfig, preset
from qkv.errors import UserError
from qkv.model import Decoder, Encoder
from qkv.shelf import packaged
from qkv.tasks import Classifier, LanguageModel
from qkv.tasks.classify import Classes
from qkv.text import Tokenizer

SENTENCES = """我爱你
你好吗？
我不知道。
他每天早上喝一杯咖啡。
今天天气很好，我们去公园吧。
我昨天在图书馆看了一本很有意思的书。
她的妹妹在一家大公司工作，每天都很忙。
如果明天不下雨，我们就和朋友一起去爬山。"""
ROUNDS = 3  # of one client at a time and many at once, in turns
MOST_GROWTH = 1.1  # memory after the first round, to the end
TOLERANCE = 1e-3  # of probabilities; another batch rounds differently


@dataclass
class Measured:
    """What many requests have come to."""

    seconds: list[float] = field(default_factory=list)
    elapsed: float = 0.0
    cpu: float = 0.0  # seconds of the server's processors
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.seconds) / self.elapsed

    @property
    def cpu_rate(self) -> float:
        """Requests a second of the server's processors, which other programs hardly change."""
        return len(self.seconds) / self.cpu


def body(session: Session) -> None:
    """Measure the mix."""
    options = session.options
    alone, together, memory = Measured(), Measured(), []
    with tempfile.TemporaryDirectory() as folder, server(Path(folder), session) as (pid, url):
        asked = requests()
        answers = asyncio.run(first_answers(url, asked))
        for _ in range(ROUNDS):
            for measured, n_clients in ((alone, 1), (together, options.clients)):
                share, before = options.seconds / ROUNDS / 2, cpu_seconds(pid)
                asyncio.run(load(url, asked, answers, n_clients, share, measured))
                measured.cpu += cpu_seconds(pid) - before
            memory.append(resident(pid))
    check(alone, together, memory)
    p50, p95, p99 = (quantiles(together.seconds, n=100)[at] for at in (49, 94, 98))
    session.record(
        "serve.mixed",
        f"{options.clients} clients at once, {len(asked)} different requests",
        {
            "requests/s": round(together.rate, 2),
            "one client, requests/s": round(alone.rate, 2),
            "ratio": round(together.rate / alone.rate, 2),
            "ratio by CPU time": round(together.cpu_rate / alone.cpu_rate, 2),
            "p50, s": round(p50, 3),
            "p95, s": round(p95, 3),
            "p99, s": round(p99, 3),
            "MiB": round(memory[-1] / 2**20),
        },
        check=f"{len(together.seconds)} answers as alone, no error; memory "
        f"{memory[-1] / memory[0]:.2f} times that after the first round",
    )


def check(alone: Measured, together: Measured, memory: list[int]) -> None:
    """Refuse figures of a server that made mistakes."""
    for measured in (alone, together):
        if measured.errors:
            raise UserError(f"{len(measured.errors)} errors, such as {measured.errors[0]}.")
        if measured.wrong:
            raise UserError(f"{len(measured.wrong)} wrong answers, such as {measured.wrong[0]}.")
    if memory[-1] > MOST_GROWTH * memory[0]:
        raise UserError(f"The server's memory grew from {memory[0]:,} to {memory[-1]:,} bytes.")


def requests() -> list[tuple[str, dict[str, Any]]]:
    """Requests of three tasks and many lengths."""
    sentences, draw = SENTENCES.splitlines(), random.Random(0)
    found: list[tuple[str, dict[str, Any]]] = []
    for sentence in sentences:
        found.append(("/translate", {"q": sentence, "source": "zh", "target": "en"}))
        found.append(("/classify", {"texts": [sentence * draw.randint(1, 4)]}))
        for stream in (False, True):
            limit = draw.choice([8, 16, 32, 64])
            prompt = sentence * draw.randint(1, 3)
            found.append(
                ("/v1/completions", {"prompt": prompt, "max_tokens": limit, "stream": stream})
            )
    for _, content in found:
        if "prompt" in content:
            content |= {"model": "writer", "temperature": 0}
    return found


async def ask(client: httpx.AsyncClient, path: str, content: dict[str, Any]) -> Any:
    """Ask for something; return what matters of the answer."""
    answer = await client.post(path, json=content)
    if answer.status_code != 200:
        raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:200]}")
    if content.get("stream"):
        if "data: [DONE]" not in answer.text or '"error"' in answer.text:
            raise RuntimeError(f"{path}: a stream ended early: …{answer.text[-300:]}")
        return [line for line in answer.text.splitlines() if '"text"' in line and _has_text(line)]
    found = answer.json()
    if path == "/translate":
        return found["translatedText"]
    return found["results"] if path == "/classify" else found["choices"][0]["text"]


def _has_text(line: str) -> bool:
    return '"text": ""' not in line


def equal(found: Any, expected: Any) -> bool:
    """Whether two answers are the same: texts exactly, probabilities up to rounding."""
    if isinstance(expected, float):
        return abs(found - expected) < TOLERANCE
    if isinstance(expected, dict):
        return all(equal(found[name], value) for name, value in expected.items())
    if isinstance(expected, list):
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(equal(one, two) for one, two in pairs)
    if isinstance(expected, str) and expected.startswith("data: "):
        return found.partition('"choices"')[2] == expected.partition('"choices"')[2]
    return bool(found == expected)


async def first_answers(url: str, asked: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """The answer of each request alone; also loads all models."""
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        return [await ask(client, *request) for request in asked]


async def load(
    url: str,
    asked: list[tuple[str, dict[str, Any]]],
    answers: list[Any],
    n_clients: int,
    seconds: float,
    measured: Measured,
) -> None:
    """Let clients ask one request after the other for some time."""

    async def one(number: int, client: httpx.AsyncClient) -> None:
        # All sides ask for the same, each client beginning elsewhere.
        at = number * len(asked) // n_clients
        while time.perf_counter() < end:
            begun = time.perf_counter()
            try:
                found = await ask(client, *asked[at % len(asked)])
            except (httpx.HTTPError, RuntimeError) as error:
                measured.errors.append(f"{type(error).__name__}: {error}")
            else:
                measured.seconds.append(time.perf_counter() - begun)
                if not equal(found, answers[at % len(asked)]):
                    measured.wrong.append(f"{asked[at % len(asked)]}: {found}")
            at += 1

    async with AsyncExitStack() as stack:
        # To make a client takes 15 ms, for the certificates of HTTPS: they are made beforehand.
        made = [
            httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) for _ in range(n_clients)
        ]
        clients = [await stack.enter_async_context(client) for client in made]
        start = time.perf_counter()
        end = start + seconds
        await asyncio.gather(*(one(number, client) for number, client in enumerate(clients)))
        measured.elapsed += time.perf_counter() - start


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Seconds of the processors that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(folder: Path, session: Session) -> Iterator[tuple[int, str]]:
    """`qkv serve` with the packaged translator and two models of random weights."""
    writer, labeller = save_models(folder)
    command = [sys.executable, "-m", "qkv", "serve", "zh-en", str(writer), str(labeller)]
    # In bfloat16 the rows of a batch round one another: answers would not always be those alone.
    command += ["--port", "0", "--device", session.device.type]
    command += ["--dtype", "fp32"] if session.on_gpu else []
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            if not first:
                raise UserError(f"The server did not start: {(folder / 'log').read_text()[-1000:]}")
            yield process.pid, first.split()[-1]
        finally:
            process.terminate()
            process.wait(60)


def save_models(folder: Path) -> tuple[Path, Path]:
    """Save a language model and a classifier of random weights, with the translator's pieces."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.load(packaged()["zh-en"] / "tokenizer.json")
    ids = {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}
    sizes = {"d_model": 256, "n_heads": 4, "vocab_size": len(tokenizer), "max_length": 256, **ids}
    decoder = Decoder(preset("llama-mini", **sizes, n_kv_heads=4))
    encoder = Encoder(preset("bert-mini", **sizes, head="sequence", n_labels=3))
    paths = folder / "writer", folder / "labeller"
    for path in paths:
        path.mkdir()
    LanguageModel(decoder, tokenizer, DecodeConfig(beams=1)).save(paths[0])
    Classifier(encoder, tokenizer, Classes(("one", "two", "three"))).save(paths[1])
    return paths


if __name__ == "__main__":
    arguments = parser("bench.serve", __doc__)
    arguments.add_argument("--clients", type=int, default=16, help="clients at once")
    arguments.add_argument("--seconds", type=float, default=60.0, help="of both sides together")
    run(body, arguments)
