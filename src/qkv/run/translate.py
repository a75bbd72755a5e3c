"""Training a translator: sentence pairs in, an encoder-decoder out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from qkv.config import ModelConfig, Recipe
from qkv.data import (
    BatchStream,
    EncodedPairs,
    Mode,
    Pair,
    Ragged,
    Specials,
    filter_pairs,
    read_parallel,
    validation_batches,
)
from qkv.device import is_on, mixed_precision
from qkv.evaluation import Score, bleu, exact_match, translation_scores
from qkv.model import EncoderDecoder
from qkv.run.job import Finished, Plan, fingerprint, model_config, text_length
from qkv.run.start import Start, find_start
from qkv.tasks import Tokenizers, Translator
from qkv.tasks.folder import save_config, save_weights
from qkv.text import train_pair
from qkv.training import build_loss, label_entropy, mean_loss, next_token, with_wrong_sources
from qkv.training.loop import Scores

VALID_BATCH_TOKENS = 4096
SCORED_LINES = 1000  # of the validation text, translated at each validation


class Translation:
    """The job of `task = "translate"`."""

    objective = staticmethod(next_token)

    def __init__(self, plan: Plan) -> None:
        recipe, device = plan.recipe, plan.device
        self.plan, start = plan, find_start(recipe, "encoder-decoder")
        self.split = read_parallel(recipe.data, recipe.train.seed)
        self.tokenizers = (
            plan.kept_tokenizers
            or (start and start.tokenizers)
            or train_tokenizers(self.split.train, recipe)
        )
        config = translation_config(recipe, self.tokenizers, start)
        limits = text_length(recipe, config), recipe.data.max_ratio
        first = [] if config.start_id < 0 else [config.start_id]
        train, report = filter_pairs(encode(self.split.train, self.tokenizers, first), *limits)
        plan.say(f"train: {report.describe()}")
        valid, report = filter_pairs(encode(self.split.valid, self.tokenizers, first), *limits)
        plan.say(f"valid: {report.describe()}")
        torch.manual_seed(recipe.train.seed)
        self.model = EncoderDecoder(config)
        if start:
            start.fill(self.model)
        self.model.to(device)
        self.translator = Translator(self.model, self.tokenizers, recipe.decode)
        special = Specials(config.pad_id, config.bos_id, config.eos_id)
        self.one_shape = config.can_pack and is_on(recipe.train.packing, device)
        mode: Mode = "packed" if self.one_shape else "padded"
        self.stream = BatchStream(
            train,
            special,
            mode,
            recipe.train.batch_tokens,
            recipe.train.accumulate,
            recipe.train.seed,
        )
        self.frequencies_loss = label_entropy(train)
        sides = train.source, train.target, valid.source, valid.target
        self.text = fingerprint(len(train), *(side.tokens for side in sides))
        self._measure_on(valid, special)

    def _measure_on(self, valid: EncodedPairs, special: Specials) -> None:
        """Lay out what validations need, once."""
        config, device = self.plan.recipe.train, self.plan.device
        batches = validation_batches(valid, VALID_BATCH_TOKENS, special)
        self.batches = [batch.to(device) for batch in batches]
        self.wrong = [with_wrong_sources(batch) for batch in self.batches]
        # Validation batches are padded and of many shapes, which a compiled step would choke on.
        eager = dataclasses.replace(config, compile="off")
        self.loss_sum = build_loss(self.model, eager, device)

    def evaluate(self) -> Scores:
        """Loss, loss with wrong sources, and greedy translations."""
        config, device = self.plan.recipe.train, self.plan.device
        scores = {
            "valid_loss": mean_loss(self.model, self.loss_sum, self.batches),
            "wrong_source_loss": mean_loss(self.model, self.loss_sum, self.wrong),
        }
        if config.valid_bleu:
            scored = self.split.valid[:SCORED_LINES]
            references = [target for _, target in scored]
            with mixed_precision(config, device):
                found = self.translator.translate(
                    [source for source, _ in scored],
                    beams=1,
                    n_best=1,
                    sample=False,
                    truncate=True,
                )
            scores["bleu"] = bleu(found, references).value
            scores["exact_match"] = exact_match(found, references).value
        return scores

    def keep(self) -> None:
        """Make the run's folder a model folder of the weights as they are now."""
        folder, recipe = self.plan.folder, self.plan.recipe
        self.tokenizers.save(folder)
        save_config(folder, recipe.task, self.model.config, recipe.decode)
        save_weights(folder, self.model)

    def finish(self) -> Finished:
        """Translate and score validation and test text with the best weights."""
        best = Translator.load(self.plan.folder, self.plan.device)
        splits = {"valid": self.split.valid, "test": self.split.test}
        pairs = {name: split for name, split in splits.items() if split}
        scores = {name: score_pairs(best, split) for name, split in pairs.items()}
        return Finished(best, scores, pairs)


def train_tokenizers(pairs: list[Pair], recipe: Recipe) -> Tokenizers:
    """Learn the vocabularies from the training text alone."""
    sources, targets = (source for source, _ in pairs), (target for _, target in pairs)
    return Tokenizers(*train_pair(sources, targets, recipe.tokenizer))


def encode(pairs: list[Pair], tokenizers: Tokenizers, first: Sequence[int] = ()) -> EncodedPairs:
    """Token ids of both sides, without BOS and EOS; each text stands after `first`."""
    source = tokenizers.source.encode_many([source for source, _ in pairs])
    target = tokenizers.target.encode_many([target for _, target in pairs])
    return EncodedPairs(*(Ragged.of([[*first, *ids] for ids in side]) for side in (source, target)))


def translation_config(
    recipe: Recipe, tokenizers: Tokenizers, start: Start | None = None
) -> ModelConfig:
    """The recipe's model, with a vocabulary for each side where they are not shared."""
    if start:
        return start.model_config(recipe, tokenizers.target)
    if tokenizers.shared:
        return model_config(recipe, tokenizers.target)
    apart = {"source_vocab_size": len(tokenizers.source), "tie": "output"}
    return model_config(recipe, tokenizers.target, **apart)


def score_pairs(translator: Translator, pairs: list[Pair]) -> list[Score]:
    """Translate sources and score the result against the targets."""
    found = translator.translate([source for source, _ in pairs], truncate=True)
    return translation_scores(found, [target for _, target in pairs])
