"""Metrics of a run: metrics.jsonl, and TensorBoard's events."""

import contextlib
import io
import json
import re
from pathlib import Path

import tensorflow as tf
from tensorboard.plugins import projector

from data.tokenizer import Tokenizer
from training.records import RunError
from utils import quote

# TensorBoard sorts groups by name and opens the first two: "metrics", and "samples", with texts and
# attention. The other measures are in "training".
METRICS = ("loss", "accuracy", "bleu", "nats_per_character", "perplexity")
DESCRIPTIONS = {
    "metrics/loss": "Cross-entropy in nats per target token, without label smoothing. train: with "
    "dropout, the mean since the last point. validation: without dropout.",
    "metrics/accuracy": "Share of target tokens, or of labels, that have the highest probability.",
    "metrics/bleu": "sacreBLEU of greedy translations of at most --validation-sentences texts.",
    "metrics/nats_per_character": "-ln p of the validation text, divided by its characters.",
    "training/objective": "The loss that is minimized, with label smoothing and dropout, in nats "
    "per target token: the mean since the last point.",
}
# Names of the texts of a sample, by task.
SAMPLE = {
    "translation": ("source", "reference", "translation"),
    "classification": ("text", "label", "prediction"),
    "language modeling": ("prompt", "reference", "continuation"),
}


def markdown(text: str) -> str:
    """Return a text as a cell of a table: line breaks as <br>, and no character as markup."""
    text = re.sub(r"[^\w\s.,:;!?'\"()-]|_", lambda match: f"&#{ord(match[0])};", text)
    return "<br>".join(text.splitlines())


class Logs:
    """Write the metrics of a run. TensorBoard shows "train" and "validation" in one chart.

    size: that of metrics.jsonl at the checkpoint. A resumed run writes again what followed.
    """

    def __init__(self, run: Path, size: int = 0):
        self.run = run
        self.file = open(run / "metrics.jsonl", "ab")
        self.file.truncate(min(self.file.tell(), size))
        self.file.seek(0, io.SEEK_END)
        self.events = {
            name: tf.summary.create_file_writer(str(run / name)) for name in ("train", "validation")
        }

    def write(self, name: str, step: int, values: dict) -> None:
        """Append a line to metrics.jsonl, and the same values to TensorBoard. Raises RunError."""
        try:
            self.file.write(json.dumps({"step": step, **values}).encode() + b"\n")
            self.file.flush()
        except OSError as error:
            raise RunError(
                f"{self.file.name}: {error.strerror}; free some space, then use --resume "
                f"{quote(self.run)}"
            ) from None
        with self.events[name].as_default(step):
            for key, value in values.items():
                if key != "epoch":
                    measure = key.removeprefix("validation_")
                    tag = f"{'metrics' if measure in METRICS else 'training'}/{measure}"
                    tf.summary.scalar(tag, value, description=DESCRIPTIONS.get(tag))

    def write_samples(self, step: int, samples: list[tuple[str, str, str]], task: str) -> None:
        """Show the samples of `validation_metrics` in TensorBoard, as tables."""
        with self.events["validation"].as_default(step):
            for number, sample in enumerate(samples, 1):
                cells = map(markdown, sample)
                rows = zip(SAMPLE[task], cells, strict=True)
                first, *others = (f"| **{name}** | {cell} |" for name, cell in rows)
                table = "\n".join([first, "| --- | --- |", *others])
                tf.summary.text(f"samples/{number}", table)

    def write_image(self, name: str, step: int, png: bytes) -> None:
        """Show a PNG in TensorBoard."""
        with self.events["validation"].as_default(step):
            tf.summary.image(f"samples/{name}", tf.io.decode_png(png)[tf.newaxis])

    def write_embedding(self, table: tf.Variable, vocabulary: Tokenizer) -> None:
        """Show an embedding table (vocab_size, d_model) in TensorBoard's projector."""
        folder = self.run / "validation"  # the projector reads only directories with events
        config = projector.ProjectorConfig()
        shown = config.embeddings.add(tensor_name="source embedding", tensor_shape=[*table.shape])
        shown.tensor_path, shown.metadata_path = "embedding.bytes", "embedding.tsv"
        tokens = vocabulary.tokens(range(table.shape[0]))
        (folder / shown.tensor_path).write_bytes(table.numpy().tobytes())
        (folder / shown.metadata_path).write_text("".join(f"{t!r}\n" for t in tokens), "utf-8")
        projector.visualize_embeddings(folder, config)

    def close(self) -> None:
        """Close all files."""
        for writer in self.events.values():
            writer.close()
        with contextlib.suppress(OSError):  # `write` has flushed all that fits on the disk
            self.file.close()
