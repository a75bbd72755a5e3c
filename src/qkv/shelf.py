"""The shelf: where packaged and pulled models live, and how a name finds one of them."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from qkv.errors import UserError

SOURCE = "SOURCE.json"  # what a pulled model is and where it came from
PACKAGED = Path(__file__).parent / "packaged"  # models that are part of the installation
TRANSLATOR = "zh-en"  # the packaged model that `qkv translate` uses by default
ENCODER = "mini-bert"  # the packaged model that `qkv fill` uses by default
SHORT_NAMES = ("minilm", "mpnet", "smollm2")  # what `qkv pull` knows by a short name


@dataclass(frozen=True)
class Pulled:
    """A model on the shelf."""

    name: str
    folder: Path

    @property
    def path(self) -> Path:
        """What loads: the folder, or the file itself where one GGUF file is all of the model."""
        files = list(self.folder.glob("*.gguf"))
        alone = len(files) == 1 and not (self.folder / "config.json").exists()
        return files[0] if alone else self.folder

    @cached_property
    def source(self) -> dict[str, Any]:
        """Where it came from; empty for a folder that somebody put on the shelf by hand."""
        try:
            found = json.loads((self.folder / SOURCE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def size(self) -> int:
        """The bytes that it takes on the disk."""
        return folder_size(self.folder)


def folder_size(folder: Path) -> int:
    """The bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def home() -> Path:
    """The folder of all that qkv fetches: $QKV_HOME, or `qkv` in the user's cache folder."""
    if own := os.environ.get("QKV_HOME"):
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache).expanduser() if cache else Path.home() / ".cache") / "qkv"


def folder_of(name: str) -> Path:
    """Where the model of this name stands, or will stand; `owner/name` becomes `owner--name`."""
    return home() / "models" / name.replace("/", "--")


def pulled() -> list[Pulled]:
    """All models on the shelf, by name."""
    models = home() / "models"
    if not models.is_dir():
        return []
    folders = sorted(folder for folder in models.iterdir() if folder.is_dir())
    return [Pulled(folder.name.replace("--", "/", 1), folder) for folder in folders]


def packaged() -> dict[str, Path]:
    """The folders of the models that come with the package, by name."""
    return {path.parent.name: path.parent for path in sorted(PACKAGED.glob("*/config.json"))}


def split_adapter(name: str | Path) -> tuple[str | Path, Path | None]:
    """Split `BASE+ADAPTER`, a model with a LoRA adapter, into both; a path that exists is one."""
    base, plus, adapter = str(name).rpartition("+") if isinstance(name, str | Path) else ("",) * 3
    if not plus or _exists(name) or not _exists(adapter) or not Path(adapter).is_dir():
        return name, None
    return base, Path(adapter)


def find_model(name: str | Path) -> Path:
    """The path of a model that a person names: a path that exists, a packaged or a pulled model.

    A packaged name comes after a pulled one, but before the last part of a pulled one.
    """
    if not isinstance(name, str | Path) or str(name) == "":
        raise UserError(
            f"A model is named by its path, or by its packaged or pulled name, but {name!r} was "
            f"given; give a path or a name."
        )
    if _exists(name):
        return Path(name)
    asked, shelf = str(name), pulled()
    for model in shelf:
        if model.name == asked:
            return model.path
    if asked in packaged():
        return packaged()[asked]
    matches = [model for model in shelf if model.name.rpartition("/")[2] == asked]
    if len(matches) > 1:
        names = " or ".join(model.name for model in matches)
        raise UserError(f"{asked} may be {names} on the shelf; give the full name.")
    if matches:
        return matches[0].path
    raise UserError(_not_found(asked, shelf))


def _exists(path: str | Path) -> bool:
    """Whether there is a file or folder; a name that is too long for one is that of none."""
    try:
        return Path(path).exists()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False


def _not_found(asked: str, shelf: list[Pulled]) -> str:
    pulled_names = ", ".join(model.name for model in shelf)
    on_shelf = f"the shelf has {pulled_names}" if pulled_names else "the shelf is empty"
    if asked in SHORT_NAMES:
        way_out = f"fetch it with `qkv pull {asked}`."
    else:
        way_out = "check the path, train one with `qkv train`, or see `qkv pull --list`."
    in_package = ", ".join(packaged())
    return (
        f"{asked} is neither a path that exists nor a packaged model ({in_package}) nor a pulled "
        f"one ({on_shelf}); {way_out}"
    )
