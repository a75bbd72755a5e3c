"""Chinese texts of views, by their English ones, as written in `chinese.toml`."""

import tomllib
from importlib.resources import files

_TABLES: dict[str, dict[str, str]] = tomllib.loads(
    files("qkv.inspect.draw").joinpath("chinese.toml").read_text(encoding="utf-8")
)
QUANTITIES, BEAM_REASONS = _TABLES.pop("quantities"), _TABLES["beam_reasons"]
IN_FORMULAS = _TABLES.pop("in_formulas")  # regular expressions
CHINESE = {english: text for table in _TABLES.values() for english, text in table.items()}
