"""Pairs that a translator makes: back-translation of target text, and distillation of a teacher.

Both are bulk translation into a file of pairs and a run that trains on it too (`data.synthetic`).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from qkv.config import DataConfig, Recipe, load_recipe
from qkv.data import Pair, Splits, read_lines
from qkv.data.files import text_files
from qkv.device import pick_device
from qkv.errors import UserError
from qkv.files import replacing, write_json
from qkv.run.display import progress_bar, remark
from qkv.run.folder import RECIPE
from qkv.run.train import Run, train
from qkv.run.translate import TranslateJob
from qkv.tasks import Translator, load
from qkv.weights import checksum

PAIRS = "synthetic.jsonl"
REVERSE = "reverse"  # the folder of the run that learns to translate back
CHUNK = 1024  # texts translated between two notes of how far it got
Say = Callable[[str], None]


def backtranslate(
    recipe: Recipe | str | Path,
    text: Sequence[str | Path],
    model: str = "",
    out: str | Path | None = None,
    *,
    sample: bool = False,
    resume: bool = False,
    console: Console | None = None,
) -> Run:
    """Back-translation (Sennrich et al. 2016): train on target text with sources made by a model.

    `text` names files of target sentences, one a line. `model` translates from target to source;
    without one, it is trained first, on the recipe's own pairs. `sample` draws the sources at
    random instead of searching for the best.
    """
    recipe, folder, console = _opened(recipe, out, resume, console)
    splits, say = _splits(recipe, folder, console), partial(remark, console)
    held_out = {target for _, target in (*splits.valid, *splits.test)}
    texts = _texts(text, held_out, say)
    if not model:
        model = str(_train_reverse(recipe, splits, folder / REVERSE, console))
    reverse = _translator(model, recipe, folder)
    settings = {"sample": True, "beams": 1} if sample else {}
    path = translate_to_pairs(
        reverse, texts, folder / PAIRS, back=True, say=say, console=console, **settings
    )
    return _train_on(recipe, path, folder, console)


def distill(
    teacher: str,
    recipe: Recipe | str | Path,
    out: str | Path | None = None,
    *,
    text: Sequence[str | Path] = (),
    resume: bool = False,
    console: Console | None = None,
) -> Run:
    """Sequence-level distillation (Kim and Rush 2016): also train on a teacher's translations.

    The teacher translates all sources that the recipe trains on and, if given, further source
    sentences in the files `text`, one a line.
    """
    recipe, folder, console = _opened(recipe, out, resume, console)
    splits, say = _splits(recipe, folder, console), partial(remark, console)
    held_out = {source for source, _ in (*splits.valid, *splits.test)}
    more = _texts(text, held_out, say) if text else []
    texts = list(dict.fromkeys([*(source for source, _ in splits.train), *more]))
    path = translate_to_pairs(
        _translator(teacher, recipe, folder), texts, folder / PAIRS, say=say, console=console
    )
    return _train_on(recipe, path, folder, console)


def translate_to_pairs(
    translator: Translator,
    texts: Sequence[str],
    path: Path,
    *,
    back: bool = False,
    say: Say = lambda sentence: None,
    console: Console | None = None,
    **settings: Any,
) -> Path:
    """Write each text and its translation to a .jsonl file of pairs; `back` swaps the two.

    What a killed call has translated is in a file beside it, from where the next call goes on.
    Texts that are too long for the model and empty translations are left out.
    """
    fitting = [text for text in texts if text.strip() and _fits(translator, text)]
    if not fitting:
        raise UserError(f"{path}: none of {len(texts):,} texts is short enough to be translated.")
    made_of = _digest(translator, fitting, {"back": back, **settings})
    note = path.with_suffix(".json")
    if path.exists() and note.exists() and json.loads(note.read_text()) == made_of:
        return path
    begun = path.with_name(f".{path.name}.{made_of}.begun")
    done = _whole_lines(begun)
    say(f"translating {len(fitting):,} texts to {path}" + (f", from {done:,} on" if done else ""))
    with progress_bar("translating", len(fitting), console) as progress, begun.open("ab") as file:
        if progress:
            progress(done)
        rest = iter(fitting[done:])
        while chunk := list(islice(rest, CHUNK)):
            outputs = translator.translate(chunk, first=done, progress=progress, **settings)
            for text, output in zip(chunk, outputs, strict=True):
                file.write(_line((output, text) if back else (text, output)))
            file.flush()
            os.fsync(file.fileno())
            done += len(chunk)
    lines = begun.read_bytes().splitlines(True)
    kept = [line for line in lines if all(side.strip() for side in json.loads(line).values())]
    if not kept:
        raise UserError(
            f"{path}: the model gave empty translations alone; train it longer, or use another."
        )
    with replacing(path) as beside:
        beside.write_bytes(b"".join(kept))
    write_json(note, made_of)
    begun.unlink()
    return path


def _line(pair: Pair) -> bytes:
    source, target = pair
    return f"{json.dumps({'source': source, 'target': target}, ensure_ascii=False)}\n".encode()


def _whole_lines(path: Path) -> int:
    """Count the lines of a file that a kill may have left, and cut off one that is not whole."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return 0
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    os.truncate(path, whole)
    return content.count(b"\n")


