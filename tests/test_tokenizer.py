"""Text to ids and back, with nothing lost on the way."""

import random

import pytest

from config import Config
from data import corpora, tokenizer


@pytest.fixture(scope="module")
def split():
    return corpora.load("mini:500", "train")


@pytest.fixture(scope="module")
def shared(split):
    return tokenizer.train(split.sources + split.targets, vocab_size=600)


def round_trip(made, *texts):
    return made.decode(made.encode(texts))


# ---- Nothing is lost ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "o menino lê um livro.",
        "À noite, a avó e o avô não põem açúcar: três pães, lingüiça!",
        "½ ﬁ ² Ⅷ ｆｕｌｌ ﷺ",  # compatibility characters, which NFKC would rewrite
        "e\u0301 is not \u00e9",  # decomposed and composed
        "👩‍👩‍👧‍👦 🇵🇹 👍🏽",
        "日本語の文。 Русский текст. العربية 𓀀",  # in no training text
        "two  spaces,   three",
        "  in front",
        "behind  ",
        " ",
        "     ",
        "",
        "a\tb\rc\x00d\u2028e\xa0f\u3000g\ufeff",
        "<s> </s> <unk> <pad> <0x41>",  # text that looks like a piece with a meaning
        "1999, 3.14",
        "x" * 10_000,
    ],
)
def test_decode_undoes_encode(shared, text):
    assert round_trip(shared, text) == [text]


def test_decode_undoes_encode_for_any_characters(shared):
    """All but line feeds, surrogates and U+2581, which is SentencePiece's sign for a space."""
    draw = random.Random(0)
    alphabets = [range(32, 127), range(0x250), range(0x2580), range(0x2582, 0xD800),
                 range(0xE000, 0x110000), b" "]  # fmt: skip
    texts = [
        "".join(chr(draw.choice(draw.choice(alphabets))) for _ in range(draw.randrange(12)))
        for _ in range(3000)
    ]
    texts = [text.replace("\n", " ") for text in texts]
    assert round_trip(shared, *texts) == texts


def test_nothing_is_unknown(shared):
    (ids,) = shared.encode(["日本語 👍 ½"])
    assert tokenizer.UNK not in ids


# ---- Ids ----------------------------------------------------------------------------------------


def test_the_first_ids_are_pad_unk_bos_eos(shared):
    assert shared.tokens([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert (tokenizer.PAD, tokenizer.UNK, tokenizer.BOS, tokenizer.EOS) == (0, 1, 2, 3)


def test_encoding_adds_no_special_ids(shared, split):
    ids = {i for row in shared.encode(split.sources) for i in row}
    assert min(ids) > tokenizer.EOS and max(ids) < shared.vocab_size


def test_decoding_ends_at_the_first_eos_and_leaves_special_ids_out(shared):
    (ids,) = shared.encode(["o livro"])
    assert shared.decode([[2, *ids, 3, *ids, 3, 0, 0]]) == ["o livro"]
    assert shared.decode([[0, 2, *ids, 1, 0]]) == ["o livro"]
    assert shared.decode([[3, *ids], [2, 3], [0, 0], []]) == ["", "", "", ""]


def test_a_frequent_word_is_one_piece(shared):
    assert shared.tokens(shared.encode(["the"])[0]) == ["▁the"]


# ---- Vocabularies -------------------------------------------------------------------------------


def test_the_vocabulary_size_is_met_where_the_text_supports_it(shared):
    assert shared.vocab_size == 600


def test_the_vocabulary_size_is_a_ceiling():
    made = tokenizer.train(["um livro", "uma casa"], vocab_size=8000)
    assert 260 < made.vocab_size < 300
    assert round_trip(made, "um livro e uma casa") == ["um livro e uma casa"]


def test_no_text_is_an_error_that_can_be_shown():
    with pytest.raises(ValueError, match="SentencePiece"):
        tokenizer.train([], vocab_size=400)


def test_training_is_repeatable(split):
    texts = split.sources[:100]
    assert tokenizer.train(texts, 400).model == tokenizer.train(texts, 400).model


def test_a_shared_vocabulary_is_one_tokenizer(split):
    source, target = tokenizer.train_pair(split, Config(vocab_size=400))
    assert source is target


def test_separate_vocabularies_each_know_their_own_language(split):
    source, target = tokenizer.train_pair(split, Config(vocab_size=600, shared_vocabulary=False))

    def pieces(made, texts):
        return sum(map(len, made.encode(texts)))

    assert pieces(source, split.sources) < pieces(target, split.sources)
    assert pieces(target, split.targets) < pieces(source, split.targets)


@pytest.mark.parametrize("shared_vocabulary", [True, False])
def test_save_and_load_keep_the_tokenizers(split, tmp_path, shared_vocabulary):
    settings = Config(vocab_size=400, shared_vocabulary=shared_vocabulary)
    made = tokenizer.train_pair(split, settings)
    tokenizer.save_pair(tmp_path, *made)
    assert (tmp_path / "tokenizer.model").exists() == shared_vocabulary
    for before, after, texts in zip(made, tokenizer.load_pair(tmp_path), split[:2], strict=True):
        assert after.vocab_size == before.vocab_size
        assert after.encode(texts) == before.encode(texts)


def test_lower_case_is_a_choice(split, tmp_path):
    made = tokenizer.train(split.sources, 400, lowercase=True)
    assert round_trip(made, "Não É ÁGUA") == ["não é água"]
    tokenizer.save_pair(tmp_path, made, made)
    for lowercase, text in (True, "não é água"), (False, "Não É ÁGUA"):
        assert round_trip(tokenizer.load_pair(tmp_path, lowercase)[0], "Não É ÁGUA") == [text]
