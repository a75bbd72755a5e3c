"""Random requests made from the OpenAPI description never find a mistake of the server's.

Ten thousand of them: QKV_RANDOM_REQUESTS=10000 python -m pytest tests/serve/test_random_requests.py
"""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from tests.serve.conftest import Running, running

N_REQUESTS = int(os.environ.get("QKV_RANDOM_REQUESTS", "220"))


@pytest.mark.timeout(max(300, N_REQUESTS))
def test_no_random_request_is_answered_with_a_mistake_of_ours(
    folders: dict[str, Path],
) -> None:
    with running([str(folder) for folder in folders.values()]) as server:
        ask_at_random(server)


def ask_at_random(server: Running) -> None:
    from hypothesis import HealthCheck, Phase, given, settings

    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")

    with server.client() as client:
        description = client.get("/openapi.json").json()
        schema = schemathesis.openapi.from_dict(description)
        operations = [
            found.ok()
            for found in schema.get_all_operations()
            if not found.ok().path.endswith("/structure")
        ]
        assert len(operations) > 15
        for operation in operations:
            is_read = operation.method.upper() == "POST"
            n_examples = max(1, N_REQUESTS // len(operations)) if is_read else 2

            @settings(
                max_examples=n_examples,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],
            )
            @given(case=operation.as_strategy())
            def ask(case: schemathesis.Case) -> None:
                arguments = case.as_transport_kwargs(base_url=server.url)
                arguments = {
                    name: value
                    for name, value in arguments.items()
                    if name in ("method", "url", "json", "data", "content", "params", "headers")
                }
                try:
                    answer = client.request(**arguments)
                except (httpx.InvalidURL, UnicodeEncodeError, httpx.LocalProtocolError):
                    return  # which this client cannot send
                assert answer.status_code < 500, (case.as_curl_command(), answer.text)

            ask()
        assert client.get("/health").status_code == 200
