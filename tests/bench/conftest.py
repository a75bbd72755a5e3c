"""A tiny encoder to fine-tune."""

from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertModel

WORDS = "the film was good bad dull fine ann bob saw paris rome in who where what did ? . ##s ##ly"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tiny_encoder(folder: Path) -> Path:
    """Write a Hugging Face folder with a vocabulary and random weights."""
    vocabulary = [*SPECIALS, *WORDS.split()]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=512,
        pad_token_id=0,
    )
    BertModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder
