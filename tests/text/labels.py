"""Labels of words that a test writes in any tagging scheme."""

from collections.abc import Sequence

from qkv.text.tagging import Entity, Scheme


def write_labels(entities: Sequence[Entity], n_words: int, scheme: Scheme) -> list[str]:
    """Mark entities, given in order, by labels of the words."""
    labels = ["O"] * n_words
    last = Entity("", 0, 0)
    for entity in entities:
        n_inside = entity.end - entity.start - 1
        touches = (entity.kind, entity.start) == (last.kind, last.end)
        first = "I" if scheme == "iob1" and not touches else "B"
        prefixes = first + "I" * n_inside
        if scheme == "bioes":
            prefixes = "B" + "I" * (n_inside - 1) + "E" if n_inside else "S"
        labels[entity.start : entity.end] = [f"{prefix}-{entity.kind}" for prefix in prefixes]
        last = entity
    return labels
