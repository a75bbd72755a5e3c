"""What a request gives: a body, and in it what a model reads, a text or an image as a data URL."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, model_validator

from qkv.data.formats.images import DATA_URL

LONGEST_TEXT, LONGEST_IMAGE = 4000, 500_000  # characters


class Body(BaseModel):
    """The body of a request; a field that is null is as one that is left out."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}


def is_image(text: str) -> bool:
    """Whether a text stands for an image."""
    return text.startswith(DATA_URL)


def _limited(text: str) -> str:
    if len(text) > LONGEST_TEXT and not is_image(text):
        raise ValueError(f"String should have at most {LONGEST_TEXT} characters")
    return text


GivenText = Annotated[str, Field(max_length=LONGEST_IMAGE), AfterValidator(_limited)]
"""A text; an image may be longer."""
