"""Texts of language models: corpora, splits, encoded tokens, and blocks."""

import dataclasses
import gzip
import hashlib

import numpy as np
import pytest
from helpers import load_split, open_corpus, rejected, write
from hypothesis import example, given
from hypothesis import strategies as st

from config import Config
from data import pipeline, readers, remote
from data.arrays import Ragged, Text
from data.batches import plan_batches
from data.splits import SPLITS, TEXT, Corpus, Split, seen_share
from data.tokenizer import EOS, UNK

LANGUAGE_MODEL = {"model": "language_model"}
LINES = "".join(f"Line {i}: it's “wörld” {i % 7}.\n" + "\n" * (i % 5 == 0) for i in range(400))


def texts(name, split, **settings):
    return load_split(name, split, **LANGUAGE_MODEL, **settings).targets


@pytest.fixture
def config(tmp_path):
    sizes = {"tokenizer": "char", "max_length": 32, "batch_tokens": 128}
    corpus, cache = write(tmp_path / "a.txt", LINES), str(tmp_path / "cache")
    return Config(**LANGUAGE_MODEL, **sizes, corpus=corpus, cache_dir=cache)


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    """A directory of translations, English to Portuguese, with a validation split."""
    folder = tmp_path_factory.mktemp("talks")
    for split, size in {"train": 60, "validation": 20}.items():
        for language, words in {"en": "the house number", "pt": "a casa número"}.items():
            lines = (f"{split}: {words} {i}!\n" for i in range(size))
            write(folder / f"{split}.{language}", "".join(lines))
    return str(folder)


# ---- One text ------------------------------------------------------------------------------------


def test_the_first_90_percent_of_a_text_train_5_validate_and_5_test(tmp_path):
    name = write(tmp_path / "a.txt", LINES)
    parts = {split: "".join(texts(name, split)) for split in SPLITS}
    assert open_corpus(name, **LANGUAGE_MODEL).splits == [*SPLITS]
    assert "".join(parts.values()) == LINES  # no character is lost or doubled
    line = max(map(len, LINES.splitlines(keepends=True)))
    for split, share in {"train": 0.9, "validation": 0.05, "test": 0.05}.items():
        assert abs(len(parts[split]) - share * len(LINES)) <= line
    sample = open_corpus(name, **LANGUAGE_MODEL).summarize("validation", limit=5).sample
    assert [text for _, text in sample] == texts(name, "validation")[:5]  # they belong together
    assert texts(name, "train")[:2] == ["Line 0: it's “wörld” 0.\n", "\n"]
    assert "".join(texts(name, "all")) == LINES


def test_a_text_without_line_feeds_is_read_in_parts(tmp_path):
    content = "日本語 text 🙂 " * 20_000
    parts = [texts(write(tmp_path / "a.txt", content), split) for split in SPLITS]
    assert "".join(sum(parts, [])) == content
    assert max(map(len, sum(parts, []))) <= readers.LONGEST and len(parts[2]) > 1
    name = write(tmp_path / "b.txt.gz", gzip.compress(content.encode()))
    assert [texts(name, split) for split in SPLITS] == parts


@pytest.mark.parametrize("start", [b"one\n", b"x" * 9999 + b"\n"], ids=["short", "divided"])
def test_a_line_that_is_not_utf8_is_named(tmp_path, start):
    for end in b"\xff\n", b"\xf0\x9f\x99":  # half a character
        name = write(tmp_path / "a.txt", start * 30 + end)
        rejected(name, "a.txt:31:", "UTF-8", **LANGUAGE_MODEL)


def test_a_directory_has_one_text_per_split(tmp_path, capfd):
    write(tmp_path / "train.txt", "a\r\nb\n")
    rejected(tmp_path, "no validation split", split="validation", **LANGUAGE_MODEL)
    write(tmp_path / "validation.txt.gz", gzip.compress(b"\nc", mtime=0))
    assert texts(tmp_path, "train") == ["a\n", "b\n"]
    assert texts(tmp_path, "validation") == ["\n", "c"]
    before = open_corpus(tmp_path, **LANGUAGE_MODEL).fingerprint()
    write(tmp_path / "validation.txt", "other\n")  # takes precedence
    assert texts(tmp_path, "validation") == ["other\n"]
    assert "not validation.txt.gz" in capfd.readouterr().err
    write(tmp_path / "train.en", "not read\n")  # before .txt in the alphabet
    write(tmp_path / "validation.bpe", "not read\n")
    assert texts(tmp_path, "train") == ["a\n", "b\n"]
    assert texts(tmp_path, "validation") == ["other\n"]
    assert open_corpus(tmp_path, **LANGUAGE_MODEL).fingerprint() != before


