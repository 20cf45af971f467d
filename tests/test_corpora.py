"""All kinds of corpora of pairs, how they are divided, and the errors for bad ones."""

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import unicodedata
import zipfile

import pytest
from helpers import load_split, open_corpus, rejected, write, write_corpus
from hypothesis import given, settings
from hypothesis import strategies as st

from config import Config
from data import remote
from data.splits import SPLITS, Corpus, Split, assign_split, for_task, hash_share
from data.text import normalize_source, read_lines, to_line
from same_code import ROOT

CLASSIFIER = {"model": "classifier"}


@pytest.fixture
def folder(tmp_path):
    for split, size in {"train": 3, "validation": 2, "test": 1}.items():
        write(tmp_path / f"{split}.pt", "".join(f"{split} olá {i}\n" for i in range(size)))
        write(tmp_path / f"{split}.en", "".join(f"{split} hello {i}\n" for i in range(size)))
    return tmp_path


def table(path, numbers, line="source {0}\ttarget {0}\n"):
    return write(path, "".join(line.format(i, label="ab"[i % 2]) for i in numbers))


def read_all(name, **settings):
    return {s: load_split(name, s, **settings) for s in open_corpus(name, **settings).splits}


# ---- Names --------------------------------------------------------------------------------------


def test_invalid_names_are_rejected_and_misspelt_ones_corrected(tmp_path, monkeypatch):
    """A dataset may have a name like one of this project."""
    monkeypatch.chdir(tmp_path)
    for name in "./nosuch", "mini:", "mini:0", "mini:9999999", "a b/c":
        rejected(name, "mini:SIZE")
    for name, meant in ("minii", "mini"), ("spa_eng", "spa-eng"), ("Shakespear", "shakespeare"):
        rejected(name, f"did you mean {meant}")
    assert open_corpus("tiny_shakespeare", model="language_model").languages == ("text",)


def test_checking_a_name_neither_imports_tensorflow_nor_downloads(tmp_path):
    """Runs in a new process. All of these names need tensorflow_datasets."""
    program = """
import sys
from config import Config
from data import corpora
for name in sys.argv[1:]:
    try:
        print(corpora.from_config(Config(corpus=name, reverse=True)).languages)
    except corpora.CorpusError as error:
        print(error)
assert "tensorflow" not in sys.modules
"""
    expected = {
        "ted_hrlr_translate/ru_to_pt": "('pt', 'ru')",
        "ted_hrlr_translate/pt_to_xx": "dataset",
        "imdb_reviews": "--model classifier",
        "mnist": "translations",
    }
    env = {**os.environ, "TFDS_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-c", program, *expected]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    for line, keyword in zip(done.stdout.splitlines(), expected.values(), strict=True):
        assert keyword in line, done
    assert done.returncode == 0 and list(tmp_path.iterdir()) == []


def test_mini_has_a_fourth_split_tags_and_a_size(tmp_path):
    assert open_corpus("mini").splits == [*SPLITS, "compositional"]
    texts = load_split("mini", "test")
    assert len(texts.sources) == len(texts.targets) == len(texts.tags) > 0
    assert load_split("mini", "test", reverse=True) == Split(texts[1], texts[0], texts[2])
    assert load_split("mini:7", "train").sources == load_split("mini:9", "train").sources[:7]
    assert load_split("mini:7", "test") == texts
    assert open_corpus("mini:7").fingerprint() != open_corpus("mini").fingerprint()


def test_further_splits_and_tags_of_any_corpus_are_read():
    """As of `mini` and of test sets of generalization."""
    rows = {"train": [("a", "b", "x")], "generalization": [("c", "d", "y"), ("e", "f", "z")]}
    corpus = Corpus("new", ("en", "form"), lambda: dict.fromkeys(rows, []), lambda p: iter(rows[p]))
    corpus = for_task(corpus, Config())
    assert {*corpus.splits} == {"train", "validation", "generalization"}
    assert corpus.load("generalization") == Split(["c", "e"], ["d", "f"], ["y", "z"])


# ---- Lines of files ------------------------------------------------------------------------------

