"""Checks of layer-drop.patch."""

import numpy as np
import pytest
import tensorflow as tf

from config import Config
from model import build
from model.layers import Seed, named_variables

SOURCE = np.int32([[4, 5, 6, 3], [7, 3, 0, 0]])
TARGET = np.int32([[2, 8, 9, 3], [2, 5, 3, 0]])
FLAGS = {"d_model": 16, "num_heads": 2, "dff": 24, "dropout_rate": 0.0}
STACKS = ("encoder", "decoder")


@pytest.fixture(scope="module")
def model():
    return build(Config(num_layers=2, **FLAGS), 11, 11)


def skipped(layer):
    """Return a layer that returns its input."""

    def identity(x, *_):
        return x, {}, None

    identity.cross_attention = getattr(layer, "cross_attention", None)
    return identity


def logits_without(model, kept):
    """Return the logits of a model that uses these layers only, by stack."""
    layers = {name: getattr(model, name).layers for name in STACKS}
    try:
        for name in STACKS:
            getattr(model, name).layers = [
                layer if i in kept[name] else skipped(layer) for i, layer in enumerate(layers[name])
            ]
        return model.teacher_forced(SOURCE, TARGET).logits.numpy()
    finally:
        for name in STACKS:
            getattr(model, name).layers = layers[name]


def test_each_update_has_a_subset_of_the_layers_and_gradients_for_these_only(model):
    variables, subsets = named_variables(model), {stack: [] for stack in STACKS}
    for step in range(40):
        with tf.GradientTape() as tape:
            logits = model.teacher_forced(SOURCE, TARGET, Seed(7, step)).logits
        gradients = tape.gradient(logits, [*variables.values()], unconnected_gradients="zero")
        used = [
            name
            for name, gradient in zip(variables, gradients, strict=True)
            if np.any(tf.convert_to_tensor(gradient) != 0)
        ]
        kept = {
            stack: [i for i in (0, 1) if f"{stack}/layers/{i}/feed_forward/outer/kernel" in used]
            for stack in STACKS
        }
        np.testing.assert_allclose(logits, logits_without(model, kept), atol=1e-5)
        for stack in STACKS:
            subsets[stack].append(tuple(kept[stack]))
    for stack in STACKS:
        assert {*subsets[stack]} >= {(0, 1), (0,), (1,)}
        assert np.mean([*map(len, subsets[stack])]) == pytest.approx(1.6, abs=0.2)
    assert subsets["encoder"] != subsets["decoder"]


def test_without_a_seed_all_layers_are_used(model):
    expected = logits_without(model, {name: [0, 1] for name in STACKS})
    logits = model.teacher_forced(SOURCE, TARGET).logits
    np.testing.assert_array_equal(logits, expected)
    state = model.init_decode(SOURCE)
    for i in range(3):
        step_logits, state = model.decode_step(tf.constant(TARGET[:, i]), state)
        np.testing.assert_allclose(step_logits[0], expected[i], atol=1e-5)
