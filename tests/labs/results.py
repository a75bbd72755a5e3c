"""What the labs measured when docs/labs was made, as their own dataclasses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qkv_labs import Lab, find, stored

FOLDER = Path(__file__).parents[2] / "docs" / "labs"


def result(name: str) -> dict[str, Any]:
    """The JSON that a lab wrote."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def measured(lab: Lab[Any]) -> Any:
    """What the lab measured."""
    return stored.measured(lab, result(lab.name)["measured"])


def outcomes(name: str, figures: Any) -> dict[str, str]:
    """The outcome of each sub-claim of a lab, by its name, on some figures."""
    return {claim.name: claim.outcome for claim in find(name).judge(figures).sub_claims}
