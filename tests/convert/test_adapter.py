"""LoRA adapters: theirs load here, ours load in peft, and all say the same."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from qkv.convert.model_folder import load_config, load_model, model_content, save_model_folder
from qkv.convert.opening import open_model
from qkv.errors import UserError
from qkv.model import Model
from qkv.model.lora import lora_layers, merge, sharing_weights, unmerge
from tests.convert.harness import assert_close
from tests.convert.small import LENGTHS, answers, small

# A class, our word for its head, and the matrices that are updated
CASES: dict[str, tuple[str, list[str]]] = {
    "LlamaForCausalLM": ("", ["q_proj", "v_proj", "down_proj"]),
    "GPT2LMHeadModel": ("", ["c_attn", "mlp.c_proj"]),
    "BartForConditionalGeneration": ("", ["q_proj", "k_proj", "v_proj", "fc2"]),
    "MarianMTModel": ("", ["out_proj", "fc1"]),
    "T5ForConditionalGeneration": ("", ["q", "v", "wo"]),
    "BertModel": ("none", ["query", "output.dense"]),
    "BertForSequenceClassification": ("sequence", ["query", "value"]),
    "RobertaForTokenClassification": ("token", ["key", "intermediate.dense"]),
    "AlbertModel": ("none", ["query", "ffn"]),
    "DebertaV2Model": ("none", ["query_proj", "value_proj"]),
    "GPTNeoXForCausalLM": ("", ["query_key_value", "dense_4h_to_h"]),
    "GPTNeoForCausalLM": ("", ["q_proj", "c_fc"]),
    "BloomForCausalLM": ("", ["query_key_value", "dense"]),
    "OPTForCausalLM": ("", ["q_proj", "k_proj", "fc1"]),
    "Gemma2ForCausalLM": ("", ["q_proj", "v_proj", "up_proj"]),
    "Phi3ForCausalLM": ("", ["qkv_proj", "gate_up_proj"]),
    "Qwen3ForCausalLM": ("", ["q_proj", "k_proj", "o_proj"]),
    "MixtralForCausalLM": ("", ["q_proj", "v_proj"]),
    "M2M100ForConditionalGeneration": ("", ["q_proj", "fc2"]),
    "MT5ForConditionalGeneration": ("", ["q", "wo"]),
    "DistilBertModel": ("none", ["q_lin", "lin2"]),
    "MPNetModel": ("none", ["attn.q", "attn.o"]),
    "ElectraModel": ("none", ["query", "value"]),
    "DebertaModel": ("none", ["in_proj", "output.dense"]),
    "ModernBertModel": ("none", ["Wqkv", "Wi"]),
}
HEADS = {"sequence": ["classifier"], "token": ["classifier"]}


def adapted(class_name: str, **settings: Any) -> peft.PeftModel:
    """A small model of theirs with an adapter whose updates matter."""
    head, targets = CASES[class_name]
    settings = {"target_modules": targets, "r": 4, "lora_alpha": 6, **settings}
    config = peft.LoraConfig(modules_to_save=HEADS.get(head), **settings)
    model = peft.get_peft_model(small(class_name), config)
    draw = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            weight.data.normal_(0, 0.3, generator=draw)
    return model.eval()


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "base", tmp_path / "adapter"


def save_both(class_name: str, folders: tuple[Path, Path], **settings: Any) -> peft.PeftModel:
    base, adapter = folders
    small(class_name).save_pretrained(base)
    theirs = adapted(class_name, **settings)
    theirs.save_pretrained(adapter)
    return theirs


def load(base: Path, adapter: Path | None = None, dtype: str | None = None) -> Model:
    stored = open_model(base, dtype, adapter)
    _, config, _ = load_config(stored)
    return load_model(stored, config)


def attached(base: Path, adapter: Path) -> Model:
    """The base model as it is, with the updates beside its layers."""
    model = sharing_weights(load(base))
    weights = open_model(base, adapter=adapter).read_weights()
    weights.adapter.attach(model)  # type: ignore[attr-defined]
    parameters = dict(model.named_parameters())
    for name, tensor in weights.adapter.heads.items():  # type: ignore[attr-defined]
        parameters[name].data = tensor
    return model


@torch.no_grad()
def assert_same(head: str, ours: Model, theirs: peft.PeftModel) -> None:
    for mine, other in answers(head, ours, theirs, LENGTHS):
        assert_close(mine, other)


@pytest.mark.parametrize("class_name", CASES)
def test_adapters_go_both_ways(class_name: str, folders: tuple[Path, Path]) -> None:
    head, _ = CASES[class_name]
    theirs = save_both(class_name, folders)
    assert_same(head, load(*folders), theirs)
    model = attached(*folders)
    assert_same(head, model, theirs)

    own = folders[0].parent / "own"
    task, config, decode = load_config(open_model(folders[0]))
    save_model_folder(own, model_content(task, config, decode), model)
    back = peft.PeftModel.from_pretrained(small(class_name), own).eval()
    assert_same(head, model, back)
    assert json.loads((own / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        folders[0]
    )


def test_merging_adds_the_updates_and_unmerging_takes_them_away(
    folders: tuple[Path, Path],
) -> None:
    theirs = save_both("LlamaForCausalLM", folders)
    model = attached(*folders)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    merge(model)
    assert_same("", model, theirs)
    assert all(layer.is_merged for layer in lora_layers(model).values())
    unmerge(model)
    assert_same("", model, theirs)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, before[name], atol=1e-6, rtol=0)


def test_several_adapters_share_the_weights_of_one_base(folders: tuple[Path, Path]) -> None:
    theirs = save_both("GPT2LMHeadModel", folders)
    base = load(folders[0])
    plain = small("GPT2LMHeadModel")
    adapter = open_model(folders[0], adapter=folders[1]).read_weights().adapter  # type: ignore[attr-defined]
    first, second = sharing_weights(base), sharing_weights(base)
    adapter.attach(first)
    assert_same("", first, theirs)
    assert_same("", second, plain)
    assert_same("", base, plain)
    addresses = {weight.data_ptr() for weight in base.parameters()}
    shared = [weight for name, weight in first.named_parameters() if "lora" not in name]
    assert {weight.data_ptr() for weight in shared} == addresses


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_updates_stay_floats_beside_integers(folders: tuple[Path, Path], dtype: str) -> None:
    save_both("LlamaForCausalLM", folders)
    model, plain = load(*folders, dtype), load(folders[0], None, dtype)
    exact = load(*folders)
    tokens = torch.randint(3, 30, (2, 9))
    with torch.no_grad():
        change, wanted = model(tokens) - plain(tokens), exact(tokens) - load(folders[0])(tokens)
    assert len(lora_layers(model)) == 4
    assert float((change - wanted).norm() / wanted.norm()) < (0.05 if dtype == "int8" else 0.4)


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True},
        {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"q_proj": 9}},
        {"target_modules": ["o_proj"], "layers_to_transform": [1]},
    ],
)
def test_ranks_and_scales_of_single_matrices(
    folders: tuple[Path, Path], settings: dict[str, Any]
) -> None:
    theirs = save_both("LlamaForCausalLM", folders, **settings)
    assert_same("", load(*folders), theirs)


def change_config(adapter: Path, **values: object) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_tensors(adapter: Path, names: Sequence[str] = (), **tensors: Tensor) -> None:
    path = adapter / "adapter_model.safetensors"
    kept = {name: x for name, x in load_file(path).items() if not name.endswith(tuple(names))}
    save_file({**kept, **tensors}, path)


def test_a_folder_of_peft_alone_finds_its_base(folders: tuple[Path, Path]) -> None:
    theirs = save_both("LlamaForCausalLM", folders)
    change_config(folders[1], base_model_name_or_path=str(folders[0]))
    assert_same("", load(folders[1]), theirs)
    assert_same("", load(Path(f"{folders[0]}+{folders[1]}")), theirs)
    change_config(folders[1], base_model_name_or_path=None)
    with pytest.raises(UserError, match="does not name the adapter's base model"):
        load(folders[1])


def warned(recwarn: pytest.WarningsRecorder) -> list[str]:
    found = [str(warning.message) for warning in recwarn.list]
    recwarn.clear()
    return [message for message in found if "was trained on" in message]


def test_another_base_of_equal_sizes_is_told_by_its_name(
    folders: tuple[Path, Path], recwarn: pytest.WarningsRecorder
) -> None:
    base, adapter = folders
    save_both("LlamaForCausalLM", folders)
    for named in (str(base), f"owner/{base.name}", f"/gone/{base.name.upper()}", None, ""):
        change_config(adapter, base_model_name_or_path=named)
        open_model(base, adapter=adapter)
        assert not warned(recwarn), named
    change_config(adapter, base_model_name_or_path=f"/c/models--own--{base.name}/snapshots/1a")
    open_model(base, adapter=adapter)
    assert not warned(recwarn)
    change_config(adapter, base_model_name_or_path="owner/other")
    open_model(base, adapter=adapter)
    assert warned(recwarn) == [
        f"{adapter} was trained on owner/other, but is put on {base}; unless the two have the same "
        f"weights, what it gives is worth little: name the model that it was trained on."
    ]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"use_dora": True}, "use_dora is True, but only False can be read"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3', but only 'LORA' can be read"),
        ({"bias": "all"}, "bias is 'all', but only 'none'"),
        ({"r": "4"}, "r must be a number over 0"),
        ({"lora_alpha": None}, "lora_alpha must be a number over 0"),
        ({"lora_alpha": 10**400}, "lora_alpha must be a number over 0"),
        ({"alpha_pattern": {"q_proj": "../x"}}, r"alpha_pattern gives .*q_proj '\.\./x', but"),
    ],
)
def test_configs_that_mean_something_else_are_refused(
    folders: tuple[Path, Path], values: dict[str, Any], sentence: str
) -> None:
    save_both("LlamaForCausalLM", folders)
    change_config(folders[1], **values)
    with pytest.raises(UserError, match=sentence):
        load(*folders)


def test_tensors_that_do_not_fit_are_named(folders: tuple[Path, Path]) -> None:
    save_both("LlamaForCausalLM", folders)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    change_tensors(folders[1], [name])
    with pytest.raises(UserError, match=r"A and B of .*q_proj do not belong"):
        load(*folders)
    change_tensors(folders[1], **{name: torch.ones(4, 15)})
    with pytest.raises(UserError, match="does not fit"):
        load(*folders)
    change_tensors(folders[1], **{name: torch.ones(4, 16), "base_model.model.gate": torch.ones(1)})
    with pytest.raises(UserError, match="no matrix that can be updated for gate"):
        load(*folders)
    with pytest.raises(UserError, match="is no adapter"):
        load(folders[0], folders[0])
