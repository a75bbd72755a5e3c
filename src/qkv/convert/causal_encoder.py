"""A decoder's body as an encoder, on which a classifier stands (Radford et al. 2018)."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from qkv.convert.model_folder import StoredModel, load_config


def as_causal_encoder(stored: StoredModel) -> StoredModel:
    """Turn a decoder without its output into a causal encoder (GPT's own classifiers)."""
    _, config, _ = load_config(stored)
    body = dataclasses.replace(
        config,
        family="encoder",
        causal=True,
        n_encoder_layers=config.n_decoder_layers,
        pooling="last",
        tie="none",
    )

    def weights() -> dict[str, Tensor]:
        return {
            name.replace("decoder.", "encoder.", 1): tensor
            for name, tensor in stored.read_weights().items()
            if not name.startswith("output.")
        }

    content = {**stored.content, "model": body.to_dict()}
    return dataclasses.replace(stored, content=content, read_weights=weights)