PIECES = ["aé\u2028", "🙂", "\n", "\r\n", "\r", "\0", "\x1c", "\x85", " ", "\ufeff"]


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.booleans(), st.integers(1, 9))
def test_lines_end_as_in_python_and_are_complete(tmp_path, content, mark, longest):
    """In files of any kind, compressed, and divided into parts."""
    expected = io.StringIO(content, newline=None).read()
    expected = expected if mark else expected.removeprefix("\ufeff")
    for name, pack in (("a.txt", bytes), ("a.txt.gz", gzip.compress)):
        write(tmp_path / name, pack(b"\xef\xbb\xbf" * mark + content.encode()))
        lines = [*read_lines(tmp_path / name)]
        assert "".join(lines) == expected
        assert all(line.index("\n") == len(line) - 1 for line in lines[:-1])
        parts = [*read_lines(tmp_path / name, longest)]
        assert "".join(parts) == expected
        assert all(len(part) <= longest for part in parts)


# ---- Files of translations ----------------------------------------------------------------------


def test_the_alphabetically_first_extension_is_the_source_unless_languages_are_chosen(folder):
    forward, backward = open_corpus(folder), open_corpus(folder, reverse=True)
    assert forward.splits == [*SPLITS] and forward.languages == ("en", "pt")
    texts = [[f"validation {word} {i}" for i in range(2)] for word in ("hello", "olá")]
    assert forward.load("validation") == Split(*texts)
    chosen = open_corpus(folder, languages="pt,en")
    assert chosen.languages == backward.languages == ("pt", "en")
    assert chosen.load("train") == backward.load("train") == Split(*forward.load("train")[1::-1])
    assert open_corpus(folder, languages="pt,en", reverse=True).languages == ("en", "pt")
    assert forward.summarize("test", 1).sha256 != backward.summarize("test", 1).sha256
    rejected("mini", "mini has pt, en", languages="pt,fr")


@pytest.mark.parametrize(
    "file, content, words",
    [
        ("train.en", "a\nb\n", ["train.en", "train.pt", "numbers of lines"]),
        ("train.en", b"a\nb \xff\nc\n", ["train.en:2:", "UTF-8"]),
        ("train.pt", "", ["numbers of lines"]),
        ("train.pt", None, ["two files", "en, pt"]),
        ("train.de", "a\n", ["two files", "de, en, pt"]),
        ("train-2.en", "a\n", ["train and train-2", "one split"]),
        ("a.tsv", "a\tb\n\n\t \nno tab", ["a.tsv:4:", "TAB"]),  # blank lines count
        ("a.csv", 'one,"two\nlines"\n"only\none"\n', ["a.csv:3:", "comma"]),
        ("a.tsv", None, ["a.tsv", "neither a file"]),
        ("a.tsv.gz", gzip.compress(b"a\tb\n", mtime=0)[9:], ["a.tsv.gz", "cannot be read"]),
        ("a.tsv.gz", gzip.compress(b"a\tb\n", mtime=0)[:-9], ["a.tsv.gz", "cannot be read"]),
    ],
)
def test_bad_files_are_rejected_with_file_and_line(folder, file, content, words):
    (folder / file).unlink(missing_ok=True)
    if content is not None:
        write(folder / file, content)
    rejected(folder / file if file[0] == "a" else folder, *words)


def test_files_of_no_split_are_named_and_the_test_split_is_optional(folder, tmp_path, capfd):
    for name in ("valid.en", "notes.md", ".DS_Store", "train.en~"):
        write(folder / name, "text")
    for name in ("test.en", "test.pt"):
        (folder / name).unlink()
    rejected(folder, "no test split", "train, validation", split="test")
    assert "notes.md" in capfd.readouterr().err
    (tmp_path / "none").mkdir()
    rejected(tmp_path / "none", "train.SRC")


def test_the_sides_of_a_parallel_text_may_end_in_txt(folder, capfd):
    expected = read_all(folder)
    write(folder / "dev.en", "not read\n")
    assert read_all(folder) == expected and "dev.en" in capfd.readouterr().err
    (folder / "dev.en").unlink()
    for path in [*folder.iterdir()]:
        path.rename(f"{path}.txt")
    assert read_all(folder) == expected


def test_compressed_files_and_files_named_dev_are_read(folder, tmp_path):
    expected = read_all(folder)
    write(folder / "train.pt.gz", gzip.compress(b"not used\n"))
    for file in "train.en", "validation.pt":
        write(folder / f"{file}.gz", gzip.compress((folder / file).read_bytes()))
        (folder / file).unlink()
    (folder / "validation.pt.gz").rename(folder / "dev.pt.gz")
    (folder / "validation.en").rename(folder / "dev.en")
    assert read_all(folder) == expected
    expected = load_split(table(tmp_path / "a.tsv", [1]), "all")
    content = gzip.compress((tmp_path / "a.tsv").read_bytes())
    write(tmp_path / "b.tsv.gz", content)
    write(tmp_path / "tables/train.tsv.gz", content)
    assert load_split(tmp_path / "b.tsv.gz", "all") == expected
    assert load_split(tmp_path / "tables", "train") == expected


