"""`qkv verify`: a model in, a table out that says whether its numbers are right."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options
from qkv.cli.common import counting_bar

if TYPE_CHECKING:
    from qkv.proofs import Proof

SIGNS = {True: "✓", False: "✗", None: "–"}


def verify(
    model: Annotated[
        str, typer.Argument(help="Model folder, GGUF file, or packaged or pulled name.")
    ],
    as_json: options.Json = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
) -> None:
    """Prove on this machine that a model's numbers are right.

    Exit code 1 where one is not.

    Differences of logits are in units of their root mean square.

    \b
    Example: qkv verify runs/demo
    Example: qkv verify runs/demo --json
    Example: qkv verify runs/demo --dtype int8
    """
    from qkv.proofs import verify as prove

    with counting_bar("loading") as bar:
        progress = bar and (lambda name, done, total: bar(done, total, name))
        proofs = prove(model, device, progress, dtype)
    if as_json:
        for proof in proofs:
            print(json.dumps(dataclasses.asdict(proof), ensure_ascii=False))
    else:
        _print(proofs)
    if any(proof.passed is False for proof in proofs):
        raise typer.Exit(1)


def _print(proofs: Sequence[Proof]) -> None:
    """The table, and under it what each row means."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table("", "proof", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("largest difference", "limit"):
        table.add_column(heading, justify="right")
    for proof in proofs:
        numbers = proof.difference, None if proof.passed is None else proof.limit
        table.add_row(SIGNS[proof.passed], proof.name, *map(_number, numbers))
    Console().print(table)
    for proof in proofs:
        print(f"{SIGNS[proof.passed]} {proof.name}: {proof.meaning}")
        if proof.note:
            print(f"  ({proof.note})")
    failed = sum(proof.passed is False for proof in proofs)
    passed = sum(proof.passed is True for proof in proofs)
    print(f"{passed} of {passed + failed} proofs passed.")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1e}" if value else "0"
