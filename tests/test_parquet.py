"""Corpora in Parquet files."""

import json

import pyarrow
import pytest
from helpers import load_split
from pyarrow.parquet import write_table

from data import corpora
from data.splits import SPLITS, CorpusError, Split

ROWS = [(f"hello {i}", f"olá {i // 2}") for i in range(1500)]  # more than one batch of 1024


def write(path, **columns):
    path.parent.mkdir(exist_ok=True)
    write_table(pyarrow.table(columns), path)
    return str(path)


def struct(rows):
    return [{"en": english, "pt": portuguese} for english, portuguese in rows]


@pytest.fixture
def folder(tmp_path):
    """Two files of the training split, and one for each other split, with names as on hubs."""
    for name, rows in {
        "train-00000-of-00002": ROWS[:1100],
        "train-00001-of-00002": ROWS[1100:1300],
        "dev-00000-of-00001": ROWS[1300:1400],
        "test": ROWS[1400:],
    }.items():
        write(tmp_path / "pt-en" / f"{name}.parquet", id=range(len(rows)), translation=struct(rows))
    return tmp_path / "pt-en"


def test_the_files_of_a_directory_are_read_in_order(folder, capfd):
    name = str(folder)
    assert corpora.find(name).languages == ("en", "pt")
    ends = {"train": (0, 1300), "validation": (1300, 1400), "test": (1400, 1500)}
    splits = {split: load_split(name, split) for split in corpora.find(name).files()}
    assert splits == {split: Split.of(ROWS[slice(*ends[split])]) for split in SPLITS}
    assert capfd.readouterr().err == ""
    (folder / "test.parquet").rename(folder / "tests.parquet")
    with pytest.raises(CorpusError, match="no test split; it has train, validation"):
        load_split(name, "test")
    error = capfd.readouterr().err
    assert "ignoring 1 file that the corpus does not include: tests.parquet\n" in error


@pytest.mark.parametrize("reverse", [False, True])
def test_languages_are_chosen_in_both_directions(folder, reverse):
    backward = corpora.find(str(folder), reverse, languages="pt,en")
    forward = corpora.find(str(folder), not reverse)
    assert backward.languages == forward.languages
    assert backward.load("validation") == forward.load("validation")


@pytest.mark.parametrize("place", ["a.parquet", "a/train.parquet", "a/part-0.parquet"])
@pytest.mark.parametrize("languages", [None, "pt,en"])
def test_rows_without_splits_are_divided_like_the_lines_of_a_table(tmp_path, place, languages):
    """By the first column, whichever is the source."""
    english, portuguese = zip(*ROWS, strict=True)
    write(tmp_path / place, en=english, n=range(len(ROWS)), pt=portuguese)
    table = tmp_path / "a.tsv"
    table.write_text("".join(f"{a}\t{b}\n" for a, b in ROWS), "utf-8")
    corpus = corpora.find(str(tmp_path / place.partition("/")[0]), languages=languages)
    expected = corpora.find(str(table), reverse=languages is not None)
    for split in [*SPLITS, "all"] if place == "a.parquet" else SPLITS:
        assert corpus.load(split) == expected.load(split)


@pytest.mark.skipif(not hasattr(pyarrow, "string_view"), reason="needs a newer pyarrow")
def test_views_of_strings_are_texts(tmp_path):
    texts = pyarrow.array(["a", "b"], pyarrow.string_view())
    name = write(tmp_path / "a.parquet", text=texts)
    assert corpora.find(name, task="language modeling").load("all").targets == ["a", "b"]


@pytest.mark.parametrize("named", [False, True])
def test_labels_are_numbers_or_the_names_in_the_file(tmp_path, named):
    texts, labels = zip(*[(f"text {i}", i % 2) for i in range(20)], strict=True)
    table = pyarrow.table({"label": labels, "text": texts})
    if named:
        features = {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}, "lists": [{}]}
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
    write_table(table, tmp_path / "train.parquet")
    write_table(table, tmp_path / "test.parquet")
    names, name = ("neg", "pos") if named else ("0", "1"), str(tmp_path)
    test = load_split(name, "test", task="classification")
    assert test == Split(list(texts), [names[label] for label in labels])
    assert len(load_split(name, "validation", task="classification").sources) == 4
    with pytest.raises(CorpusError, match="labels, not translations"):
        corpora.find(name)
    for label in (-1, 2) if named else ():  # -1: hubs' value for a missing label
        wrong = table.set_column(0, "label", [[*labels[1:], label]])
        write_table(wrong.replace_schema_metadata(table.schema.metadata), tmp_path / "test.parquet")
        with pytest.raises(CorpusError, match="label has numbers that are not those of a label"):
            load_split(name, "test", task="classification")


