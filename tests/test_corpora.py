"""All kinds of corpora, and the errors for bad ones."""

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import unicodedata
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import load_split, write_corpus
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import utils
from config import Config
from data import corpora, pipeline
from data import tfds as corpora_tfds
from data.splits import (
    SPLITS,
    Corpus,
    CorpusError,
    Split,
    assign_split,
    hash_share,
    normalize_source,
    to_line,
)

generated = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.fixture
def folder(tmp_path):
    for split, size in {"train": 3, "validation": 2, "test": 1}.items():
        write(tmp_path / f"{split}.pt", "".join(f"{split} olá {i}\n" for i in range(size)))
        write(tmp_path / f"{split}.en", "".join(f"{split} hello {i}\n" for i in range(size)))
    return tmp_path


def table(path, numbers):
    write(path, "".join(f"source {i}\ttarget {i}\n" for i in numbers))
    return str(path)


# ---- Names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "nosuch",
        "",
        "./nosuch",
        "minimal",
        "mini:",
        "mini:0",
        "mini:-5",
        "mini:9999999",
        "mini:many",
        "a b/c",
    ],
)
def test_invalid_names_are_rejected_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError) as error:
        corpora.find(name)
    assert "mini:SIZE" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name, meant", [("min", "mini"), ("spa_eng", "spa-eng"), ("Shakespear", "shakespeare")]
)
def test_a_misspelt_name_is_corrected(name, meant):
    with pytest.raises(CorpusError, match=f"did you mean {meant}"):
        corpora.find(name)


def test_a_dataset_with_a_similar_name_is_found():
    assert corpora.find("tiny_shakespeare", task="language modeling").task == "language modeling"


def test_checking_a_name_neither_imports_tensorflow_nor_downloads(tmp_path):
    """Runs in a new process. All of these names need tensorflow_datasets."""
    program = """
import sys
from data import corpora
from data.splits import CorpusError
corpora.find("ted_hrlr_translate/pt_to_en")
assert corpora.find("ted_hrlr_translate/ru_to_pt").languages == ("ru", "pt")
assert corpora.find("ted_hrlr_translate/pt_to_en", reverse=True).languages == ("en", "pt")
for name, keyword in {
    "nosuch/pt_to_en": "nosuch not found",
    "ted_hrlr_translate/pt_to_xx": "pt_to_xx not found",
    "imdb_reviews": "--model classifier",
    "wmt14_translate": "wmt14_translate/de-en",
    "glue/cola": "neither",
}.items():
    try:
        corpora.find(name)
    except CorpusError as error:
        assert keyword in str(error), error
        assert "\\n" not in str(error) and "builder_kwargs" not in str(error), error
    else:
        raise AssertionError(name)
assert "tensorflow" not in sys.modules
"""
    env = {**os.environ, "TFDS_DATA_DIR": str(tmp_path)}
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", program], env=env, cwd=root, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_the_name_of_a_corpus_is_ignored(tmp_path, monkeypatch, anki):
    (tmp_path / "mini").mkdir()
    (tmp_path / "spa-eng").mkdir()
    before = [corpora.find(name).fingerprint() for name in ("mini", "spa-eng")]
    monkeypatch.chdir(tmp_path)
    assert [corpora.find(name).fingerprint() for name in ("mini", "spa-eng")] == before


# ---- The built-in corpus ------------------------------------------------------------------------


def test_mini_has_four_splits_and_tags():
    assert [*corpora.find("mini").files()] == ["train", "validation", "test", "compositional"]
    assert corpora.find("mini").languages == ("pt", "en")
    texts = load_split("mini", "test")
    assert len(texts.sources) == len(texts.targets) == len(texts.tags) > 0
    assert texts == load_split("mini", "test")


def test_the_size_of_mini_is_that_of_its_training_split():
    assert len(load_split("mini:7", "train").sources) == 7
    assert load_split("mini:7", "test") == load_split("mini", "test")
    assert corpora.find("mini:7").fingerprint() != corpora.find("mini").fingerprint()


# ---- Files of translations ----------------------------------------------------------------------


def test_the_alphabetically_first_extension_is_the_source(folder):
    name = str(folder)
    assert [*corpora.find(name).files()] == ["train", "validation", "test"]
    assert corpora.find(name).languages == ("en", "pt")
    texts = load_split(name, "validation")
    assert texts.sources == ["validation hello 0", "validation hello 1"]
    assert texts.targets == ["validation olá 0", "validation olá 1"]
    assert texts.tags is None


def test_languages_select_the_direction_of_any_corpus(folder):
    backward = corpora.find(str(folder), languages="pt,en")
    assert backward.languages == ("pt", "en")
    assert backward.load("test") == load_split(str(folder), "test", reverse=True)
    assert corpora.find("mini", languages="pt,en").languages == ("pt", "en")
    with pytest.raises(CorpusError, match="mini has pt, en, not pt,fr"):
        corpora.find("mini", languages="pt,fr")


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_reverse_applies_to_every_split_that_is_loaded_for_scoring(folder, split):
    name = str(folder)
    forward, backward = (corpora.from_config(Config(corpus=name, reverse=r)) for r in (False, True))
    assert (forward.languages, backward.languages) == (("en", "pt"), ("pt", "en"))
    sources, targets, _ = forward.load(split)
    assert sources[0] == f"{split} hello 0" and targets[0] == f"{split} olá 0"
    assert backward.load(split)[:2] == (targets, sources)
    assert load_split(name, split, reverse=True) == backward.load(split)
    assert forward.summarize(split, 1).sha256 != backward.summarize(split, 1).sha256


