"""Every knob. The fields of `Config` are the flags of `train.py`, their comments the help."""

import argparse
import dataclasses
import inspect
import os
import re
import sys
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import records

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up chatter


@dataclass(frozen=True)
class Config:
    """One training run. Raises ValueError, in a sentence, on an impossible value."""

    # What to learn from
    corpus: str = "mini"  # mini, spa-eng, a tensorflow_datasets name, a folder, or a .tsv file
    reverse: bool = False  # translate the other way round
    vocab_size: int = 8000  # pieces of the tokenizer at the most
    tokenizer: Literal["bpe", "word"] = "bpe"  # pieces of words that suit the corpus, or words
    shared_vocabulary: bool = True  # one tokenizer for both languages
    lowercase: bool = False  # the model reads and writes lower case only
    max_length: int = 128  # pieces a text; longer pairs are dropped, labelled texts cut; counted
    batch_tokens: int = 1024  # positions a batch, on the longer side, padding included
    batch_sentences: int = 1024  # sentences a batch at the most

    # The model
    model: Literal["transformer", "recurrent", "classifier"] = "transformer"  # which model
    num_layers: int = 4  # layers of the encoder, and as many of the decoder
    d_model: int = 128  # size of the vectors that run through the model
    num_heads: int = 8  # attentions side by side
    key_dim: int | None = None  # size of each head's queries, keys and values [d_model / num_heads]
    dff: int = 512  # inner size of the feed-forward networks
    dropout_rate: float = 0.1  # share of values dropped after embeddings and sublayers
    word_dropout: float = 0.0  # share of the source's words that training hides
    norm: Literal["post", "pre"] = "pre"  # layer norm after each sublayer (the paper) or before
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"  # how the model sees order
    tie_embeddings: bool = True  # one table for the embeddings and the output projection
    recurrent_attention: Literal["none", "additive", "dot"] = "additive"  # Bahdanau's, or Luong's
    pooling: Literal["max", "mean", "first"] = "mean"  # a classifier's one vector for all positions
    bigrams: int = 0  # vectors for pairs of neighbouring words, shared by a hash, in a classifier

    # How to learn
    label_smoothing: float = 0.1  # probability that the label shares with the whole vocabulary
    warmup_steps: int = 1000  # steps until the learning rate's peak
    learning_rate_scale: float = 1.0  # a factor on the paper's learning rate
    epochs: int = 20  # passes over the training split
    max_steps: int | None = None  # stop after so many steps, if that comes first
    precision: Literal["float32", "bfloat16"] = "float32"  # of training's matrix products
    shards: int = 2  # parts of a batch that are computed side by side, each on cores of its own
    strategy: Literal["none", "mirrored", "multi_worker"] = "none"  # one replica, or several
    seed: int = 0  # initial weights, dropout and the order of the data are drawn from it

    # The run
    name: str | None = None  # folder under --runs-dir [corpus, model, seed and time]
    resume: str | None = None  # go on with this run folder
    accept_changes: bool = False  # with --resume: though its flags or the code have changed
    runs_dir: str = "runs"  # where run folders are made
    cache_dir: str = ".cache"  # where tokenized corpora are kept
    keep_checkpoints: int = 5  # latest checkpoints kept, beside the best

    def __post_init__(self):
        if self.key_dim is None and self.model != "recurrent":
            if self.num_heads > 0 and self.d_model % self.num_heads:
                raise ValueError(
                    f"--d-model {self.d_model} is not divisible by --num-heads {self.num_heads}: "
                    "change one of them, or give --key-dim"
                )
            object.__setattr__(self, "key_dim", self.d_model // max(self.num_heads, 1))
        for field in dataclasses.fields(self):
            check(field.name, getattr(self, field.name))
        for name in UNUSED[self.model]:
            if getattr(self, name) != getattr(Config, name):
                raise ValueError(f"--model {self.model} has no use for {flag(name)}: leave it out")
        if self.model == "recurrent" and self.d_model % 2:
            raise ValueError(f"--model recurrent needs an even --d-model, not {self.d_model}")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"--positions sinusoidal needs an even --d-model, not {self.d_model}")
        if self.name is not None and not re.fullmatch(r"\w[\w.+-]*", self.name):
            raise ValueError(f"--name {self.name!r} is not one plain folder name")

    @property
    def labelled(self):
        """Whether the texts have labels instead of translations."""
        return self.model == "classifier"


