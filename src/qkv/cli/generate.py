"""`qkv generate`: prompts in, prompts with what comes after them out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from qkv.cli import options
from qkv.cli.common import Advance, Answering, answer_lines, given_lines, load_as, named_by_options
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks import Completion, LanguageModel


@options.with_decoding("beams", "n_best", "stop", "repetition_penalty", *options.WRITES)
def answering(
    *,
    model: options.Model,
    greedy: options.Greedy = False,
    truncate: options.Truncate = False,
    as_json: options.Json = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    **settings: Any,
) -> Answering:
    """Go on from prompts, one a line."""
    settings = options.search_or_draw(settings, greedy)
    speaker = load_language_model(model, device, dtype)
    check_seed(speaker, model, settings)

    def ask(lines: list[str], done: int, advance: Advance | None) -> list[list[Completion]]:
        return speaker.n_best(lines, truncate=truncate, progress=advance, first=done, **settings)

    def stream(prompt: str, done: int) -> Iterator[str]:
        return speaker.stream(prompt, truncate=truncate, first=done, **settings)

    config = speaker.settings(settings)
    grows = config.n_best == 1 and (config.sample or config.beams == 1) and not as_json
    show = _as_json if as_json else _as_text
    return Answering(speaker, ask, show, stream=stream if grows else None)


@options.with_options_of(answering)
def generate(prompt: options.Texts = None, input_: options.Input = None, **settings: Any) -> None:
    """Go on from a prompt; one alone is shown as it grows.

    \b
    Example: qkv generate --model runs/shakespeare "ROMEO:" --max-length 200
    Example: qkv generate --model runs/poetry_zh 床前明月光， --seed 7
    """
    batches = given_lines(prompt, input_)
    _, ask, show, stream = answering(**settings)
    done = 0
    for lines in batches:
        if stream and len(lines) == 1:
            _show(lines[0], stream, done)
        else:
            answer_lines([lines], ask, show, done)
        done += len(lines)


def load_language_model(folder: str, device: str, dtype: str | None) -> LanguageModel:
    """Load a model that must be a language model."""
    from qkv.tasks import LanguageModel

    return load_as(folder, device, dtype, LanguageModel, "language model")


def check_seed(speaker: LanguageModel, folder: str, settings: dict[str, Any]) -> None:
    """Refuse a seed where nothing is drawn."""
    if "seed" in settings and not speaker.settings(settings).sample:
        raise UserError(
            f"--seed has no effect, because {folder} decodes without random draws; add "
            f"--temperature 1 to draw, or leave --seed out."
        )


def _show(prompt: str, stream: Callable[[str, int], Iterator[str]], done: int) -> None:
    with named_by_options(done):
        pieces = stream(prompt, done)
        first = next(pieces, "")  # a prompt that cannot be continued is refused before it is shown
    for piece in chain([prompt + first], pieces):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print(flush=True)


def _as_text(prompt: str, completions: Sequence[Completion]) -> str:
    return "\n".join(f"{prompt}{best.text}" for best in completions)


def _as_json(prompt: str, completions: Sequence[Completion]) -> str:
    names = ("text", "log_probability", "finished", "stopped")
    found = [{name: getattr(best, name) for name in names} for best in completions]
    content = {"prompt": prompt, **found[0]} | ({"n_best": found} if len(found) > 1 else {})
    return json.dumps(content, ensure_ascii=False)
