"""What a run leaves behind, and how it stops and goes on. In runs/NAME/:

- config.json: every knob
- provenance.json: commit, command, versions, host
- source/: the project's source as it ran; source.diff: the same against the commit
- corpus.json: languages; each split's pairs and hash
- tokenizer.model, or tokenizer.source.model and tokenizer.target.model where they differ;
  labels.txt
- metrics.jsonl: a line each logged step and each epoch
- checkpoints/: the latest ones, and best/
- train/, validation/: TensorBoard's events; embedding.*, projector_config.pbtxt: its projector's
"""

import dataclasses
import io
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams

from config import MAY_CHANGE_ON_RESUME, first_line
from data import tokenizer
from training import machine, records
from training.checkpoints import number, readable, rewrite_checkpoint_list
from training.provenance import HERE, changed, copy_source, provenance, source_diff


class RunError(Exception):
    """A run that cannot begin or go on: one sentence that says what to do."""


class Diverged(RunError):
    """The loss, the gradient or a weight is not finite."""


class Run:
    """One run's folder, open for training. Only one process at a time may have it."""

    writes = True

    def __init__(self, config, data):
        """Make the folder of a new run, or open that of a resumed one. Raises RunError, OSError.

        config: a config.Config; data: its data.pipeline.Dataset.
        """
        self.config = config
        self.path = Path(config.resume or Path(config.runs_dir) / (config.name or new_name(config)))
        # config.from_flags has said what to do about a folder that exists; this is for a race.
        self.path.mkdir(parents=True, exist_ok=config.resume is not None)
        self.lock()
        if config.resume is None:
            self.record(data)
        else:
            self.check_corpus(data)
            self.check_code()
        self.metrics = open(self.path / "metrics.jsonl", "ab")
        self.charts = {
            name: tf.summary.create_file_writer(str(self.path / name))
            for name in ("train", "validation")
        }

    def lock(self):
        """Keep a second process out for as long as this one lives. Raises RunError."""
        try:
            self.locked = machine.lock(self.path / ".lock")
        except BlockingIOError:
            raise RunError(f"{self.path} is being trained by another process") from None

    def record(self, data):
        """Write where the run came from. config.json comes last: with it, a folder is whole."""
        self.record_source()
        tokenizer.save_pair(self.path, data.source_tokenizer, data.target_tokenizer)
        records.write_json(self.path / "corpus.json", data.facts)
        settings = self.settings()
        records.write_json(self.path / "config.json", settings)
        with tf.summary.create_file_writer(str(self.path)).as_default():
            left_out = (*MAY_CHANGE_ON_RESUME, "name")
            knobs = {n: v for n, v in settings.items() if n not in left_out and v is not None}
            score = "accuracy" if self.config.labelled else "bleu"
            metrics = [("validation", "loss"), ("validation", score), ("train", "loss")]
            hparams.hparams_config(
                hparams=[hparams.HParam(name) for name in knobs],
                metrics=[hparams.Metric(tag, group=group) for group, tag in metrics],
            )
            hparams.hparams(knobs, trial_id=self.path.name)

    def settings(self):
        """What config.json holds: the knobs as they are now."""
        never = {"resume": None, "accept_changes": False}
        return dataclasses.asdict(self.config) | {"name": self.path.name, **never}

    def check_corpus(self, data):
        """Refuse to go on with other data than the run began with. Raises RunError."""
        made = (data.source_tokenizer.model, data.target_tokenizer.model)
        try:
            kept = tokenizer.load_pair(self.path)  # their bytes
            facts = records.read_json(self.path / "corpus.json")
        except ValueError as error:
            raise RunError(str(error)) from None
        if facts != data.facts or made != tuple(t.model for t in kept):
            raise RunError(
                f"{self.config.corpus} is not the corpus that {self.path} began with: its texts or "
                "its tokenizer differ; bring the old ones back, or start a new run"
            )

    def check_code(self):
        """Refuse to go on with other code than the run had, unless told to. Raises RunError."""
        kept = self.path / "source"
        names = changed(kept, HERE, "model", "data", "train.py")
        if names and not self.config.accept_changes:
            raise RunError(
                f"{names[0]} is not what {self.path} was trained with: go on by python "
                f"{kept}/train.py --resume {self.path}, which runs its own code, or give "
                "--accept-changes"
            )
        self.other_code = bool(names)

    def accept(self):
        """Write down how the run goes on. Where by other flags or code, what was is kept, too."""
        settings, path = self.settings(), self.path / "config.json"
        before = records.read_json(path)
        other_flags = any(
            before.get(n, v) != v for n, v in settings.items() if n not in MAY_CHANGE_ON_RESUME
        )
        if self.other_code or other_flags:
            ending = time.strftime(".until-%Y%m%d-%H%M%S")
            shutil.copy2(path, f"{path}{ending}")  # a folder without it would be no run
            for name in ("source", "source.diff", "provenance.json"):
                if (self.path / name).exists():  # else it was stopped here before
                    (self.path / name).rename(self.path / (name + ending))
            self.record_source()
        records.write_json(path, settings)

    def record_source(self):
        """Write which code runs, and where it came from."""
        copy_source(self.path / "source")
        (self.path / "source.diff").write_text(source_diff(), "utf-8")
        records.write_json(self.path / "provenance.json", provenance())

    def restore(self, **state):
        """Name what a checkpoint holds, and restore the latest one where the run has one.

        state: trackables, "model" among them. The end of metrics.jsonl belongs to it: metrics past
        the checkpoint are cut, as the resumed run writes them again. Raises RunError.
        """
        self.model = state["model"]
        self.metrics_end = tf.Variable(0, dtype=tf.int64)
        checkpoint = tf.train.Checkpoint(**state, metrics_end=self.metrics_end)
        folder, count = self.path / "checkpoints", self.config.keep_checkpoints
        if self.writes:
            rewrite_checkpoint_list(folder)
            rewrite_checkpoint_list(folder / "best")
        self.latest = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=count)
        self.best = tf.train.CheckpointManager(checkpoint, folder / "best", max_to_keep=1)
        try:
            path = next(iter(readable(folder)), None)
        except ValueError as error:
            raise RunError(str(error)) from None
        if path:
            try:
                checkpoint.restore(path).assert_consumed()
            except Exception as error:  # whatever TensorFlow says of a graph that is none
                raise RunError(
                    f"{path} does not fit the model as it is now: {first_line(error)}"
                ) from None
            print(f"going on from {path}", file=sys.stderr)
        self.saved = path and number(path)  # of which step the newest good checkpoint is
        counters = [value for value in state.values() if isinstance(value, tf.Variable)]
        counters += [state["optimizer"].step, self.metrics_end]
        if any(value.numpy() < 0 for value in counters):
            raise RunError(f"{path} is no state of a training: a count is below 0")
        if self.writes and self.config.resume:  # not sooner: what does not fit changes nothing
            self.accept()
        end = self.metrics.seek(0, os.SEEK_END)
        self.metrics.truncate(min(end, int(self.metrics_end)))
        self.metrics.seek(0, os.SEEK_END)
        self.saved_at = time.monotonic()

    def save(self, step):
        """Keep the state after `step` updates among the latest, unless it is there already.

        Raises Diverged where a weight is not finite: such a state would be worth nothing.
        """
        if not all(np.isfinite(variable).all() for variable in self.model.trainable_variables):
            raise Diverged(f"step {step}: the weights are not finite any more; {self.advice()}")
        if step != self.saved:
            self.metrics_end.assign(self.metrics.tell())
            self.keep(self.latest, step)
            self.saved = step
        self.saved_at = time.monotonic()

    def keep(self, manager, step):
        """Have a CheckpointManager save. Raises RunError; older checkpoints are as they were."""
        try:
            manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            for torn in Path(manager.directory).glob(f"ckpt-{step}[._]*"):  # 5, not 50
                shutil.rmtree(torn) if torn.is_dir() else torn.unlink()
            raise RunError(
                f"step {step} cannot be saved in {manager.directory}: {first_line(error)}; the "
                "checkpoints before are as they were: make room, and go on with --resume"
            ) from None

    def advice(self):
        """What to do when training has diverged."""
        return (
            f"the last good state is {self.latest.directory}/ckpt-{self.saved}; start a new run "
            "with a smaller --learning-rate-scale or more --warmup-steps"
        )

    def save_best(self, step):
        """Keep the state after `step` updates as the best."""
        self.keep(self.best, step)

    def log(self, chart, step, values, samples=()):
        """A line of metrics.jsonl, and TensorBoard's charts of the same.

        samples: (source, reference, translation) texts.
        """
        try:
            self.metrics.write(json.dumps({"step": step, **values}).encode() + b"\n")
            self.metrics.flush()
        except OSError as error:
            raise RunError(
                f"{self.path}/metrics.jsonl: {error.strerror}; make room, and go on with --resume"
            ) from None
        with self.charts[chart].as_default(step):
            for name, value in values.items():
                if name != "epoch":  # a straight line
                    tf.summary.scalar(name.removeprefix("validation_"), value)
            for number, (source, reference, translation) in enumerate(samples, 1):
                rows = f"**source** | {source}\n--- | ---\n**reference** | {reference}\n"
                tf.summary.text(f"sample_{number}", f"{rows}**translation** | {translation}")
        self.charts[chart].flush()

    def show(self, step, draw, embedding, made):
        """TensorBoard's picture of attention, and its projector's embeddings as they are now.

        draw: makes a PNG's bytes, or None; embedding: a variable (vocab_size, d_model); made: its
        Tokenizer.
        """
        try:
            picture = draw()
        except Exception as error:  # whatever fonts and files can do to a picture, training goes on
            print(f"warning: no picture of attention: {first_line(error)}", file=sys.stderr)
            picture = None
        if picture:
            with self.charts["validation"].as_default(step):
                tf.summary.image("attention", tf.io.decode_png(picture)[tf.newaxis])
            self.charts["validation"].flush()
        (self.path / "embedding.bytes").write_bytes(embedding.numpy().tobytes())
        shape = self.path / "projector_config.pbtxt"
        if not shape.exists():
            names = "".join(f"{token!r}\n" for token in made.tokens(range(made.vocab_size)))
            (self.path / "embedding.tsv").write_text(names, "utf-8")
            rows, columns = embedding.shape
            shape.write_text(
                f'embeddings {{ tensor_name: "source embedding" tensor_shape: {rows} '
                f'tensor_shape: {columns} tensor_path: "embedding.bytes" '
                'metadata_path: "embedding.tsv" }\n'
            )


