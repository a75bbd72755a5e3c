"""What a request gives a model to read: a text, or an image as a data URL."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from qkv.data.formats.images import DATA_URL

LONGEST_TEXT, LONGEST_IMAGE = 4000, 500_000  # characters


def is_image(text: str) -> bool:
    """Whether a text stands for an image."""
    return text.startswith(DATA_URL)


def _limited(text: str) -> str:
    if len(text) > LONGEST_TEXT and not is_image(text):
        raise ValueError(f"String should have at most {LONGEST_TEXT} characters")
    return text


GivenText = Annotated[str, Field(max_length=LONGEST_IMAGE), AfterValidator(_limited)]
"""A text; an image may be longer."""
