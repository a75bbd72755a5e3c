"""Chinese texts of views, by their English ones."""

CHINESE: dict[str, str] = {}
