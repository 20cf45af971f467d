"""Text to ids and back: byte-pair encoding, single symbols (bytes, characters, words), labels."""

import io
import itertools
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import sentencepiece

from config import Config
from data.splits import LABELS, TEXT, Split
from data.text import to_nfc
from utils import UserError, first_line

PAD, UNK, BOS, EOS = 0, 1, 2, 3
PART = 1 << 18  # characters: longer texts are divided to train the tokenizer
# Where texts are also divided: at a symbol that SentencePiece reserves, and within its own tokens.
RESERVED = re.compile("\u2585|(?<=<)(?=(?:unk|pad|s|/s)>)")


class Tokenizer:
    """Byte-pair encoding by SentencePiece.

    Decoding undoes encoding, except that letters and accents are composed (NFC), that U+2581,
    SentencePiece's symbol for a space, becomes a space, and that text is in lower case with
    `lowercase`.
    """

    file = "tokenizer{}.model"
    ending = [EOS]  # the last ids of a target
    words = False

    def __init__(self, model: bytes, lowercase: bool = False):
        """model: a serialized SentencePiece model. Raises UserError if it is not a valid one."""
        self.model, self.lowercase = model, lowercase
        self.processor = sentencepiece.SentencePieceProcessor()
        try:
            self.processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise UserError(f"not a SentencePiece model, restore it: {first_line(error)}") from None
        if not self.processor.is_byte(EOS + 1):  # SentencePiece's own words or characters
            raise UserError("written by older code, which can no longer be read: train again")
        self.vocab_size = self.processor.get_piece_size()

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Encode texts, without bos and eos."""
        return self.processor.encode(preprocess(texts, self.lowercase))

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Decode rows of ids, each up to its first eos. Padding, bos and unk are left out."""
        return self.processor.decode([*map(text_ids, rows)])

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the token of each id."""
        return [self.processor.id_to_piece(int(i)) for i in ids]


class Symbols:
    """A tokenizer of single symbols: the bytes of UTF-8, characters, or words.

    Decoding undoes encoding, except that letters and accents are composed (NFC) and that text is in
    lower case with `lowercase`. Spaces surround words and punctuation. What is unknown is omitted.
    """

    file = "tokenizer{}.json"
    ending = [EOS]
    SPLIT = {
        "byte": lambda text: text.encode().decode("latin-1"),
        "char": list,
        "word": lambda text: word_pattern().findall(text),
    }

    def __init__(self, kind: str, symbols: Sequence[str], lowercase: bool = False):
        """kind: a key of `SPLIT`. symbols: in the order of their ids, of which the first is
        `EOS` + 1.
        """
        self.kind, self.symbols, self.lowercase = kind, [*symbols], lowercase
        self.words = kind == "word"  # an unknown one occurs in training, and can be read
        self.model = json.dumps({"kind": kind, "symbols": self.symbols}).encode()
        self.ids = {symbol: i for i, symbol in enumerate(symbols, EOS + 1)}
        self.vocab_size = EOS + 1 + len(self.ids)

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Encode texts, without bos and eos."""
        split = self.SPLIT[self.kind]
        return [
            [self.ids.get(symbol, UNK) for symbol in split(text)]
            for text in preprocess(texts, self.lowercase)
        ]

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Decode rows of ids, each up to its first eos. Padding, bos and unk are left out."""
        joint = " " if self.kind == "word" else ""
        texts = [joint.join(self.symbols[i - EOS - 1] for i in text_ids(row)) for row in rows]
        if self.kind == "byte":
            texts = [text.encode("latin-1").decode(errors="replace") for text in texts]
        return texts

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the token of each id, all different: as in SentencePiece, ▁ is the space, also
        before a word, and such as <0xE2> a byte.
        """
        special = ["<pad>", "<unk>", "<s>", "</s>"]
        return [self.shown(self.symbols[i - EOS - 1]) if i > EOS else special[i] for i in ids]

    def shown(self, symbol: str) -> str:
        """Return the token of a symbol."""
        if self.kind == "word" or symbol == " ":
            return "▁" + symbol.strip()
        if symbol == "▁" or self.kind == "byte" and not ("!" <= symbol <= "~"):
            return f"<0x{ord(symbol):02X}>"
        return symbol


def text_ids(row: Iterable[int]) -> list[int]:
    """Return the ids of a text, up to its first eos, without special ids."""
    until_eos = itertools.takewhile(lambda i: i != EOS, map(int, row))
    return [i for i in until_eos if i > EOS]


