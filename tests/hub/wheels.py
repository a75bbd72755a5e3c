"""Tiny wheels with a model inside."""

from __future__ import annotations

import hashlib
import io
import zipfile

from qkv.hub import Package

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
        package="toy-model",
        version="1.0",
        inside=inside,
        sha256=hashlib.sha256(wheel).hexdigest(),
        size=len(wheel),
        unpacked=len(wheel),
        licence="CC0-1.0",
        package_licence="Toy",
        description="a toy",
        example="qkv embed --model toy",
    )
