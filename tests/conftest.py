"""Shared fixtures: tiny models, and programs that run in the process of the tests."""

import os
import runpy
import sys
import time
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest
from hypothesis import HealthCheck, settings

options = {"max_examples": 30, "deadline": None, "derandomize": True, "database": None}
fixtures = [HealthCheck.function_scoped_fixture]  # files that each example writes anew
settings.register_profile("suite", suppress_health_check=fixtures, **options)
settings.load_profile("suite")
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from same_code import CODE, syntax_error  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    """Stop at a syntax error in the code, which otherwise each file of tests would report."""
    first = not hasattr(config, "workerinput")
    files = [path for name in CODE for path in (ROOT / name).rglob("*.py")] if first else []
    for error in filter(None, map(syntax_error, files)):
        pytest.exit(f"syntax error in {error}", returncode=pytest.ExitCode.USAGE_ERROR)
    from training.machine import set_gpu_defaults  # may have the error

    set_gpu_defaults()


# The settings with which the invariants are tested, by model. A model that is not listed, such as a
# new one, is tested with its defaults.
VARIANTS = {
    "transformer": {"post": {"norm": "post"}, "pre": {"norm": "pre"}},
    "recurrent": {name: {"recurrent_attention": name} for name in ("none", "additive", "dot")},
    "language_model": {"post": {"norm": "post"}, "pre": {"norm": "pre"}},
    "classifier": {name: {"pooling": name} for name in ("max", "mean", "first")},
}


def variants(*tasks):
    """Return pytest parameters: the flags of every variant of every model for these tasks."""
    from config import TASKS

    return [
        pytest.param({"model": model} | flags, id=f"{model}-{name}" if name else model)
        for model, task in TASKS.items()
        if task in tasks
        for name, flags in VARIANTS.get(model, {"": {}}).items()
    ]


def pytest_collection_modifyitems(items):
    """Start the longest files first, so that parallel processes end at the same time."""
    longest = ["test_invariants", "test_evaluate", "test_run", "test_export"]
    places = {name: place for place, name in enumerate(longest)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def pytest_terminal_summary(terminalreporter, config):
    """Print how many invariants were tested, and how many hold."""
    if config.option.markexpr == "invariant":
        held, failed = (len(terminalreporter.getreports(kind)) for kind in ("passed", "failed"))
        terminalreporter.write_line(f"{held} of {held + failed} invariants hold")


@pytest.fixture(autouse=True)
def forget_warnings():
    """Forget the warnings of earlier tests: `warn` prints each one once. Returns a function."""
    from utils import warn

    warn.cache_clear()
    return warn.cache_clear


@pytest.fixture(scope="session")
def tiny():
    """Create tiny models with random variables: a bias of 0 or a scale of 1 could hide a bug."""
    import numpy as np  # here, so that the tests without TensorFlow start without it

    from config import Config, no_effect
    from model import MODELS

    def make(source_vocab=11, target_vocab=11, spread=0.2, **flags):
        sizes = {"num_layers": 2, "d_model": 16, "num_heads": 4, "dff": 24, "max_length": 20}
        kind = flags.get("model", "transformer")
        sizes = {name: size for name, size in sizes.items() if name not in no_effect(kind)}
        model = MODELS[kind](Config(**(sizes | flags)), source_vocab, target_vocab)
        rng = np.random.default_rng(0)
        for variable in model.trainable_variables:
            variable.assign_add(rng.normal(scale=spread, size=variable.shape))
        return model

    return make


@pytest.fixture
def eager():
    """Run functions without tracing them, which would take longer than a few calls."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def wait_until(condition, seconds=60):
    """Wait until a function returns something true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


class Result(NamedTuple):
    """Exit status, standard output and standard error of a program."""

    status: int
    out: str
    err: str


@pytest.fixture
def run_program(monkeypatch, capsys, tmp_path_factory, forget_warnings):
    """Run a program, such as "translate.py" or "evaluation/figures.py", in this process.

    A process of its own would have to load TensorFlow. stdin: bytes for standard input, or what
    sys.stdin is instead. Exceptions other than SystemExit propagate.
    """

    def run(program: str, *flags, stdin: bytes | TextIO | None = b"") -> Result:
        if isinstance(stdin, bytes):
            file = tmp_path_factory.mktemp("input") / "stdin"
            file.write_bytes(stdin)
            stdin = open(file)
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "argv", [str(ROOT / program), *map(str, flags)])
        monkeypatch.setattr("signal.signal", lambda *_: None)  # pytest handles signals
        # Threads cannot be set any more once TensorFlow has run.
        monkeypatch.setattr("training.machine.set_parallelism", lambda *_, **__: None)
        forget_warnings()  # those of an earlier program
        status = 0
        try:
            runpy.run_path(str(ROOT / program), run_name="__main__")
        except SystemExit as error:
            status = error.code
        return Result(status, *capsys.readouterr())

    return run
