"""A training run: its counters, progress, metrics and checkpoints, and how it stops and resumes.

A run directory runs/NAME/ contains:

- config.json: the settings
- provenance.json: commit, command, versions and host
- source/, source.diff: the project's source as it ran, and its diff against the commit
- corpus.json: languages; the number of pairs and the hash of each split
- tokenizer.model, or tokenizer.source.model and tokenizer.target.model; labels.txt
- metrics.jsonl: one line for each logged step and each validation
- checkpoints/: the latest ones, and best/
- train/, validation/: TensorBoard's events; in validation/ also the embeddings for its projector
"""

import contextlib
import dataclasses
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from config import MAY_CHANGE_ON_RESUME, Config
from data.batches import Pairs, plan_batches
from data.pipeline import Dataset
from model.optimizer import Adam
from same_code import fingerprint
from training import description, distribution, machine
from training.checkpoints import (
    checkpoint_step,
    ends_epoch,
    readable_checkpoints,
    rewrite_checkpoint_list,
    saved_checkpoints,
)
from training.logs import Logs
from training.records import Diverged, RunError
from utils import first_line, lock

LOG_EVERY = 50  # steps
SAVE_EVERY = 180  # seconds, within an epoch
COUNTERS = {
    "epoch": tf.int64,
    "position": tf.int64,
    "best_loss": tf.float64,
    "metrics_size": tf.int64,
}


def with_total_steps(config: Config, train: Pairs) -> Config:
    """Return the config with `total_steps` set, by default to the updates of --epochs.

    Epochs differ by a few batches; the first one counts for all. With --max-steps, it is at most
    that. config.json records the number, and a resumed run keeps it, even with more --epochs, so
    that resuming does not change the learning rate.
    """
    if config.total_steps:
        return config
    batches = plan_batches(train, config.batch_tokens, config.batch_sentences, config.seed, epoch=0)
    steps = min(len(batches) * config.epochs, config.max_steps or sys.maxsize)
    return dataclasses.replace(config, total_steps=max(1, steps))


