"""Corpora in Parquet files, and columns with names, which .csv files have, too."""

import csv

import pyarrow
import pytest
from helpers import load_split, open_corpus, rejected
from pyarrow.parquet import write_table

from data.splits import SPLITS, Split

ROWS = [(f"hello {i}", f"olá {i // 2}") for i in range(1500)]  # more than one batch of 1024
CLASSIFIER, LANGUAGE_MODEL = {"model": "classifier"}, {"model": "language_model"}


def write(path, **columns):
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".csv":
        rows = [[*columns], *zip(*columns.values(), strict=True)]
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    else:
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


def test_the_files_of_a_directory_are_read_in_order_and_direction(folder, capfd):
    assert open_corpus(folder).languages == ("en", "pt")
    ends = {"train": (0, 1300), "validation": (1300, 1400), "test": (1400, 1500)}
    for split in SPLITS:
        expected = Split.of(ROWS[slice(*ends[split])])
        assert load_split(folder, split) == expected
        backward = load_split(folder, split, languages="pt,en")
        assert backward == load_split(folder, split, reverse=True) == Split(*expected[1::-1])
    assert capfd.readouterr().err == ""
    (folder / "test.parquet").rename(folder / "tests.parquet")
    assert open_corpus(folder).splits == ["train", "validation"]
    assert "tests.parquet" in capfd.readouterr().err


@pytest.mark.parametrize("place", ["a.parquet", "a/train.parquet", "a/part-0.parquet"])
@pytest.mark.parametrize("languages", [None, "pt,en"])
def test_rows_without_splits_are_divided_like_the_lines_of_a_table(tmp_path, place, languages):
    """By the first column, whichever is the source."""
    english, portuguese = zip(*ROWS, strict=True)
    columns = {"en": english, "pt": portuguese} | ({"n": range(1500)} if languages else {})
    write(tmp_path / place, **columns)
    table = tmp_path / "a.tsv"
    table.write_text("".join(f"{a}\t{b}\n" for a, b in ROWS), "utf-8")
    corpus = open_corpus(tmp_path / place.partition("/")[0], languages=languages)
    expected = open_corpus(table, reverse=languages is not None)
    for split in [*SPLITS, "all"]:
        assert corpus.load(split) == expected.load(split)


@pytest.mark.parametrize("file", ["a.csv", "a.parquet"])
@pytest.mark.parametrize(
    "names, flags, expected",
    [
        ("text,label", LANGUAGE_MODEL, (None, "text")),
        ("text,label", LANGUAGE_MODEL | {"languages": "text"}, (None, "text")),
        ("id,title,text", LANGUAGE_MODEL, (None, "text")),
        ("sentence,label", LANGUAGE_MODEL, (None, "sentence")),
        ("label,sentence", CLASSIFIER, ("sentence", "label")),
        ("review,mood", CLASSIFIER | {"languages": "review,mood"}, ("review", "mood")),
        ("sentiment,text", CLASSIFIER | {"languages": "sentiment,text"}, ("text", "sentiment")),
        ("target,id,source", {}, ("source", "target")),
        ("target,id,source", {"languages": "source,target"}, ("source", "target")),
        ("id,en,pt", {"languages": "pt,en"}, ("pt", "en")),
    ],
)
def test_columns_are_chosen_by_name(tmp_path, file, names, flags, expected):
    columns = {name: [f"{name} {i}" for i in range(9)] for name in names.split(",")}
    write(tmp_path / file, **columns)
    source, target = expected
    expected = Split(columns.get(source, [""] * 9), columns[target])
    corpus = open_corpus(tmp_path / file, **flags)
    assert corpus.load("all") == expected and corpus.documents


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_each_direction_has_the_same_splits_and_each_file_needs_the_names(tmp_path, kind):
    english, portuguese = map(list, zip(*ROWS, strict=True))
    one = tmp_path / f"a.{kind}"
    write(one, id=[*range(1500)], pt=portuguese, en=english)
    for split in SPLITS:
        forward, backward = (load_split(one, split, languages=x) for x in ("pt,en", "en,pt"))
        assert forward == Split(*backward[1::-1])
    rejected(one, "--languages", "id, pt, en", split="all", languages="pt,eng")
    rejected(one, "--model language_model", split="all", languages="en", **CLASSIFIER)
    write(tmp_path / "parts" / f"train.{kind}", pt=portuguese, en=english)
    test = write(tmp_path / "parts" / f"test.{kind}", pt=portuguese, fr=english)
    rejected(tmp_path / "parts", test, "en", split="test", languages="pt,en")


def test_rows_without_a_value_are_left_out(tmp_path, capfd):
    name = write(tmp_path / "a.parquet", en=["a"] * 1500, pt=["b"] * 1400 + [None] * 100)
    assert len(load_split(name, "all").sources) == 1400
    name = write(tmp_path / "b.parquet", translation=[*struct(ROWS[:2]), None])
    assert load_split(name, "all") == Split.of(ROWS[:2])
    assert "skipped 100 pairs" in capfd.readouterr().err


def test_labels_are_texts_or_numbers(tmp_path):
    texts, labels = zip(*[(f"text {i}", i % 2) for i in range(20)], strict=True)
    for split in "train", "test":
        write(tmp_path / f"{split}.parquet", label=labels, text=texts)
    assert load_split(tmp_path, "test", **CLASSIFIER) == Split([*texts], [*map(str, labels)])
    assert len(load_split(tmp_path, "validation", **CLASSIFIER).sources) == 4
    assert load_split(tmp_path, "test", **LANGUAGE_MODEL).targets == [*texts]
    rejected(tmp_path, "--model classifier")


@pytest.mark.parametrize(
    "columns, languages, words",
    [
        ({"en": ["a"], "pt": ["b"], "n": [0.5]}, "en,fr", ["--languages", "en, pt, n"]),
        ({"en": ["a"], "pt": ["b"], "fr": ["c"]}, None, ["--languages", "en, pt, fr"]),
        ({"text": ["a"]}, None, ["--model language_model"]),
    ],
)
def test_bad_columns_are_rejected_in_one_line(tmp_path, columns, languages, words):
    name = write(tmp_path / "a.parquet", **columns)
    rejected(name, *words, "a.parquet", split="all", languages=languages)


def test_a_damaged_file_is_rejected(folder, tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing else")
    rejected(tmp_path / "a.parquet", "a.parquet", "cannot be read", split="all")
    second = folder / "train-00001-of-00002.parquet"
    second.write_bytes(second.read_bytes()[:-50])
    rejected(folder, second.name, "cannot be read")


def test_bytes_are_text(tmp_path):
    name = write(tmp_path / "a.parquet", en=[b"caf\xc3\xa9"], pt=["café"])
    assert load_split(name, "all") == Split(["café"], ["café"])
    name = write(tmp_path / "b.parquet", en=[b"caf\xe9"], pt=["café"])
    rejected(name, "b.parquet", "utf-8", split="all")