def test_blank_lines_of_a_table_are_counted_and_further_columns_left_out(tmp_path, capfd):
    path = tmp_path / "a.tsv"
    expected = read_all(table(path, range(1000)))
    lines = path.read_text().splitlines()
    write(path, "".join(f"{line}\tmore\n\n" for line in lines) + " \t\r\na\t\n\tb\n")
    assert read_all(path) == expected
    assert "skipped 1,003 pairs" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("first", "flags", "warned"),
    [
        ("sentence\tzin", {}, True),
        ('"stars"\t"review"', CLASSIFIER, True),
        ("sentiment\ttext", CLASSIFIER, True),
        ("Hi.\tHoi.", {}, False),
        ("pos\tgood film", CLASSIFIER, False),
        ("go away\tga weg", {}, False),
        ("Sterne (1 bis 5)\tText der Kritik", CLASSIFIER, True),
    ],
)
def test_a_header_is_named(tmp_path, capfd, first, flags, warned):
    for name in ("a.tsv", "a.csv"):
        content = f"{first}\npos\tsome text\nneg\tother text\npos\tmore\n"
        write(tmp_path / name, content.replace("\t", "," if name == "a.csv" else "\t"))
        assert len(load_split(tmp_path / name, "all", **flags).sources) == 4
        error = capfd.readouterr().err
        assert ("header" in error) == warned and error.count("\n") == warned, error


CSV = 'kind,"nl",en\na,"1 zei ""Groen""",one said Green\nb,"twee\nregels",two\n'


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_csv_file_has_quotes_and_columns_by_name_or_order(tmp_path, end):
    expected = Split(['1 zei "Groen"', "twee regels"], ["one said Green", "two"])
    write(tmp_path / "a.csv", "\ufeff" + CSV.replace("\n", end))
    assert load_split(tmp_path / "a.csv", "all", languages="nl,en") == expected
    write(tmp_path / "b.csv.gz", gzip.compress(b"text,label\ngood,pos\n\nbad,neg\n"))
    texts, labels, _ = load_split(tmp_path / "b.csv.gz", "all", **CLASSIFIER)
    assert (texts, labels) == (["good", "bad"], ["pos", "neg"])
    write(tmp_path / "c.csv", "pos,very good\nneg,bad\n")  # in the order of a .tsv
    assert load_split(tmp_path / "c.csv", "all", **CLASSIFIER).targets == ["pos", "neg"]


@pytest.mark.parametrize("row", ['"1 zei ""Groen"""\tx', 'x\t"twee'])
def test_quoted_fields_of_a_tsv_are_named(tmp_path, capfd, row):
    write(tmp_path / "a.tsv", f'"Hi."\t"Hoi," zei ze.\n{row}\n')
    load_split(tmp_path / "a.tsv", "all")
    assert "a.tsv:2:" in (error := capfd.readouterr().err) and ".csv" in error


# ---- How rows are divided ------------------------------------------------------------------------


@settings(max_examples=4)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r"), min_size=1),
        min_size=300,
        max_size=300,
    )
)
def test_the_splits_of_a_table_contain_every_line_once_in_order(tmp_path, texts):
    rows = [(f"{number} {text}", f"x{number}{text}") for number, text in enumerate(texts)]
    expected = [(normalize_source(a), to_line(b)) for a, b in rows]
    write(tmp_path / "a.tsv", "".join(f"{a}\t{b}\n" for a, b in rows))
    assert load_split(tmp_path / "a.tsv", "all") == Split.of(expected)
    splits = [[*zip(*x[:2], strict=True)] for x in read_all(tmp_path / "a.tsv").values()]
    assert sorted(sum(splits, [])) == sorted(expected)
    for pairs in splits:
        assert pairs == sorted(pairs, key=expected.index)


def test_a_larger_share_holds_out_more_and_the_default_is_two_per_cent_each():
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


