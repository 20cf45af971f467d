"""A training run: its directory, counters, metrics, checkpoints, and how it stops and resumes.

A run directory runs/NAME/ contains:

- config.json: the settings
- provenance.json: commit, command, versions and host
- source/, source.diff: the project's source as it ran, and its diff against the commit
- corpus.json: languages; the number of pairs and the hash of each split
- tokenizer.model, or tokenizer.source.model and tokenizer.target.model; labels.txt
- metrics.jsonl: one line for each logged step and each validation
- checkpoints/: the latest ones, and best/
- train/, validation/: TensorBoard's events; embedding.*, projector_config.pbtxt: its projector
"""

import contextlib
import dataclasses
import io
import json
import math
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams
from tqdm import tqdm

from config import MAY_CHANGE_ON_RESUME, Config, first_line
from data import tokenizer
from data.batches import plan
from data.pipeline import Dataset
from model.optimizer import Adam
from training import distribution, machine, records
from training.checkpoints import checkpoint_step, readable_checkpoints, rewrite_checkpoint_list
from training.provenance import (
    ROOT,
    changed_files,
    copy_source,
    fingerprint,
    provenance,
    source_diff,
)
from training.records import Diverged, RunError

__all__ = ["Diverged", "Run", "RunError"]

LOG_EVERY = 50  # steps
SAVE_EVERY = 180  # seconds, within an epoch


