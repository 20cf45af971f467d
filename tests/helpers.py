"""Training runs in the process of the tests, and the contents of run directories."""

import contextlib
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism

import train
from config import Config
from data import corpora, mini
from data.splits import Corpus, CorpusError, Split
from training import description, machine, run
from training.command_line import config_from_flags
from training.records import checkpoint_step, saved_checkpoints

# As in a program: its settings of TensorFlow change the last bits, also in later tests.
machine.import_tensorflow()

TINY = {
    "num_layers": 1,
    "d_model": 16,
    "num_heads": 2,
    "dff": 32,
    "vocab_size": 400,
    "batch_tokens": 256,
    "max_length": 40,
}
METRICS = {"objective": 1.5, "loss": 1.0, "accuracy": 0.5, "grad_norm": 2.0, "learning_rate": 0.1}


def open_corpus(name: str | Path, **settings) -> Corpus:
    """Return the corpus of a configuration with these settings."""
    return corpora.from_config(Config(corpus=str(name), **settings))


def load_split(name: str | Path, split: str, **settings) -> Split:
    """Load one split of a corpus."""
    return open_corpus(name, **settings).load(split)


def rejected(name: str | Path, *words: str, split: str = "train", **settings) -> None:
    """Assert that a corpus is rejected in one line with these words, when it is opened or read."""
    with pytest.raises(CorpusError) as error:
        load_split(name, split, **settings)
    message = str(error.value)
    assert "\n" not in message and all(word in message for word in words), message


def write(path: Path, content: str | bytes) -> str:
    """Write a file and its directory. Returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def command_line(settings: dict) -> list[str]:
    """Return settings as flags."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def write_corpus(folder: Path) -> Path:
    """Write a small corpus, English to Portuguese: a directory with two files for each split."""
    for name, size in {"train": 300, "validation": 20, "test": 30}.items():
        sources, targets, _ = zip(*mini.generate(name, size), strict=True)
        # The source is English, the first in alphabetical order.
        write(folder / f"{name}.pt", "\n".join([*sources, ""]))
        write(folder / f"{name}.en", "\n".join([*targets, ""]))
    return folder


@contextlib.contextmanager
def training_in_process() -> Iterator[pytest.MonkeyPatch]:
    """Let train.py run in this process, without git and pictures, and undo what it changes.

    The number of threads stays: it cannot change once TensorFlow has started.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "set_parallelism", lambda tasks: None)
        patch.setattr(run, "fingerprint", lambda: "code")  # takes half a second
        patch.setattr(description, "checkout_state", lambda names: (None, ""))
        patch.setattr(train, "attention_image", lambda *_: None)  # takes a second
        try:
            yield patch
        finally:
            disable_op_determinism()
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)


def train_here(**settings) -> Path:
    """Train in this process, with settings as on the command line. Returns the run directory."""
    config = config_from_flags(settings)
    with training_in_process():
        train.train(config)
    return Path(config.resume or Path(config.runs_dir, config.name))


def run_loop(
    settings: dict,
    on_step: Callable[[int, SimpleNamespace], None] | None = None,
    validation_losses: Sequence[float] | None = (),
) -> SimpleNamespace:
    """Train in this process with a step that computes nothing, which takes a second or so.

    Its loss and one norm are its number; an auxiliary loss is minus that number.

    on_step: called after each update with its number and with the model and the optimizer.
    validation_losses: those of the validations, and 1 after them; None: validate. Returns the exit
    status, and the batches as (source, target).
    """
    config = config_from_flags(settings)
    losses = iter(validation_losses or ())
    result = SimpleNamespace(batches=[], status=0)

    def make_train_step(model, optimizer, config):
        def train_step(source, target):
            result.batches.append((source, target))
            step = optimizer.step.assign_add(1)
            if on_step:
                on_step(int(step), SimpleNamespace(model=model, optimizer=optimizer))
            number = float(step)
            return METRICS | {"loss": number, "auxiliary": -number, "grad_norm/encoder": number}

        return train_step

    def validation_metrics(translator, dataset, sentences):
        loss = {"validation_loss": next(losses, 1.0)}
        values = loss | {"validation_accuracy": 0.5, "validation_bleu": 1.0}
        return values, [("source", "reference", "output")] * 3

    with training_in_process() as patch:
        patch.setattr(train, "make_train_step", make_train_step)
        if validation_losses is not None:
            patch.setattr(train, "validation_metrics", validation_metrics)
        try:
            train.train(config)
        except SystemExit as stop:
            result.status = stop.code
    return result


def edit_json(path: Path, **changes) -> dict:
    """Change values of a file. Returns those before."""
    before = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(before | changes), "utf-8")
    return before


def metrics_of(folder: Path) -> list[dict]:
    """Return the lines of metrics.jsonl without those values that depend on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clock = ("seconds", "tokens_per_second")
    return [{name: x for name, x in line.items() if name not in clock} for line in lines]


def steps_saved(folder: Path) -> list[int]:
    """Return the steps of the checkpoints of a run, sorted."""
    return [checkpoint_step(path) for path in saved_checkpoints(folder / "checkpoints")]


def state(folder: Path, step: int | None = None) -> dict[str, np.ndarray]:
    """Return every tensor of a checkpoint, the last one by default, that training depends on."""
    paths = saved_checkpoints(folder / "checkpoints")
    (path,) = [p for p in paths if checkpoint_step(p) == step] if step is not None else paths[-1:]
    reader = tf.train.load_checkpoint(str(path))
    # The number of saves and the length of metrics.jsonl may differ.
    free = ("save_counter", "metrics_size", "_CHECKPOINTABLE_OBJECT_GRAPH")
    names = sorted(reader.get_variable_to_shape_map())
    return {name: reader.get_tensor(name) for name in names if not name.startswith(free)}


def assert_same_state(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """Assert that two states are equal, bit for bit."""
    assert one.keys() == other.keys() and len(one) > 20
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
