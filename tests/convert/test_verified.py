"""`qkv verify` passes for a small checkpoint of each architecture, of some also in 8 bits."""

import pytest

import qkv
from qkv.convert.opening import open_model
from tests.convert.harness import exported, saved
from tests.convert.small import small

CLASSES = [
    "DistilBertForSequenceClassification",
    "MPNetForMaskedLM",
    "DebertaForQuestionAnswering",
    "ElectraForTokenClassification",
    "MPNetModel",
    "MT5ForConditionalGeneration",
    "MBartForConditionalGeneration",
    "M2M100ForConditionalGeneration",
    "PegasusForConditionalGeneration",
    "ModernBertForMaskedLM",
    "GPTNeoXForCausalLM",
    "Gemma2ForCausalLM",
    "MixtralForCausalLM",
    "BloomForCausalLM",
    "Qwen3ForCausalLM",
]
INT8 = ("MPNetModel", "DebertaForQuestionAnswering", "M2M100ForConditionalGeneration", *CLASSES[9:])


@pytest.mark.parametrize("name", CLASSES)
def test_every_proof_passes(name):
    with saved(small(name)) as folder, exported(open_model(folder)) as again:
        proofs = qkv.verify(again, device="cpu")
        failed = [proof for proof in proofs if proof.passed is False]
        assert not failed
        assert any(proof.name == "export = transformers" and proof.passed for proof in proofs)
        if name not in INT8:
            return
        quantised = {proof.name: proof for proof in qkv.verify(again, device="cpu", dtype="int8")}
        assert quantised["quantised = dequantised"].passed
        assert not [proof for proof in quantised.values() if proof.passed is False]
