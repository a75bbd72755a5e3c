"""`qkv generate`: prompts in, prompts with what comes after them out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from qkv.cli import options
from qkv.cli.common import Advance, answer_lines, given_lines, load_as, named_by_options
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks import Completion, LanguageModel

# Options that `generate` and `chat` share
DRAWN = (
    "max_length",
    "min_length",
    "stop",
    "repetition_penalty",
    "no_repeat",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
)


@options.with_decoding("beams", "n_best", *DRAWN)
def generate(
    prompt: options.Texts = None,
    *,
    model: options.Model,
    greedy: options.Greedy = False,
    truncate: options.Truncate = False,
    as_json: options.Json = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    **settings: Any,
) -> None:
    """Go on from a prompt; one alone is shown as it grows.

    \b
    Example: qkv generate --model runs/shakespeare "ROMEO:" --max-length 200
    Example: qkv generate --model runs/poetry_zh 床前明月光， --seed 7
    """
    settings = options.search_or_draw(settings, greedy)
    batches = given_lines(prompt)
    speaker = load_language_model(model, device, dtype)
    check_seed(speaker, model, settings)
    config = speaker.settings(settings)
    grows = config.n_best == 1 and (config.sample or config.beams == 1)

    def ask(lines: list[str], done: int, advance: Advance | None) -> list[list[Completion]]:
        return speaker.n_best(lines, truncate=truncate, progress=advance, first=done, **settings)

    done = 0
    for lines in batches:
        if grows and len(lines) == 1 and not as_json:
            _show(speaker, lines[0], truncate=truncate, first=done, **settings)
        else:
            answer_lines([lines], ask, _as_json if as_json else _as_text, done)
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


def _show(speaker: LanguageModel, prompt: str, **settings: Any) -> None:
    """Print a text as it comes."""
    with named_by_options(settings["first"]):
        pieces = speaker.stream(prompt, **settings)
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