def test_what_cannot_be_seen_does_not_decide_the_split():
    """Unicode's forms, white space, and characters without width."""
    sources = [f"{i} é ñ" for i in range(99)]
    spaced = [unicodedata.normalize("NFD", text).replace(" ", " \t") for text in sources]
    marked = [f"\ufeff{text[0]}\u200b{text[1:]}\u00ad\u200e" for text in sources]
    for changed in spaced, marked:
        assert [*map(assign_split, changed)] == [*map(assign_split, sources)]
    assert [*map(hash_share, spaced)] == [*map(hash_share, sources)]


@pytest.mark.parametrize("model", ["transformer", "classifier", "language_model"])
def test_held_out_share_applies_to_every_corpus_that_is_divided(tmp_path, reviews, model):
    """Validation and test get the share of texts, of labelled texts, and of the characters."""
    write(tmp_path / "a.txt", "four\n" * 1000)
    names = {"transformer": table(tmp_path / "a.tsv", range(2000)), "classifier": reviews}
    splits = read_all(names.get(model, tmp_path / "a.txt"), model=model, held_out_share=0.1)
    sizes = [len(splits[name].targets) for name in SPLITS]
    expected = {"transformer": [1600, 200, 200], "classifier": [18, 2, 20]}
    assert sizes == pytest.approx(expected.get(model, [800, 100, 100]), rel=0.2)


def test_without_a_validation_split_random_pairs_of_training_validate(folder):
    (folder / "validation.en").unlink()
    (folder / "validation.pt").unlink()
    lines = [f"{i}" for i in range(26_000)]
    for language in "en", "pt":
        write(folder / f"train.{language}", "\n".join(lines))
    for share, size in (None, 5000), (0.4, 10_400):  # at most 5,000 without labels
        train, held_out = (load_split(folder, s, held_out_share=share) for s in SPLITS[:2])
        assert len(held_out.sources) == size
        assert {*train.sources, *held_out.sources} == {*lines} and len(train.sources) + size == 26e3
    assert load_split(folder, "test").sources == ["test hello 0"]


def test_a_share_keeps_equal_sources_together_and_grows(tmp_path):
    write_corpus(tmp_path / "talks")
    parts = {share: read_all(tmp_path / "talks", train_share=share) for share in (0.2, 0.6, None)}
    small, large, whole = ({*each["train"].sources} for each in parts.values())
    assert small < large < whole and 0.3 < len(large) / len(whole) < 0.9
    kept = [s for s in parts[None]["train"].sources if s in large]
    assert kept == parts[0.6]["train"].sources  # all pairs of a source, in the same order
    assert parts[0.2]["validation"] == parts[None]["validation"]


# ---- Labelled texts -----------------------------------------------------------------------------


@pytest.fixture
def reviews(tmp_path):
    """A directory like aclImdb: no validation split, and texts without labels in `unsup`."""
    for split in "train", "test":
        for label in "pos", "neg":
            for i in range(10):
                text = f"{split} {label}<br /><br/>\nreview {i}"
                write(tmp_path / "reviews" / split / label / f"{i}_7.txt", text)
    write(tmp_path / "reviews/train/unsup/0_0.txt", "nobody knows")
    write(tmp_path / "reviews/train/urls_pos.txt", "http://nowhere")
    return tmp_path / "reviews"


def test_a_directory_of_labels_is_read_and_shuffled_and_a_fifth_of_it_validates(reviews, capfd):
    write(reviews / "train/.ipynb_checkpoints/x.txt", "text")
    write(reviews / "test/pos/._1.txt", b"\xff")
    write(reviews / "test/neg/empty.txt", "")
    write(reviews / "val/neg/0_7.txt", "good")
    splits = read_all(reviews, **CLASSIFIER)
    error = capfd.readouterr().err
    assert "ignoring" in error and "val" in error and "skipped 1 pair" in error
    assert [len(split.sources) for split in splits.values()] == [16, 4, 20]
    for name, split in splits.items():
        assert {*split.targets} == {"neg", "pos"}
        assert split.targets != sorted(split.targets)  # shuffled
        place = "test" if name == "test" else "train"
        pairs = zip(*split[:2], strict=True)
        assert all(text.startswith(f"{place} {label} review ") for text, label in pairs)
    assert len({*splits["train"].sources, *splits["validation"].sources}) == 20
    (reviews / "test/pos").rename(reviews / "test/good")
    rejected(reviews, "two labels", **CLASSIFIER)
    rejected(reviews / "train", "no file of a split", **CLASSIFIER)