def test_lines_end_at_line_feeds_only(folder):
    """Not at U+2028 and the like. A byte order mark and carriage returns are removed."""
    write(
        folder / "train.en",
        b"\xef\xbb\xbf" + "one\u2028still one\r\ntwo\x85\x0c two\r\nthree".encode(),
    )
    assert load_split(str(folder), "train").sources == ["one still one", "two two", "three"]


BYTES = st.binary(max_size=60) | st.text("aé\t\n\r\0\x1c\x85\u2028🙂 ", max_size=30).map(str.encode)


@generated
@given(BYTES, BYTES)
@example(b"a\r\nb", b"c\n\xef\xbb\xbfd\n")
@example(b"a\x85b\x1cc\n", "d\u2028e".encode())
@example(b"a\n\n\nd", b"e\n \ng\nh")
def test_a_directory_is_read_completely_or_rejected_in_one_line(folder, source, target):
    """Completely except for pairs with an empty text, with NFC and ends of lines as spaces."""
    write(folder / "train.en", source)
    write(folder / "train.pt", target)
    try:
        split = load_split(str(folder), "train")
    except CorpusError as error:
        assert str(error) and "\n" not in str(error)
        return
    columns = []
    for raw in (source, target):
        lines = raw.removeprefix(b"\xef\xbb\xbf").decode().removesuffix("\n").split("\n")
        columns.append([line.removesuffix("\r") for line in lines])
    pairs = [pair for pair in zip(*columns, strict=True) if all(map(str.strip, pair))]
    assert [*zip(*split[:2], strict=True)] == [(normalize_source(a), to_line(b)) for a, b in pairs]


def test_unicode_forms_and_white_space_make_no_difference(folder):
    """Neither in texts, nor in what counts as the same source."""
    decomposed = unicodedata.normalize("NFD", "é ñ")
    assert decomposed != "é ñ"
    write(folder / "train.en", f" {decomposed}\u00a0\u3000x\té\n")
    write(folder / "train.pt", f"{decomposed}\u00a0!\n")
    assert load_split(str(folder), "train") == Split(["é ñ x é"], ["é ñ\u00a0!"])
    sources = [f"{i} é ñ" for i in range(99)]
    variants = [unicodedata.normalize("NFD", text).replace(" ", " \t") for text in sources]
    assert [*map(assign_split, variants)] == [*map(assign_split, sources)]
    assert [*map(hash_share, variants)] == [*map(hash_share, sources)]


def test_files_of_no_split_are_named(folder, capfd):
    for name in ("dev.en", "notes.md", ".DS_Store"):
        write(folder / name, "text")
    load_split(str(folder), "train")
    error = capfd.readouterr().err
    assert "ignoring 2 files that the corpus does not include: dev.en, notes.md\n" in error


def test_pairs_with_an_empty_text_are_skipped_and_counted(folder, capfd):
    write(folder / "train.en", "\nb\nc\n\n")
    write(folder / "train.pt", "a\n \t\nc\n\n")
    assert load_split(str(folder), "train") == Split(["c"], ["c"])
    assert "skipped 3 pairs of the train split that had an empty text" in capfd.readouterr().err
    assert len(load_split(str(folder), "test").sources) == 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "file, content, words",
    [
        ("train.en", "a\nb\n", ["train.en has 2 lines", "train.pt has 3"]),
        ("train.en", b"a\nb \xff\nc\n", ["train.en:2:", "UTF-8"]),
        ("train.pt", "a\nb\nc\n\n", ["train.pt has 4"]),
        ("train.pt", "", ["train.pt: ", "empty"]),
        ("train.pt", None, ["train.pt: missing"]),
        ("train.de", "a\n", ["two extensions", "train.de"]),
    ],
)
def test_bad_directories_are_rejected_with_file_and_line(folder, file, content, words):
    (folder / file).unlink(missing_ok=True)
    if content is not None:
        write(folder / file, content)
    with pytest.raises(CorpusError) as error:
        load_split(str(folder), "train")
    for word in words:
        assert word in str(error.value)


def test_the_test_split_is_optional(folder):
    (folder / "test.pt").unlink()
    with pytest.raises(CorpusError, match="test.pt: missing"):
        corpora.find(str(folder))
    (folder / "test.en").unlink()
    assert [*corpora.find(str(folder)).files()] == ["train", "validation"]
    with pytest.raises(
        CorpusError, match="no test split; expected test.en and test.pt, found train.en"
    ):
        load_split(str(folder), "test")


@pytest.mark.parametrize("name", ["valid.{}", "dev.{}", "validation.{}~", "validation.{}.zip"])
def test_files_with_other_names_than_validation_are_listed(folder, name):
    for language in "en", "pt":
        (folder / f"validation.{language}").rename(folder / name.format(language))
    with pytest.raises(CorpusError) as error:
        load_split(str(folder), "validation")
    for word in "validation.en", "validation.pt", name.format("en"), name.format("pt"):
        assert word in str(error.value)


def test_compressed_files_are_read(folder, tmp_path):
    expected = read_all(str(folder))
    write(folder / "train.en~", "a backup\n")
    write(folder / "train.pt.gz", gzip.compress(b"not used\n"))
    for file in "train.en", "validation.pt":
        write(folder / f"{file}.gz", gzip.compress((folder / file).read_bytes()))
        (folder / file).unlink()
    assert read_all(str(folder)) == expected
    expected = read_all(table(tmp_path / "a.tsv", range(600)))
    write(tmp_path / "b.tsv.gz", gzip.compress((tmp_path / "a.tsv").read_bytes()))
    assert read_all(str(tmp_path / "b.tsv.gz")) == expected


