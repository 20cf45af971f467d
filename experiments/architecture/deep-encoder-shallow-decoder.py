"""Checks of deep-encoder-shallow-decoder.patch."""

import numpy as np
import pytest

from ablation.experiments import recipes
from ablation.worker import parse
from config import Config
from model.layers import trainable_variables
from model.transformer import Transformer


def make_model():
    return Transformer(Config(**parse(recipes()["mini"].flags.split())), 11, 11)


def test_the_recipe_has_three_encoder_layers_and_one_decoder_layer():
    model, ids = make_model(), np.int32([[5, 6, 7, 2]])
    assert len(model.encoder.layers) == 3 and len(model.decoder.layers) == 1
    weights = model.attention_weights(ids, ids)
    assert {name: each.shape[1] for name, each in weights.items()} == {
        "encoder": 3,
        "decoder": 1,
        "cross": 1,
    }


def test_parameters_of_the_layers_are_those_of_the_baseline_less_one_cross_attention():
    sizes = {"encoder/layers/": 0, "decoder/layers/": 0}
    for name, variable in trainable_variables(make_model()).items():
        for stack in sizes:
            sizes[stack] += name.startswith(stack) * variable.shape.num_elements()
    encoder_layer, decoder_layer = sizes["encoder/layers/"] / 3, sizes["decoder/layers/"]
    before = 2 * (encoder_layer + decoder_layer)
    assert sum(sizes.values()) / before == pytest.approx(0.93, abs=0.005)
