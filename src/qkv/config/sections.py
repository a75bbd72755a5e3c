"""The sections of a recipe: one frozen dataclass each, with a default and a help line a setting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qkv.config.fields import Section, setting

Pooling = Literal["mean", "first", "last", "max", "weighted"]


@dataclass(frozen=True)
class DataConfig(Section):
    """Which files are read. Paths are relative to the working directory."""

    corpus: Literal["", "demo"] = setting("", "'demo': the packaged zh→en sentences, no files")
    source: tuple[str, ...] = setting((), "source text, one sentence a line; one or more files")
    target: tuple[str, ...] = setting((), "target text, line-aligned with `source`")
    pairs: tuple[str, ...] = setting(
        (), "instead: files with both sides (.tsv, .csv, .json, .jsonl, .parquet)"
    )
    synthetic: tuple[str, ...] = setting(
        (), "further training pairs, which a model made (qkv distill, qkv backtranslate)"
    )
    repeat: int = setting(
        1, "times that all other pairs are read in each epoch, beside the synthetic ones", least=1
    )
    valid_source: tuple[str, ...] = setting((), "validation source text")
    valid_target: tuple[str, ...] = setting((), "validation target text")
    valid_pairs: tuple[str, ...] = setting((), "validation pairs")
    test_source: tuple[str, ...] = setting((), "test source text, scored once at the end")
    test_target: tuple[str, ...] = setting((), "test target text")
    test_pairs: tuple[str, ...] = setting((), "test pairs")
    source_field: str | int = setting(
        "", "column of the source: a name, a number (0 is the first) or a path (translation.en)"
    )
    target_field: str | int = setting("", "column of the target")
    text: tuple[str, ...] = setting(
        (), "plain text (.txt, or records with a text column): files, folders or patterns ('a/*')"
    )
    valid_text: tuple[str, ...] = setting((), "validation text")
    test_text: tuple[str, ...] = setting((), "test text, measured once at the end")
    text_field: tuple[str | int, ...] = setting(
        (),
        "column of the text in records, or both columns of a pair of texts; empty: 'text', or all "
        "columns but the label",
    )
    template: str = setting(
        "", "instead of text_field: text with fields filled in, like '{title}: {body}'"
    )
    documents: Literal["file", "paragraph", "line"] = setting(
        "file", "what a document is in plain text; blank lines separate paragraphs"
    )
    bos: bool = setting(True, "begin each document with BOS; each ends with EOS in any case")
    across: bool = setting(False, "let attention cross from one document into the next")
    valid_share: float = setting(
        0.05,
        "fraction held out where no valid_text is given: documents, or the end of a text that has "
        "few of them",
        least=0,
        most=0.5,
    )
    processes: int = setting(
        0, "processes that encode text, with the same result; 0: one a core if it is large", least=0
    )
    records: tuple[str, ...] = setting(
        (),
        "instructions with answers, conversations, or prompts with a chosen and a rejected answer "
        "(.jsonl, .json, .csv, .parquet)",
    )
    valid_records: tuple[str, ...] = setting((), "validation records")
    test_records: tuple[str, ...] = setting((), "test records, answered once at the end")
    examples: tuple[str, ...] = setting(
        (),
        "labelled texts (.tsv, .csv, .jsonl, .parquet), tagged words (.conll), questions (.json), "
        "pairs of similar texts, or images (.npz, folders)",
    )
    valid_examples: tuple[str, ...] = setting((), "validation examples")
    test_examples: tuple[str, ...] = setting((), "test examples, scored once at the end")
    label_field: str | int = setting("label", "column of the label in examples")
    n_examples: int = setting(
        0, "train on this many, drawn by the seed, the same number of each class; 0: all", least=0
    )
    valid_size: int = setting(
        1000, "pairs, records or examples held out where no validation files are given", least=1
    )
    max_length: int = setting(
        256,
        "drop longer pairs and records (in tokens, EOS included); length of the windows that text "
        "is read in; 0: the model's max_length",
        least=0,
    )
    max_ratio: float = setting(9.0, "drop pairs whose lengths differ by more", least=1)
    bpe_dropout: float = setting(
        0.0,
        "BPE dropout: probability of skipping a merge, so that words are segmented in other ways "
        "in each epoch; 0.1 is usual",
        least=0,
        most=0.9,
    )
    licence: str = setting("not stated", "of the data; noted in the model's README")


@dataclass(frozen=True)
class TokenizerConfig(Section):
    """How text becomes token ids."""

    kind: Literal["bpe", "wordpiece", "unigram", "char", "byte"] = setting(
        "bpe", "units: learned subwords of three kinds, characters, or bytes"
    )
    vocab_size: int = setting(8000, "largest size of the vocabulary", least=16)
    shared: bool = setting(True, "one vocabulary for source and target")
    lowercase: bool = setting(False, "fold case; the output is lower case too")
    normalize: Literal["nfc", "nfkc", "none"] = setting("nfc", "Unicode normal form")
    path: str = setting("", "use this tokenizer.json instead of training one")


LoRATarget = Literal["attention", "query", "key", "value", "output", "feed_forward"]


@dataclass(frozen=True)
class TrainConfig(Section):
    """How the weights are learned."""

    steps: int = setting(20_000, "largest number of optimizer steps", least=1)
    seconds: float = setting(0.0, "stop after this much training time; 0: no limit", least=0)
    batch_tokens: int = setting(
        4096, "tokens in a batch, padding included, on its wider side", least=1
    )
    accumulate: int = setting(1, "batches summed into one step", least=1)
    seed: int = setting(0, "decides initial weights, order of data and dropout", least=0)
    start_from: str = setting(
        "", "start from this model (folder or name), with its tokenizer and sizes"
    )
    freeze: tuple[str, ...] = setting(
        (), "do not train weights whose names start with one of these, e.g. 'embedding'"
    )
    lora_rank: int = setting(
        0, "LoRA: train updates of this rank beside frozen matrices; 0: train all weights", least=0
    )
    lora_alpha: float = setting(16.0, "LoRA: updates are multiplied by this / lora_rank", least=0)
    lora_on: tuple[LoRATarget, ...] = setting(
        ("attention", "feed_forward"),
        "LoRA: which matrices; 'query', 'key', 'value' and 'output' are parts of 'attention'",
    )
    lora_dropout: float = setting(
        0.0, "LoRA: dropout on what the updates are multiplied with", least=0, most=1
    )
    lora_base: Literal["auto", "fp32", "bf16", "int8", "int4"] = setting(
        "auto",
        "LoRA: what the frozen weights are in memory; auto: integers as they are stored, floats as "
        "float32, on a GPU as bfloat16",
    )
    recompute: bool = setting(
        False,
        "keep only the inputs of blocks for the backward pass and compute the rest again: less "
        "memory, a third more time",
    )
    shard: Literal["none", "full"] = setting(
        "none",
        "on many workers: none: a copy of the model on each; full: a part of the weights, "
        "gradients and optimizer's state on each (FSDP)",
    )
    tensor_parallel: int = setting(
        1,
        "on many workers: so many neighbours share the heads and the feed-forward units of each "
        "block",
        least=1,
    )
    optimizer: Literal["adamw", "muon"] = setting(
        "adamw", "adamw: Adam with decoupled weight decay; muon: orthogonal updates in the blocks"
    )
    muon_lr: float = setting(
        0.02, "muon: peak learning rate of the blocks' matrices; lr is for the rest", least=0
    )
    optimizer_state: Literal["float32", "int8"] = setting(
        "float32",
        "what Adam's two averages are in memory: 8 bytes a trained weight, or 2, in blocks with a "
        "scale each; int8 with clip = 0 and accumulate = 1 also keeps no gradients",
    )
    lr: float = setting(0.0, "peak learning rate; 0: 1/√(d_model · warmup), at most 0.001", least=0)
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = setting(
        "inverse_sqrt", "how the learning rate falls after warm-up"
    )
    warmup: int = setting(1000, "steps over which the learning rate rises", least=0)
    beta1: float = setting(0.9, "Adam's β₁, decay of the gradient's mean", least=0, most=0.9999)
    beta2: float = setting(0.98, "Adam's β₂, decay of its squared mean", least=0, most=0.9999)
    epsilon: float = setting(1e-9, "Adam's ε", least=0)
    weight_decay: float = setting(0.0, "decoupled weight decay, on matrices only", least=0)
    clip: float = setting(1.0, "largest gradient norm; 0: no clipping", least=0)
    label_smoothing: float = setting(
        0.1, "fraction of the target spread evenly over all tokens or labels", least=0, most=1
    )
    consistency: float = setting(
        0.0, "R-Drop: weight of the divergence between two passes with different dropout", least=0
    )
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "of matrix products; auto: bfloat16 where the hardware has instructions for it"
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto", "torch.compile; auto: on a GPU, if all batches have one shape"
    )
    packing: Literal["auto", "on", "off"] = setting(
        "auto", "pack sequences end to end instead of padding them; auto: on a GPU"
    )
    device: str = setting("auto", "'cpu', 'cuda', or auto: a GPU if there is one")
    checkpoint_every: int = setting(500, "steps between checkpoints to resume from", least=1)
    valid_every: int = setting(500, "steps between validations", least=1)
    valid_bleu: bool = setting(
        True, "generate and score validation text at each validation (translations, answers)"
    )
    metric: Literal["loss", "bleu", "exact_match", "accuracy", "f1", "correlation", "preferred"] = (
        setting("loss", "decides which weights are best, and early stopping")
    )
    patience: int = setting(8, "validations without a new best before stopping; 0: never", least=0)
    average: int = setting(5, "average the weights of this many last validations", least=1)
    tensorboard: bool = setting(True, "write curves for TensorBoard, if it is installed")

    def _problems(self) -> Iterator[str]:
        if self.metric in ("bleu", "exact_match") and not self.valid_bleu:
            yield f"metric = '{self.metric}' needs valid_bleu = true."
        if self.lora_rank and not self.start_from:
            yield "lora_rank is for a model that is there already; name it with start_from."
        if self.lora_rank and not self.lora_on:
            yield "lora_on is empty, so nothing would be trained; name some matrices."
        if self.lora_rank and self.freeze:
            yield "lora_rank freezes all weights but its updates; leave freeze out."
        if self.optimizer_state == "int8" and self.optimizer == "muon":
            yield "optimizer_state = 'int8' is for Adam's averages; leave it out with 'muon'."

    @property
    def moves_in_backward(self) -> bool:
        """Whether weights can move in the backward pass, so that no gradient waits for others."""
        return self.optimizer_state == "int8" and not self.clip and self.accumulate == 1


@dataclass(frozen=True)
class DecodeConfig(Section):
    """How text is generated: beam search unless `sample` is set or `beams` is 1 (greedy)."""

    beams: int = setting(4, "beam size; 1 is greedy", least=1, most=10_000)
    length_penalty: float = setting(
        1.0,
        "a hypothesis scores log P / length^this; above 1 favours long ones",
        least=-50,
        most=50,
    )
    early_stopping: bool | Literal["never"] = setting(
        False,
        "true: stop at `beams` finished hypotheses; false: when the best open one scores below "
        "them; 'never': when no open one can still beat them",
    )
    n_best: int = setting(1, "hypotheses returned for each source", least=1)
    max_length: int = setting(
        0,
        "most tokens to generate, EOS included; 0: 2 × the source's tokens + 20, or 256 after a "
        "prompt",
        least=0,
    )
    min_length: int = setting(0, "fewest tokens before EOS", least=0)
    force_start: bool = setting(
        True, "a model with a start_id (BART) begins with it; false: with the likeliest token"
    )
    force_end: bool = setting(False, "an output that reaches its length limit ends with EOS")
    suppress: tuple[int, ...] | Literal["special"] = setting(
        "special", "token ids never generated; 'special': PAD and BOS, unless they end a text"
    )
    stop: tuple[str, ...] = setting((), "stop before any of these strings (language models)")
    repetition_penalty: float = setting(
        1.0, "divide the logits of tokens that occurred before by this; 1: off", least=0.01
    )
    no_repeat: int = setting(0, "never repeat an n-gram of this size; 0: off", least=0)
    sample: bool = setting(False, "draw tokens at random instead of searching")
    temperature: float = setting(1.0, "divide logits by this before drawing", least=0)
    top_k: int = setting(0, "draw among the k likeliest tokens; 0: all", least=0)
    top_p: float = setting(1.0, "draw among the likeliest tokens that sum to p", least=0, most=1)
    min_p: float = setting(
        0.0, "draw among tokens at least min_p times as likely as the likeliest", least=0, most=1
    )
    seed: int = setting(0, "seed of the random draws; the same seed gives the same text", least=0)

    def _problems(self) -> Iterator[str]:
        if not self.sample and self.n_best > self.beams:
            yield (
                f"n_best ({self.n_best}) is larger than beams ({self.beams}); raise beams or "
                f"lower n_best."
            )


DRAWING = ("temperature", "top_k", "top_p", "min_p")
"""Settings of `DecodeConfig` that ask for random draws."""


@dataclass(frozen=True)
class ChatConfig(Section):
    """How the turns of a conversation are written; stored with the model."""

    template: Literal["auto", "plain", "alpaca", "chatml"] = setting(
        "auto", "auto: that of the model the run starts from, else plain ('User:', 'Assistant:')"
    )
    system: str = setting("", "instead: a system message, with '{content}' in it")
    user: str = setting("", "instead: a user's turn")
    assistant: str = setting("", "instead: an answer; what follows '{content}' ends it")


@dataclass(frozen=True)
class MaskConfig(Section):
    """Which tokens a masked language model predicts, and which pairs of texts it sees."""

    share: float = setting(0.15, "fraction of tokens to predict", least=0.01, most=0.9)
    random: float = setting(0.1, "fraction of these replaced by random tokens", least=0, most=1)
    kept: float = setting(
        0.1, "fraction of these left unchanged; the rest become the mask token", least=0, most=1
    )
    units: Literal["token", "word", "span"] = setting(
        "token", "mask single tokens, whole words, or spans of words"
    )
    span_length: float = setting(
        5.0, "span: mean length in words, before the longest are cut", least=1
    )
    longest_span: int = setting(10, "span: largest number of words", least=1)
    pairs: Literal["none", "next", "order"] = setting(
        "none",
        "pairs of texts to tell apart: next: half of the second texts come from elsewhere (BERT); "
        "order: half of the pairs are swapped (ALBERT)",
    )

    def _problems(self) -> Iterator[str]:
        if self.random + self.kept > 1:
            yield (
                f"random ({self.random}) and kept ({self.kept}) are fractions of the same tokens; "
                f"together they must not exceed 1."
            )


_PAPERS_SHARE = {"spans": 0.15, "infill": 0.3}  # Raffel et al. 2020; Lewis et al. 2020
_LEAST_MEAN = 1.5  # of Poisson lengths; below, masks of empty spans outnumber the hidden tokens


@dataclass(frozen=True)
class DenoiseConfig(Section):
    """Which spans of text an encoder-decoder reconstructs."""

    kind: Literal["spans", "infill"] = setting(
        "spans",
        "spans: a numbered sentinel for each hidden span, all spans are generated (T5); infill: a "
        "mask for each, the whole text is generated (BART)",
    )
    share: float = setting(
        0.0, "fraction of tokens hidden; 0: 0.15 for spans, 0.3 for infill", least=0, most=0.9
    )
    span_length: float = setting(
        3.0,
        "mean length of a span in tokens; infill: Poisson's λ, so that some spans are empty",
        least=1,
        most=1000,
    )
    sentinels: int = setting(
        100, "spans: number of special tokens `<extra_id_0>`, `<extra_id_1>` …", least=2
    )
    permute_sentences: bool = setting(False, "infill: shuffle the sentences of the input")

    def _problems(self) -> Iterator[str]:
        if self.permute_sentences and self.kind == "spans":
            yield "permute_sentences needs kind = 'infill'; leave one of them out."
        if self.kind == "infill" and self.span_length < _LEAST_MEAN:
            yield (
                f"span_length is {self.span_length}, but kind = 'infill' needs at least "
                f"{_LEAST_MEAN} (too many spans would be empty); raise it, or use 'spans'."
            )

    @property
    def hidden_share(self) -> float:
        """Fraction of tokens that are hidden: as set, or the paper's."""
        return self.share or _PAPERS_SHARE[self.kind]