@pytest.mark.parametrize("start, end", [(9, None), (None, -9)])
def test_damaged_compressed_files_are_rejected(tmp_path, start, end):
    write(tmp_path / "a.tsv.gz", gzip.compress(b"a\tb\n")[start:end])
    with pytest.raises(CorpusError, match="a.tsv.gz: cannot be read"):
        load_split(str(tmp_path / "a.tsv.gz"), "train")


def test_an_empty_directory_is_rejected(tmp_path):
    with pytest.raises(CorpusError, match="train.SRC"):
        corpora.find(str(tmp_path))


def read_all(name):
    return {split: load_split(name, split) for split in corpora.find(name).files()}


def test_every_line_of_a_table_is_in_one_split_in_file_order(tmp_path):
    texts = read_all(table(tmp_path / "a.tsv", range(2000)))
    sizes = {split: len(text.sources) for split, text in texts.items()}
    assert sum(sizes.values()) == 2000
    assert 20 < sizes["validation"] < 60 and 20 < sizes["test"] < 60
    for text in texts.values():
        assert [s.replace("source", "target") for s in text.sources] == text.targets
        numbers = [int(s.split()[1]) for s in text.sources]
        assert numbers == sorted(numbers)


@settings(generated, max_examples=4)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r"), min_size=1),
        min_size=300,
        max_size=300,
    )
)
def test_the_splits_of_a_table_contain_every_line_once(tmp_path, texts):
    rows = [(f"{number} {text}", f"x{number}{text}") for number, text in enumerate(texts)]
    expected = [(normalize_source(a), to_line(b)) for a, b in rows]
    path = tmp_path / "a.tsv"
    write(path, "".join(f"{a}\t{b}\n" for a, b in rows))
    splits = read_all(str(path)).values()
    pairs = [pair for split in splits for pair in zip(split.sources, split.targets, strict=True)]
    assert sorted(pairs) == sorted(expected)


def test_adding_lines_to_a_table_moves_no_other(tmp_path):
    few = read_all(table(tmp_path / "a.tsv", range(1000)))
    many = read_all(table(tmp_path / "a.tsv", range(-500, 2000)))
    for split in few:
        assert set(few[split].sources) <= set(many[split].sources)


def test_a_larger_share_holds_out_more_and_the_default_is_two_per_cent_each(tmp_path):
    """The default is that of published results: the first eight bytes of the hash modulo 100."""
    texts = [f"text {i}" for i in range(5000)]
    for text in texts:
        place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 100
        expected = "train" if place < 96 else "validation" if place < 98 else "test"
        assert assign_split(text) == assign_split(text, 0.02) == expected
    before = {*texts}
    for share in (0.005, 0.1, 0.25):
        splits = [assign_split(text, share) for text in texts]
        for split in ("validation", "test"):
            assert splits.count(split) / len(texts) == pytest.approx(share, rel=0.25)
        train = {text for text, split in zip(texts, splits, strict=True) if split == "train"}
        assert train < before
        before = train


@pytest.mark.parametrize("task", ["translation", "classification", "language modeling"])
def test_held_out_share_applies_to_every_file_that_is_divided(tmp_path, reviews, task):
    """Validation and test get the share of texts, of labelled texts, and of the characters."""
    names = {"translation": table(tmp_path / "a.tsv", range(2000)), "classification": str(reviews)}
    write(tmp_path / "a.txt", "four\n" * 1000)
    name = names.get(task, str(tmp_path / "a.txt"))
    corpus = corpora.find(name, task=task, held_out_share=0.1)
    sizes = {split: len(corpus.load(split).targets) for split in SPLITS}
    expected = {"translation": (200, 200), "classification": (2, 20)}.get(task, (100, 100))
    assert (sizes["validation"], sizes["test"]) == pytest.approx(expected, rel=0.2)
    assert sum(sizes.values()) == {"classification": 40}.get(task, 10 * sum(expected) / 2)


def test_few_held_out_texts_and_their_remedy_are_named(tmp_path, capfd):
    name, folder = table(tmp_path / "a.tsv", range(800)), write_corpus(tmp_path / "talks")
    config = Config(corpus=name, cache_dir=str(tmp_path))
    pipeline.load(config)
    error = capfd.readouterr().err
    number, share = re.search(r"has only (\d+) .*--held-out-share (\S+)\n", error).groups()
    assert int(number) == len(load_split(name, "validation").sources)
    pipeline.load(replace(config, held_out_share=float(share)))
    assert "has only" not in capfd.readouterr().err
    pipeline.load(replace(config, corpus=str(folder), held_out_share=0.1))
    error = capfd.readouterr().err
    assert "has only 20 validation texts and 30 test texts" in error and "more text" in error
    assert "has no effect" in error
    pipeline.load(replace(config, corpus="mini:300", held_out_share=0.1))
    assert "--held-out-share has no effect: mini" in capfd.readouterr().err


def test_a_share_that_is_in_effect_is_not_proposed(tmp_path, reviews, capfd):
    shutil.rmtree(reviews / "test")
    config = Config(corpus=str(reviews), model="classifier", cache_dir=str(tmp_path / "cache"))
    for share in (None, 0.2):
        utils.warn.cache_clear()
        pipeline.load(replace(config, held_out_share=share))
        assert "use more text" in capfd.readouterr().err, share