def test_a_labelled_table_is_label_tab_text(tmp_path):
    name = table(tmp_path / "a.tsv", range(600), "{label} \ttext {0}\tmore\n")
    splits = read_all(name, **CLASSIFIER)
    assert read_all(name, reverse=True, **CLASSIFIER) == splits
    assert sum(len(split.sources) for split in splits.values()) == 600
    for split in splits.values():
        assert {*split.targets} == {"a", "b"}  # stripped; divided by text, not by label
        for text, label in zip(split.sources, split.targets, strict=True):
            assert label == "ab"[int(text.split()[1]) % 2] and text.endswith(" more")


# ---- Hashes -------------------------------------------------------------------------------------


def test_the_hash_of_a_split_depends_on_order_boundaries_and_direction():
    def sha256(*pairs):
        corpus = Corpus("x", ("a", "b"), lambda: {"test": []}, lambda part: iter(pairs))
        return corpus.summarize("test", 1).sha256

    one, two = pairs = [("a", "c"), ("b", "d")]
    others = sha256(two, one), sha256(("a b", "c d")), sha256(one[::-1], two[::-1])
    assert len({sha256(*pairs), *others}) == 4
    assert sha256(*pairs) == sha256((*one, "tag"), (*two, "tag"))


def test_the_fingerprint_depends_on_every_file_but_not_on_its_directory(folder, reviews, tmp_path):
    before = open_corpus(folder).fingerprint()
    assert before == open_corpus(f"{folder}/").fingerprint()
    for file in [file for file in folder.iterdir() if file.is_file()]:
        content = file.read_bytes()
        write(file, content + b"more\n")
        assert open_corpus(folder).fingerprint() != before, file
        write(file, content)
    before = open_corpus(reviews, **CLASSIFIER).fingerprint()
    moved = reviews.rename(tmp_path.joinpath("elsewhere").mkdir() or tmp_path / "elsewhere/reviews")
    assert open_corpus(moved, **CLASSIFIER).fingerprint() == before
    (moved / "train/neg/9_7.txt").rename(moved / "train/pos/00.txt")  # another label
    assert open_corpus(moved, **CLASSIFIER).fingerprint() != before


# ---- tensorflow_datasets ------------------------------------------------------------------------

SIZES = {"train": 1500, "dev": 20, "test": 10}  # train: more than one batch of 1024
NAME = "ted_hrlr_translate/pt_to_en"


