"""The architectures that can be read and written."""

from qkv.convert.albert import ALBERT
from qkv.convert.architecture import Architecture
from qkv.convert.bart import BART
from qkv.convert.bert import BERT
from qkv.convert.deberta import DEBERTA
from qkv.convert.gpt import GPT, GPT2
from qkv.convert.labelled import labelled
from qkv.convert.llama import LLAMA, MISTRAL
from qkv.convert.marian import MARIAN
from qkv.convert.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from qkv.convert.t5 import T5
from qkv.convert.vit import VIT

ARCHITECTURES: dict[str, Architecture] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "albert": ALBERT,
    "deberta-v2": DEBERTA,
    "vit": VIT,
    "openai-gpt": GPT,
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "marian": MARIAN,
    "bart": BART,
    "t5": T5,
}
LABELLED: dict[str, Architecture] = {  # decoders that are classifiers
    "openai-gpt": labelled(GPT, "OpenAIGPTForSequenceClassification"),
    "gpt2": labelled(GPT2, "GPT2ForSequenceClassification"),
    "llama": labelled(LLAMA, "LlamaForSequenceClassification"),
    "mistral": labelled(MISTRAL, "MistralForSequenceClassification"),
}
