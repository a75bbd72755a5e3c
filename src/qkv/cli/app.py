"""The table of commands."""

from __future__ import annotations

from collections.abc import Callable

import typer

from qkv.cli.answer import answer
from qkv.cli.chat import chat
from qkv.cli.classify import classify
from qkv.cli.convert import convert
from qkv.cli.demo import demo
from qkv.cli.embed import embed
from qkv.cli.evaluate import evaluate
from qkv.cli.fill import fill
from qkv.cli.generate import generate
from qkv.cli.inspect import inspect
from qkv.cli.lab import lab
from qkv.cli.pull import pull
from qkv.cli.tag import tag
from qkv.cli.train import train
from qkv.cli.translate import translate
from qkv.cli.verify import verify

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "train": train,
    "translate": translate,
    "generate": generate,
    "chat": chat,
    "fill": fill,
    "embed": embed,
    "classify": classify,
    "tag": tag,
    "answer": answer,
    "evaluate": evaluate,
    "convert": convert,
    "verify": verify,
    "inspect": inspect,
    "lab": lab,
    "pull": pull,
}

app = typer.Typer(
    name="qkv",
    help="The whole Transformer in one small package: train it, run it fast, look inside.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, command in COMMANDS.items():
    app.command(name)(command)


@app.callback(invoke_without_command=True)
def version(
    show: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    """Answer `qkv --version`."""
    if show:
        from qkv import __version__

        print(f"qkv {__version__}")
        raise typer.Exit
