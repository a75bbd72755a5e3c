"""What 'auto' means here, and devices that are none."""

from typing import Any

import pytest
import torch

from qkv.config import TrainConfig
from qkv.device import is_on, mixed_precision, pick_device
from qkv.errors import UserError

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("there", [True, False])
def test_auto_is_a_gpu_where_there_is_one(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert pick_device("auto").type == ("cuda" if there else "cpu")
    assert pick_device("cpu") == CPU
    if there:
        assert pick_device("cuda:1") == torch.device("cuda", 1)
    else:
        with pytest.raises(UserError, match="No NVIDIA GPU is available"):
            pick_device("cuda")


@pytest.mark.parametrize("name", ["gpu", "", "mps", "meta", "cuda:x", None])
def test_other_devices_are_refused(name: Any) -> None:
    with pytest.raises(UserError, match="use 'cpu', 'cuda' or 'auto'"):
        pick_device(name)


@pytest.mark.parametrize(("precision", "dtype"), [("float32", "float32"), ("bfloat16", "bfloat16")])
def test_products_have_the_precision_asked_for(precision: str, dtype: str) -> None:
    with mixed_precision(TrainConfig(precision=precision), CPU):  # type: ignore[arg-type]
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == getattr(torch, dtype)


@pytest.mark.parametrize(
    ("choice", "device", "capability", "on"),
    [
        ("on", CPU, (9, 0), True),
        ("on", GPU, (7, 5), True),
        ("off", GPU, (9, 0), False),
        ("auto", CPU, (9, 0), False),
        ("auto", GPU, (9, 0), True),
        ("auto", GPU, (7, 5), False),
    ],
)
def test_what_is_meant_for_gpus_is_on_there_by_itself(
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    device: torch.device,
    capability: tuple[int, int],
    on: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert is_on(choice, device) is on