def _digest(translator: Translator, texts: Iterable[str], settings: dict[str, Any]) -> str:
    """Identify what translations depend on: the weights, the texts, the settings."""
    what = repr((settings, translator.decode, list(texts)))
    return checksum(translator.model.state_dict(), what)


def _fits(translator: Translator, text: str) -> bool:
    around = 2  # BOS and EOS
    ids = translator.tokenizers.source.encode(text)
    return len(ids) + around <= translator.model.config.max_length


def _opened(
    recipe: Recipe | str | Path, out: str | Path | None, resume: bool, console: Console | None
) -> tuple[Recipe, Path, Console]:
    """Load the recipe, and refuse a folder that holds something unless that is resumed."""
    if not isinstance(recipe, Recipe):
        out = out or Path("runs") / Path(recipe).stem
        recipe = load_recipe(Path(recipe))
    folder = Path(out or "runs/model")
    if recipe.task != "translate":
        raise UserError(
            f"Pairs are made for task = 'translate', but the recipe's is '{recipe.task}'; a "
            f"classifier is taught by [teacher] (docs/settings.md)."
        )
    if not resume and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; resume with --resume, or choose another --out.")
    return recipe, folder, console or Console(stderr=True)


def _splits(recipe: Recipe, folder: Path, console: Console) -> Splits[Pair]:
    """Read the recipe's pairs as its run does, with the same ones held out."""
    device, say = pick_device(recipe.train.device), partial(remark, console)
    return TranslateJob(recipe, folder, device, say).read_splits()


def _texts(paths: Sequence[str | Path], held_out: set[str], say: Say) -> list[str]:
    """Read sentences once each, without those that are held out for validation and test."""
    lines = [
        line.strip() for path in text_files(list(map(str, paths))) for line in read_lines(path)
    ]
    texts = [text for text in dict.fromkeys(lines) if text and text not in held_out]
    if not texts:
        raise UserError(
            f"There is no text in {', '.join(map(str, paths))} beside sentences that are held out; "
            f"give files with at least one sentence."
        )
    say(f"text: {len(texts):,} of {len(lines):,} lines, without repeated and held-out ones")
    return texts


def _translator(name: str, recipe: Recipe, folder: Path) -> Translator:
    if Path(name).exists() and Path(name).resolve() == folder.resolve():
        raise UserError(f"{name} is the folder of this run, which would replace it; use another.")
    translator = load(name, recipe.train.device)
    if not isinstance(translator, Translator):
        raise UserError(f"{name} is no translator; name a model folder of task = 'translate'.")
    return translator


def _train_reverse(recipe: Recipe, splits: Splits[Pair], folder: Path, console: Console) -> Path:
    """Train the recipe from target to source, on the same pairs with the same ones held out."""
    if recipe.train.start_from:
        raise UserError(
            f"train.start_from: {recipe.train.start_from} translates from source to target, and "
            f"cannot be the start of the way back; name a model for that with --model."
        )
    values: dict[str, Any] = {
        name: getattr(recipe.data, name) for name in ("max_length", "max_ratio", "bpe_dropout")
    }
    for name, pairs in (("pairs", splits.train), ("valid_pairs", splits.valid)):
        path = folder.with_name(f"{REVERSE}_{name}.jsonl")
        values[name] = (str(path),)
        with replacing(path) as beside:
            beside.write_bytes(b"".join(_line((target, source)) for source, target in pairs))
    back = dataclasses.replace(recipe, data=DataConfig(**values))
    remark(console, f"training the way back in {folder}")
    return train(back, folder, resume=(folder / RECIPE).exists(), console=console).folder


def _train_on(recipe: Recipe, pairs: Path, folder: Path, console: Console) -> Run:
    synthetic = (*recipe.data.synthetic, str(pairs))
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, synthetic=synthetic))
    return train(recipe, folder, resume=(folder / RECIPE).exists(), console=console)
