"""What the labs measured when docs/labs was made, as their own dataclasses."""

from __future__ import annotations

import importlib
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
    names = importlib.import_module(f"qkv_labs.{name}").SUB_CLAIMS
    sub_claims = find(name).judge(figures).sub_claims
    return {key: claim.outcome for key, claim in zip(names, sub_claims, strict=True)}
