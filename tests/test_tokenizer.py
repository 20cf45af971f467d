"""Tokenizers and labels: text to ids and back."""

import io
import random
import typing
import unicodedata

import pytest
import sentencepiece
from helpers import load_split

from config import Config
from data import tokenizer
from data.splits import Split
from utils import UserError


@pytest.fixture(scope="module")
def split():
    return load_split("mini:500", "train")


@pytest.fixture(scope="module")
def shared(split):
    return tokenizer.train(split.sources + split.targets, vocab_size=600)


def round_trip(tokenizer, *texts):
    return tokenizer.decode(tokenizer.encode(texts))


# ---- Round trips --------------------------------------------------------------------------------


def test_decode_undoes_encode(shared):
    """No character is unknown. Except line feeds, surrogates and U+2581, which is SentencePiece's
    symbol for a space, any may be in a text.
    """
    draw = random.Random(0)
    alphabets = [range(32, 127), range(0x250), range(0x2580), b" "]
    alphabets += [range(0x2582, 0xD800), range(0xE000, 0x110000)]
    texts = [
        "".join(chr(draw.choice(draw.choice(alphabets))) for _ in range(draw.randrange(12)))
        for _ in range(3000)
    ]
    texts += ["½ ﬁ ² Ⅷ ｆｕｌｌ ﷺ", "  in front, two  spaces,   three, behind  ", "x" * 10_000]
    texts += ["日本語の文。 👩‍👩‍👧‍👦 🇵🇹 👍🏽 𓀀", "a\tb\rc\x00d\u2028e\xa0f\u3000g\ufeff"]
    texts += ["<s> </s> <unk> <pad> <0x41>"]  # these look like special tokens
    texts = [text.replace("\n", " ") for text in texts]
    assert round_trip(shared, *texts) == [unicodedata.normalize("NFC", text) for text in texts]
    assert all(tokenizer.UNK not in ids for ids in shared.encode(texts))


# ---- Ids ----------------------------------------------------------------------------------------


def test_the_first_ids_are_pad_unk_bos_eos(shared):
    assert shared.tokens([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert (tokenizer.PAD, tokenizer.UNK, tokenizer.BOS, tokenizer.EOS) == (0, 1, 2, 3)


def test_decoding_ends_at_the_first_eos_and_skips_special_ids(shared):
    (ids,) = shared.encode(["o livro"])
    assert shared.decode([[2, *ids, 3, *ids, 3, 0, 0]]) == ["o livro"]
    assert shared.decode([[0, 2, *ids, 1, 0]]) == ["o livro"]
    assert shared.decode([[3, *ids], [2, 3], [0, 0], []]) == ["", "", "", ""]


# ---- Vocabularies -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([], "no tokenizer"),
        (["\u2585"], "no tokenizer"),
        (["".join(map(chr, range(0x4E00, 0x4EC8)))] * 3, "--vocab-size 300 .* 461"),
    ],
    ids=["none", "SentencePiece's own symbol", "too many characters"],
)
def test_what_no_tokenizer_can_be_trained_on_is_rejected(texts, reason):
    with pytest.raises(UserError, match=reason):
        tokenizer.train(texts, vocab_size=300)


def test_separate_vocabularies_fit_their_languages(split, tmp_path):
    config = Config(vocab_size=600, shared_vocabulary=False)
    source, target = tokenizer.train_pair(split, [], config)

    def count_tokens(tokenizer, texts):
        return sum(map(len, tokenizer.encode(texts)))

    assert count_tokens(source, split.sources) < count_tokens(target, split.sources)
    assert count_tokens(target, split.targets) < count_tokens(source, split.targets)
    assert tokenizer.train_pair(split, [], config)[0].model == source.model  # deterministic
    tokenizer.save_pair(tmp_path, source, target)
    loaded = tokenizer.load_pair(tmp_path)
    assert [each.model for each in loaded] == [source.model, target.model]
    one, other = tokenizer.train_pair(split, [], Config(vocab_size=600))
    assert one is other
    config = Config(vocab_size=600, shared_vocabulary=False, model="language_model")
    texts = Split([""] * len(split.targets), split.targets)
    one, other = tokenizer.train_pair(texts, [], config)
    assert one is other


def test_lowercase_is_optional(split, tmp_path):
    trained = tokenizer.train(split.sources, 400, lowercase=True)
    assert split.match_case(True).targets[0] == split.targets[0].lower() != split.targets[0]
    tokenizer.save_pair(tmp_path, trained, trained)
    for lowercase, text in (True, "não é água"), (False, "Não É ÁGUA"):
        assert round_trip(tokenizer.load_pair(tmp_path, lowercase)[0], "Não É ÁGUA") == [text]


# ---- Characters ---------------------------------------------------------------------------------


def test_the_most_frequent_characters_are_kept():
    letters = "".join(map(chr, range(0x4E00 + 299, 0x4DFF, -1)))
    text = "".join(letter * (400 - i) for i, letter in enumerate(letters))
    trained = tokenizer.train([text], 270, kind="char", leading_space=False)
    assert trained.vocab_size == 270
    assert trained.tokens(range(4, 270)) == ["\n", *letters[:265]]  # most frequent first
    assert round_trip(trained, f"日{letters[0]}🙂\n", letters[-1]) == [f"{letters[0]}\n", ""]