@pytest.fixture
def ted(tmp_path, monkeypatch):
    """A small archive like the real one, registered with tfds in its place."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import downloader

    def refuse(self, url, *args, **kwargs):
        raise AssertionError(f"tfds downloads {url}")

    monkeypatch.setattr(downloader._Downloader, "download", refuse)
    for split, size in SIZES.items():
        for language, word in {"pt": "olá", "en": "hello"}.items():
            text = "\n".join(f"{word} {split} {i}" for i in range(size))
            write(tmp_path / f"datasets/pt_to_en/{language}.{split}", text)
    archive = tmp_path / "ted.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "datasets", "datasets")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setattr(remote, "TED_URLS", ("file:///nonexistent", archive.as_uri()))
    registered = tfds.builder(NAME).url_infos
    info = tfds.download.checksums.compute_url_info(archive)
    info.filename = registered[remote.TED_URL].filename
    monkeypatch.setitem(registered, remote.TED_URL, info)
    return archive


def test_the_archived_copy_is_downloaded_if_the_host_is_down(ted, tmp_path, capfd):
    import tensorflow_datasets as tfds

    assert open_corpus(NAME).splits == ["train", "validation", "test"]
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
    before = open_corpus(NAME).fingerprint()
    (record,) = (tmp_path / "tfds").rglob("*pt_to_en/*/*test.tfrecord*")
    write(record, record.read_bytes()[:-1])
    assert open_corpus(NAME).fingerprint() != before
    # The languages that tfds reads back from disk, without code, are sorted: ("en", "pt").
    (tmp_path / "tfds" / "ted_hrlr_translate").rename(tmp_path / "tfds" / "my_talks")
    for info in (tmp_path / "tfds" / "my_talks").rglob("dataset_info.json"):
        write(info, info.read_text().replace("ted_hrlr_translate", "my_talks"))
    assert open_corpus("my_talks/pt_to_en").languages == ("pt", "en")


def test_a_truncated_download_leaves_no_file_and_a_saved_one_is_used_or_rejected(ted, capfd):
    archive = remote.data_folder() / "downloads" / "manual" / "qi18naacl-dataset.tar.gz"
    content = ted.read_bytes()
    write(ted, content[:-9])
    rejected(NAME, str(archive), "save")
    left = [path.name for path in remote.data_folder().rglob("*") if path.is_file()]
    assert left == [".ted_hrlr_translate.lock"] and "sha256" in capfd.readouterr().err
    write(archive, content[:-9])
    rejected(NAME, archive.name, "altered")
    write(archive, content)
    assert len(load_split(NAME, "test").sources) == SIZES["test"]
    assert "downloading" not in capfd.readouterr().err


@pytest.fixture
def write_dataset(tmp_path, monkeypatch):
    """Write a dataset with tfds itself. Returns a builder from before it was written."""
    import tensorflow_datasets as tfds

    class Supervised(tfds.dataset_builders.AdhocBuilder):
        def _info(self):
            keys = ("text", "label") if "label" in self._feature_spec else None
            features = self._feature_spec
            return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=keys)

    def write(name, features, rows, splits):
        flags = {"name": name, "version": "1.0.0", "features": features, "data_dir": tmp_path}
        flags["split_datasets"] = dict.fromkeys(splits, [*enumerate(rows)])
        early, builder = Supervised(**flags), Supervised(**flags)
        builder.download_and_prepare()
        return early

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    return write


def test_of_a_labelled_dataset_there_are_texts_with_and_without_labels(write_dataset):
    """With names of labels, without markup and the split without labels; and with texts only."""
    import tensorflow_datasets as tfds

    label = tfds.features.ClassLabel(names=["neg", "pos"])
    moods = tfds.features.FeaturesDict({"text": tfds.features.Text(), "label": label})
    texts = ["so<br /><br />bad !", " good\n"]
    rows = [{"text": texts[i % 2], "label": i % 2} for i in range(20)]
    write_dataset("moods", moods, rows, ["train", "test", "unsupervised"])
    splits = read_all("moods", **CLASSIFIER)
    assert [len(split.sources) for split in splits.values()] == [16, 4, 20]
    expected = {("so bad !", "neg"), ("good", "pos")}
    assert {*zip(*splits["test"][:2], strict=True)} == expected
    splits = read_all("moods", model="language_model")
    assert [*splits] == [*SPLITS] and {*splits["test"].targets} == {"so\n\nbad !", " good"}
    rejected("moods", "--model classifier")
    texts = tfds.features.FeaturesDict({"text": tfds.features.Text()})
    early = write_dataset("words", texts, [{"text": f"word {i}"} for i in range(20)], ["train"])
    remote.prepare("words", early)  # which another process has prepared
    assert [*early.info.splits] == ["train"]
    corpus = open_corpus("words", model="language_model")
    assert len(corpus.load("validation").targets) == 4 and corpus.documents
    rejected("words", "--model language_model")


# ---- spa-eng ------------------------------------------------------------------------------------


@pytest.fixture
def anki(tmp_path, monkeypatch):
    """A small archive like the real one. Each English sentence has two translations."""
    text = "".join(f"sentence {i // 2}\tfrase {i}\n" for i in range(1200))
    archive = tmp_path / "spa-eng.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("spa-eng/spa.txt", text)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(remote, "ANKI_URL", archive.as_uri())
    monkeypatch.setattr(remote, "ANKI_SHA256", hashlib.sha256(text.encode()).hexdigest())
    return archive


def test_equal_sentences_of_spa_eng_are_in_one_split(anki, capfd):
    splits = read_all("spa-eng")
    error = capfd.readouterr().err
    assert error.count(anki.as_uri()) == 1
    anki.unlink()  # a copy was saved
    assert [*splits] == [*SPLITS] and open_corpus("spa-eng", reverse=True).languages == ("es", "en")
    assert sum(len({*split.sources}) for split in splits.values()) == 600
    assert sum(len({*split.targets}) for split in splits.values()) == 1200
    backward = read_all("spa-eng", reverse=True)
    assert backward == {s: Split(x.targets, x.sources) for s, x in splits.items()}


@pytest.mark.parametrize("damage", ["unreachable", "truncated"])
def test_a_bad_spa_eng_archive_is_rejected_with_what_to_do(anki, damage):
    anki.unlink() if damage == "unreachable" else write(anki, anki.read_bytes()[:-30])
    rejected("spa-eng", "manual/spa-eng.zip", "save" if damage == "unreachable" else "delete")
