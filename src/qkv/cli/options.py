"""Options that several commands have, each defined once; those of decoding come from its config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from qkv.config import DRAWING
from qkv.errors import UserError

T = TypeVar("T")
DRAWS = (*DRAWING, "seed")  # settings of random draws
WRITES = ("max_length", "min_length", "no_repeat", *DRAWS)  # of all that write text


def complete_model(incomplete: str) -> list[str]:
    """Names of packaged and pulled models, folders and GGUF files that begin so, for the shell."""
    from qkv.shelf import packaged, pulled

    known = [*packaged(), *(model.name for model in pulled())]
    names = [name for name in known if name.startswith(incomplete)]
    folder, slash, begin = incomplete.rpartition("/")
    here = Path(folder + slash or ".")
    paths = sorted(here.iterdir()) if here.is_dir() else []
    return names + [
        f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}"
        for path in paths
        if path.name.startswith(begin)
        and (begin or not path.name.startswith("."))
        and (path.is_dir() or path.suffix.lower() == ".gguf")
    ]


Texts = Annotated[list[str] | None, typer.Argument(help="Texts; none: lines of standard input.")]


def _model(place: str, default: str = "") -> Any:
    help = f"Model folder, {place}or packaged or pulled name{default}."
    return typer.Option(help=help, autocompletion=complete_model)


Model = Annotated[str, _model("GGUF file, ")]
OptionalModel = Annotated[str | None, _model("GGUF file, ")]
TranslatorModel = Annotated[str | None, _model("", " [default: the packaged zh-en]")]
EncoderModel = Annotated[str | None, _model("", " [default: the packaged mini-bert]")]
Input = Annotated[
    Path | None, typer.Option("--input", help="Instead: a file, a line a text; .gz too.")
]
TextField = Annotated[
    list[str] | None, typer.Option(help="Column or key of the text; twice for a pair.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Load weights as fp32, bf16, int8 or int4; by default integers as they are stored, "
        "floats as fp32, on a GPU as bf16."
    ),
]
Adapter = Annotated[str | None, typer.Option(help="Folder of a LoRA adapter for the model.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long.")]
RecipeFile = Annotated[Path, typer.Argument(help="Recipe in TOML; see recipes/ and docs/train.md.")]


def named_folder(name: str) -> Path:
    """Refuse the empty name, of an unset variable perhaps, which Path takes for this folder."""
    if not name:
        raise typer.BadParameter("the name is empty; write one, or leave the option out.")
    return Path(name)


Out = Annotated[
    Path | None,
    typer.Option(
        metavar="<path>",
        parser=named_folder,
        help="Run folder [default: runs/ and the recipe's name].",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; repeatable."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Resume from the run folder's last checkpoint.")
]
Greedy = Annotated[bool, typer.Option("--greedy", help="Always take the likeliest token.")]


def with_decoding(*names: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command an option for each of these settings of `DecodeConfig`.

    Its **settings receive those that are given.
    """

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @wraps(command)
        def call(**given: Any) -> T:
            settings = {name: given.pop(name, None) for name in names}
            if settings.get("stop") is not None:
                settings["stop"] = tuple(settings["stop"])
            found = {name: value for name, value in settings.items() if value is not None}
            return command(**given, **found)

        options = [_option(*kind) for kind in _decoding_options().items() if kind[0] in names]
        call.__signature__ = _with_options(command, options)  # type: ignore[attr-defined]
        return call

    return decorate


def with_options_of(
    source: Callable[..., Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a function, which its **settings receive."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        options = inspect.signature(source, eval_str=True).parameters.values()
        command.__signature__ = _with_options(command, options)  # type: ignore[attr-defined]
        return command

    return decorate


def with_adapter(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option of an adapter for its model, which is opened under both names."""
    named = inspect.signature(command).parameters
    model = next(name for name in ("model", "source") if name in named)

    @wraps(command)
    def call(adapter: str | None = None, **given: Any) -> None:
        if adapter:
            from qkv.shelf import TRANSLATOR

            if not Path(adapter).is_dir():
                raise UserError(f"--adapter: there is no folder {adapter}; check the path.")
            given[model] = f"{given[model] or TRANSLATOR}+{adapter}"
        command(**given)

    options = [_option("adapter", Adapter)]
    call.__signature__ = _with_options(command, options)  # type: ignore[attr-defined]
    return call


def _option(name: str, kind: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _with_options(
    command: Callable[..., Any], options: Iterable[inspect.Parameter]
) -> inspect.Signature:
    """A command's signature with further options, which its **settings receive."""
    own = inspect.signature(command, eval_str=True)
    kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    return own.replace(parameters=[*kept, *options])


def _decoding_options() -> dict[str, Any]:
    from qkv.config import DecodeConfig

    hints = get_type_hints(DecodeConfig) | {"stop": list[str]}
    return {
        field.name: Annotated[
            hints[field.name] | None,
            typer.Option(help=f"{field.metadata['help'][0].upper()}{field.metadata['help'][1:]}."),
        ]
        for field in fields(DecodeConfig)
    }


def differing(
    command: Callable[..., None], values: Mapping[str, Any], except_for: Sequence[str] = ()
) -> dict[str, Any]:
    """Options of a command that were given another value than their default."""
    usual = {name: known.default for name, known in inspect.signature(command).parameters.items()}
    return {
        name: values[name]
        for name, default in usual.items()
        if name not in except_for and values[name] != default
    }


def search_or_draw(settings: dict[str, Any], greedy: bool) -> dict[str, Any]:
    """Settings of a language model: to name a temperature is to ask for draws."""
    drawn = [name for name in DRAWS if name in settings]
    beams = settings.get("beams")
    searched = "--greedy" if greedy else "--beams" if beams is not None else ""
    if searched and drawn:
        option = drawn[0].replace("_", "-")
        raise UserError(f"--{option} is about random draws, which {searched} rules out; drop one.")
    if greedy and beams not in (None, 1):
        raise UserError(f"--greedy is a search with one beam, but --beams is {beams}; drop one.")
    if searched:
        return {"beams": 1, **settings, "sample": False}
    # A seed alone does not ask for draws where the model decodes greedily.
    return {**settings, "sample": True} if drawn not in ([], ["seed"]) else settings