def test_equal_sources_are_in_one_split_also_when_reversed(tmp_path):
    path = tmp_path / "a.tsv"
    write(path, "".join(f"source {i % 500}\ttarget {i}\n" for i in range(1500)))
    seen = [set(text.sources) for text in read_all(str(path)).values()]
    assert sum(map(len, seen)) == 500
    forward, backward = (load_split(str(path), "test", reverse=r) for r in (False, True))
    assert (backward.sources, backward.targets) == (forward.targets, forward.sources)


@pytest.mark.parametrize(
    "content, words",
    [
        ("a\tb\nno tab\n", ["a.tsv:2:", "TAB"]),
        ("a\tb\n\n\t \nno tab", ["a.tsv:4:"]),  # blank lines count
        (b"a\tb\n\xe9\tb\n", ["a.tsv:2:", "UTF-8"]),
        ("", ["a.tsv: ", "empty"]),
        ("a\tb\n", ["a.tsv: ", "300"]),
    ],
)
def test_bad_tables_are_rejected_with_file_and_line(tmp_path, content, words):
    write(tmp_path / "a.tsv", content)
    with pytest.raises(CorpusError) as error:
        load_split(str(tmp_path / "a.tsv"), "train")
    for word in words:
        assert word in str(error.value)


def test_blank_lines_and_further_columns_of_a_table_are_counted(tmp_path, capfd):
    path = tmp_path / "a.tsv"
    expected = read_all(table(path, range(1000)))
    lines = path.read_text().splitlines()
    write(path, "".join(f"{line}\tmore\n\n" for line in lines) + " \t\r\na\t\n\tb\n")
    assert read_all(str(path)) == expected
    err = capfd.readouterr().err
    assert "first two columns of 1,000 lines" in err and "skipped 1,003 pairs" in err


def test_the_split_all_of_a_table_is_every_line_in_order(tmp_path, folder):
    assert load_split(table(tmp_path / "a.tsv", range(9)), "all").targets[8] == "target 8"
    with pytest.raises(CorpusError, match="no all split"):
        load_split(str(folder), "all")


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.txt", "a.txt.gz", "a.parquet"])
def test_a_missing_file_is_rejected(name, tmp_path):
    with pytest.raises(CorpusError, match=f"{name}: no such file$"):
        corpora.find(str(tmp_path / name))


# ---- Files of labelled texts --------------------------------------------------------------------


@pytest.fixture
def reviews(tmp_path):
    """A directory like aclImdb: no validation split, and texts without labels in `unsup`."""
    for split in "train", "test":
        for label in "pos", "neg":
            for i in range(10):
                write(tmp_path / split / label / f"{i}_7.txt", f"{split} {label}\nreview {i}")
    write(tmp_path / "train" / "unsup" / "0_0.txt", "nobody knows")
    write(tmp_path / "train" / "urls_pos.txt", "http://nowhere")
    return tmp_path


def test_a_directory_of_labels_is_read_and_shuffled(reviews, capfd):
    name = str(reviews)
    corpora.find(name, task="classification")
    assert "ignoring unsup" in capfd.readouterr().err
    assert corpora.find(name, task="classification").languages == ("text", "label")
    assert set(corpora.find(name, task="classification").files()) == {"train", "validation", "test"}
    test = load_split(name, "test", task="classification")
    expected = [(f"test {label} review {i}", label) for label in ("neg", "pos") for i in range(10)]
    assert sorted(zip(test.sources, test.targets, strict=True)) == sorted(expected)
    assert len({*test.targets[:10]}) == 2  # shuffled


def test_a_label_that_is_not_utf_8_is_rejected(reviews):
    for split in "train", "test":
        (reviews / split / "pos").rename(reviews / split / "b\udcea")
    with pytest.raises(CorpusError, match="the label 'b.*' is not UTF-8: rename"):
        corpora.find(str(reviews), task="classification")


def test_a_directory_that_is_not_a_split_is_named(reviews, capfd):
    write(reviews / "val" / "pos" / "0_7.txt", "good")
    corpora.find(str(reviews), task="classification")
    assert "ignoring val: splits are named train, validation, test\n" in capfd.readouterr().err


def test_names_of_files_need_not_be_utf_8(reviews):
    (reviews / "train" / "pos" / "0_7.txt").rename(reviews / "train" / "pos" / "b\udcea.txt")
    assert corpora.find(str(reviews), task="classification").fingerprint()


def test_a_fifth_of_train_is_held_out_without_a_validation_split(reviews):
    name = str(reviews)
    train, held_out = (load_split(name, s, task="classification") for s in ("train", "validation"))
    assert len(train.sources) == 16 and len(held_out.sources) == 4
    everything = {f"train {label} review {i}" for label in ("pos", "neg") for i in range(10)}
    assert {*train.sources, *held_out.sources} == everything
    for split in train, held_out:
        assert all(target in source for source, target in zip(*split[:2], strict=True))
    assert len({*held_out.targets}) == 2
    assert load_split(name, "validation", task="classification") == held_out
    write(reviews / "validation" / "pos" / "a.txt", "own")
    write(reviews / "validation" / "neg" / "b.txt", "own")
    assert len(load_split(name, "train", task="classification").sources) == 20
    assert load_split(name, "validation", task="classification").sources == ["own", "own"]


def write_labelled_table(path, line):
    labels = ("neg", "pos")
    write(path, "".join(line.format(label=labels[i % 2], text=f"text {i}") for i in range(600)))