class WorkerRun(Run):
    """The folder as the workers have it that are not the chief: they read where it begins."""

    writes = False

    def __init__(self, config, data):
        self.config, self.path = config, Path(config.resume or os.devnull)
        self.metrics = io.BytesIO()
        if config.resume:
            self.check_corpus(data)

    def save(self, step):
        """Nothing: the chief does."""
        self.saved_at = time.monotonic()

    def show(self, *arguments):
        """Nothing."""

    def advice(self):
        """Where to look."""
        return "the worker of index 0 says what to do"


def new_name(config):
    """What a run without a name is called: corpus, model, seed and time."""
    corpus = re.sub(r"[^\w.+-]+", "-", config.corpus).strip("-.") or "corpus"
    return f"{corpus}-{config.model}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"


class Stop:
    """Ctrl-C and SIGTERM as a flag, which the loop reads between two steps.

    A second signal is not caught, so that a run that hangs can be ended. `all_gather`: the numbers
    of all workers, given one's own; so that a signal to one of them stops them all.
    """

    def __init__(self, all_gather):
        self.own = self.signal = 0  # what this worker was told; what all of them know
        self.all_gather = all_gather
        for caught in (signal.SIGINT, signal.SIGTERM):
            signal.signal(caught, self.note)

    def note(self, number, frame):
        self.own = number
        signal.signal(number, signal.SIG_DFL)
        print("stopping as soon as the state is saved; once more: at once", file=sys.stderr)

    def agreed(self):
        """Whether any worker has been told to stop. All of them ask together: each must come by as
        often as the others, and all stop at the same step.
        """
        self.signal = int(self.all_gather(self.own).max())
        return self.signal > 0
