"""The architectures that can be read and written."""

from qkv.convert.architectures.architecture import Architecture
from qkv.convert.architectures.bert import (
    ALBERT,
    BERT,
    CAMEMBERT,
    DISTILBERT,
    ELECTRA,
    MPNET,
    ROBERTA,
    XLM_ROBERTA,
)
from qkv.convert.architectures.causal_classifier import causal_classifier
from qkv.convert.architectures.deberta import DEBERTA, DEBERTA_1
from qkv.convert.architectures.gpt import BLOOM, GPT, GPT2, GPT_NEO, GPT_NEOX, OPT
from qkv.convert.architectures.llama import (
    GEMMA,
    GEMMA2,
    GEMMA3,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    PHI3,
    QWEN2,
    QWEN3,
    SMOLLM3,
)
from qkv.convert.architectures.marian import BART, M2M100, MARIAN, MBART, PEGASUS
from qkv.convert.architectures.modernbert import MODERNBERT
from qkv.convert.architectures.t5 import MT5, T5
from qkv.convert.architectures.vit import VIT

_ALL = (
    *(BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ALBERT, DEBERTA, MODERNBERT, DEBERTA_1),
    *(DISTILBERT, ELECTRA, MPNET, VIT),
    *(GPT, GPT2, LLAMA, MISTRAL, GPT_NEO, GPT_NEOX, OPT, GEMMA, GEMMA2, GEMMA3),
    *(QWEN2, QWEN3, MIXTRAL, BLOOM, PHI3, SMOLLM3),
    *(MARIAN, BART, MBART, M2M100, PEGASUS, T5, MT5),
)
ARCHITECTURES: dict[str, Architecture] = {known.model_type: known for known in _ALL}
CAUSAL_CLASSIFIERS: dict[str, Architecture] = {  # decoders that are classifiers
    known.model_type: causal_classifier(known) for known in _ALL if known.family == "decoder"
}
