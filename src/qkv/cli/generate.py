"""`qkv generate`: prompts in, prompts with what comes after them out."""

from __future__ import annotations

import json
import sys
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import sampling
from qkv.cli.common import load_as, progress_bar, read_stdin
from qkv.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkv.tasks import Completion, LanguageModel


def generate(
    prompt: Annotated[
        list[str] | None, typer.Argument(help="How the text begins; none: lines of standard input.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model folder, GGUF file or pulled name.")] = ...,  # type: ignore[assignment]
    max_length: sampling.MaxLength = None,
    min_length: sampling.MinLength = None,
    greedy: sampling.Greedy = False,
    temperature: sampling.Temperature = None,
    top_k: sampling.TopK = None,
    top_p: sampling.TopP = None,
    min_p: sampling.MinP = None,
    repetition_penalty: sampling.Penalty = None,
    no_repeat: sampling.NoRepeat = None,
    seed: sampling.Seed = None,
    stop: sampling.Stop = None,
    beams: Annotated[int | None, typer.Option(help="Search with so many beams.")] = None,
    n_best: Annotated[int | None, typer.Option(help="Texts for each prompt.")] = None,
    draft: Annotated[
        str | None, typer.Option(help="A smaller model that makes --greedy faster.")
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Forget the beginning of over-long prompts.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Go on from a prompt; one alone is shown as it grows.

    \b
    Example: qkv generate --model runs/shakespeare "ROMEO:" --max-length 200
    Example: qkv generate --model runs/poetry_zh 床前明月光， --seed 7
    """
    settings = sampling.decode_settings(
        greedy,
        beams,
        max_length=max_length,
        min_length=min_length,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        no_repeat=no_repeat,
        seed=seed,
        n_best=n_best,
        stop=tuple(stop) if stop else None,
    )
    if draft and not greedy:
        raise UserError("--draft makes greedy search faster and nothing else; add --greedy.")
    prompts = prompt if prompt else read_stdin()
    speaker = load_language_model(model, device)
    helper = load_language_model(draft, device) if draft else None
    if len(prompts) == 1 and not (as_json or draft) and _grows(speaker, settings):
        _show(speaker, prompts[0], truncate, settings)
        return
    with progress_bar(len(prompts)) as advance:
        found = speaker.n_best(
            prompts, draft=helper, truncate=truncate, progress=advance, **settings
        )
    for text, completions in zip(prompts, found, strict=True):
        print(_as_json(text, completions) if as_json else _as_text(text, completions))


def load_language_model(folder: str, device: str) -> LanguageModel:
    """Load a model folder that must hold a language model."""
    from qkv.tasks import LanguageModel

    return load_as(folder, device, LanguageModel, "language model")


def _grows(speaker: LanguageModel, settings: dict[str, Any]) -> bool:
    """Whether there is one text, which is never changed once it is written."""
    config = speaker.settings(settings)
    return config.n_best == 1 and (config.sample or config.beams == 1)


def _show(speaker: LanguageModel, prompt: str, truncate: bool, settings: dict[str, Any]) -> None:
    """Print a text as it comes."""
    pieces = speaker.stream(prompt, truncate=truncate, **settings)
    first = next(pieces, "")  # a prompt that cannot be continued is refused before it is shown
    for piece in chain([prompt + first], pieces):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()


def _as_text(prompt: str, completions: Sequence[Completion]) -> str:
    return "\n".join(f"{prompt}{one.text}" for one in completions)


def _as_json(prompt: str, completions: Sequence[Completion]) -> str:
    best, *others = (
        {
            "text": one.text,
            "log_probability": one.log_probability,
            "finished": one.finished,
            "stopped": one.stopped,
        }
        for one in completions
    )
    content = {"prompt": prompt, **best} | ({"n_best": [best, *others]} if others else {})
    return json.dumps(content, ensure_ascii=False)