@pytest.mark.parametrize(
    "task, line, words",
    [
        ("classification", "{text}\t{label}\n", "the label must be first"),
        ("translation", "{text}\t{label}\n", "with --model classifier and put the label first"),
        ("translation", "{label}\t{text}\n", "train with --model classifier$"),
    ],
)
def test_labels_in_an_unexpected_column_are_recognized(tmp_path, capfd, task, line, words):
    """With a warning only: a table may have few different texts, each of them many times."""
    write_labelled_table(tmp_path / "a.tsv", line)
    assert load_split(str(tmp_path / "a.tsv"), "all", task=task).sources
    assert re.search(f"warning: .*{words}", capfd.readouterr().err.strip())


def test_labels_are_stripped_and_two_are_required(tmp_path):
    write(tmp_path / "a.tsv", "".join(f"{'pos ' if i % 2 else 'pos'}\tt {i}\n" for i in range(400)))
    config = Config(model="classifier", corpus=str(tmp_path / "a.tsv"), cache_dir=str(tmp_path))
    assert {*load_split(config.corpus, "train", task="classification").targets} == {"pos"}
    with pytest.raises(CorpusError, match="'pos': add texts with another label"):
        pipeline.load(config)


def test_labels_that_look_alike_are_named(tmp_path, capfd):
    labels = ("very good", "Very-good", "bad", "-1", "1", "C", "C++", "1.0", "10")
    write(tmp_path / "a.tsv", "".join(f"{labels[i % 9]}\ttext {i}\n" for i in range(900)))
    config = Config(model="classifier", corpus=str(tmp_path / "a.tsv"), cache_dir=str(tmp_path))
    pipeline.load(config)
    (line,) = (x for x in capfd.readouterr().err.splitlines() if "look alike" in x)
    assert line.endswith("alike: 'Very-good' and 'very good'")


def test_hidden_files_are_ignored_and_others_counted(reviews, capfd):
    """An empty text is skipped like an empty line of a table."""
    before = {s: len(load_split(str(reviews), s, task="classification").sources) for s in SPLITS}
    for split in ("train", "test"):
        write(reviews / split / ".ipynb_checkpoints" / "x.txt", "text")
        write(reviews / split / "pos" / "._1.txt", b"\xff")
    write(reviews / "train" / "neg" / "notes.md", "text")
    write(reviews / "test" / "neg" / "empty.txt", "")
    after = {s: load_split(str(reviews), s, task="classification") for s in SPLITS}
    assert {split: len(each.sources) for split, each in after.items()} == before
    assert {*after["train"].targets} == {"neg", "pos"}
    error = capfd.readouterr().err
    ignored = "ignoring 1 file that the corpus does not include"
    assert f"neg: {ignored}: notes.md\n" in error and f"{ignored}: urls_pos.txt\n" in error
    assert "skipped 1 pair of" in error and "an empty text" in error and "ipynb" not in error


def test_repeated_pairs_are_no_error(tmp_path, capfd):
    write(tmp_path / "a.tsv", "".join(f"source {i}\ttarget {i}\n" for i in range(400)) * 20)
    assert len(load_split(str(tmp_path / "a.tsv"), "all").sources) == 8000
    assert "warning" in capfd.readouterr().err


def test_a_labelled_table_is_label_tab_text(tmp_path):
    write_labelled_table(tmp_path / "a.tsv", "{label}\t{text}\tmore\n")
    splits = [load_split(str(tmp_path / "a.tsv"), s, task="classification") for s in SPLITS]
    assert sum(len(split.sources) for split in splits) == 600
    assert (
        load_split(str(tmp_path / "a.tsv"), "test", reverse=True, task="classification")
        == splits[2]
    )
    for split in splits:
        assert {*split.targets} == {"pos", "neg"}  # split by text, not by label
        for text, label in zip(split.sources, split.targets, strict=True):
            assert label == ("pos" if int(text.split()[1]) % 2 else "neg")
            assert text.endswith(" more")


@pytest.mark.parametrize("first, count", [("Label\ttext", 1), ("pos\ttext", 0)])
def test_a_header_of_a_labelled_table_is_named(tmp_path, capfd, first, count):
    write_labelled_table(tmp_path / "a.tsv", "{label}\t{text}\n")
    write(tmp_path / "a.tsv", first + "\n" + (tmp_path / "a.tsv").read_text())
    load_split(str(tmp_path / "a.tsv"), "train", task="classification")
    assert capfd.readouterr().err.count("looks like a header") == count


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda path: shutil.rmtree(path / "test" / "pos"), ["two labels", "neg"]),
        (lambda path: write(path / "train" / "pos" / "x.txt", b"\xff"), ["x.txt", "UTF-8"]),
        (lambda path: [p.unlink() for p in path.glob("test/pos/*")], ["test/pos", "no .txt"]),
    ],
)
def test_bad_directories_of_labels_are_rejected(reviews, damage, words):
    damage(reviews)
    with pytest.raises(CorpusError) as error:
        for split in corpora.find(str(reviews), task="classification").files():
            load_split(str(reviews), split, task="classification")
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_the_fingerprint_depends_on_the_label_of_a_text(tmp_path):
    for place in "neg/a", "neg/m", "pos/z":
        write(tmp_path / "train" / f"{place}.txt", place[-1])
    before = corpora.find(str(tmp_path), task="classification").fingerprint()
    # The same texts in the same order.
    (tmp_path / "train" / "neg" / "m.txt").rename(tmp_path / "train" / "pos" / "m.txt")
    assert corpora.find(str(tmp_path), task="classification").fingerprint() != before


def test_a_labelled_directory_needs_splits(tmp_path):
    with pytest.raises(CorpusError, match="two labels"):
        corpora.find(str(tmp_path), task="classification")


def test_labels_and_translations_are_not_confused(reviews, tmp_path):
    with pytest.raises(CorpusError, match="train with --model classifier"):
        corpora.find(str(reviews))
    with pytest.raises(CorpusError, match="train without --model classifier"):
        corpora.find("mini", task="classification")