HINTS = typing.get_type_hints(Config)
BOUNDS = {  # the smallest value, and the first that is too large; whole numbers start from 1
    "vocab_size": (264, 2**31), "dropout_rate": (0, 1), "word_dropout": (0, 1),
    "label_smoothing": (0, 1), "bigrams": (0, 2**31),
    "learning_rate_scale": (0, float("inf")), "seed": (0, 2**20), "epochs": (0, 2**31),
}  # fmt: skip
UNUSED = {  # what would be ignored is refused
    "transformer": ("recurrent_attention", "pooling", "bigrams"),
    "recurrent": ("num_heads", "key_dim", "dff", "norm", "positions", "pooling", "bigrams"),
    "classifier": ("recurrent_attention", "reverse", "shared_vocabulary", "tie_embeddings"),
}
# What a resumed run may change; the rest of its configuration stays.
FREE = ("epochs", "max_steps", "strategy", "keep_checkpoints", "resume", "accept_changes",
        "runs_dir", "cache_dir")  # fmt: skip


def flag(name):
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def check(name, value):
    """Raise ValueError where a value is not of its field's type or out of bounds."""
    hint = HINTS[name]
    if typing.get_origin(hint) is Literal:
        if value not in typing.get_args(hint):
            choices = ", ".join(typing.get_args(hint))
            raise ValueError(f"{flag(name)} {value!r} is none of {choices}")
        return
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and types.NoneType in kinds:
        return
    kinds = (*kinds, int) if float in kinds else kinds
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"{flag(name)} {value!r} is not of type {kinds[0].__name__}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = BOUNDS.get(name, (1, 2**31))
        if not low <= value < high:
            raise ValueError(f"{flag(name)} {value} is not at least {low} and below {high:,}")


def parser(description):
    """The flags of `Config`; only those given appear in the result."""
    made = argparse.ArgumentParser(description=description, allow_abbrev=False)
    made.error = fail
    add_flags(made, Config)
    return made


def add_flags(made, kind):
    """Give an argument parser a flag for each field of a dataclass, its comment the help."""
    hints = typing.get_type_hints(kind)
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(kind), re.MULTILINE))
    for field in dataclasses.fields(kind):
        hint, text = hints[field.name], comments[field.name].replace("%", "%%")
        options = {"help": text if field.default is None else f"{text} [{field.default}]"}
        if hint is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif typing.get_origin(hint) is Literal:
            options["choices"] = typing.get_args(hint)
        else:
            kinds = typing.get_args(hint) or (hint,)
            options |= {"type": kinds[0], "metavar": kinds[0].__name__.upper()}
        made.add_argument(flag(field.name), default=argparse.SUPPRESS, **options)


def read(folder):
    """The Config of a run folder. Raises ValueError, in a sentence."""
    path = Path(folder) / "config.json"
    try:
        path.lstat()  # what is no run is not searched
    except OSError as error:
        rest = "; it can be deleted" if (Path(folder) / "source").exists() else ""
        raise ValueError(
            f"{folder} is no run that has begun: {path}: {error.strerror}{rest}"
        ) from None
    records.check_folder(folder)
    try:
        return Config(**records.read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be used: {' '.join(str(error).split())}") from None


def resumed(given):
    """The Config of the run that `--resume` names; flags given beside it must agree with it.

    given: the flags on the command line, a dict with "resume". Raises ValueError, in a sentence.
    """
    was = read(given["resume"])
    # Where the run's maker kept other things is nobody else's business.
    given = {"runs_dir": Config.runs_dir, "cache_dir": Config.cache_dir} | given
    for name, value in given.items():
        if name not in FREE and value != getattr(was, name) and not given.get("accept_changes"):
            raise ValueError(
                f"{given['resume']} was trained with {flag(name)} {getattr(was, name)}, not "
                f"{value}: leave the flag out, start a new run, or give --accept-changes"
            )
    return dataclasses.replace(was, **given)


def from_flags(description, check_corpus=lambda name, labelled: None):
    """The Config that the command line asks for. A mistake: one line, exit status 2.

    check_corpus: called with the corpus' name and whether it should have labels; raises ValueError
    where there is no such corpus.
    """
    given = vars(parser(description).parse_args())
    try:
        config = resumed(given) if "resume" in given else Config(**given)
        folder = Path(config.runs_dir, config.name or "")
        if config.name and not config.resume and folder.exists():
            raise ValueError(
                f"{folder} exists: choose another --name, or go on with --resume {folder}"
            )
        check_corpus(config.corpus, config.labelled)
        return config
    except ValueError as error:
        fail(error)


def first_line(error):
    """What an exception says in one line, without the full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(" :.")


def fail(error, status=2):
    """End with one line on standard error; the status of a mistake in a command is 2."""
    if isinstance(error, OSError) and error.filename:
        error = f"{error.filename}: {error.strerror}"
    print("error:", *str(error).split(), file=sys.stderr)
    raise SystemExit(status)