@dataclass(frozen=True)
class ClassifyConfig(Section):
    """What a label is, and how long texts are read; stored with the model."""

    kind: Literal["class", "classes", "number"] = setting(
        "class", "one class of several, any number of classes, or a number"
    )
    threshold: float = setting(
        0.5, "classes: give those with at least this probability", least=0, most=1
    )
    weights: Literal["none", "balanced"] = setting(
        "none", "balanced: weight classes by their inverse frequency"
    )
    overlap: int = setting(
        64, "tokens shared by neighbouring windows over a text longer than the model", least=0
    )
    shift: int = setting(
        0, "images: shift each by up to this many pixels at random in training", least=0
    )


@dataclass(frozen=True)
class TeacherConfig(Section):
    """Classifiers whose predictions are learned from (distillation)."""

    models: tuple[str, ...] = setting(
        (), "classifiers (folders or names); the mean of their probabilities is learned from"
    )
    text: tuple[str, ...] = setting((), "texts without labels, labelled by the teachers alone")
    weight: float = setting(
        0.5, "weight of the teachers where there is a label too", least=0, most=1
    )
    temperature: float = setting(
        2.0, "divide both sides' logits by this; above 1, unlikely classes count more", least=0.01
    )

    def _problems(self) -> Iterator[str]:
        if self.text and not self.models:
            yield "text has no labels; name models to label it."


