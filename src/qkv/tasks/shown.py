"""How a task's object shows itself: its kind, its size, and where it is."""

from __future__ import annotations

from qkv.model import Encoder, Model

MOST_LABELS = 5  # that are named


class Shown:
    """The `repr` of an object of a task: what its model is, in a line."""

    def __repr__(self) -> str:
        model: Model | Encoder = vars(self)["model"]
        config = model.config
        sizes = {"encoder": config.n_encoder_layers, "decoder": config.n_decoder_layers}
        stacks = [n for name, n in sizes.items() if name in config.family.split("-")]
        layers = " + ".join(map(str, stacks))
        parts = [f"{layers} layer{'' if stacks == [1] else 's'} × {config.d_model}"]
        if config.patch_size:
            parts.append(f"images of {config.image_size} × {config.image_size}")
        else:
            parts += [f"vocabulary {config.vocab_size:,}", f"context {config.max_length:,}"]
        labels = self._labels()
        more = f", … ({len(labels)})" if len(labels) > MOST_LABELS else ""
        if labels:
            parts.append(f"labels {', '.join(labels[:MOST_LABELS])}{more}")
        device = next((tensor.device for tensor in model.parameters()), None)
        return f"{type(self).__name__}({'; '.join(parts)}{f'; on {device}' if device else ''})"

    def _labels(self) -> tuple[str, ...]:
        return ()