# ---- Hashes -------------------------------------------------------------------------------------


def sha256(split):
    """The hash of a split, as that of a corpus."""
    pairs = [*zip(*filter(None, split), strict=True)]
    corpus = Corpus("name", ("a", "b"), lambda: {"train": []}, lambda split: iter(pairs))
    return corpus.summarize("train", 1).sha256


def test_the_hash_of_a_split_depends_on_order_boundaries_and_direction():
    splits = [
        Split(["a", "b"], ["c", "d"]),
        Split(["b", "a"], ["d", "c"]),
        Split(["a\nb"], ["c\nd"]),
        Split(["a", "b", "c"], ["d", "e", "f"]),
        Split(["c", "d"], ["a", "b"]),
        Split(["á", "b"], ["c", "d"]),
    ]
    assert len({sha256(split) for split in splits}) == len(splits)
    assert sha256(splits[0]) == sha256(Split(["a", "b"], ["c", "d"], ["x", "y"]))


def test_the_fingerprint_depends_on_every_file_but_not_on_its_directory(folder, tmp_path):
    before = corpora.find(str(folder)).fingerprint()
    assert before == corpora.find(str(folder) + "/").fingerprint()
    for file in folder.iterdir():
        content = file.read_bytes()
        write(file, content + b"more\n")
        assert corpora.find(str(folder)).fingerprint() != before, file
        write(file, content)
    assert corpora.find(str(folder)).fingerprint() == before
    nine, ten = (corpora.find(table(tmp_path / "a.tsv", range(n))).fingerprint() for n in (9, 10))
    assert nine != ten


# ---- tensorflow_datasets ------------------------------------------------------------------------

SIZES = {"train": 1500, "dev": 20, "test": 10}  # train: more than one batch of 1024


NAME = "ted_hrlr_translate/pt_to_en"
WORDS = {"pt": "olá", "en": "hello", "ru": "привет"}


@pytest.fixture
def ted(tmp_path, monkeypatch):
    """A small archive like the real one, registered with tfds in its place."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import downloader

    def refuse(self, url, *args, **kwargs):
        raise AssertionError(f"tfds downloads {url}")

    monkeypatch.setattr(downloader._Downloader, "download", refuse)
    archive = tmp_path / "host" / "ted.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        for split, size in SIZES.items():
            for pair in ("pt", "en"), ("ru", "en"):
                for language in pair:
                    lines = (f"{WORDS[language]} {split} {i}" for i in range(size))
                    text = "\n".join(lines).encode()
                    entry = tarfile.TarInfo(f"datasets/{'_to_'.join(pair)}/{language}.{split}")
                    entry.size = len(text)
                    tar.addfile(entry, io.BytesIO(text))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setattr(corpora_tfds, "TED_URLS", ("file:///nonexistent", archive.as_uri()))
    registered = tfds.builder(NAME).url_infos
    info = tfds.download.checksums.compute_url_info(archive)
    info.filename = registered[corpora_tfds.TED_URL].filename
    monkeypatch.setitem(registered, corpora_tfds.TED_URL, info)
    return archive


def test_the_archived_copy_is_downloaded_if_the_host_is_down(ted, tmp_path, capfd):
    import tensorflow_datasets as tfds

    assert [*corpora.find(NAME).files()] == ["train", "validation", "test"]
    out, err = capfd.readouterr()
    assert "downloading file:///nonexistent\nfailed: " in err and ted.as_uri() in err
    assert out == ""
    ted.unlink()  # the dataset is prepared
    for split, file in {"train": "train", "validation": "dev", "test": "test"}.items():
        texts = load_split(NAME, split)
        assert sorted(texts.sources) == sorted(f"olá {file} {i}" for i in range(SIZES[file]))
        assert [s.replace("olá", "hello") for s in texts.sources] == texts.targets
        in_file_order = tfds.as_numpy(tfds.load(NAME, split=split, data_dir=tmp_path / "tfds"))
        assert texts.sources == [row["pt"].decode() for row in in_file_order]
    assert load_split(NAME, "test", reverse=True).sources[0].startswith("hello")
    with pytest.raises(CorpusError, match="no dev split; it has train, validation, test"):
        load_split(NAME, "dev")
    before = corpora.find(NAME).fingerprint()
    (record,) = (tmp_path / "tfds").rglob("*test.tfrecord*")
    write(record, record.read_bytes()[:-1])
    assert corpora.find(NAME).fingerprint() != before


@pytest.mark.parametrize("damage", ["unreachable", "truncated", "altered"])
def test_a_failed_download_leaves_no_file_and_names_the_alternatives(ted, tmp_path, damage, capfd):
    content = ted.read_bytes()
    if damage == "unreachable":
        ted.unlink()
    else:
        write(ted, content[:-9] if damage == "truncated" else content[:-1] + b"?")
    with pytest.raises(CorpusError) as error:
        load_split(NAME, "train")
    archive = tmp_path / "tfds" / "downloads" / "manual" / "qi18naacl-dataset.tar.gz"
    for remedy in str(archive), "TFDS_DATA_DIR", "--corpus mini":
        assert remedy in str(error.value)
    assert "\n" not in str(error.value)
    left = [path.name for path in (tmp_path / "tfds").rglob("*") if path.is_file()]
    assert left == [".ted_hrlr_translate.lock"]
    assert ("sha256" in capfd.readouterr().err) == (damage != "unreachable")


def test_an_archive_saved_by_the_user_is_used_or_rejected(ted, tmp_path, capfd):
    archive = tmp_path / "tfds" / "downloads" / "manual" / "qi18naacl-dataset.tar.gz"
    archive.parent.mkdir(parents=True)
    write(archive, ted.read_bytes()[:-9])
    with pytest.raises(CorpusError, match=f"{archive.name}.*checksum") as error:
        load_split(NAME, "train")
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "tfds").rglob("*incomplete*"))
    ted.rename(archive)
    assert len(load_split(NAME, "test").sources) == SIZES["test"]
    assert "downloading" not in capfd.readouterr().err


@pytest.mark.parametrize("folder", ["ted_hrlr_translate", ""])
def test_an_archive_in_the_download_cache_of_tfds_is_used(ted, tmp_path, folder, capfd):
    """With the names that versions of tfds give to what they download."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import resource

    url = corpora_tfds.TED_URL
    info = tfds.builder(NAME).url_infos[url]
    cached = tmp_path / "tfds" / "downloads" / folder / resource.get_dl_fname(url, info.checksum)
    cached.parent.mkdir(parents=True)
    ted.rename(cached)
    resource.write_info_file(url, cached, "ted_hrlr_translate", info.filename, info)
    assert len(load_split(NAME, "test").sources) == SIZES["test"]
    assert "downloading" not in capfd.readouterr().err


