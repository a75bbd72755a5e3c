"""Files → batches: readers of records, splits, encoded items, and the one stream of batches."""

from qkv.data.batch import IGNORE, Batch, PackedShape, Placement, Side, Specials, place
from qkv.data.corpus.documents import Piece, read_documents
from qkv.data.corpus.shards import Shards, cached_examples
from qkv.data.corpus.tokens import (
    HeldOut,
    TextCorpus,
    Tokens,
    hold_out,
    load_corpus,
    training_text,
)
<<<<<<< HEAD
from qkv.data.files import read_lines, text_files
from qkv.data.formats.conll import Sentence, read_conll
from qkv.data.formats.conversations import read_conversations
from qkv.data.formats.describe import describe_example
from qkv.data.formats.images import LabelledImage, read_image, read_images
from qkv.data.formats.labelled import Labelled, read_labelled, read_texts
from qkv.data.formats.pairs import Pair, read_pairs
from qkv.data.formats.records import Record, read_records
from qkv.data.formats.squad import Answer, Question, read_squad
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
from qkv.data.items.sequences import Framed, SequenceItems, TwinItems, frame, framed_arrays
from qkv.data.items.windows import WindowItems
from qkv.data.overlaps import answer_place, most_central, windows
from qkv.data.prefetch import prefetch
from qkv.data.ragged import Ragged
from qkv.data.splits import Splits, draw_examples, read_splits
from qkv.data.stream import Stream, validation_batches
=======
from qkv.data.corpus.documents import Piece, read_documents, sample_text
from qkv.data.encoded import EncodedPairs, Indices, Ragged
from qkv.data.examples import (
    Examples,
    ExampleStream,
    encode_examples,
    example_batches,
    kept_examples,
    packed_examples,
    padded_examples,
)
from qkv.data.files import lines, lines_in, read_lines
from qkv.data.filters import FilterReport, filter_pairs, kept_indices
from qkv.data.formats.conversations import read_conversations
from qkv.data.formats.describe import describe_example
from qkv.data.formats.pairs import Pair, read_pairs
from qkv.data.formats.records import Record, read_records
from qkv.data.order import packed_plan, packed_shape, padded_plan, validation_plan
from qkv.data.prefetch import prefetch
from qkv.data.sequences import (
    Framed,
    Sequences,
    SequenceStream,
    Twins,
    TwinStream,
    frame,
    sequence_batches,
    twin_batches,
)
from qkv.data.shards import Corpus, load_corpus
from qkv.data.shuffle import permuted
from qkv.data.splits import Splits, draw_examples, read_splits
from qkv.data.stream import BatchStream, Mode, validation_batches
from qkv.data.tokens import Tokens
from qkv.data.windows import WindowBatches, WindowMode, WindowStream, window_batches
>>>>>>> formats

__all__ = [
    "IGNORE",
    "Answer",
    "Batch",
<<<<<<< HEAD
    "ConversationItems",
    "Draw",
=======
    "BatchStream",
    "Corpus",
    "EncodedPairs",
    "ExampleStream",
    "Examples",
    "FilterReport",
>>>>>>> formats
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
<<<<<<< HEAD
    "PairItems",
    "Passages",
=======
>>>>>>> formats
    "Piece",
    "Placement",
    "Question",
    "Ragged",
    "Record",
<<<<<<< HEAD
    "Scale",
    "Sentence",
    "SequenceItems",
    "Shards",
    "Side",
    "Specials",
    "Splits",
    "Stream",
    "TextCorpus",
    "Tokens",
    "TwinItems",
    "WindowItems",
    "answer_place",
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
=======
    "SequenceStream",
    "Sequences",
    "Side",
    "Specials",
    "Splits",
    "Tokens",
    "TwinStream",
    "Twins",
    "WindowBatches",
    "WindowMode",
    "WindowStream",
    "describe_example",
    "draw_examples",
    "encode_examples",
    "example_batches",
    "filter_pairs",
    "frame",
    "kept_examples",
    "kept_indices",
    "lines",
    "lines_in",
>>>>>>> formats
    "load_corpus",
    "most_central",
    "place",
    "prefetch",
    "read_conll",
    "read_conversations",
    "read_documents",
<<<<<<< HEAD
    "read_image",
    "read_images",
    "read_labelled",
=======
>>>>>>> formats
    "read_lines",
    "read_pairs",
    "read_records",
    "read_splits",
<<<<<<< HEAD
    "read_squad",
    "read_texts",
    "text_files",
    "training_text",
=======
    "sample_text",
    "sequence_batches",
    "twin_batches",
>>>>>>> formats
    "validation_batches",
    "windows",
]
