"""JSON files of other libraries, read as plain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qkv.errors import UserError
from qkv.files import refuse_special


def read_values(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is no such file."""
    content = read_json(path, {})
    if not isinstance(content, dict):
        raise UserError(f"{path} is no JSON object; fetch it again.")
    return content


def read_json(path: Path, default: Any) -> Any:
    """What a JSON file holds, or the default where there is no such file."""
    refuse_special(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return default
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is truncated or not JSON ({error}); fetch it again.") from error
