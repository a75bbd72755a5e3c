"""transformers' Trainer on our examples: the peer of `bench.finetune`.

It trains and validates on the examples of one of our jobs, prepared as its users do, and writes a
Hugging Face folder. Its best weights are chosen as ours are: by the same score, computed by the
same code, equally often.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, TrainerCallback

import qkv
from qkv.config import TrainConfig
from qkv.data import IGNORE
from qkv.errors import UserError
from qkv.evaluation import evaluate
from qkv.run.job import ExampleJob
from qkv.tasks import Answerer

Job = ExampleJob[Any]
Features = list[dict[str, Any]]
MAX_LENGTH, STRIDE = 384, 128  # of windows over long texts, as in transformers' own examples
CLASSES = {
    "classify": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
}


@dataclass(frozen=True)
class Budget:
    """The peer's budget: as many examples per step, and as many epochs, as ours."""

    batch_size: int
    steps: int
    valid_every: int

    @classmethod
    def of(cls, job: Job, n_features: int) -> Budget:
        """Count steps so that there are as many validations as ours, the last at the end."""
        config, stream = job.recipe.train, job.stream
        rows = mean(len(batch) for batch in stream.plan(0)) * config.accumulate
        batch_size = max(1, round(rows))
        epochs = config.steps * rows / len(stream.items)
        n_validations = max(1, round(config.steps / config.valid_every))
        valid_every = max(1, round(epochs * n_features / batch_size / n_validations))
        return cls(batch_size, valid_every * n_validations, valid_every)


