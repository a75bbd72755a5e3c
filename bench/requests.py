"""Random requests made from the server's OpenAPI description: `python -m bench.requests`.

Schemathesis makes them, half-right and wrong ones among them, for every path; most name a model and
an action that exist, so that they reach the models, a tiny one of every kind. None may be answered
with a mistake of the server's (5xx). Writes the counts to docs/reliability.json; exits with 1 where
one failed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from bench import outcomes

SENT = ("method", "url", "json", "data", "content", "params", "headers")
UNSENDABLE = (httpx.InvalidURL, UnicodeEncodeError, httpx.LocalProtocolError)
ROUND = 1000  # requests of one seed
MEANT = 0.8  # share of requests whose model and action exist
ACTIONS = ("translate", "continue", "chat", "fill", "embed", "classify", "tag", "answer")


def ask_at_random(client: httpx.Client, times: int, seed: int = 0) -> Counter[int]:
    """Send about so many requests over all operations; return how many had each status."""
    import schemathesis

    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    found = [operation.ok() for operation in schema.get_all_operations()]
    operations = [operation for operation in found if not operation.path.endswith("/structure")]
    models = [model["id"] for model in client.get("/v1/models").json()["data"]]
    draw, statuses = random.Random(seed), Counter[int]()

    def ask(case: Any) -> None:
        if draw.random() < MEANT:
            for given in (case.path_parameters, case.body):
                if isinstance(given, dict):
                    known = {"model": draw.choice(models), "action": draw.choice(ACTIONS)}
                    given.update({name: known[name] for name in known if name in given})
        statuses.update([_status(client, case)])

    for operation in operations:
        is_read = operation.method.upper() == "POST"
        n_examples = max(1, times // len(operations)) if is_read else 2
        _each(operation, n_examples, seed, ask)
    del statuses[0]
    return statuses


def _each(operation: Any, count: int, number: int, call: Callable[[Any], None]) -> None:
    """Call a function with random cases of an operation."""
    from hypothesis import HealthCheck, Phase, given, seed, settings

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        call(case)

    ask()


def _status(client: httpx.Client, case: Any) -> int:
    """Send a case; 0: this client cannot."""
    arguments = case.as_transport_kwargs(base_url=str(client.base_url).rstrip("/"))
    try:
        answer = client.request(**{name: arguments[name] for name in SENT if name in arguments})
    except UNSENDABLE:
        return 0
    if answer.status_code >= 500:
        print(answer.status_code, case.as_curl_command(), answer.text, flush=True)
    return answer.status_code


def main(arguments: Sequence[str] | None = None) -> None:
    from tests.serve.conftest import running, save_tiny_models

    parser = argparse.ArgumentParser("bench.requests", description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-save", action="store_true", help="leave docs/reliability.json")
    options = parser.parse_args(arguments)
    statuses: Counter[int] = Counter()
    start, seed = time.perf_counter(), options.seed
    with tempfile.TemporaryDirectory(prefix="qkv-requests-") as scratch:
        folders = save_tiny_models(Path(scratch))
        with running([str(folder) for folder in folders.values()]) as server:
            while sum(statuses.values()) < options.times:
                with server.client() as client:
                    statuses += ask_at_random(client, ROUND, seed)
                seed += 1
                print(dict(statuses), flush=True)
    kinds = Counter(dict.fromkeys((2, 4, 5), 0))
    for status, count in statuses.items():
        kinds[status // 100] += count
    outcome = {
        "random requests": sum(statuses.values()),
        "answered": kinds[2],
        "refused": kinds[4],
        "mistakes of the server": kinds[5],
        "passed": not kinds[5],
        "seconds": round(time.perf_counter() - start),
    }
    print(outcome)
    if not options.no_save:
        outcomes.save("requests", outcome, "bench.requests")
    sys.exit(bool(kinds[5]))


if __name__ == "__main__":
    main()