# ---- Every kind ----------------------------------------------------------------------------------

KINDS = typing.get_args(typing.get_type_hints(Config)["tokenizer"])
# With symbols that SentencePiece reserves, and its names of special tokens.
RESERVED = [
    "a \u2585 x\u2585\n",
    "\u2581b\r",
    "<unk> </s>",
    "<s>c<pad>",
    "1 < 2 > 0 &\t!",
    "é\u0301🙂",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_character_of_the_training_text_is_in_the_vocabulary(kind, tmp_path):
    trained = tokenizer.train(RESERVED, 400, kind=kind, leading_space=False)
    tokenizer.save_pair(tmp_path, trained, trained)
    loaded, other = tokenizer.load_pair(tmp_path)
    assert loaded is other and loaded.model == trained.model
    assert loaded.encode(RESERVED) == trained.encode(RESERVED)
    for text in RESERVED:
        (ids,) = loaded.encode([text])
        assert tokenizer.UNK not in ids and all(tokenizer.EOS < i < loaded.vocab_size for i in ids)
        expected = unicodedata.normalize("NFC", text)
        if kind == "word":
            expected = "".join(expected.split())
            assert "".join(loaded.decode([ids])[0].split()) == expected
        else:  # SentencePiece's symbol for a space
            expected = expected.replace("\u2581", " ") if kind == "bpe" else expected
            assert loaded.decode([ids]) == [expected]
    if kind == "bpe":
        assert {*"axbc<>&!"} <= {*"".join(loaded.tokens(range(260, loaded.vocab_size)))}


def test_byte_pairs_are_learned_from_all_texts():
    """Also from those with SentencePiece's own symbols."""
    for text in "one\u2585two", "one<unk>two</s>", "<pad>one <s>two":
        trained = tokenizer.train([text] * 9, 300)
        learned = {*"".join(trained.tokens(range(260, trained.vocab_size)))}
        assert {*text} - {*"\u2585 "} <= learned


@pytest.mark.parametrize("kind", KINDS)
def test_every_id_of_a_text_has_a_text_and_every_token_another_name(kind):
    trained = tokenizer.train(RESERVED, 400, kind=kind, leading_space=False)
    ids = range(tokenizer.EOS + 1, trained.vocab_size)
    names, texts = trained.tokens(ids), trained.decode([i] for i in ids)
    assert all(text or name in ("▁", " ") for text, name in zip(texts, names, strict=True))
    names = trained.tokens(range(trained.vocab_size))
    assert len({*names}) == len(names)
    assert trained.decode([[0, 1, 2], [3, ids[0]]]) == ["", ""]


def test_bytes_need_no_training_and_broken_ones_are_decoded():
    trained = tokenizer.train([], 264, kind="byte")
    assert trained.vocab_size == 260
    assert trained.encode(["é日"]) == [[4 + byte for byte in "é日".encode()]]
    assert trained.decode([[4 + 0xC3], [4 + 0x41, 4 + 0xFF]]) == ["\ufffd", "A\ufffd"]


# ---- Words and labels ---------------------------------------------------------------------------


def test_words_and_punctuation_are_separate_and_rare_words_unknown():
    texts = ["It isn't bad, is it?"] * 5 + ["rare"]
    trained = tokenizer.train(texts, 260, lowercase=True, kind="word")
    (ids,) = trained.encode(["IT is,bad unheard"])
    assert [token.lstrip("▁") for token in trained.tokens(ids)] == ["it", "is", ",", "bad", "<unk>"]
    assert trained.decode([ids]) == ["it is , bad"]
    words = tokenizer.train(["(हिन्दी) x\u0301y"], 300, kind="word")  # with combining marks
    assert {*words.symbols} == {"(", "हिन्दी", ")", "x\u0301y"}


def test_a_text_of_two_megabytes_is_learned_from():
    pieces = tokenizer.train(["𐐷𐐨" * tokenizer.PART], 270)
    assert "𐐷" in "".join(pieces.tokens(range(pieces.vocab_size)))


def test_labels_are_ids_after_the_special_tokens(tmp_path):
    labels = tokenizer.Labels(["neg", "pos"])
    assert labels.encode(["pos", "neg"]) == [[5], [4]] and labels.vocab_size == 6
    assert labels.decode([[5], [4, 0], [2, 5], [3]]) == ["pos", "neg", "pos", ""]
    with pytest.raises(UserError, match="'neutral'.* neg, pos"):
        labels.encode(["pos", "neutral"])
    texts = tokenizer.train(["some text"], 300)
    tokenizer.save_pair(tmp_path, texts, labels)
    source, target = tokenizer.load_pair(tmp_path)
    assert source.model == texts.model and target.names == labels.names


# ---- Bad files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"x", b"\n\x00\n"])
def test_damaged_tokenizers_are_rejected_by_name(tmp_path, content):
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.model: ") as error:
        tokenizer.load_pair(tmp_path)
    assert "\n" not in str(error.value)


def test_words_of_sentencepiece_which_older_code_used_are_refused(tmp_path):
    model = io.BytesIO()
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    options = {"model_type": "word", "hard_vocab_limit": False, "minloglevel": 2}
    texts = iter(["some words"] * 9)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=model, **ids, **options
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    with pytest.raises(UserError, match="older code"):
        tokenizer.load_pair(tmp_path)
