"""Well-known architectures that cannot be read: what differs, and which comes nearest."""

from __future__ import annotations

from collections.abc import Collection, Mapping

AUDIO = "it hears audio, which is not read here"
IMAGES = "it sees images beside texts, which are not read together here"
MIXED = "each token goes through a few of many expert layers, by a router of its own kind"
RECURRENT = "it has no attention but a recurrence"
WIDE_NORM = "queries and keys have a norm over all heads"
SPARSE = "a token sees a window and a few global tokens (sparse attention)"

# By model_type: what our parts do not do, and the nearest architectures, of which one may be read
UNSUPPORTED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "falcon": (
        "its sublayers run in parallel, and queries, keys and values lie in one matrix by groups",
        ("gpt_neox", "llama"),
    ),
    "mpt": ("distances are biases in its own layout (ALiBi)", ("bloom", "gpt2")),
    "gptj": (
        "its angles turn neighbouring dimensions of a share of each head",
        ("gpt_neox", "gpt2"),
    ),
    "codegen": ("its angles turn a part of each head, in parallel sublayers", ("gpt_neox", "gpt2")),
    "phi": ("its sublayers run in parallel and share a norm", ("gpt_neox", "llama")),
    "stablelm": ("its angles turn a part of each head", ("gpt_neox", "llama")),
    "starcoder2": ("it has biases and no gates, under angles", ("gpt_neox", "llama")),
    "gpt_bigcode": ("all heads share one key and one value", ("gpt2",)),
    "cohere": ("its sublayers run in parallel, and logits are scaled", ("llama",)),
    "deepseek_v2": ("keys and values are compressed, and there are experts", ("mixtral", "llama")),
    "deepseek_v3": ("keys and values are compressed, and there are experts", ("mixtral", "llama")),
    "cohere2": ("its sublayers run in parallel, and logits are scaled", ("llama",)),
    "qwen2_moe": (MIXED, ("qwen2", "llama")),
    "qwen3_moe": (MIXED, ("qwen3", "llama")),
    "qwen3_next": (
        "most of its layers have a recurrence in place of attention",
        ("qwen3", "llama"),
    ),
    "phimoe": (MIXED, ("mixtral", "llama")),
    "gpt_oss": ("each head has a sink, and there are experts", ("mixtral", "llama")),
    "llama4_text": (MIXED, ("mixtral", "llama")),
    "olmo": ("its norms have no weights", ("llama",)),
    "olmo2": (WIDE_NORM, ("qwen3", "llama")),
    "olmo3": (WIDE_NORM, ("qwen3", "llama")),
    "olmoe": (f"{WIDE_NORM}, and there are experts", ("mixtral", "llama")),
    "glm": ("its angles turn neighbouring dimensions of a part of each head", ("llama",)),
    "glm4": ("its angles turn neighbouring dimensions of a part of each head", ("llama",)),
    "granite": ("embeddings, residuals and logits have scales", ("llama",)),
    "minicpm": ("embeddings, residuals and logits have scales", ("llama",)),
    "nemotron": ("its activation is a squared ReLU", ("llama",)),
    "gemma3": (IMAGES, ("gemma3_text", "llama")),
    "gemma3n": (IMAGES, ("gemma3_text", "llama")),
    "t5gemma": ("it is an encoder-decoder of Gemma's parts", ("gemma2", "t5")),
    "llama4": (IMAGES, ("llama",)),
    "llava": (IMAGES, ("llama",)),
    "mistral3": (IMAGES, ("mistral", "llama")),
    "paligemma": (IMAGES, ("gemma", "llama")),
    "qwen2_vl": (IMAGES, ("qwen2", "llama")),
    "qwen2_5_vl": (IMAGES, ("qwen2", "llama")),
    "qwen3_vl": (IMAGES, ("qwen3", "llama")),
    "smolvlm": (IMAGES, ("llama",)),
    "mamba": (RECURRENT, ("gpt2",)),
    "mamba2": (RECURRENT, ("gpt2",)),
    "falcon_mamba": (RECURRENT, ("gpt2",)),
    "rwkv": (RECURRENT, ("gpt2",)),
    "xlnet": ("it reads texts in every order, with two streams", ("bert",)),
    "longformer": (SPARSE, ("roberta",)),
    "big_bird": (SPARSE, ("bert",)),
    "led": (SPARSE, ("bart",)),
    "bigbird_pegasus": (SPARSE, ("pegasus",)),
    "longt5": ("a token sees a window and summaries of blocks", ("t5",)),
    "umt5": ("each layer has distances of its own", ("mt5",)),
    "switch_transformers": (MIXED, ("t5",)),
    "xlm-roberta-xl": ("its norms stand in front of the sublayers", ("xlm-roberta",)),
    "mobilebert": ("its blocks have bottlenecks", ("distilbert",)),
    "funnel": ("it shortens a text from block to block", ("bert",)),
    "layoutlm": ("it reads where words stand on a page", ("bert",)),
    "nomic_bert": ("it has angles and gated layers in BERT", ("modernbert", "bert")),
    "whisper": (AUDIO, ("bart",)),
    "wav2vec2": (AUDIO, ("bert",)),
    "hubert": (AUDIO, ("bert",)),
    "seamless_m4t": (AUDIO, ("m2m_100",)),
    "speecht5": (AUDIO, ("bart",)),
    "blip": (IMAGES, ("vit",)),
    "siglip": (IMAGES, ("vit",)),
    "dinov2": ("each of its sublayers has a learnt scale", ("vit",)),
    "clip": (IMAGES, ("vit",)),
    "swin": ("it sees images through windows that move", ("vit",)),
    "deit": ("it has a second token beside an image's first", ("vit",)),
}


def why_unsupported(model_type: str, supported: Collection[str]) -> str:
    """The end of a sentence: what differs and the nearest that is read, or all that are."""
    reason, near = UNSUPPORTED.get(model_type, ("", ()))
    nearest = next((name for name in near if name in supported), None)
    if nearest is None:
        return f"; it reads {', '.join(supported)}."
    return f": {reason}; the nearest that it reads is {nearest}."