# ---- Other corpora -------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
def test_of_translations_the_target_is_the_text(talks, reverse):
    for split in ("train", "validation"):
        pairs = load_split(talks, split, reverse=reverse)
        assert texts(talks, split, reverse=reverse) == pairs.targets
    expected = ("en",) if reverse else ("pt",)
    assert open_corpus(talks, reverse=reverse, **LANGUAGE_MODEL).languages == expected
    assert load_split("mini:9", "test", **LANGUAGE_MODEL).tags is None


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("languages", [None, "target,source"])
def test_equal_texts_of_a_table_are_in_one_split(tmp_path, reverse, languages):
    first = reverse != bool(languages)  # whether the text is in the first column
    rows = [(f"text {i // 3}", f"other {i}")[:: 1 if first else -1] for i in range(1500)]
    name = write(tmp_path / "a.tsv", "".join(f"{one}\t{other}\n" for one, other in rows))
    corpus = open_corpus(name, reverse=reverse, languages=languages, **LANGUAGE_MODEL)
    parts = [set(corpus.load(split).targets) for split in SPLITS]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 500
    assert all(text.startswith("text") for text in parts[0])
    assert len(corpus.load("all").targets) == 1500


def test_a_share_of_texts_grows_and_one_text_has_none(talks, tmp_path):
    small, large = ({*texts(talks, "train", train_share=share)} for share in (0.2, 0.6))
    assert small < large
    rejected(write(tmp_path / "a.txt", LINES), "shorten", train_share=0.5, **LANGUAGE_MODEL)


# ---- Shakespeare ---------------------------------------------------------------------------------


def test_shakespeare_is_downloaded_once(tmp_path, monkeypatch, capfd):
    """Here, a short text in its place."""
    source, saved = tmp_path / "input.txt", tmp_path / "downloads/manual/tinyshakespeare.txt"
    write(source, LINES)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(remote, "SHAKESPEARE_URL", source.as_uri())
    digest = hashlib.sha256(LINES.encode()).hexdigest()
    monkeypatch.setattr(remote, "SHAKESPEARE_SHA256", digest)
    corpus = open_corpus("shakespeare", **LANGUAGE_MODEL)
    assert not saved.exists()  # not by its name only
    assert corpus.fingerprint() and saved.read_text("utf-8") == LINES
    source.unlink()
    assert "".join(line for s in SPLITS for line in texts("shakespeare", s)) == LINES
    assert capfd.readouterr().err.count("downloading") == 1 and not corpus.documents


# ---- Encoded texts -------------------------------------------------------------------------------


def test_the_tokens_of_a_text_are_its_characters(config):
    data = pipeline.load(config)
    decode = data.target_tokenizer.decode
    train, validation = (decode([text.tokens.ids])[0] for text in (data.train, data.validation))
    assert train == "".join(texts(config.corpus, "train"))
    assert validation == "".join(texts(config.corpus, "validation"))
    assert EOS not in data.train.tokens.ids and UNK not in data.train.tokens.ids
    assert data.target_tokenizer.tokens([data.train.start]) == ["\n"]
    assert data.corpus_info["documents"] is False
    assert data.corpus_info["splits"]["train"]["tokens"] == len(train)
    assert data.validation_texts.targets == texts(config.corpus, "validation")


@pytest.mark.parametrize("tokenizer", ["bpe", "word", "char"])
def test_documents_end_in_eos(config, talks, tokenizer):
    settings = {"corpus": talks, "tokenizer": tokenizer, "vocab_size": 400}
    data = pipeline.load(dataclasses.replace(config, **settings))
    rows, expected = data.train.tokens, texts(talks, "train")
    assert len(rows.lengths) == np.count_nonzero(rows.ids == EOS) == len(expected)
    assert np.all(rows.ids[rows.offsets[1:] - 1] == EOS)
    assert data.train.start == EOS
    decoded = data.target_tokenizer.decode(
        rows.ids[a:b] for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)
    )
    if tokenizer == "word":
        decoded, expected = (["".join(x.split()) for x in each] for each in (decoded, expected))
    assert decoded == expected