class Labels(Symbols):
    """A tokenizer of labels: each is one token, without eos."""

    file = "labels.txt"
    ending = []

    def __init__(self, names: Sequence[str]):
        """names: the labels in the order of their ids, of which the first is `EOS` + 1."""
        super().__init__("label", names)
        self.names = self.symbols
        self.model = "".join(name + "\n" for name in names).encode()

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Encode each label as a list of one id. Raises UserError if a label is unknown."""
        texts = list(texts)
        if unknown := sorted({*texts} - self.ids.keys()):
            names = ", ".join(self.names[:9])
            raise UserError(f"the label {unknown[0]!r} is not one of the training texts, {names}")
        return [[self.ids[text]] for text in texts]


def preprocess(texts: Iterable[str], lowercase: bool) -> list[str]:
    """Convert texts to the form that is encoded."""
    return [text.lower() if lowercase else text for text in map(to_nfc, texts)]


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
) -> Tokenizer | Symbols:
    """Train a tokenizer of at most `vocab_size` tokens, fewer if the texts do not yield as many.

    kind: a value of --tokenizer: byte-pair encoding, all bytes, the most frequent characters and
    the line feed, or the most frequent words. Byte-pair encoding: see `train_bpe`. Raises UserError
    if `texts` have no symbols.
    """
    if kind == "bpe":
        return train_bpe(texts, vocab_size, lowercase, leading_space)
    if kind == "byte":
        return Symbols(kind, [*map(chr, range(256))], lowercase)
    counts = Counter({"\n": sys.maxsize} if kind == "char" else {})
    for text in preprocess(texts, lowercase):
        counts.update(Symbols.SPLIT[kind](text))
    if not counts:
        raise UserError("no tokenizer can be trained on texts without words: add texts")
    symbols = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    return Symbols(kind, symbols[: vocab_size - EOS - 1], lowercase)


def train_bpe(
    texts: Iterable[str], vocab_size: int, lowercase: bool, leading_space: bool
) -> Tokenizer:
    """Train byte-pair encoding (Sennrich et al. 2016).

    Unseen characters are encoded as bytes, text is not normalized, and numbers are split into
    digits. leading_space: encode a text as if it began with a space, so that its first word is the
    same token as elsewhere. Raises UserError if `texts` is empty, or if its characters exceed the
    vocabulary.
    """
    # SentencePiece leaves texts of more than `max_sentence_length` bytes out.
    texts = itertools.chain.from_iterable(map(RESERVED.split, preprocess(texts, lowercase)))
    parts = (text[i : i + PART] for text in texts for i in range(0, len(text) or 1, PART))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=parts,
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            hard_vocab_limit=False,  # vocab_size is a maximum
            add_dummy_prefix=leading_space,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=4 * PART,  # a character has at most four bytes
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,
            byte_fallback=True,
            split_digits=True,
            character_coverage=0.9999,
        )
    except RuntimeError as error:
        if needed := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
            raise UserError(
                f"--vocab-size {vocab_size} is too small for the characters of these texts: "
                f"raise it to {needed[1]}"
            ) from None
        raise UserError(f"no tokenizer can be trained on these texts: {error}") from error
    return Tokenizer(model.getvalue(), lowercase)


AnyTokenizer = Tokenizer | Symbols  # or Labels


def train_pair(
    split: Split, labels: Iterable[str], config: Config
) -> tuple[AnyTokenizer, AnyTokenizer]:
    """Train the tokenizers of source and target. A shared vocabulary is the same object twice, as
    is that of a language model.

    labels: those of a labelled corpus; not used for translations.
    """
    # Texts of a language model follow one another, and so do parts of a text.
    options = config.vocab_size, config.lowercase, config.tokenizer, config.task != TEXT
    if config.task == LABELS:
        return train(split.sources, *options), Labels(sorted(labels))
    if config.shared_vocabulary or config.task == TEXT:
        shared = train(split.sources + split.targets, *options)
        return shared, shared
    return train(split.sources, *options), train(split.targets, *options)


def save_pair(folder: str | Path, source: AnyTokenizer, target: AnyTokenizer) -> None:
    """Write `tokenizer.model` (SentencePiece) or `tokenizer.json` (symbols), also `labels.txt`, or
    one tokenizer.source.* and tokenizer.target.*.
    """
    one = source is target or isinstance(target, Labels)
    for tokenizer, side in (source, ".source"), (target, ".target"):
        Path(folder, tokenizer.file.format("" if one else side)).write_bytes(tokenizer.model)


def load_pair(folder: str | Path, lowercase: bool = False) -> tuple[AnyTokenizer, AnyTokenizer]:
    """Load the tokenizers that `save_pair` wrote. Raises OSError, and UserError for a bad file."""
    folder, pair = Path(folder), []
    for path in (*sorted(folder.glob("tokenizer*.[mj]*")), *folder.glob("labels.txt")):
        content = path.read_bytes()
        try:
            if path.suffix == ".txt":
                pair.append(Labels(content.decode().splitlines()))
            elif path.suffix == ".json":
                pair.append(Symbols(**json.loads(content), lowercase=lowercase))
            else:
                pair.append(Tokenizer(content, lowercase))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: {first_line(error)}") from None
    if not pair:
        raise FileNotFoundError(f"{folder} has no tokenizer.model or tokenizer.json")
    return pair[0], pair[-1]
