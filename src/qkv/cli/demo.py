"""`qkv demo`: the whole journey on this machine, in about two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options
from qkv.cli.train import program, python, resumable

if TYPE_CHECKING:
    from qkv.run.train import Run

NAMED = ("我爱你", "我爱学习", "我吃了一个苹果")
SAMPLES = 10


def demo(
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    set_: options.Changes = None,
) -> None:
    """Train a Chinese-to-English translator here and try it.

    The corpus comes with the package, a CPU is enough, and held-out sentences score it.

    Example: qkv demo
    """
    from rich.console import Console

    import qkv
    from qkv.config import load_recipe
    from qkv.run.train import train

    recipe = load_recipe(Path(qkv.__file__).parent / "recipes" / "demo.toml", set_ or ())
    with resumable(out):
        run = train(recipe, out, replace=True, console=Console(stderr=True))
    _show(run)


def _show(run: Run) -> None:
    """Print scores on held-out combinations, some translations of them, and what to try next."""
    exact = next(score for score in run.scores["test"] if score.name == "exact match")
    print(f"\nHeld-out combinations, never seen in training: {exact.value:.1f} % exact match")
    for score in run.scores["test"][:2]:
        print(f"  {score}")
    print("\nSamples of them:")
    for source in _samples(run):
        print(f"  {source} → {run.result.translate(source)}")
    ask = f"import qkv; print(qkv.load({str(run.folder)!r}).translate('我爱你'))"
    print(f"\nThe model is in {run.folder}. Try it:")
    print(f'  {program()} translate --model {run.folder} "我爱你"')
    print(f"  {program()} inspect {run.folder} --source 我爱你")
    print(f'  {python()} -c "{ask}"')
    print(f"Try it in the browser: {program()} serve {run.folder}")


def _samples(run: Run) -> list[str]:
    """The sentences that everybody tries, and others from the held-out split."""
    sources = [source for source, _ in run.splits.test if source not in NAMED]
    spread = max(1, len(sources) // (SAMPLES - len(NAMED)))
    return [*NAMED, *sources[::spread]][:SAMPLES]
