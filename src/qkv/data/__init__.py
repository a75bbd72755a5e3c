"""Files → batches: readers of records, splits, encoded items, and the one stream of batches."""

from qkv.data.batch import IGNORE, Batch, PackedShape, Side, Specials, arrange
from qkv.data.corpus.documents import Piece, read_documents, whole_documents
from qkv.data.corpus.held_out import HeldOut, hold_out
from qkv.data.corpus.shards import cached_examples
from qkv.data.corpus.tokens import TextCorpus, Tokens, load_corpus, text_tokenizer, training_text
from qkv.data.files import read_lines
from qkv.data.formats.conll import Sentence
from qkv.data.formats.conversations import read_conversations
from qkv.data.formats.describe import describe_example
from qkv.data.formats.images import LabelledImage, read_image, read_images
from qkv.data.formats.labelled import Labelled, read_labelled, read_texts
from qkv.data.formats.pairs import Pair, read_pairs
from qkv.data.formats.preferences import Preference, hold_preferences, read_preferences
from qkv.data.formats.records import Record, read_records
from qkv.data.formats.squad import Answer, Question, read_squad
from qkv.data.formats.tagged import read_tagged
from qkv.data.items.base import Draw, Items
from qkv.data.items.conversations import (
    ConversationItems,
    encode_conversations,
    filter_conversations,
)
from qkv.data.items.denoise import Noise, NoisyItems
from qkv.data.items.masking import MaskedItems, Masker
from qkv.data.items.pairs import PairItems, encode_pairs, filter_pairs
from qkv.data.items.passages import Passages
from qkv.data.items.pixels import ImageItems, Scale
from qkv.data.items.preferences import PreferenceItems
from qkv.data.items.segmented import SegmentedPairs
from qkv.data.items.sequences import Framed, SequenceItems, TwinItems, frame, framed_arrays
from qkv.data.items.windows import WindowItems
from qkv.data.overlaps import answer_place, most_central, windows
from qkv.data.prefetch import prefetch
from qkv.data.ragged import Ragged
from qkv.data.splits import Splits, draw_examples, read_splits, repeated
from qkv.data.stream import Stream, validation_batches

__all__ = [
    "IGNORE",
    "Answer",
    "Batch",
    "ConversationItems",
    "Draw",
    "Framed",
    "HeldOut",
    "ImageItems",
    "Items",
    "Labelled",
    "LabelledImage",
    "MaskedItems",
    "Masker",
    "Noise",
    "NoisyItems",
    "PackedShape",
    "Pair",
    "PairItems",
    "Passages",
    "Piece",
    "Preference",
    "PreferenceItems",
    "Question",
    "Ragged",
    "Record",
    "Scale",
    "SegmentedPairs",
    "Sentence",
    "SequenceItems",
    "Side",
    "Specials",
    "Splits",
    "Stream",
    "TextCorpus",
    "Tokens",
    "TwinItems",
    "WindowItems",
    "answer_place",
    "arrange",
    "cached_examples",
    "describe_example",
    "draw_examples",
    "encode_conversations",
    "encode_pairs",
    "filter_conversations",
    "filter_pairs",
    "frame",
    "framed_arrays",
    "hold_out",
    "hold_preferences",
    "load_corpus",
    "most_central",
    "prefetch",
    "read_conversations",
    "read_documents",
    "read_image",
    "read_images",
    "read_labelled",
    "read_lines",
    "read_pairs",
    "read_preferences",
    "read_records",
    "read_splits",
    "read_squad",
    "read_tagged",
    "read_texts",
    "repeated",
    "text_tokenizer",
    "training_text",
    "validation_batches",
    "whole_documents",
    "windows",
]