class Run:
    """The state of a training run and its directory. A context manager; one process at a time.

    The counters are plain attributes. `save` copies them to the checkpoint, and a resumed run
    restores them:

        step: updates made.
        epoch: epochs finished.
        position: batches of the current epoch that are done.
        best_loss: lowest validation loss so far.

    With several workers, only the chief writes. Raises RunError and OSError.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        model: tf.Module,
        optimizer: Adam,
        strategy: tf.distribute.Strategy | None = None,
    ):
        self.config, self.dataset, self.model, self.optimizer = config, dataset, model, optimizer
        self.strategy = strategy or tf.distribute.get_strategy()
        self.is_chief = distribution.is_chief(self.strategy)
        self.path = Path(config.resume or Path(config.runs_dir) / (config.name or new_name(config)))
        self.step = self.epoch = self.position = self.metrics_end = 0
        self.best_loss = math.inf
        self.last_step = config.max_steps or sys.maxsize
        self.stop_signal, self.stopped_by = machine.StopSignal(), 0
        self.assert_workers_agree()
        if self.is_chief:
            self.path.mkdir(parents=True, exist_ok=config.resume is not None)
            try:
                self.lock = machine.lock(self.path / ".lock")
            except BlockingIOError:
                raise RunError(f"{self.path} is being trained by another process") from None
        if config.resume:
            self.check_corpus()
            self.code_changed = self.check_code()
        elif self.is_chief:
            self.write_description()
        self.metrics = open(self.path / "metrics.jsonl", "ab") if self.is_chief else io.BytesIO()
        self.restore()

    def __enter__(self) -> "Run":
        self.events = {}
        if self.is_chief:
            for name in ("train", "validation"):
                self.events[name] = tf.summary.create_file_writer(str(self.path / name))
            self.describe()
        self.save()
        # One bar for the whole run; its total is corrected when an epoch is planned.
        self.progress = tqdm(
            initial=self.step,
            unit="step",
            leave=False,
            mininterval=0.5 if sys.stderr.isatty() else 30,
            disable=not self.is_chief,
        )
        self.logged_at, self.tokens = time.monotonic(), 0
        return self

    def __exit__(self, *exception) -> None:
        self.progress.close()
        for writer in self.events.values():
            writer.close()
        self.metrics.close()

    # ---- Training ----

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the remaining (source, target) batches of the current epoch."""
        config, train = self.config, self.dataset.train
        limits = (config.batch_tokens, config.batch_sentences)
        batches = plan(train, *limits, config.seed, self.epoch)
        self.epoch_steps, self.epoch_began = len(batches), time.monotonic()
        remaining = len(batches) * (config.epochs - self.epoch) - self.position
        self.progress.total = min(self.step + remaining, self.last_step)
        self.progress.set_description(f"epoch {self.epoch + 1}/{config.epochs}")
        for indices in batches[self.position :]:
            yield train.batch(indices)

    def advance(self, source: np.ndarray, target: np.ndarray) -> None:
        """Count one update on a batch."""
        self.step += 1
        self.position += 1
        self.tokens += np.count_nonzero(source) + np.count_nonzero(target[:, 1:])
        self.progress.update()

    def epoch_finished(self) -> bool:
        """Whether all batches of the current epoch are done."""
        return self.position == self.epoch_steps

    def stop_requested(self) -> bool:
        """Whether training should stop: a signal to any worker, or --max-steps is reached.

        All workers must call this together, so that all of them stop at the same step.
        """
        signals = distribution.all_gather(self.strategy, self.stop_signal.number)
        self.stopped_by = int(signals.max())
        return self.stopped_by > 0 or self.step >= self.last_step

    def validation_due(self) -> bool:
        """Whether to validate now, in this process: after an epoch, or after --max-steps."""
        return self.is_chief and (self.epoch_finished() or self.step >= self.last_step)

    def end_epoch(self) -> None:
        """Count the current epoch, unless training was stopped before its last batch."""
        if self.epoch_finished():
            self.epoch, self.position = self.epoch + 1, 0

    # ---- Metrics ----

    def log_due(self) -> bool:
        """Whether the current step should be logged."""
        return self.step == 1 or self.step % LOG_EVERY == 0

    def log_training(self, metrics: dict[str, tf.Tensor]) -> None:
        """Fetch and write what a train step returned. Raises Diverged and RunError."""
        self.check_finite()
        values = {name: float(value) for name, value in metrics.items()}
        now = time.monotonic()
        values["tokens_per_second"] = self.tokens / (now - self.logged_at)
        self.logged_at, self.tokens = now, 0
        self.progress.set_postfix_str(
            f"loss {values['loss']:.3f}, {values['tokens_per_second']:,.0f} tokens/s", refresh=False
        )
        self.write_metrics("train", {"epoch": self.epoch + 1, **values})

    def log_validation(self, values: dict, samples: list[tuple[str, str, str]]) -> None:
        """Write the metrics of a validation, and keep the model as best if its loss is lowest.

        samples: (source, reference, output) texts. Raises Diverged and RunError.
        """
        loss, seconds = values["validation_loss"], time.monotonic() - self.epoch_began
        if not math.isfinite(loss):
            raise Diverged(f"step {self.step}: the validation loss is {loss}; {self.advice()}")
        self.write_metrics("validation", {"epoch": self.epoch + 1, **values, "seconds": seconds})
        with self.events["validation"].as_default(self.step):
            for number, (source, reference, output) in enumerate(samples, 1):
                rows = f"**source** | {source}\n--- | ---\n**reference** | {reference}\n"
                tf.summary.text(f"sample_{number}", f"{rows}**translation** | {output}")
        bleu = f", BLEU {values['validation_bleu']:.1f}" if "validation_bleu" in values else ""
        tqdm.write(
            f"epoch {self.epoch + 1}, step {self.step:,}: validation loss {loss:.3f}, accuracy "
            f"{values['validation_accuracy']:.3f}{bleu}; {seconds:.0f} s\n"
            f"    {samples[0][0][:99]} → {samples[0][2]}"
        )
        sys.stdout.flush()
        if loss < self.best_loss:
            self.best_loss = loss
            self.write_checkpoint(self.best)

    def write_metrics(self, name: str, values: dict) -> None:
        """Append a line to metrics.jsonl, and the same values to TensorBoard. Raises RunError."""
        if not self.is_chief:
            return
        try:
            self.metrics.write(json.dumps({"step": self.step, **values}).encode() + b"\n")
            self.metrics.flush()
        except OSError as error:
            raise RunError(
                f"{self.path}/metrics.jsonl: {error.strerror}; free some space, then resume with "
                f"--resume {self.path}"
            ) from None
        with self.events[name].as_default(self.step):
            for key, value in values.items():
                if key != "epoch":
                    tf.summary.scalar(key.removeprefix("validation_"), value)
        self.events[name].flush()

    def log_inside(self, attention_png: bytes | None) -> None:
        """Write a picture of attention and the source embeddings for TensorBoard."""
        if attention_png:
            with self.events["validation"].as_default(self.step):
                tf.summary.image("attention", tf.io.decode_png(attention_png)[tf.newaxis])
            self.events["validation"].flush()
        table = self.model.source_embedding.table
        (self.path / "embedding.bytes").write_bytes(table.numpy().tobytes())
        projector = self.path / "projector_config.pbtxt"
        if not projector.exists():
            vocabulary = self.dataset.source_tokenizer
            tokens = vocabulary.tokens(range(vocabulary.vocab_size))
            names = "".join(f"{token!r}\n" for token in tokens)
            (self.path / "embedding.tsv").write_text(names, "utf-8")
            rows, columns = table.shape
            projector.write_text(
                f'embeddings {{ tensor_name: "source embedding" tensor_shape: {rows} '
                f'tensor_shape: {columns} tensor_path: "embedding.bytes" '
                'metadata_path: "embedding.tsv" }\n'
            )

    # ---- Checkpoints ----

    def counters(self) -> tuple[str, ...]:
        """Names of the attributes that a checkpoint holds, besides the model and optimizer."""
        return "epoch", "position", "best_loss", "metrics_end"

    def restore(self) -> None:
        """Restore the latest checkpoint, if there is one. Raises RunError.

        Metrics after the checkpoint are cut off; the resumed run writes them again.
        """
        kinds = {name: tf.float64 if name == "best_loss" else tf.int64 for name in self.counters()}
        self.saved = {
            name: tf.Variable(getattr(self, name), dtype=kind, trainable=False)
            for name, kind in kinds.items()
        }
        checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer, **self.saved)
        folder = self.path / "checkpoints"
        if self.is_chief:
            rewrite_checkpoint_list(folder)
            rewrite_checkpoint_list(folder / "best")
        keep = self.config.keep_checkpoints
        self.latest = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=keep)
        self.best = tf.train.CheckpointManager(checkpoint, folder / "best", max_to_keep=1)
        paths = readable_checkpoints(folder) if self.config.resume else []
        if paths:
            try:
                checkpoint.restore(paths[0]).assert_consumed()
            except (AssertionError, ValueError, tf.errors.OpError) as error:
                raise RunError(f"{paths[0]} does not fit the model: {first_line(error)}") from None
            for name, variable in self.saved.items():
                setattr(self, name, variable.numpy().item())
            self.step = int(self.optimizer.step.numpy())
            if self.is_chief:
                print(f"resuming from {paths[0]}", file=sys.stderr)
        self.saved_step = checkpoint_step(paths[0]) if paths else -1
        distribution.assert_same_across_workers(self.strategy, checkpoint=str(self.step))
        if self.is_chief:
            if self.config.resume:  # only now: a checkpoint that does not fit changes nothing
                self.update_description()
            self.metrics.truncate(min(self.metrics.seek(0, io.SEEK_END), self.metrics_end))
            self.metrics.seek(0, io.SEEK_END)

    def save_due(self) -> bool:
        """Whether to save within an epoch. After its last batch, it is validated first."""
        return time.monotonic() - self.saved_at > SAVE_EVERY and not self.epoch_finished()

    def save(self) -> None:
        """Save the state, unless this step was saved already. Raises Diverged and RunError."""
        self.check_finite()
        weights = self.model.trainable_variables
        if not all(np.isfinite(variable).all() for variable in weights):
            raise Diverged(f"step {self.step}: a weight is not finite; {self.advice()}")
        if self.is_chief and self.step != self.saved_step:
            self.metrics_end = self.metrics.tell()
            self.write_checkpoint(self.latest)
            self.saved_step = self.step
        self.saved_at = time.monotonic()

    def write_checkpoint(self, manager: tf.train.CheckpointManager) -> None:
        """Write a checkpoint. If that fails, older ones stay intact. Raises RunError."""
        for name, variable in self.saved.items():
            variable.assign(getattr(self, name))
        try:
            manager.save(checkpoint_number=self.step)
        except (tf.errors.OpError, OSError) as error:
            for path in Path(manager.directory).glob(f"ckpt-{self.step}[._]*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise RunError(
                f"cannot save step {self.step} in {manager.directory}: {first_line(error)}; older "
                f"checkpoints are intact: free some space, then use --resume {self.path}"
            ) from None

    def check_finite(self) -> None:
        """Raise Diverged if the loss or gradient of any step so far was not finite."""
        if step := int(self.optimizer.first_nonfinite_step.numpy()):
            raise Diverged(f"step {step}: loss or gradient is not finite; {self.advice()}")

    def advice(self) -> str:
        """Say what to do when training has diverged."""
        last = f"{self.latest.directory}/ckpt-{self.saved_step}"
        return (
            f"the last good checkpoint is {last}; start a new run with a smaller "
            "--learning-rate-scale or more --warmup-steps"
        )

    # ---- The run directory ----

    def describe(self) -> None:
        """Print what is trained, where, and how to watch it."""
        config, splits = self.config, self.dataset.facts["splits"]
        pairs = ", ".join(f"{facts['pairs']:,} {name}" for name, facts in splits.items())
        size = sum(variable.shape.num_elements() for variable in self.model.trainable_variables)
        gpus = len(tf.config.list_physical_devices("GPU"))
        device = f"{gpus} GPUs" if gpus else f"{len(machine.cores())} CPU cores"
        print(
            f"{config.corpus}: {' → '.join(self.dataset.facts['languages'])}, pairs: {pairs}\n"
            f"{config.model}: {size:,} parameters, {config.precision} on {device}\n"
            f"run directory: {self.path}; watch it with: tensorboard --logdir {self.path.parent}",
            flush=True,
        )

    def report_end(self) -> None:
        """Print how to continue. After a signal, exit with its status: 128 plus its number."""
        stopped = self.stopped_by and self.epoch < self.config.epochs
        if self.is_chief and stopped:
            print(f"stopped; resume with\n    python train.py --resume {self.path}")
        elif self.is_chief:
            print(
                f"finished {self.epoch} epochs, {self.step:,} steps; score the run with\n"
                f"    python evaluate.py {self.path}"
            )
        if stopped:
            raise SystemExit(128 + self.stopped_by)

    def settings(self) -> dict:
        """Return the contents of config.json."""
        transient = {"name": self.path.name, "resume": None, "accept_changes": False}
        return dataclasses.asdict(self.config) | transient

    def write_description(self) -> None:
        """Write where the run came from. config.json comes last: with it, a run is complete."""
        self.write_source()
        tokenizer.save_pair(self.path, self.dataset.source_tokenizer, self.dataset.target_tokenizer)
        records.write_json(self.path / "corpus.json", self.dataset.facts)
        settings = self.settings()
        records.write_json(self.path / "config.json", settings)
        with tf.summary.create_file_writer(str(self.path)).as_default():
            ignored = (*MAY_CHANGE_ON_RESUME, "name")
            parameters = {
                name: value
                for name, value in settings.items()
                if name not in ignored and value is not None
            }
            score = "accuracy" if self.config.labelled else "bleu"
            metrics = [("validation", "loss"), ("validation", score), ("train", "loss")]
            hparams.hparams_config(
                hparams=[hparams.HParam(name) for name in parameters],
                metrics=[hparams.Metric(tag, group=group) for group, tag in metrics],
            )
            hparams.hparams(parameters, trial_id=self.path.name)

    def write_source(self) -> None:
        """Write the source that runs, and where it came from."""
        copy_source(self.path / "source")
        (self.path / "source.diff").write_text(source_diff(), "utf-8")
        records.write_json(self.path / "provenance.json", provenance())

    def check_corpus(self) -> None:
        """Raise RunError if the data or the tokenizers are not those that the run began with."""
        tokenizers = (self.dataset.source_tokenizer, self.dataset.target_tokenizer)
        facts = records.read_json(self.path / "corpus.json")
        models = [kept.model for kept in tokenizer.load_pair(self.path)]
        if facts != self.dataset.facts or models != [current.model for current in tokenizers]:
            raise RunError(
                f"{self.config.corpus} is not the corpus that {self.path} was trained on: its "
                "texts or its tokenizer differ; restore the old ones, or start a new run"
            )

    def check_code(self) -> bool:
        """Whether the code has changed. Raises RunError if it has, unless that is accepted."""
        names = changed_files(self.path / "source", ROOT, "model", "data", "train.py")
        if names and not self.config.accept_changes:
            raise RunError(
                f"{names[0]} has changed since {self.path} was started: resume with the run's own "
                f"code, python {self.path}/source/train.py --resume {self.path}, or with "
                "--accept-changes"
            )
        return bool(names)

    def update_description(self) -> None:
        """Write the settings of a resumed run. If settings or code changed, keep the old ones."""
        settings, path = self.settings(), self.path / "config.json"
        before = records.read_json(path)
        changed = any(
            before.get(name, value) != value
            for name, value in settings.items()
            if name not in MAY_CHANGE_ON_RESUME
        )
        if self.code_changed or changed:
            suffix = time.strftime(".until-%Y%m%d-%H%M%S")
            shutil.copy2(path, f"{path}{suffix}")  # a directory without config.json is not a run
            for name in ("source", "source.diff", "provenance.json"):
                with contextlib.suppress(FileNotFoundError):  # interrupted here before
                    (self.path / name).rename(self.path / (name + suffix))
            self.write_source()
        records.write_json(path, settings)

    def assert_workers_agree(self) -> None:
        """Raise RunError if the workers have different flags, data or code."""
        free = set(MAY_CHANGE_ON_RESUME) - {"epochs", "max_steps"} | {"name"}
        settings = dataclasses.asdict(self.config)
        flags = {name: value for name, value in settings.items() if name not in free}
        tokenizers = (self.dataset.source_tokenizer, self.dataset.target_tokenizer)
        distribution.assert_same_across_workers(
            self.strategy,
            flags=repr([flags, bool(self.config.resume)]),
            corpus=json.dumps([self.dataset.facts, [t.model.hex() for t in tokenizers]]),
            code=fingerprint(),
        )


def new_name(config: Config) -> str:
    """Return the name of a run without --name: corpus, model, seed and time."""
    corpus = re.sub(r"[^\w.+-]+", "-", config.corpus).strip("-.") or "corpus"
    return f"{corpus}-{config.model}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
