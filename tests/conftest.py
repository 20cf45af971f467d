"""What tests share: tiny models, evaluate.py at hand, and the way to the code from everywhere."""

import os
import runpy
import sys
from pathlib import Path

import pytest

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(Path(__file__).parents[1]))


def pytest_collection_modifyitems(items):
    """The longest files first: so the two processes end together."""
    longest = {"test_run": 0, "test_distribution": 1, "test_every_model": 2}
    items.sort(key=lambda item: longest.get(item.path.stem, 3))


@pytest.fixture(scope="session")
def tiny():
    """Makes tiny models all of whose variables are random: no bias is 0 and no scale is 1.

    A fresh model has biases of 0 and scales of 1, behind which a forgotten or a swapped one hides.
    """
    import numpy as np  # here, so that the tests without TensorFlow start without it

    from config import NOT_APPLICABLE, Config
    from model import MODELS

    def make(source_vocab=11, target_vocab=11, spread=0.2, **flags):
        sizes = {"num_layers": 2, "d_model": 8, "num_heads": 2, "dff": 12, "max_length": 20}
        kind = flags.get("model", "transformer")
        sizes = {name: size for name, size in sizes.items() if name not in NOT_APPLICABLE[kind]}
        model = MODELS[kind](Config(**(sizes | flags)), source_vocab, target_vocab)
        rng = np.random.default_rng(0)
        for variable in model.trainable_variables:
            variable.assign_add(rng.normal(scale=spread, size=variable.shape))
        return model

    return make


@pytest.fixture
def evaluate_here(monkeypatch, capsys):
    """Runs evaluate.py, in this process to save the time of loading TensorFlow.

    → its exit status, standard output and standard error.
    """

    def run(*flags, cwd="."):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["evaluate.py", *map(str, flags)])
        # Too late in a process that has begun.
        monkeypatch.setattr("training.machine.set_parallelism", lambda tasks: None)
        status = 0
        try:
            runpy.run_path(str(Path(__file__).parents[1] / "evaluate.py"), run_name="__main__")
        except SystemExit as error:
            status = error.code
        return status, *capsys.readouterr()

    return run