def test_a_host_that_is_unreachable_is_named_at_once(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    class Far(tfds.core.GeneratorBasedBuilder):
        name, VERSION, pkg_dir_path = "far", tfds.core.Version("1.0.0"), tmp_path

        def _info(self):
            return self.dataset_info_from_configs(features=tfds.features.Translation(("a", "b")))

        def _split_generators(self, manager):
            manager.download("http://127.0.0.1:9/far.tgz")

        def _generate_examples(self):
            yield

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    before = time.monotonic()
    with pytest.raises(CorpusError, match="http://127.0.0.1:9/far.tgz cannot be reached; set"):
        load_split("far", "train")
    assert time.monotonic() < before + 20


def test_a_prepared_dataset_keeps_its_direction_without_its_code(ted, tmp_path):
    """The languages that tfds reads back from disk are sorted: ("en", "pt")."""
    corpora.find(NAME).files()
    (tmp_path / "tfds" / "ted_hrlr_translate").rename(tmp_path / "tfds" / "my_talks")
    for info in (tmp_path / "tfds" / "my_talks").rglob("dataset_info.json"):
        write(info, info.read_text().replace("ted_hrlr_translate", "my_talks"))
    assert corpora.find("my_talks/pt_to_en").languages == ("pt", "en")


@pytest.mark.parametrize("reverse", [False, True])
def test_another_language_pair_in_both_directions(ted, reverse):
    name = "ted_hrlr_translate/ru_to_en"
    texts = load_split(name, "validation", reverse)
    russian, english = (texts.targets, texts.sources) if reverse else texts[:2]
    assert sorted(russian) == sorted(f"привет dev {i}" for i in range(SIZES["dev"]))
    assert [text.replace("привет", "hello") for text in russian] == english
    assert corpora.find(name, reverse).languages == (("en", "ru") if reverse else ("ru", "en"))


@pytest.fixture
def lectures(tmp_path, monkeypatch):
    """A dataset like ted_multi_translate, written by tfds. The talks have different languages."""
    import tensorflow_datasets as tfds

    feature = tfds.features.TranslationVariableLanguages(languages=["en", "pt", "pt-br"])
    rows = [
        {
            language: f"{language} {i}"
            for language in ("en", "pt", "pt-br")
            if i % 3 or language != lost
        }
        for i, lost in enumerate(["en", "pt", "pt-br"] * 500)
    ]

    class Lectures(tfds.core.GeneratorBasedBuilder):
        name, VERSION, pkg_dir_path = "lectures", tfds.core.Version("1.0.0"), tmp_path

        def _info(self):
            features = {"translations": feature, "name": tfds.features.Text()}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, manager):
            return {name: self._generate_examples() for name in ("train", "validation")}

        def _generate_examples(self):
            yield from ((i, {"translations": row, "name": "x"}) for i, row in enumerate(rows))

    Lectures(data_dir=tmp_path).download_and_prepare()
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    return rows


def test_two_languages_of_a_dataset_with_many_are_chosen(lectures):
    corpus = corpora.find("lectures", languages="pt-br,en")
    assert corpus.languages == ("pt-br", "en") and [*corpus.files()] == ["train", "validation"]
    expected = [(row["pt-br"], row["en"]) for row in lectures if {"pt-br", "en"} <= {*row}]
    found = corpus.load("train")
    assert sorted(zip(*found[:2], strict=True)) == sorted(expected) and 0 < len(expected) < 1500
    assert corpora.find("lectures", True, languages="en,pt-br").load("train") == found
    english = corpora.find("lectures", task="language modeling", languages="pt-br,en")
    assert english.load("train").targets == found.targets
    for languages, words in {None: "more than two", "pt,fr": "no language fr"}.items():
        with pytest.raises(CorpusError, match=f"{words}.* from en, pt, pt-br$"):
            corpora.find("lectures", languages=languages)