@dataclass(frozen=True)
class PreferConfig(Section):
    """How far preferences may move a model away from what it was (DPO)."""

    beta: float = setting(
        0.1, "β: the larger, the less the model may differ from what it was", least=0.0001
    )


@dataclass(frozen=True)
class TagConfig(Section):
    """Where words and labels are, and which sequences of labels are valid."""

    scheme: Literal["auto", "iob1", "iob2", "bioes", "none"] = setting(
        "auto", "how entities are marked in the files; none: every sequence of labels is valid"
    )
    word_column: int = setting(0, "column of the words; negative numbers count from the last")
    label_column: int = setting(-1, "column of the labels")
    overlap: int = setting(
        32, "tokens shared by neighbouring windows over a sentence longer than the model", least=0
    )


@dataclass(frozen=True)
class AnswerConfig(Section):
    """How answers are searched in a text; stored with the model."""

    overlap: int = setting(
        128, "tokens shared by neighbouring windows over a text longer than the model", least=0
    )
    max_question: int = setting(64, "longest question in tokens; the rest is cut off", least=1)
    max_answer: int = setting(30, "longest answer in tokens", least=1)
    no_answer: float = setting(
        0.0, "margin by which a span must beat 'no answer', where there may be none"
    )


@dataclass(frozen=True)
class EmbedConfig(Section):
    """How a text becomes one vector; stored with the model."""

    pooling: Pooling = setting(
        "mean",
        "a text's vector: the mean of its tokens' vectors, the first or last one, the maximum of "
        "each dimension, or a mean in which the n-th token weighs n (weighted)",
    )
    normalize: bool = setting(True, "scale vectors to length 1")
    temperature: float = setting(
        0.05, "contrastive loss: divide similarities by this before the softmax", least=0.001
    )
    max_length: int = setting(0, "longest piece of text, in tokens; 0: the model's length", least=0)
