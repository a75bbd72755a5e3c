"""The architectures that can be read and written."""

from qkv.convert.architectures.albert import ALBERT
from qkv.convert.architectures.architecture import Architecture
from qkv.convert.architectures.bart import BART
from qkv.convert.architectures.bert import BERT
from qkv.convert.architectures.bloom import BLOOM
from qkv.convert.architectures.causal_classifier import causal_classifier
from qkv.convert.architectures.deberta import DEBERTA, DEBERTA_1
from qkv.convert.architectures.distilbert import DISTILBERT
from qkv.convert.architectures.electra import ELECTRA
from qkv.convert.architectures.gemma import GEMMA, GEMMA2, GEMMA3
from qkv.convert.architectures.gpt import GPT, GPT2
from qkv.convert.architectures.gpt_neo import GPT_NEO
from qkv.convert.architectures.gpt_neox import GPT_NEOX
from qkv.convert.architectures.llama import LLAMA, MISTRAL
from qkv.convert.architectures.m2m100 import M2M100
from qkv.convert.architectures.marian import MARIAN
from qkv.convert.architectures.mbart import MBART
from qkv.convert.architectures.mixtral import MIXTRAL
from qkv.convert.architectures.modernbert import MODERNBERT
from qkv.convert.architectures.mpnet import MPNET
from qkv.convert.architectures.opt import OPT
from qkv.convert.architectures.pegasus import PEGASUS
from qkv.convert.architectures.phi3 import PHI3
from qkv.convert.architectures.qwen import QWEN2, QWEN3
from qkv.convert.architectures.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from qkv.convert.architectures.smollm3 import SMOLLM3
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
