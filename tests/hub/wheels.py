"""Tiny wheels with a model inside, and a pip that finds them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from pathlib import Path

import pytest

from qkv.hub import Package
from qkv.hub.packages import Wheel

FOLDER = {
    "toy_model/__init__.py": b"raise RuntimeError",
    "toy_model/model/config.json": b"{}",
    "toy_model/model/.gitattributes": b"",
    "toy_model/model/1_Pooling/config.json": b'{"pooling": 1}',
    "toy_model/model/model.safetensors": bytes(range(256)) * 100,
    "toy_model-1.0.dist-info/licenses/LICENSE": b"Toy Licence",
    "toy_model-1.0.dist-info/METADATA": b"",
}
FILE = {
    "toy_model/__init__.py": b"raise RuntimeError",
    "toy_model/toy.gguf": b"GGUF" * 5000,
    "toy_model-1.0.dist-info/LICENSE": b"Toy Licence",
}


def wheel_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def package_of(files: dict[str, bytes], inside: str = "toy_model/model") -> Package:
    wheel = wheel_of(files)
    return Package(
        name="toy",
        wheels=(Wheel("toy-model", "1.0", hashlib.sha256(wheel).hexdigest(), len(wheel)),),
        inside=inside,
        unpacked=len(wheel),
        licence="CC0-1.0",
        package_licence="Toy",
        description="a toy",
        example="qkv embed --model toy",
    )


# Writes down what it is asked, and downloads the wheels that are beside it.
PIP = """
import json, shutil, sys
from pathlib import Path
here = Path(__file__).parent
with (here / "asked.jsonl").open("a") as asked:
    asked.write(json.dumps(sys.argv[1:]) + "\\n")
wheel = here / sys.argv[-1]
if not wheel.exists():
    sys.exit("WARNING: Retrying\\nERROR: Could not\\nERROR: No matching distribution found for toy")
name = sys.argv[-1].replace("-", "_").replace("==", "-")
shutil.copy(wheel, Path(sys.argv[sys.argv.index("--dest") + 1]) / f"{name}-py3-none-any.whl")
"""


class FakePip:
    """A pip that a test puts before the real one, for this process and those that it starts."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "pip"
        self.folder.mkdir(parents=True)
        (self.folder / "__init__.py").touch()
        (self.folder / "__main__.py").write_text(PIP)
        patch.syspath_prepend(folder)
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))

    def offers(self, wheel: bytes, name: str = "toy-model") -> None:
        (self.folder / f"{name}==1.0").write_bytes(wheel)

    @property
    def asked(self) -> list[list[str]]:
        path = self.folder / "asked.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