def test_the_share_of_a_text_that_training_has_seen_is_named(config, tmp_path, capfd):
    """Half of the validation text is also in the training text, at another place."""
    random = np.random.default_rng(0)
    letters = [*"abcdefghijklmnopqrst    "]
    lines = ["".join(random.choice(letters, 70)) + "\n" for _ in range(400)]
    write(tmp_path / "half/train.txt", "x" + "".join(lines[:200]))
    write(tmp_path / "half/validation.txt", "".join(lines[150:250]))
    write(tmp_path / "half/test.txt", "".join(lines[300:]))
    half = dataclasses.replace(config, corpus=str(tmp_path / "half"))
    counts = pipeline.load(half).corpus_info["splits"]
    assert counts["validation"]["seen"] == pytest.approx(0.5, abs=0.06)
    assert counts["test"]["seen"] == 0 and "seen" not in counts["train"]
    error = capfd.readouterr().err
    assert "of validation is" in error and "of test is" not in error
    write(tmp_path / "thrice.txt", "".join(lines) * 3)  # divided by position
    thrice = dataclasses.replace(config, corpus=str(tmp_path / "thrice.txt"))
    counts = pipeline.load(thrice).corpus_info["splits"]
    assert counts["validation"]["seen"] > 0.9 and counts["test"]["seen"] > 0.9
    assert "of test is" in capfd.readouterr().err


def test_a_text_is_seen_where_it_has_windows_of_the_training_text():
    rows = [("", "abcca" * 20)]
    train = Corpus("new", ("text",), lambda: {"train": []}, lambda _: iter(rows), TEXT)
    train = train.summarize("train", 1)
    cases = {"ccaab" * 30: 1, "abcca" * 10 + "x" * 50: 0.5, "abcca": 0, "": 0}
    for text, share in cases.items():
        assert seen_share(Split([""], [text]), train) == pytest.approx(share, abs=0.06)


# ---- Blocks --------------------------------------------------------------------------------------


def numbered(count, block):
    """A text whose tokens are their own positions, from 5."""
    return Text(Ragged(np.arange(5, 5 + count), np.array([0, count])), start=4, block=block)


@given(
    st.integers(1, 300), st.integers(1, 40), st.integers(1, 90), st.integers(1, 9),
    st.none() | st.integers(0, 99), st.integers(0, 5),
)  # fmt: skip
@example(1, 40, 1, 1, 0, 0)
@example(40, 40, 40, 1, 7, 1)
def test_every_token_is_in_exactly_one_block_of_an_epoch(
    count, block, batch_tokens, batch_rows, seed, epoch
):
    text = numbered(count, block)
    batches = plan_batches(text, batch_tokens, batch_rows, seed, epoch)
    again = plan_batches(text, batch_tokens, batch_rows, seed, epoch)
    assert all(map(np.array_equal, batches, again)) and len(batches) == len(again)
    predicted = []
    for batch in batches:
        source, target = text.batch(batch)
        assert source.shape == (len(batch), 0) and source.dtype == target.dtype == np.int32
        assert 1 <= len(batch) <= batch_rows and target.shape[1] <= block + 1
        assert len(batch) == 1 or len(batch) * block <= batch_tokens
        for row in target:
            tokens = row[row != 0]
            np.testing.assert_array_equal(np.diff(tokens), 1)  # also to the token before the block
            assert len(tokens) > 1 and not row[len(tokens) :].any()
            predicted += tokens[1:].tolist()
    assert sorted(predicted) == [*range(5, 5 + count)]


def test_the_first_block_and_the_order_are_drawn_anew_in_every_epoch():
    text = numbered(1000, 16)
    plans = [np.concatenate(plan_batches(text, 64, 99, seed, epoch))
             for seed, epoch in ((0, 0), (0, 1), (1, 0), (None, 0))]  # fmt: skip
    first = {int(min(map(tuple, plan))[1]) for plan in plans[:3]}
    assert len(first) == 3  # ends of the first block, and so the beginnings of all others
    assert not any(np.array_equal(one, two) for one, two in zip(plans, plans[1:], strict=False))
    for plan in plans[:3]:
        assert np.any(np.diff(plan[:, 0]) < 0)
    assert plans[3][0].tolist() == [0, 16] and np.all(np.diff(plans[3][:, 0]) == 16)
