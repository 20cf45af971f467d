"""Text to ids and back: a SentencePiece model trained on training texts, and labels."""

import io
import re
import sys
import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import sentencepiece

from config import Config
from data.splits import Split
from data.text import to_nfc
from utils import UserError, first_few

PAD, UNK, BOS, EOS = 0, 1, 2, 3
PART = 1 << 18  # characters: longer texts are divided to train the tokenizer


class Tokenizer:
    """A SentencePiece model.

    Decoding undoes encoding, except that letters and accents are composed (NFC), that U+2581,
    SentencePiece's symbol for a space, becomes a space, and that text is in lower case with
    `lowercase`. With `words`, spaces surround punctuation. What is unknown is omitted.
    """

    ending = [EOS]  # the last ids of a target

    def __init__(self, model: bytes, lowercase: bool = False, words: bool = False):
        """model: a serialized SentencePiece model. Raises UserError if it is not a valid one."""
        self.model, self.lowercase, self.words = model, lowercase, words
        self.processor = sentencepiece.SentencePieceProcessor()
        try:
            self.processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise UserError(f"not a SentencePiece model: {reason}") from None
        self.vocab_size = self.processor.get_piece_size()

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Encode texts, without bos and eos."""
        return self.processor.encode(preprocess(texts, self.lowercase, self.words))

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Decode rows of ids, each up to its first eos. Padding, bos and unk are left out."""
        kept = []
        for row in rows:
            row = [int(i) for i in row]
            row = row[: row.index(EOS)] if EOS in row else row
            kept.append([i for i in row if i > EOS])
        return self.processor.decode(kept)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the token of each id."""
        return [self.processor.id_to_piece(int(i)) for i in ids]


class Labels:
    """A tokenizer of labels: each is one token, without eos."""

    ending, lowercase = [], False

    def __init__(self, names: Iterable[str]):
        """names: the labels in the order of their ids, of which the first is `EOS` + 1."""
        self.names = list(names)
        self.model = "".join(name + "\n" for name in self.names).encode()
        self.ids = {name: i for i, name in enumerate(self.names, EOS + 1)}
        self.vocab_size = EOS + 1 + len(self.names)

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Encode each label as a list of one id. Raises UserError if a label is unknown."""
        texts = list(texts)
        for text in texts:
            if text not in self.ids:
                raise UserError(
                    f"the label {text!r} is not among those of the training texts, "
                    f"{first_few(self.names, 9)}: add training texts with this label, or remove it"
                )
        return [[self.ids[text]] for text in texts]

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Return the first label of each row of ids, or "" if there is none."""
        return [next((self.names[i - EOS - 1] for i in row if i > EOS), "") for row in rows]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the label of each id, or ""."""
        return self.decode([[i] for i in ids])


def preprocess(texts: Iterable[str], lowercase: bool, words: bool) -> list[str]:
    """Convert texts to the form that the SentencePiece model is trained on."""
    texts = map(to_nfc, texts)
    if lowercase:
        texts = (text.lower() for text in texts)
    if words:
        texts = (" ".join(word_pattern().findall(text)) for text in texts)
    return list(texts)


@cache
def word_pattern() -> re.Pattern:
    """Compile the pattern of a word, or of a single character that is neither space nor word."""
    characters = map(chr, range(sys.maxunicode + 1))
    # \w does not match combining accents and vowel signs, which belong to the letter before them.
    marks = "".join(c for c in characters if unicodedata.category(c).startswith("M"))
    return re.compile(rf"[\w{marks}]+|[^\w\s]")


def train(
    texts: Iterable[str],
    vocab_size: int,
    lowercase: bool = False,
    kind: str = "bpe",
    leading_space: bool = True,
) -> Tokenizer:
    """Train a tokenizer of at most `vocab_size` tokens, fewer if the texts do not yield as many.

    kind: a value of --tokenizer. Byte-pair encoding (Sennrich et al. 2016): unseen characters are
    encoded as bytes, text is not normalized, and numbers are split into digits. "word": the most
    frequent words. "char": the most frequent characters. leading_space: encode a text as if it
    began with a space, so that its first word is the same token as elsewhere; always so for words.
    Raises UserError if `texts` is empty, or if its characters exceed the vocabulary.
    """
    words = kind == "word"
    options = {"bpe": {"byte_fallback": True, "split_digits": True}}.get(kind, {})
    if kind == "char":
        # Line feeds would be left out.
        options = {"character_coverage": 1.0, "user_defined_symbols": "\n"}
    model, texts = io.BytesIO(), preprocess(texts, lowercase, words)
    # SentencePiece leaves texts of more than `max_sentence_length` bytes out.
    parts = (text[i : i + PART] for text in texts for i in range(0, len(text) or 1, PART))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=parts,
            model_writer=model,
            vocab_size=vocab_size,
            hard_vocab_limit=False,  # vocab_size is a maximum
            add_dummy_prefix=leading_space or words,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=4 * PART,  # a character has at most four bytes
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,
            **{"model_type": kind, "character_coverage": 0.9999} | options,
        )
    except RuntimeError as error:
        if needed := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
            raise UserError(
                f"--vocab-size {vocab_size} is too small for the characters of these texts: "
                f"raise it to {needed[1]}"
            ) from None
        raise UserError(f"no tokenizer can be trained on these texts: {error}") from error
    return Tokenizer(model.getvalue(), lowercase, words)


def train_pair(
    split: Split, labels: Iterable[str], config: Config
) -> tuple[Tokenizer, Tokenizer | Labels]:
    """Train the tokenizers of source and target. A shared vocabulary is the same object twice, as
    is that of a language model.

    labels: those of a labelled corpus; not used for translations.
    """
    options = (config.vocab_size, config.lowercase, config.tokenizer)
    if config.is_classifier:
        return train(split.sources, *options), Labels(sorted(labels))
    if config.task == "language modeling":  # texts follow one another, and so do parts of a text
        shared = train(split.targets, *options, leading_space=False)
        return shared, shared
    if config.shared_vocabulary:
        shared = train(split.sources + split.targets, *options)
        return shared, shared
    return train(split.sources, *options), train(split.targets, *options)


def save_pair(folder: str | Path, source: Tokenizer, target: Tokenizer | Labels) -> None:
    """Write `tokenizer.model`, also `labels.txt`, or one tokenizer.*.model per language."""
    names = ["tokenizer.source.model", "tokenizer.target.model"]
    if source is target or isinstance(target, Labels):
        names = ["tokenizer.model", "labels.txt"][: 2 - (source is target)]
    for name, tokenizer in zip(names, (source, target), strict=False):
        (Path(folder) / name).write_bytes(tokenizer.model)


def load_pair(
    folder: str | Path, lowercase: bool = False, words: bool = False
) -> tuple[Tokenizer, Tokenizer | Labels]:
    """Load the tokenizers that `save_pair` wrote. Raises OSError, and UserError for a bad file."""
    pair = []
    for path in sorted(Path(folder).glob("tokenizer*.model")):
        try:
            pair.append(Tokenizer(path.read_bytes(), lowercase, words))
        except UserError as error:
            raise UserError(f"{path}: {error}; restore the file") from None
    labels = Path(folder) / "labels.txt"
    if labels.exists():
        pair.append(Labels(labels.read_text("utf-8").splitlines()))
    if not pair:
        raise FileNotFoundError(f"{folder} has no tokenizer.model")
    return pair[0], pair[-1]
