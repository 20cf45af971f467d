"""Text to ids and back: SentencePiece, trained on the training split alone."""

import io
from pathlib import Path

import sentencepiece

PAD, UNK, BOS, EOS = 0, 1, 2, 3


class Tokenizer:
    """A SentencePiece model. What is encoded decodes to the same text, but for U+2581, which is
    SentencePiece's own sign for a space, and for upper case with `lowercase`.
    """

    def __init__(self, model, lowercase=False):
        """model: the bytes of a trained SentencePiece model."""
        self.model, self.lowercase = model, lowercase
        self.pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size = self.pieces.get_piece_size()

    def encode(self, texts):
        """Texts → a list of ids each, without bos and eos."""
        return self.pieces.encode([t.lower() for t in texts] if self.lowercase else list(texts))

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


def train(texts, vocab_size, lowercase=False):
    """A Tokenizer of `vocab_size` pieces at the most, fewer where the text supports no more.

    Byte-pair encoding (Sennrich et al. 2016) with a piece for each byte, so that nothing is unknown
    that was never seen; no normalisation, so that no character is rewritten; digits one by one.
    Raises ValueError where there is no text.
    """
    texts = [t.lower() for t in texts] if lowercase else texts
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            hard_vocab_limit=False,  # a ceiling
            byte_fallback=True,
            split_digits=True,
            character_coverage=0.9999,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=1 << 20,
            pad_id=PAD, unk_id=UNK, bos_id=BOS, eos_id=EOS,
            minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        raise ValueError(f"SentencePiece could not be trained: {error}") from error
    return Tokenizer(model.getvalue(), lowercase)


def train_pair(split, config):
    """The tokenizers of source and target; the same one twice with a shared vocabulary."""
    if config.shared_vocabulary:
        shared = train(split.sources + split.targets, config.vocab_size, config.lowercase)
        return shared, shared
    return tuple(
        train(texts, config.vocab_size, config.lowercase)
        for texts in (split.sources, split.targets)
    )


def save_pair(folder, source, target):
    """Write `tokenizer.model`, or one file a language where they differ."""
    if source is target:
        (Path(folder) / "tokenizer.model").write_bytes(source.model)
    else:
        (Path(folder) / "tokenizer.source.model").write_bytes(source.model)
        (Path(folder) / "tokenizer.target.model").write_bytes(target.model)


def load_pair(folder, lowercase=False):
    """The tokenizers that `save_pair` wrote. Raises FileNotFoundError."""
    folder = Path(folder)
    if (folder / "tokenizer.model").exists():
        shared = Tokenizer((folder / "tokenizer.model").read_bytes(), lowercase)
        return shared, shared
    return tuple(
        Tokenizer((folder / f"tokenizer.{side}.model").read_bytes(), lowercase)
        for side in ("source", "target")
    )