def fine_tune(job: Job, start: Path, lr: float, folder: Path) -> float:
    """Train on the job's examples, save the best weights, and return the seconds it took."""
    check_accelerate()
    quiet()
    config = job.recipe.train
    task = job.recipe.task
    transformers.set_seed(config.seed)
    tokenizer = AutoTokenizer.from_pretrained(start)
    model = getattr(transformers, CLASSES[task]).from_pretrained(
        start, dtype=torch.float32, **labels_of(job)
    )
    train, valid = (PREPARE[task](job, tokenizer, part) for part in ("train", "valid"))
    budget = Budget.of(job, len(train))
    tokenizer.save_pretrained(folder)
    judge = Judge(job, folder)
    with tempfile.TemporaryDirectory() as checkpoints:
        trainer = transformers.Trainer(
            model=model,
            args=arguments(config, lr, budget, checkpoints),
            train_dataset=train,
            eval_dataset=valid,
            processing_class=tokenizer,
            callbacks=[judge],
            data_collator=transformers.DataCollatorForTokenClassification(tokenizer)
            if task == "tag"
            else transformers.DataCollatorWithPadding(tokenizer),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        began = time.perf_counter()
        trainer.train()
        spent = time.perf_counter() - began - judge.seconds
    trainer.model.save_pretrained(folder)
    return spent


def check_accelerate() -> None:
    if importlib.util.find_spec("accelerate") is None:
        raise UserError(
            "transformers' Trainer needs accelerate, which is not installed; install it with "
            "`pip install accelerate`, or measure ours alone with --arms ours."
        )


def quiet() -> None:
    """Silence transformers: what is printed is for results alone."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def arguments(
    config: TrainConfig, lr: float, budget: Budget, folder: str
) -> transformers.TrainingArguments:
    """Translate our settings; all others keep the Trainer's defaults."""
    on_gpu = torch.cuda.is_available()
    return transformers.TrainingArguments(
        output_dir=folder,
        max_steps=budget.steps,
        learning_rate=lr,
        per_device_train_batch_size=budget.batch_size,
        per_device_eval_batch_size=128,
        lr_scheduler_type="linear",
        warmup_steps=round(budget.steps * config.warmup / config.steps),
        weight_decay=config.weight_decay,
        adam_beta1=config.beta1,
        adam_beta2=config.beta2,
        adam_epsilon=config.epsilon,
        max_grad_norm=config.clip,
        seed=config.seed,
        bf16=on_gpu and torch.cuda.is_bf16_supported(),
        use_cpu=not on_gpu,
        eval_strategy="steps",
        eval_steps=budget.valid_every,
        save_strategy="best",
        save_total_limit=1,
        save_only_model=True,
        load_best_model_at_end=True,
        metric_for_best_model=config.metric,
        greater_is_better=config.metric != "loss",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        log_level="error",
    )


class Judge(TrainerCallback):
    """Adds our scores of the current weights to each validation."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder, self.seconds = job, folder, 0.0

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: dict[str, float],
        model: Any,
        **more: Any,
    ) -> None:
        began = time.perf_counter()
        model.save_pretrained(self.folder)
        scored = evaluate(as_ours(self.job, self.folder), self.job.splits.valid)
        values = self.job.named(scored.scores)
        metrics |= {f"eval_{name}": value for name, value in values.items()}
        self.seconds += time.perf_counter() - began


def as_ours(job: Job, folder: Path) -> Any:
    """Load the peer's folder as the object of our task, with the settings of the job."""
    loaded = qkv.load(folder, job.device.type)
    task = job.build_result(loaded.model)
    if isinstance(task, Answerer):  # it reads windows as it was trained on them
        task.model.config = dataclasses.replace(task.model.config, max_length=MAX_LENGTH)
        task.settings = dataclasses.replace(task.settings, overlap=STRIDE)
    return task


def labels_of(job: Job) -> dict[str, dict[Any, Any]]:
    """Return the labels in our order; answers have none."""
    labels = label_names(job)
    if not labels:
        return {}
    return {"id2label": dict(enumerate(labels)), "label2id": {x: n for n, x in enumerate(labels)}}


def label_names(job: Job) -> tuple[str, ...]:
    """Return the labels of classes or tags."""
    known = getattr(job, "classes", None) or getattr(job, "tags", None)
    return known.labels if known else ()


def as_classes(job: Job, tokenizer: Any, part: str) -> Features:
    """Encode one text or two segments, with a label."""
    examples = getattr(job.splits, part)
    numbers = {label: number for number, label in enumerate(label_names(job))}
    sides = list(zip(*(example.texts for example in examples), strict=True))
    rows = as_rows(tokenizer(*map(list, sides), truncation=True))
    pairs = zip(rows, examples, strict=True)
    return [row | {"labels": numbers[example.label]} for row, example in pairs]


def as_tags(job: Job, tokenizer: Any, part: str) -> Features:
    """Encode words, each labelled at its first token; unknown labels are ignored."""
    examples = getattr(job.splits, part)
    numbers = {label: number for number, label in enumerate(label_names(job))}
    words = [list(example.words) for example in examples]
    encoded = tokenizer(words, is_split_into_words=True, truncation=True)
    rows = as_rows(encoded)
    for index, (row, example) in enumerate(zip(rows, examples, strict=True)):
        before = None
        row["labels"] = []
        for word in encoded.word_ids(index):
            first = word is not None and word != before
            row["labels"].append(numbers.get(example.labels[word], IGNORE) if first else IGNORE)
            before = word
    return rows


def as_answers(job: Job, tokenizer: Any, part: str) -> Features:
    """Encode windows over each text, with the answer's first and last token, or [CLS] twice."""
    examples = getattr(job.splits, part)
    encoded = tokenizer(
        [example.question.strip() for example in examples],
        [example.context for example in examples],
        truncation="only_second",
        max_length=MAX_LENGTH,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    owners, offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
    rows = as_rows(encoded)
    for number, row in enumerate(rows):
        inside = [n for n, kind in enumerate(encoded.sequence_ids(number)) if kind == 1]
        start, end = span_of(examples[owners[number]], offsets[number], inside)
        row |= {"start_positions": start, "end_positions": end}
    return rows


def span_of(question: Any, offsets: list[tuple[int, int]], inside: list[int]) -> tuple[int, int]:
    """Return the tokens of the first answer in the text, if the window holds all of it."""
    answer = next((answer for answer in question.answers if answer.start >= 0), None)
    if answer is None or not inside:
        return 0, 0
    start, end = answer.start, answer.start + len(answer.text)
    if offsets[inside[0]][0] > start or offsets[inside[-1]][1] < end:
        return 0, 0
    tokens = [n for n in inside if offsets[n][1] > start and offsets[n][0] < end]
    return (tokens[0], tokens[-1]) if tokens else (0, 0)


def as_rows(encoded: Any) -> Features:
    return [
        {name: values[row] for name, values in encoded.items()}
        for row in range(len(encoded["input_ids"]))
    ]


PREPARE: dict[str, Callable[[Job, Any, str], Features]] = {
    "classify": as_classes,
    "tag": as_tags,
    "answer": as_answers,
}
