"""Whether vLLM can read a folder that was exported for Hugging Face: `python -m qkv.convert.vllm`.

The rules are those of vLLM 0.32.0, read in its registry and in the modules of its models: the class
in `architectures`, the names of weights (its loader refuses any other), the tied output matrix, the
files of the tokenizer, floats as weights.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from qkv.errors import UserError
from qkv.weights import FLOATS, StoredTensors

VERSION = "0.32.0"
HEAD = "lm_head.weight"
BOTH = r"\.(weight|bias)"
BODY = (
    r"model\.(embed_tokens|norm)\.weight",
    r"model\.layers\.\d+\.(input|post_attention)_layernorm\.weight",
)
LLAMA = (
    *BODY,
    rf"model\.layers\.\d+\.self_attn\.[qkvo]_proj{BOTH}",
    r"model\.layers\.\d+\.mlp\.(gate|up|down)_proj\.weight",
)
NORMED_HEADS = (r"model\.layers\.\d+\.self_attn\.[qk]_norm\.weight",)
FOUR_NORMS = (r"model\.layers\.\d+\.(pre|post)_feedforward_layernorm\.weight",)
NAMES: dict[str, tuple[str, ...]] = {
    "GPT2LMHeadModel": (
        r"(transformer\.)?w[tp]e\.weight",
        rf"(transformer\.)?(h\.\d+\.ln_[12]|ln_f){BOTH}",
        rf"(transformer\.)?h\.\d+\.(attn\.c_(attn|proj)|mlp\.c_(fc|proj)){BOTH}",
    ),
    "LlamaForCausalLM": (*LLAMA, r"model\.layers\.\d+\.mlp\.(gate|up|down)_proj\.bias"),
    "MistralForCausalLM": LLAMA,
    "Qwen2ForCausalLM": LLAMA,
    "Qwen3ForCausalLM": (*LLAMA, *NORMED_HEADS),
    "GemmaForCausalLM": LLAMA,
    "Gemma2ForCausalLM": (*LLAMA, *FOUR_NORMS),
    "Gemma3ForCausalLM": (*LLAMA, *FOUR_NORMS, *NORMED_HEADS),
    "Phi3ForCausalLM": (
        *BODY,
        r"model\.layers\.\d+\.self_attn\.(qkv|o)_proj\.weight",
        r"model\.layers\.\d+\.mlp\.(gate_up|down)_proj\.weight",
    ),
    "MixtralForCausalLM": (
        *BODY,
        r"model\.layers\.\d+\.self_attn\.[qkvo]_proj\.weight",
        r"model\.layers\.\d+\.block_sparse_moe\.(gate|experts\.\d+\.w[123])\.weight",
    ),
    "BloomForCausalLM": (
        rf"transformer\.(word_embeddings\.weight|(word_embeddings_layernorm|ln_f){BOTH})",
        rf"transformer\.h\.\d+\.(input|post_attention)_layernorm{BOTH}",
        rf"transformer\.h\.\d+\.self_attention\.(query_key_value|dense){BOTH}",
        rf"transformer\.h\.\d+\.mlp\.dense_(h_to_4h|4h_to_h){BOTH}",
    ),
    "OPTForCausalLM": (
        r"model\.decoder\.(embed_tokens|embed_positions|project_in|project_out)\.weight",
        rf"model\.decoder\.(layers\.\d+\.)?(final_layer_norm|self_attn_layer_norm){BOTH}",
        rf"model\.decoder\.layers\.\d+\.(self_attn\.([qkv]|out)_proj|fc[12]){BOTH}",
    ),
}
"""Patterns of the names that vLLM's own classes read, without the output matrix."""
BY_TRANSFORMERS = ("GPTNeoXForCausalLM", "SmolLM3ForCausalLM")
"""Classes that vLLM runs with the code of transformers, whose names are then read."""
ALWAYS_TIED = ("BloomForCausalLM", "GemmaForCausalLM", "Gemma2ForCausalLM")


def vllm_problems(folder: Path) -> list[str]:
    """List what keeps vLLM from reading an exported folder, a sentence each."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        [name] = config["architectures"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} names no architecture; export the model with `qkv convert MODEL {folder} "
            f"--to huggingface`."
        ) from error
    if name not in NAMES and name not in BY_TRANSFORMERS:
        return [
            f"vLLM {VERSION} has no {name}; serve the model with `qkv serve`, or use transformers."
        ]
    weights = StoredTensors(*sorted(folder.glob("*.safetensors")))
    return [
        *_naming_problems(name, list(weights.kinds), bool(config.get("tie_word_embeddings", True))),
        *_storage_problems(folder, weights),
    ]


def _naming_problems(name: str, weights: list[str], tied: bool) -> list[str]:
    """Compare the names of weights with those that a class of vLLM reads."""
    if name in BY_TRANSFORMERS:
        return []
    problems = []
    if tied and HEAD in weights:
        problems.append(f"{HEAD} is stored, although the config ties it to the embedding.")
    if not tied and (HEAD not in weights or name in ALWAYS_TIED):
        problems.append(f"vLLM's {name} needs {HEAD}, or an output matrix that is tied.")
    known = re.compile("|".join(NAMES[name]))
    unknown = [weight for weight in weights if weight != HEAD and not known.fullmatch(weight)]
    if unknown:
        problems.append(f"vLLM's {name} has no weight {unknown[0]} ({len(unknown)} such).")
    return problems


def _storage_problems(folder: Path, weights: StoredTensors) -> list[str]:
    """Look for weights that are not floats, and for the files of the tokenizer."""
    kinds = sorted({kind for kind in weights.kinds.values() if kind not in FLOATS})
    problems = [f"Weights are stored as {kinds[0]}, but must be floats."] if kinds else []
    for file in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / file).is_file():
            problems.append(f"There is no {file}, so that vLLM reads token ids alone.")
    return problems


def main() -> None:
    """Print what is wrong with a folder; exit with 1 where something is."""
    problems = vllm_problems(Path(sys.argv[1]))
    for problem in problems:
        print(problem)
    if not problems:
        print(f"vLLM {VERSION} reads it, by its documented rules: vllm serve {sys.argv[1]}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
