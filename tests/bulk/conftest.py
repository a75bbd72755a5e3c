"""The command line, as in tests/journeys."""

from tests.journeys.conftest import qkv

__all__ = ["qkv"]
