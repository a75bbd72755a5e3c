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

ARCHITECTURES: dict[str, Architecture] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "albert": ALBERT,
    "deberta-v2": DEBERTA,
    "modernbert": MODERNBERT,
    "deberta": DEBERTA_1,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "mpnet": MPNET,
    "vit": VIT,
    "openai-gpt": GPT,
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "gpt_neo": GPT_NEO,
    "gpt_neox": GPT_NEOX,
    "opt": OPT,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "mixtral": MIXTRAL,
    "bloom": BLOOM,
    "phi3": PHI3,
    "smollm3": SMOLLM3,
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
    "gpt_neo": causal_classifier(GPT_NEO, "GPTNeoForSequenceClassification"),
    "gpt_neox": causal_classifier(GPT_NEOX, "GPTNeoXForSequenceClassification"),
    "opt": causal_classifier(OPT, "OPTForSequenceClassification"),
    "gemma": causal_classifier(GEMMA, "GemmaForSequenceClassification"),
    "gemma2": causal_classifier(GEMMA2, "Gemma2ForSequenceClassification"),
    "gemma3_text": causal_classifier(GEMMA3, "Gemma3TextForSequenceClassification"),
    "qwen2": causal_classifier(QWEN2, "Qwen2ForSequenceClassification"),
    "qwen3": causal_classifier(QWEN3, "Qwen3ForSequenceClassification"),
    "mixtral": causal_classifier(MIXTRAL, "MixtralForSequenceClassification"),
    "bloom": causal_classifier(BLOOM, "BloomForSequenceClassification"),
    "phi3": causal_classifier(PHI3, "Phi3ForSequenceClassification"),
    "smollm3": causal_classifier(SMOLLM3, "SmolLM3ForSequenceClassification"),
}
