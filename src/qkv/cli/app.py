"""The table of commands."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import typer

from qkv.cli.options import with_adapter

MAKERS = ("demo", "plan", "train", "distill", "backtranslate")
WRITERS = ("translate", "generate", "chat")
READERS = ("fill", "embed", "classify", "tag", "answer")
TOOLS = ("bulk", "evaluate", "convert", "verify", "inspect")
COMMANDS = (*MAKERS, *WRITERS, *READERS, *TOOLS, "lab", "pull", "serve")
"""Names of the commands: each is the function of this name in the module of this name.

`bulk` is a table of commands itself.
"""
ADAPTABLE = (*WRITERS, *READERS, *TOOLS)  # those that load a model


def command_line(arguments: Sequence[str]) -> typer.Typer:
    """Build the command line for these arguments: the command that they begin with, or all."""
    app = typer.Typer(
        name="qkv",
        help="The whole Transformer in one small package: train it, run it fast, look inside.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(version)
    named = [name for name in COMMANDS if name in arguments[:1]]
    for name in named or COMMANDS:
        command = getattr(import_module(f"qkv.cli.{name}"), name)
        if name == "bulk":
            app.add_typer(command(arguments[1:]), name=name)
            continue
        app.command(name)(with_adapter(command) if name in ADAPTABLE else command)
    return app


def version(
    show: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    """Answer `qkv --version`."""
    if show:
        from qkv import __version__

        print(f"qkv {__version__}")
        raise typer.Exit
