"""Text to ids and back: SentencePiece, trained on the training split alone; and labels."""

import io
import re
import sys
import unicodedata
from functools import cache
from pathlib import Path

import sentencepiece

PAD, UNK, BOS, EOS = 0, 1, 2, 3


class Tokenizer:
    """A SentencePiece model. What is encoded decodes to the same text, but for U+2581, which is
    SentencePiece's own sign for a space, and for upper case with `lowercase`. With `words`, spaces
    come between words and other signs, and words out of the vocabulary are left out.
    """

    ending = [EOS]  # what follows a target

    def __init__(self, model, lowercase=False, words=False):
        """model: the bytes of a trained SentencePiece model. Raises ValueError for others."""
        self.model, self.lowercase, self.words = model, lowercase, words
        self.pieces = sentencepiece.SentencePieceProcessor()
        try:
            self.pieces.LoadFromSerializedProto(model)
            ids = [getattr(self.pieces, f"{name}_id")() for name in ("pad", "unk", "bos", "eos")]
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"this is no SentencePiece model: {reason}") from None
        if ids != [PAD, UNK, BOS, EOS]:
            raise ValueError(f"this SentencePiece model has its special pieces at {ids}")
        self.vocab_size = self.pieces.get_piece_size()

    def encode(self, texts):
        """Texts → a list of ids each, without bos and eos."""
        return self.pieces.encode(prepared(texts, self.lowercase, self.words))

    def decode(self, rows):
        """Lists of ids → texts. A row ends at its first eos; padding, bos and unk are left out."""
        kept = []
        for row in rows:
            row = [int(i) for i in row]
            row = row[: row.index(EOS)] if EOS in row else row
            kept.append([i for i in row if i > EOS])
        return self.pieces.decode(kept)

    def tokens(self, ids):
        """Ids → the pieces' own text, for axes and tables."""
        return [self.pieces.id_to_piece(int(i)) for i in ids]


class Labels:
    """The tokenizer of labels: each is one token, which nothing follows."""

    ending, lowercase = [], False

    def __init__(self, names):
        """names: the labels, in the order of their ids, which begin after `EOS`."""
        self.names = list(names)
        self.model = "".join(name + "\n" for name in self.names).encode()
        self.ids = {name: i for i, name in enumerate(self.names, EOS + 1)}
        self.vocab_size = EOS + 1 + len(self.names)

    def encode(self, texts):
        """Labels → a list of one id each. Raises ValueError for one that is not known."""
        for text in texts:
            if text not in self.ids:
                known = ", ".join(self.names[:9]) + ", …" * (len(self.names) > 9)
                raise ValueError(
                    f"the training split has no text with the label {text!r}, only {known}: add "
                    "some, or take the label out"
                )
        return [[self.ids[text]] for text in texts]

    def decode(self, rows):
        """Lists of ids → the label of each, "" where there is none."""
        return [next((self.names[i - EOS - 1] for i in row if i > EOS), "") for row in rows]

    def tokens(self, ids):
        """Ids → labels, for axes and tables."""
        return self.decode([[i] for i in ids])


def prepared(texts, lowercase, words):
    """The texts as SentencePiece gets them."""
    if lowercase:
        texts = [text.lower() for text in texts]
    if words:
        texts = [" ".join(word_or_mark().findall(text)) for text in texts]
    return list(texts)


@cache
def word_or_mark():
    """What is one token where words are: letters and digits, or one sign that is neither."""
    signs = (chr(code) for code in range(sys.maxunicode + 1))
    # Accents and vowel signs that stand by themselves belong to the letter before them.
    accents = "".join(sign for sign in signs if unicodedata.category(sign)[0] == "M")
    return re.compile(rf"[\w{accents}]+|[^\w\s]")


def train(texts, vocab_size, lowercase=False, words=False):
    """A Tokenizer of `vocab_size` pieces at the most, fewer where the text supports no more.

    Byte-pair encoding (Sennrich et al. 2016) with a piece for each byte, so that nothing is unknown
    that was never seen; no normalisation, so that no character is rewritten; digits one by one.
    words: the most frequent words instead. Raises ValueError where there is no text.
    """
    kind = (
        {"model_type": "word"}
        if words
        else {"model_type": "bpe", "byte_fallback": True, "split_digits": True}
    )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(prepared(texts, lowercase, words)),
            model_writer=model,
            vocab_size=vocab_size,
            hard_vocab_limit=False,  # a ceiling
            character_coverage=0.9999,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=1 << 20,
            pad_id=PAD, unk_id=UNK, bos_id=BOS, eos_id=EOS,
            minloglevel=2,
            **kind,
        )  # fmt: skip
    except RuntimeError as error:
        if needed := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
            raise ValueError(
                f"its letters alone make {needed[1]} pieces: raise --vocab-size {vocab_size}"
            ) from None
        raise ValueError(f"SentencePiece could not be trained: {error}") from error
    return Tokenizer(model.getvalue(), lowercase, words)


def train_pair(split, config):
    """The tokenizers of source and target; the same one twice with a shared vocabulary."""
    how = (config.vocab_size, config.lowercase, config.tokenizer == "word")
    if config.labelled:
        return train(split.sources, *how), Labels(sorted(set(split.targets)))
    if config.shared_vocabulary:
        shared = train(split.sources + split.targets, *how)
        return shared, shared
    return tuple(train(texts, *how) for texts in (split.sources, split.targets))


def save_pair(folder, source, target):
    """Write `tokenizer.model`, or one file a language where they differ, or `labels.txt`."""
    folder = Path(folder)
    if source is target:
        (folder / "tokenizer.model").write_bytes(source.model)
    elif isinstance(target, Labels):
        (folder / "tokenizer.model").write_bytes(source.model)
        (folder / "labels.txt").write_bytes(target.model)
    else:
        (folder / "tokenizer.source.model").write_bytes(source.model)
        (folder / "tokenizer.target.model").write_bytes(target.model)


def load_pair(folder, lowercase=False, words=False):
    """The tokenizers that `save_pair` wrote. Raises FileNotFoundError, and ValueError where a file
    is damaged.
    """

    def made(name):
        path = Path(folder) / name
        content = path.read_bytes()
        try:
            if name == "labels.txt":
                return Labels(content.decode().split("\n")[:-1])
            return Tokenizer(content, lowercase, words)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    if (Path(folder) / "tokenizer.model").exists():
        shared = made("tokenizer.model")
        labelled = (Path(folder) / "labels.txt").exists()
        return shared, made("labels.txt") if labelled else shared
    return made("tokenizer.source.model"), made("tokenizer.target.model")