def test_a_dataset_of_translations_without_validation_has_texts_held_out(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    rows = [(f"{i}", f"{i} b") for i in range(20)]

    class Sayings(tfds.core.GeneratorBasedBuilder):
        name, VERSION, pkg_dir_path = "sayings", tfds.core.Version("1.0.0"), tmp_path

        def _info(self):
            return self.dataset_info_from_configs(features=tfds.features.Translation(("a", "b")))

        def _split_generators(self, manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            yield from ((i, {"a": first, "b": second}) for i, (first, second) in enumerate(rows))

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    early = Sayings(data_dir=tmp_path)
    Sayings(data_dir=tmp_path).download_and_prepare()
    corpora_tfds.prepare("sayings", early)  # that another process has prepared
    assert [*early.info.splits] == ["train"]
    for share, size in (None, 4), (0.5, 10):
        corpus = corpora.find("sayings", held_out_share=share)
        train, held_out = (list(corpus.read(split)) for split in ("train", "validation"))
        assert len(held_out) == size and sorted(train + held_out) == sorted(rows)


def test_a_labelled_dataset_has_label_names_and_no_markup(tmp_path, monkeypatch):
    """A dataset written by tfds itself, with a split without labels."""
    import tensorflow_datasets as tfds

    rows = {"text": ["so<br /><br />bad !", " good\n"], "label": [0, 1]}
    label = tfds.features.ClassLabel(names=["neg", "pos"])
    feelings = tfds.features.FeaturesDict({"text": tfds.features.Text(), "label": label})

    class Feelings(tfds.core.GeneratorBasedBuilder):
        name, VERSION, pkg_dir_path = "feelings", tfds.core.Version("1.0.0"), tmp_path

        def _info(self):
            return self.dataset_info_from_configs(
                features=feelings, supervised_keys=("text", "label")
            )

        def _split_generators(self, manager):
            return {name: self._generate_examples() for name in ("train", "test", "unsupervised")}

        def _generate_examples(self):
            for i in range(20):
                yield i, {name: column[i % 2] for name, column in rows.items()}

    Feelings(data_dir=tmp_path).download_and_prepare()
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    splits = corpora.find("feelings", task="classification").files()
    assert set(splits) == {"train", "validation", "test"}
    sizes = {
        split: len(load_split("feelings", split, task="classification").sources) for split in splits
    }
    assert sizes == {"train": 16, "validation": 4, "test": 20}
    test = load_split("feelings", "test", task="classification")
    expected = {("so bad !", "neg"), ("good", "pos")}
    assert set(zip(test.sources, test.targets, strict=True)) == expected


# ---- spa-eng ------------------------------------------------------------------------------------


@pytest.fixture
def anki(tmp_path, monkeypatch):
    """A small archive like the real one. Each English sentence has two translations."""
    rows = [f"sentence {i // 2}\tfrase {i}" for i in range(1200)]
    archive = tmp_path / "host" / "spa-eng.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("spa-eng/_about.txt", "about")
        opened.writestr("spa-eng/spa.txt", "\n".join(rows) + "\n")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(corpora_tfds, "ANKI_URL", archive.as_uri())
    return archive


@pytest.mark.parametrize("reverse", [False, True])
def test_equal_sentences_of_spa_eng_are_in_one_split(anki, reverse):
    splits = [load_split("spa-eng", split, reverse) for split in SPLITS]
    english = [set(split.targets if reverse else split.sources) for split in splits]
    spanish = [set(split.sources if reverse else split.targets) for split in splits]
    assert sum(map(len, english)) == 600 and len(set.union(*english)) == 600
    assert sum(map(len, spanish)) == 1200
    for split in splits:
        for source, target in zip(*split[:2], strict=True):
            en, es = (target, source) if reverse else (source, target)
            assert int(es.split()[1]) // 2 == int(en.split()[1])
    assert corpora.find("spa-eng", reverse).languages == (("es", "en") if reverse else ("en", "es"))


def test_another_edition_of_spa_eng_is_used_with_a_warning(anki, tmp_path, capfd):
    load_split("spa-eng", "test")
    err = capfd.readouterr().err
    assert anki.as_uri() in err and "warning: " in err
    anki.unlink()  # a copy was saved
    assert load_split("spa-eng", "test").sources


@pytest.mark.parametrize("damage", ["unreachable", "truncated", "other content"])
def test_a_bad_spa_eng_archive_is_rejected_and_removed(anki, tmp_path, damage):
    content = anki.read_bytes()
    if damage == "other content":
        with zipfile.ZipFile(anki, "w") as opened:
            opened.writestr("other.txt", "")
    elif damage == "truncated":
        write(anki, content[:-30])
    else:
        anki.unlink()
    with pytest.raises(CorpusError) as error:
        load_split("spa-eng", "train")
    assert "\n" not in str(error.value) and "spa-eng.zip" in str(error.value)
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file()]


def test_a_share_keeps_equal_sources_together_and_grows(tmp_path):
    write_corpus(tmp_path / "talks")
    config = Config(corpus=str(tmp_path / "talks"))
    parts = {
        share: {
            split: corpora.from_config(replace(config, train_share=share)).load(split)
            for split in ("train", "validation")
        }
        for share in (0.2, 0.6, None)
    }
    small, large, whole = ({*each["train"].sources} for each in parts.values())
    assert small < large < whole and not small & (whole - large)
    assert 0.3 < len(large) / len(whole) < 0.9
    kept = [s for s in parts[None]["train"].sources if s in large]
    assert kept == parts[0.6]["train"].sources  # all pairs of a source, in the same order
    assert parts[0.2]["validation"] == parts[None]["validation"]


def test_without_a_home_directory_a_download_is_one_sentence(monkeypatch):
    """As of a user without an entry in passwd. Nothing is written to a directory named ~."""
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    for name in ("spa-eng", "ted_hrlr_translate/pt_to_en"):
        with pytest.raises(CorpusError, match="set TFDS_DATA_DIR"):
            corpora.find(name)
