"""Settings of a training run: the fields of `Config` are the flags of train.py."""

import re
from dataclasses import dataclass, fields
from typing import Literal

from utils import UserError, check_settings, names_in_group, setting

# What each model is trained on: pairs of texts, texts with labels, or texts only.
TASKS = {
    "transformer": "translation",
    "recurrent": "translation",
    "classifier": "classification",
    "language_model": "language modeling",
}


@dataclass(frozen=True)
class Config:
    """Settings of one training run. Raises UserError if a value is invalid."""

    # Data
    corpus: str = setting(
        "mini",
        "mini, mini:SIZE, spa-eng, shakespeare, cogs, the name of a tensorflow_datasets dataset, "
        "a directory, or a .tsv, .csv, .txt (also .gz) or .parquet file",
        group="data",
    )
    languages: str | None = setting(
        None,
        "source and target, such as pt,en; or the columns of a .csv or Parquet file, such as "
        "text,label [those of the corpus]",
    )
    reverse: bool = setting(False, "swap source and target language", ignored_by=("classifier",))
    train_share: float | None = setting(
        None, "use only this share of the training split, chosen by hash", low=1e-6, high=1
    )
    held_out_share: float | None = setting(
        None,
        "share of a corpus without splits that is validation, and of one that is test "
        "[0.02 by hash; 0.05 of one text; 0.2 of a dataset or directory, for validation only, and "
        "at most 5,000 texts if they have no labels]",
        low=0.0001,
        high=0.5,
    )
    vocab_size: int = setting(8000, "maximum size of the vocabulary", low=264, high=65_537)
    tokenizer: Literal["bpe", "word", "char", "byte"] = setting(
        "bpe", "byte-pair encoding, whole words, characters, or bytes"
    )
    shared_vocabulary: bool = setting(
        True,
        "use one vocabulary for source and target",
        ignored_by=("classifier", "language_model"),
    )
    lowercase: bool = setting(False, "convert all text to lower case")
    max_length: int = setting(
        128,
        "maximum tokens per text; longer pairs are dropped, longer labelled texts truncated, and "
        "texts of a language model divided into blocks of this length",
    )
    batch_tokens: int = setting(
        1024, "maximum positions per batch, padding included, on the longer of the two sides"
    )
    batch_sentences: int = setting(1024, "maximum sentences per batch")

    # Model
    model: Literal["transformer", "recurrent", "classifier", "language_model"] = setting(
        "transformer", "model type", group="model"
    )
    num_layers: int = setting(4, "number of encoder layers, and of decoder layers")
    d_model: int = setting(128, "size of embeddings and hidden states")
    num_heads: int = setting(8, "number of attention heads", ignored_by=("recurrent",))
    key_dim: int | None = setting(
        None,
        "size of the queries, keys and values of one head [d_model / num_heads]",
        ignored_by=("recurrent",),
    )
    dff: int = setting(512, "inner size of the feed-forward networks", ignored_by=("recurrent",))
    dropout_rate: float = setting(0.1, "dropout rate after embeddings and sublayers", low=0, high=1)
    attention_dropout_rate: float = setting(
        0.0,
        "dropout rate of attention weights, not in the paper",
        low=0,
        high=1,
        ignored_by=("recurrent",),
    )
    word_dropout: float = setting(
        0.0,
        "fraction of source tokens replaced by padding in training",
        low=0,
        high=1,
        ignored_by=("language_model",),
    )
    norm: Literal["post", "pre"] = setting(
        "pre",
        "layer norm after each sublayer (post, as in the paper) or before it (pre)",
        ignored_by=("recurrent",),
    )
    positions: Literal["sinusoidal", "learned", "none"] = setting(
        "sinusoidal", "positional encoding", ignored_by=("recurrent",)
    )
    tie_embeddings: bool = setting(
        True,
        "one table for output projection, target and, with a shared vocabulary, source",
        ignored_by=("classifier",),
    )
    recurrent_attention: Literal["none", "additive", "dot"] = setting(
        "additive",
        "attention of the recurrent model: Bahdanau's (additive) or Luong's (dot)",
        ignored_by=("transformer", "classifier", "language_model"),
    )
    pooling: Literal["max", "mean", "first"] = setting(
        "mean",
        "how the classifier reduces all positions to one vector",
        ignored_by=("transformer", "recurrent", "language_model"),
    )

    # Training
    label_smoothing: float | None = setting(
        None, "label smoothing [0.1; 0 for a language model]", low=0, high=1, group="training"
    )
    warmup_steps: int = setting(1000, "steps of learning-rate warm-up")
    learning_rate_scale: float = setting(
        1.0, "factor that multiplies the paper's learning rate", low=0, high=float("inf")
    )
    epochs: int = setting(20, "passes over the training split", low=0, resume=True)
    max_steps: int | None = setting(
        None,
        "stop after this many steps in total, and validate; cleared if --resume raises --epochs",
        resume=True,
    )
    total_steps: int | None = setting(
        None, "steps of the whole training, for schedules that end [those of --epochs]"
    )
    validate_every: int | None = setting(None, "also validate every this many steps", resume=True)
    validation_sentences: int = setting(
        1000,
        "maximum sentences to translate in validation",
        ignored_by=("classifier", "language_model"),
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32", "data type of products with weights in training; everything else is float32"
    )
    shards: int | None = setting(None, "parallel parts of a batch [2 on a CPU, 1 on a GPU]")
    accumulate: int = setting(1, "parts of a batch, computed one after another to save memory")
    strategy: Literal["none", "mirrored", "multi_worker"] = setting(
        "none",
        "tf.distribute strategy: one replica, all local GPUs, or several machines",
        resume=True,
    )
    seed: int = setting(0, "seed of initial weights, dropout and data order", low=0, high=2**20)

    # Run
    name: str | None = setting(
        None, "name of the run [corpus, model, seed, time, process]", group="run"
    )
    resume: str | None = setting(None, "run to resume, such as runs/latest", resume=True)
    init_from: str | None = setting(None, "start from the model, weights and tokenizer of this run")
    accept_changes: bool = setting(False, "resume even if flags or code have changed", resume=True)
    runs_dir: str = setting("runs", "where run directories are created", resume=True)
    cache_dir: str = setting(
        ".cache", "where tokenized corpora are cached; give it again with --resume", resume=True
    )
    keep_checkpoints: int = setting(5, "latest epochs to keep, in addition to best", resume=True)

    def __post_init__(self):
        check_settings(self)
        if self.label_smoothing is None:
            default = 0.0 if self.task == "language modeling" else 0.1
            object.__setattr__(self, "label_smoothing", default)
        has_heads = "num_heads" not in no_effect(self.model)
        if has_heads and self.key_dim is None and self.d_model % self.num_heads:
            raise UserError(
                f"--d-model {self.d_model} is not divisible by --num-heads {self.num_heads}: "
                "change one of them, or set --key-dim"
            )
        if self.d_model % 2 and (self.model == "recurrent" or self.positions == "sinusoidal"):
            raise UserError(f"--d-model {self.d_model}: give an even number, or other --positions")
        names = (self.languages or "text").split(",")
        if len({*names}) != len(names) or len(names) > 2 or not all(names):
            raise UserError(f"--languages {self.languages}: give a source and a target as in pt,en")
        # runs/latest is the newest run.
        if self.name is not None and not re.fullmatch(r"(?!latest$)\w[\w.+-]*", self.name):
            raise UserError(
                f"--name {self.name!r}: use letters, digits and _ . + -, but not latest"
            )

    @property
    def head_dim(self) -> int:
        """Size of the queries, keys and values of one head."""
        return self.key_dim or self.d_model // self.num_heads

    @property
    def task(self) -> str:
        """The task of the model: a value of `TASKS`."""
        return TASKS[self.model]


def no_effect(model: str) -> list[str]:
    """Return the settings that have no effect with a --model."""
    return [field.name for field in fields(Config) if model in field.metadata["ignored_by"]]


# What a run that starts with --init-from takes over: the tokenizer and the model, but not dropout.
OF_THE_MODEL = ("tokenizer", "vocab_size", "shared_vocabulary", "lowercase")
OF_THE_MODEL += tuple(name for name in names_in_group(Config, "model") if "dropout" not in name)
MAY_CHANGE_ON_RESUME = tuple(x.name for x in fields(Config) if x.metadata["resume"])
