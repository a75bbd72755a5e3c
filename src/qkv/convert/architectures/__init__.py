"""The architectures that can be read and written."""

from qkv.convert.architectures.albert import ALBERT
from qkv.convert.architectures.architecture import Architecture
from qkv.convert.architectures.bart import BART
from qkv.convert.architectures.bert import BERT
from qkv.convert.architectures.causal_classifier import causal_classifier
from qkv.convert.architectures.deberta import DEBERTA, DEBERTA_1
from qkv.convert.architectures.distilbert import DISTILBERT
from qkv.convert.architectures.electra import ELECTRA
from qkv.convert.architectures.gpt import GPT, GPT2
from qkv.convert.architectures.llama import LLAMA, MISTRAL
from qkv.convert.architectures.m2m100 import M2M100
from qkv.convert.architectures.marian import MARIAN
from qkv.convert.architectures.mbart import MBART
from qkv.convert.architectures.mpnet import MPNET
from qkv.convert.architectures.pegasus import PEGASUS
from qkv.convert.architectures.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from qkv.convert.architectures.t5 import MT5, T5
from qkv.convert.architectures.vit import VIT

ARCHITECTURES: dict[str, Architecture] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "albert": ALBERT,
    "deberta-v2": DEBERTA,
    "deberta": DEBERTA_1,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "mpnet": MPNET,
    "vit": VIT,
    "openai-gpt": GPT,
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "marian": MARIAN,
    "bart": BART,
    "mbart": MBART,
    "m2m_100": M2M100,
    "pegasus": PEGASUS,
    "t5": T5,
    "mt5": MT5,
}
CAUSAL_CLASSIFIERS: dict[str, Architecture] = {  # decoders that are classifiers
    "openai-gpt": causal_classifier(GPT, "OpenAIGPTForSequenceClassification"),
    "gpt2": causal_classifier(GPT2, "GPT2ForSequenceClassification"),
    "llama": causal_classifier(LLAMA, "LlamaForSequenceClassification"),
    "mistral": causal_classifier(MISTRAL, "MistralForSequenceClassification"),
}
