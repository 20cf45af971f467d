"""Checks of no-positions-in-decoder.patch."""

import numpy as np

from config import Config
from model.layers import trainable_variables
from model.transformer import Transformer

CONFIG = {"num_layers": 2, "d_model": 16, "num_heads": 4, "dff": 24}


def test_embeddings_of_the_decoder_do_not_depend_on_the_position():
    model, ids = Transformer(Config(**CONFIG), 11, 11), np.int32([[5, 5, 7, 5]])
    encoder, decoder = (each.embed(ids, None)[0].numpy() for each in (model.encoder, model.decoder))
    np.testing.assert_array_equal(decoder[[0, 0]], decoder[[1, 3]])
    np.testing.assert_array_equal(model.decoder.embed(ids, None, start=3)[0], decoder)
    assert np.max(np.abs(encoder[0] - encoder[3])) > 0.1


def test_the_order_of_the_target_matters_all_the_same():
    model, source = Transformer(Config(**CONFIG), 11, 11), np.int32([[5, 6, 2]])
    targets = np.int32([[1, 5, 6, 7, 8, 2], [1, 6, 5, 7, 8, 2]])
    logits = [model.teacher_forced(source, row[np.newaxis]).logits[-1] for row in targets]
    assert np.max(np.abs(logits[0] - logits[1])) > 1e-3


def test_the_encoder_has_the_positions_of_the_flag():
    names = trainable_variables(Transformer(Config(**CONFIG, positions="learned"), 11, 11))
    assert [name for name in names if "positions" in name] == ["encoder/positions/table"]
