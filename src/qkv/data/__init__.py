"""Text and token ids → batches: readers, filters, shift and padding, order, the demo corpus."""

from qkv.data.batch import (
    IGNORE,
    Batch,
    PackedShape,
    Side,
    Specials,
    packed_batch,
    padded_batch,
)
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

__all__ = [
    "IGNORE",
    "Batch",
    "BatchStream",
    "Corpus",
    "EncodedPairs",
    "ExampleStream",
    "Examples",
    "FilterReport",
    "Framed",
    "Indices",
    "Mode",
    "PackedShape",
    "Pair",
    "Piece",
    "Ragged",
    "Record",
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
    "load_corpus",
    "packed_batch",
    "packed_examples",
    "packed_plan",
    "packed_shape",
    "padded_batch",
    "padded_examples",
    "padded_plan",
    "permuted",
    "prefetch",
    "read_conversations",
    "read_documents",
    "read_lines",
    "read_pairs",
    "read_records",
    "read_splits",
    "sample_text",
    "sequence_batches",
    "twin_batches",
    "validation_batches",
    "validation_plan",
    "window_batches",
]
