"""mT5, mBART, M2M100 and Pegasus: checkpoints of encoder-decoders, both ways."""

import torch

from tests.convert.harness import change, read, saved
from tests.convert.small import assert_reads_same, small


@torch.no_grad()
def test_published_mt5_has_an_output_of_its_own():
    theirs = small("MT5ForConditionalGeneration")
    theirs.lm_head.weight = torch.nn.Parameter(torch.randn(20, 8))
    with saved(theirs) as folder:
        change(folder, drop=["dense_act_fn", "is_gated_act", "feed_forward_proj"])
        _, ours = assert_reads_same(theirs, folder)
    assert (ours.config.tie, ours.config.gated, ours.config.output_scale) == ("inputs", True, False)


@torch.no_grad()
def test_waves_of_m2m100_begin_after_the_padding():
    theirs = small("M2M100ForConditionalGeneration", pad_token_id=4, max_position_embeddings=200)
    with saved(theirs) as folder:
        _, ours = read(folder)
    table = theirs.model.encoder.embed_positions.weights
    assert len(table) == 202  # theirs makes more when a text needs them
    assert torch.equal(ours.encoder.positions.table[:197], table[5:])
