"""Models of the Hugging Face hub, fetched with its own library if that is installed."""

from __future__ import annotations

import glob
import importlib.util
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import UserError, missing_package
from qkv.hub.choose import needed_files
from qkv.hub.staging import (
    FULL,
    Arrival,
    check_room,
    check_sha256,
    on_shelf,
    put_on_shelf,
    staging_folder,
)
from qkv.shelf import Pulled

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def pull_repository(
    name: str, *, revision: str | None = None, file: str | None = None, force: bool = False
) -> Arrival:
    """Put a repository's model on the shelf, unless this revision and file of it are there."""
    if not NAME.fullmatch(name) or "--" in name:
        raise UserError(f"{name} is no name on the hub; such a name is owner/name.")
    before = on_shelf(name)
    if before and not force:
        _check_same(before, revision, file)
        return Arrival(before, is_new=False)
    if importlib.util.find_spec("huggingface_hub") is None:
        raise missing_package(f"Fetching {name} from the hub", "huggingface_hub", "hub")
    info = _look_up(name, revision)
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    wanted = needed_files(name, list(sizes), file)
    with staging_folder(name) as folder:
        model = folder / "model"
        missing = [path for path in wanted if not (model / path).exists()]
        check_room(folder, sum(sizes[path] for path in missing))
        _download(name, info, wanted, model)
        source = _source(info, revision, file, _check_files(name, info, wanted, model))
        return Arrival(put_on_shelf(model, name, source), is_new=True)


def _check_same(before: Pulled, revision: str | None, file: str | None) -> None:
    """Raise an error if the shelf has another revision or file of the model."""
    for option, asked in (("revision", revision), ("file", file)):
        pulled = before.source.get(option)
        if asked and asked not in (pulled, before.source.get("commit")):
            raise UserError(
                f"{before.name} is on the shelf already, pulled with "
                f"{f'--{option} {pulled}' if pulled else f'no --{option}'}; --force replaces it."
            )


def _look_up(name: str, revision: str | None) -> ModelInfo:
    from huggingface_hub import HfApi

    with _sentences(name, revision):
        return HfApi().model_info(name, revision=revision, files_metadata=True)


def _download(name: str, info: ModelInfo, wanted: list[str], model: Path) -> None:
    """Fetch the missing files, with the library's own bars; complete files stay."""
    from huggingface_hub import snapshot_download

    with _sentences(name, info.sha):
        snapshot_download(
            name,
            revision=info.sha,
            local_dir=model,
            allow_patterns=[glob.escape(file) for file in wanted],
        )


def _check_files(name: str, info: ModelInfo, wanted: list[str], model: Path) -> dict[str, str]:
    """Check each file's size and hash against the hub's; return the hashes of the large ones."""
    hashes = {}
    for sibling in info.siblings or ():
        file, size = sibling.rfilename, sibling.size
        if file not in wanted:
            continue
        path = model / file
        if not path.is_file() or (size is not None and path.stat().st_size != size):
            path.unlink(missing_ok=True)
            raise UserError(f"{file} of {name} did not arrive as a whole; run the command again.")
        if sibling.lfs:
            check_sha256(path, sibling.lfs.sha256, f"{file} of {name}")
            hashes[file] = sibling.lfs.sha256
    for path in [path for path in model.rglob("*") if path.is_file()]:
        if path.relative_to(model).as_posix() not in wanted:
            path.unlink()  # of an earlier try that asked for something else
    shutil.rmtree(model / ".cache", ignore_errors=True)  # the library's notes on its downloads
    return hashes


def _source(
    info: ModelInfo, revision: str | None, file: str | None, hashes: dict[str, str]
) -> dict[str, Any]:
    card = info.card_data
    return {
        "repository": info.id,
        "revision": revision,
        "commit": info.sha,
        "file": file,
        "sha256": hashes,
        "licence": card.get("license") if card else None,
        "task": info.pipeline_tag,
    }


@contextmanager
def _sentences(name: str, revision: str | None) -> Iterator[None]:
    """Turn the library's exceptions into user errors."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(
            f"{name} is given only to those who have agreed to its terms; agree to them on its "
            f"page, log in with `hf auth login`, and run the command again."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"There is no model {name} on the hub, or it is private; check the name, or log in "
            f"with `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{name} has no revision {revision!r}; check --revision.") from error
    except Exception as error:  # each version of the library has another HTTP client
        if isinstance(error, OSError) and (error.errno in FULL or error.filename):
            raise  # it is the disk
        reason = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        raise UserError(
            f"The hub did not give {name} ({type(error).__name__}: {reason}); check the network "
            f"and run the command again, which keeps the files that have arrived."
        ) from error
