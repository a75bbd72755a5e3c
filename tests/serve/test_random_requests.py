"""Random requests made from the OpenAPI description never find a mistake of the server's.

Ten thousand of them: python -m bench.requests
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.requests import ask_at_random
from tests.serve.conftest import running

N_REQUESTS = 120


@pytest.mark.timeout(300)
def test_no_random_request_is_answered_with_a_mistake_of_ours(folders: dict[str, Path]) -> None:
    pytest.importorskip("schemathesis", reason="needs schemathesis")
    given = [str(folder) for folder in folders.values()]
    with running(given) as server, server.client() as client:
        statuses = ask_at_random(client, N_REQUESTS)
        assert client.get("/health").status_code == 200
    assert not [status for status in statuses if status >= 500]
    assert sum(statuses.values()) > N_REQUESTS / 2