@pytest.mark.parametrize("metadata", ["not JSON", "[1]", '{"info": {"features": {"label": 1}}}'])
def test_metadata_of_another_form_are_not_names_of_labels(tmp_path, metadata):
    table = pyarrow.table({"label": ["bad", "good"] * 9, "text": ["a", "b"] * 9})
    names = {"info": {"features": {"label": {"names": ["of the", "numbers"]}}}}  # now replaced
    for text in (metadata, json.dumps(names)):
        described = table.replace_schema_metadata({"huggingface": text})
        write_table(described, tmp_path / "a.parquet")
        pairs = corpora.find(str(tmp_path / "a.parquet"), task="classification").load("all")
        assert pairs.targets == ["bad", "good"] * 9


def test_a_directory_named_like_a_file_has_splits(folder):
    name = str(folder.rename(folder.with_name("pt-en.parquet")))
    with pytest.raises(CorpusError, match="has no all split; it has train"):
        corpora.find(name).load("all")


@pytest.mark.parametrize("reverse", [False, True])
def test_equal_texts_of_a_language_model_are_in_one_split(tmp_path, reverse):
    columns = [[f"{i}" for i in range(1500)], [f"text {i // 2}" for i in range(1500)]]
    first, second = columns[::-1] if reverse else columns
    name = write(tmp_path / "a.parquet", first=first, second=second)
    corpus = corpora.find(name, reverse, "language modeling")
    parts = [set(corpus.load(split).targets) for split in SPLITS]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 750


@pytest.mark.parametrize("languages, column", [(None, "text"), ("title", "title")])
def test_a_language_model_reads_one_column(tmp_path, languages, column):
    texts = {name: [f"{name} {i}\n" for i in range(9)] for name in ("text", "title")}
    for split in "train", "validation":
        write(tmp_path / f"{split}.parquet", **texts)
    corpus = corpora.find(str(tmp_path), task="language modeling", languages=languages)
    assert corpus.load("train") == Split([""] * 9, texts[column]) and corpus.documents


@pytest.mark.parametrize(
    "columns, languages, words",
    [
        ({"id": [1], "score": [0.5]}, None, ["no column of text", "id, score"]),
        ({"en": ["a"], "pt": ["b"], "n": [0.5]}, "en,fr", ["no column fr", "en, pt with"]),
        ({"en": ["a"], "pt": ["b"], "fr": ["c"]}, None, ["choose", "en, pt, fr with --languages"]),
        ({"text": ["a"]}, None, ["text without translations"]),
        ({"en": ["a"] * 1500, "pt": ["b"] * 1400 + [None] * 100}, None, ["row 1,401 ", "in pt"]),
        ({"translation": [*struct(ROWS[:2]), None]}, None, ["row 3 ", "translation.en"]),
        ({"translation": struct(ROWS[:2]), "en": ["a", "b"]}, None, ["two columns of one name"]),
    ],
)
def test_bad_columns_are_rejected_in_one_line(tmp_path, columns, languages, words):
    name = write(tmp_path / "a.parquet", **columns)
    with pytest.raises(CorpusError) as error:
        corpora.find(name, languages=languages).load("all")
    assert all(word in str(error.value) for word in [*words, "a.parquet"])
    assert "\n" not in str(error.value)


def test_damaged_files_and_files_with_other_columns_are_named(folder):
    write(folder / "test.parquet", en=["a"])
    with pytest.raises(CorpusError, match=r"test\.parquet: cannot be read.*pt|translation"):
        load_split(str(folder), "test")
    path = folder / "train-00000-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(
        CorpusError, match=r"train-00000-of-00002\.parquet: cannot be read: Parquet"
    ):
        corpora.find(str(folder))