class Run:
    """The state of a training run and its directory. A context manager, for one process at a time.

    The counters are plain attributes. `save` copies them to the checkpoint, and a resumed run
    restores them:

        step: updates made (saved as `optimizer.step`).
        epoch: epochs finished.
        position: batches of the current epoch that are done.
        best_loss: lowest validation loss so far.
        metrics_size: length of metrics.jsonl, in bytes.

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
        self.step = self.epoch = self.position = self.metrics_size = 0
        self.best_loss = math.inf
        self.last_step = config.max_steps or sys.maxsize
        self.stop_signal, self.stopped_by = machine.StopSignal(), 0
        self.assert_workers_agree()
        name = config.name or description.new_name(config)
        self.path = Path(config.resume or Path(config.runs_dir, name))
        if self.is_chief:
            if not config.resume:
                self.path = description.create_directory(self.path, may_rename=not config.name)
            try:
                self.lock = lock(self.path / ".lock")
            except BlockingIOError:
                raise RunError(f"{self.path} is being trained by another process") from None
        code_changed = False
        if config.resume:
            code_changed = description.check_code(self.path, config.accept_changes)
            description.check_corpus(self.path, config, dataset)
        elif self.is_chief:
            description.write(self.path, config, dataset)
        self.restore(self.create_checkpoints())
        if self.is_chief:
            if config.resume:  # only now: a failed resume leaves settings and source as they are
                description.update(self.path, config, code_changed)
            self.logs = Logs(self.path)
            self.logs.truncate(self.metrics_size)

    def __enter__(self) -> "Run":
        if self.is_chief:
            self.report_start()
        self.save()
        # One bar for the whole run; its total is set when an epoch is planned.
        self.progress = tqdm(
            initial=self.step,
            unit="step",
            leave=False,
            mininterval=0.5 if sys.stderr.isatty() else 30,
            smoothing=0,  # estimate the time left from the mean time per step
            disable=not self.is_chief,
        )
        self.traced = False  # whether this process has made a step: the first one traces the graph
        return self

    def __exit__(self, *exception) -> None:
        self.progress.close()
        if self.is_chief:
            self.logs.close()
            self.lock.close()

    # ---- The loop ----

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the remaining (source, target) batches of the current epoch."""
        config, train = self.config, self.dataset.train
        limits = (config.batch_tokens, config.batch_sentences)
        batches = plan_batches(train, *limits, config.seed, self.epoch)
        if self.position >= len(batches):  # resumed with settings that give fewer batches
            self.position = 0
        self.epoch_steps = len(batches)
        remaining = len(batches) * (config.epochs - self.epoch) - self.position
        self.progress.total = min(self.step + remaining, self.last_step)
        epoch = f"epoch {self.epoch + 1}/{config.epochs}"
        self.progress.set_description(epoch if self.traced else "tracing the train step")
        self.restart_timers()
        for indices in batches[self.position :]:
            yield train.batch(indices)

    def restart_timers(self) -> None:
        """Restart the clocks of `tokens_per_second` and of the `seconds` of the next validation."""
        self.timed_from = self.logged_at = time.monotonic()
        self.tokens = 0

    def advance(self, source: np.ndarray, target: np.ndarray) -> None:
        """Count one update on a batch."""
        self.step += 1
        self.position += 1
        self.tokens += np.count_nonzero(source) + np.count_nonzero(target[:, 1:])
        if not self.traced:
            self.exclude_time_since(self.logged_at)
            self.traced, self.tokens, self.progress.initial = True, 0, self.step
        self.progress.update()

    @contextlib.contextmanager
    def tracing(self, graphs: str) -> Iterator[None]:
        """Show that graphs are being traced, and exclude the time this takes from the speed."""
        began = time.monotonic()
        self.progress.set_description(f"tracing {graphs}")
        yield
        self.exclude_time_since(began)

    def exclude_time_since(self, began: float) -> None:
        """Exclude the time since `began` from the speed and from the estimated time left."""
        seconds = time.monotonic() - began
        self.timed_from += seconds
        self.logged_at += seconds
        if self.is_chief:
            self.progress.start_t += seconds
        self.progress.set_description(f"epoch {self.epoch + 1}/{self.config.epochs}")

    def stop_requested(self) -> bool:
        """Return whether any worker has received a signal, or --max-steps is reached.

        All workers must call this together, so that all of them stop at the same step.
        """
        signals = distribution.all_gather(self.strategy, self.stop_signal.number)
        self.stopped_by = int(signals.max())
        return self.stopped_by > 0 or self.step >= self.last_step

    def epoch_finished(self) -> bool:
        """Return whether all batches of the current epoch are done."""
        return self.position == self.epoch_steps

    def validation_due(self) -> bool:
        """Return whether to validate: after an epoch, at --validate-every or --max-steps."""
        every = self.config.validate_every
        due = self.epoch_finished() or self.step >= self.last_step
        return self.is_chief and (due or (every is not None and self.step % every == 0))

    def end_epoch(self) -> None:
        """Count the current epoch, unless training was stopped before its last batch."""
        if self.epoch_finished():
            self.epoch, self.position = self.epoch + 1, 0

    # ---- Metrics ----

    def log_due(self) -> bool:
        """Return whether to log the current step."""
        return self.step == 1 or self.step % LOG_EVERY == 0

    def log_training(self, metrics: dict[str, tf.Tensor]) -> None:
        """Fetch and write what a train step returned. Raises Diverged and RunError."""
        self.check_finite()
        values = {name: float(value) for name, value in metrics.items()}
        now = time.monotonic()
        progress = f"loss {values['loss']:.3f}"
        if self.tokens:  # none at the first step, which is excluded from the speed
            values["tokens_per_second"] = self.tokens / (now - self.logged_at)
            progress += f", {values['tokens_per_second']:,.0f} tokens/s"
        self.logged_at, self.tokens = now, 0
        self.progress.set_postfix_str(progress, refresh=False)
        if self.is_chief:
            self.logs.write("train", self.step, {"epoch": self.epoch + 1, **values})

    def log_validation(self, values: dict, samples: list[tuple[str, str, str]]) -> None:
        """Write the metrics of a validation, and save the model as best if its loss is lowest.

        samples: (source, reference, output) texts. Raises Diverged and RunError.
        """
        loss, seconds = values["validation_loss"], time.monotonic() - self.timed_from
        if not math.isfinite(loss):
            raise Diverged(f"step {self.step}: the validation loss is {loss}; {self.advice()}")
        values = {"epoch": self.epoch + 1, **values, "seconds": seconds}
        self.logs.write("validation", self.step, values)
        self.logs.write_samples(self.step, samples)
        bleu = f", BLEU {values['validation_bleu']:.1f}" if "validation_bleu" in values else ""
        tqdm.write(
            f"epoch {self.epoch + 1}, step {self.step:,}: validation loss {loss:.3f}, accuracy "
            f"{values['validation_accuracy']:.3f}{bleu}; {seconds:.0f} s\n"
            f"    {samples[0][0][:99]} → {samples[0][2]}"
        )
        sys.stdout.flush()
        if loss < self.best_loss:
            self.best_loss = loss
            self.write_checkpoint(self.best_manager)

    def log_attention_and_embedding(self, attention_png: bytes | None) -> None:
        """Show a picture of attention, if there is one, and the source embedding in TensorBoard."""
        if attention_png:
            self.logs.write_image("attention", self.step, attention_png)
        table = self.model.source_embedding.table
        self.logs.write_embedding(table, self.dataset.source_tokenizer)

    # ---- Checkpoints ----

    def create_checkpoints(self) -> tf.train.Checkpoint:
        """Create the checkpoint of the state, and its managers."""
        self.counter_variables = {
            name: tf.Variable(getattr(self, name), dtype=dtype, trainable=False)
            for name, dtype in COUNTERS.items()
        }
        state = {"model": self.model, "optimizer": self.optimizer, **self.counter_variables}
        checkpoint, folder = tf.train.Checkpoint(**state), self.path / "checkpoints"
        if self.is_chief:
            rewrite_checkpoint_list(folder)
            rewrite_checkpoint_list(folder / "best")
        # `delete_old_checkpoints` chooses which to keep.
        self.latest_manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=None)
        self.best_manager = tf.train.CheckpointManager(checkpoint, folder / "best", max_to_keep=1)
        return checkpoint

    def restore(self, checkpoint: tf.train.Checkpoint) -> None:
        """Restore the latest checkpoint of a resumed run. Raises RunError and UserError."""
        folder = self.path / "checkpoints"
        paths = readable_checkpoints(folder) if self.config.resume else []
        if self.config.resume and not paths:
            raise RunError(f"{folder} has no checkpoint: restore it, or start a new run")
        if paths:
            try:
                checkpoint.restore(paths[0]).assert_consumed()
            except (AssertionError, ValueError, tf.errors.OpError) as error:
                raise RunError(f"{paths[0]} does not fit the model: {first_line(error)}") from None
            for name, variable in self.counter_variables.items():
                setattr(self, name, variable.numpy().item())
            self.step = int(self.optimizer.step.numpy())
            if self.is_chief:
                print(f"resuming from {paths[0]}", file=sys.stderr)
        self.saved_step = checkpoint_step(paths[0]) if paths else -1
        distribution.assert_same_across_workers(self.strategy, checkpoint=str(self.step))

    def save_due(self) -> bool:
        """Return whether to save within an epoch. Its last step is saved after `end_epoch`."""
        last = self.epoch_finished() or self.step >= self.last_step
        return time.monotonic() - self.saved_at > SAVE_EVERY and not last

    def save(self) -> None:
        """Save the state, unless this step was saved already. Raises Diverged and RunError."""
        self.check_finite()
        weights = self.model.trainable_variables
        if not all(np.isfinite(variable).all() for variable in weights):
            raise Diverged(f"step {self.step}: a weight is not finite; {self.advice()}")
        if self.step != self.saved_step:
            if self.is_chief:
                self.metrics_size = self.logs.size()
                self.write_checkpoint(self.latest_manager)
                self.delete_old_checkpoints()
            self.saved_step = self.step
        self.saved_at = time.monotonic()

    def write_checkpoint(self, manager: tf.train.CheckpointManager) -> None:
        """Write a checkpoint. If that fails, older ones stay intact. Raises RunError."""
        for name, variable in self.counter_variables.items():
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

    def delete_old_checkpoints(self) -> None:
        """Keep the latest checkpoints. Delete those within an epoch first, then the oldest.

        `--average` uses those at the ends of epochs, which do not depend on the clock.
        """
        folder = self.path / "checkpoints"
        old = [path for path in saved_checkpoints(folder) if checkpoint_step(path) != self.step]
        # The present one, if within an epoch, is additional: it displaces none that ends an epoch.
        keep = self.config.keep_checkpoints + (self.position > 0)
        if (excess := len(old) + 1 - keep) > 0:
            for path in sorted(old, key=ends_epoch)[:excess]:
                for file in folder.glob(f"{path.name}.*"):
                    file.unlink()
            rewrite_checkpoint_list(folder)

    def check_finite(self) -> None:
        """Raise Diverged if the loss or gradient of any step so far was not finite."""
        if step := int(self.optimizer.first_nonfinite_step.numpy()):
            raise Diverged(f"step {step}: loss or gradient is not finite; {self.advice()}")

    def advice(self) -> str:
        """Say what to do when training has diverged."""
        return (
            f"the last good checkpoint is {self.path}/checkpoints/ckpt-{self.saved_step}; start a "
            "new run with a smaller --learning-rate-scale or more --warmup-steps"
        )

    # ---- Reporting ----

    def report_start(self) -> None:
        """Print what is trained, where, and how to watch it."""
        config, splits = self.config, self.dataset.corpus_info["splits"]
        pairs = ", ".join(f"{facts['pairs']:,} {name}" for name, facts in splits.items())
        size = sum(variable.shape.num_elements() for variable in self.model.trainable_variables)
        gpus = len(tf.config.list_physical_devices("GPU"))
        replicas = self.strategy.num_replicas_in_sync
        device = (
            f"{replicas} GPU{'s' * (replicas > 1)}" if gpus else f"{len(machine.cores())} CPU cores"
        )
        print(
            f"{config.corpus}: {' → '.join(self.dataset.corpus_info['languages'])}; {pairs}\n"
            f"{config.model}: {size:,} parameters; {config.precision} on {device}\n"
            f"run directory {self.path}; to watch: tensorboard --logdir {self.path.parent}",
            flush=True,
        )

    def report_end(self) -> None:
        """Print how to continue. After a signal, exit with its status: 128 plus its number."""
        stopped = self.stopped_by and self.epoch < self.config.epochs
        if self.is_chief and stopped:
            print(f"stopped; resume with\n    python train.py --resume {self.path}")
        elif self.is_chief:
            more = "--max-steps" if self.epoch < self.config.epochs else "--epochs"
            print(
                f"finished {self.epoch} epochs, {self.step:,} steps; score the run with\n"
                f"    python evaluate.py {self.path}\n"
                "or continue training with\n"
                f"    python train.py --resume {self.path} {more} N"
            )
        if stopped:
            raise SystemExit(128 + self.stopped_by)

    def assert_workers_agree(self) -> None:
        """Raise RunError if the workers have different flags, data or code."""
        if self.strategy.cluster_resolver is None:  # a single worker
            return
        may_differ = set(MAY_CHANGE_ON_RESUME) - {"epochs", "max_steps"} | {"name"}
        settings = dataclasses.asdict(self.config)
        flags = {name: value for name, value in settings.items() if name not in may_differ}
        tokenizers = (self.dataset.source_tokenizer, self.dataset.target_tokenizer)
        distribution.assert_same_across_workers(
            self.strategy,
            flags=repr([flags, bool(self.config.resume)]),
            corpus=json.dumps([self.dataset.corpus_info, [t.model.hex() for t in tokenizers]]),
            code=fingerprint("workers"),
        )
