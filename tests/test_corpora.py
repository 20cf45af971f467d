"""Every way text comes in, and what a user reads when it cannot."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from data import corpora
from data.corpora import CorpusError, Split


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.fixture
def folder(tmp_path):
    for split, size in {"train": 3, "validation": 2, "test": 1}.items():
        write(tmp_path / f"{split}.pt", "".join(f"{split} olá {i}\n" for i in range(size)))
        write(tmp_path / f"{split}.en", "".join(f"{split} hello {i}\n" for i in range(size)))
    return tmp_path


def table(path, numbers):
    write(path, "".join(f"source {i}\ttarget {i}\tignored\n" for i in numbers))
    return str(path)


# ---- A name is right or refused in one line -----------------------------------------------------


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
def test_a_misspelt_corpus_is_refused_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError) as error:
        corpora.check(name)
    assert str(error.value).startswith(("unknown corpus", "'mini:")) and "mini" in str(error.value)
    assert "\n" not in str(error.value)


def test_checking_a_name_neither_imports_tensorflow_nor_downloads(tmp_path):
    """In a fresh process: a good name and two that only tensorflow_datasets can refuse."""
    program = """
import sys
from data import corpora
corpora.check("ted_hrlr_translate/pt_to_en")
assert corpora.languages("ted_hrlr_translate/ru_to_pt") == ("ru", "pt")
assert corpora.languages("ted_hrlr_translate/pt_to_en", reverse=True) == ("en", "pt")
for name, words in {
    "nosuch/pt_to_en": "not found",
    "ted_hrlr_translate/pt_to_xx": "pt_to_xx not found",
    "imdb_reviews/plain_text": "not a translation",
}.items():
    try:
        corpora.check(name)
    except corpora.CorpusError as error:
        assert words in str(error), error
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


# ---- Built in -----------------------------------------------------------------------------------


def test_mini_comes_with_its_tags_in_every_split():
    assert corpora.splits("mini") == ["train", "validation", "test", "compositional"]
    assert corpora.languages("mini") == ("pt", "en")
    texts = corpora.load("mini", "test")
    assert len(texts.sources) == len(texts.targets) == len(texts.tags) > 0
    assert texts == corpora.load("mini", "test")


def test_the_size_of_mini_counts_training_pairs_only():
    assert len(corpora.load("mini:7", "train").sources) == 7
    assert corpora.load("mini:7", "test") == corpora.load("mini", "test")
    assert corpora.fingerprint("mini:7") != corpora.fingerprint("mini")


# ---- Your own files -----------------------------------------------------------------------------


def test_the_first_extension_is_the_source_and_reverse_swaps(folder):
    name = str(folder)
    assert corpora.splits(name) == ["train", "validation", "test"]
    assert corpora.languages(name) == ("en", "pt")
    assert corpora.languages(name, reverse=True) == ("pt", "en")
    forward, backward = (corpora.load(name, "validation", reverse=r) for r in (False, True))
    assert forward.sources == ["validation hello 0", "validation hello 1"]
    assert forward.targets == ["validation olá 0", "validation olá 1"]
    assert (backward.sources, backward.targets) == (forward.targets, forward.sources)
    assert forward.tags is None
    assert forward.sha256() != backward.sha256()


def test_lines_end_at_line_feeds_only(folder):
    """A byte order mark, carriage returns, U+2028 and a missing last line feed move no line."""
    write(
        folder / "train.en",
        b"\xef\xbb\xbf" + "one\u2028still one\r\ntwo\x85\x0c two\r\nthree".encode(),
    )
    assert corpora.load(str(folder), "train").sources == [
        "one\u2028still one",
        "two\x85\x0c two",
        "three",
    ]


@pytest.mark.parametrize(
    "file, content, words",
    [
        ("train.en", "a\nb\n", ["train.en has 2 lines", "train.pt has 3"]),
        ("train.en", b"a\nb \xff\nc\n", ["train.en:2:", "UTF-8"]),
        ("train.pt", "a\n \t\nc\n", ["train.pt:2:", "empty"]),
        ("train.en", "\nb\nc\n", ["train.en:1:", "empty"]),
        ("train.pt", "a\nb\nc\n\n", ["train.pt has 4"]),
        ("train.pt", "", ["train.pt: the file is empty"]),
        ("train.pt", b"\xef\xbb\xbf", ["train.pt: the file is empty"]),
        ("train.pt", None, ["train.pt: missing"]),
        ("train.de", "a\n", ["exactly two extensions", "alphabetically first", "train.de"]),
    ],
)
def test_a_bad_folder_is_refused_with_file_and_line(folder, file, content, words):
    (folder / file).unlink(missing_ok=True)
    if content is not None:
        write(folder / file, content)
    with pytest.raises(CorpusError) as error:
        corpora.load(str(folder), "train")
    for word in words:
        assert word in str(error.value)


def test_a_split_that_is_not_there_is_not_invented(folder):
    (folder / "test.pt").unlink()
    with pytest.raises(CorpusError, match="test.pt: missing"):
        corpora.check(str(folder))
    (folder / "test.en").unlink()
    assert corpora.splits(str(folder)) == ["train", "validation"]
    with pytest.raises(CorpusError, match="no 'test' split, only train, validation"):
        corpora.load(str(folder), "test")


def test_an_empty_folder_says_what_belongs_there(tmp_path):
    with pytest.raises(CorpusError, match="needs train.SRC and train.TGT.*found none"):
        corpora.check(str(tmp_path))


def read_all(name):
    return {split: corpora.load(name, split) for split in corpora.splits(name)}


def test_every_line_of_a_table_falls_to_one_split_in_file_order(tmp_path):
    texts = read_all(table(tmp_path / "a.tsv", range(2000)))
    sizes = {split: len(text.sources) for split, text in texts.items()}
    assert sum(sizes.values()) == 2000
    assert 20 < sizes["validation"] < 60 and 20 < sizes["test"] < 60
    for text in texts.values():
        assert [s.replace("source", "target") for s in text.sources] == text.targets
        numbers = [int(s.split()[1]) for s in text.sources]
        assert numbers == sorted(numbers)


def test_adding_lines_to_a_table_moves_no_other(tmp_path):
    few = read_all(table(tmp_path / "a.tsv", range(1000)))
    many = read_all(table(tmp_path / "a.tsv", range(-500, 2000)))
    for split in few:
        assert set(few[split].sources) <= set(many[split].sources)


def test_a_repeated_source_stays_in_its_split_and_reverse_moves_nothing(tmp_path):
    path = tmp_path / "a.tsv"
    write(path, "".join(f"source {i % 500}\ttarget {i}\n" for i in range(1500)))
    seen = [set(text.sources) for text in read_all(str(path)).values()]
    assert sum(map(len, seen)) == 500
    forward, backward = (corpora.load(str(path), "test", reverse=r) for r in (False, True))
    assert (backward.sources, backward.targets) == (forward.targets, forward.sources)


@pytest.mark.parametrize(
    "content, words",
    [
        ("a\tb\nno tab\n", ["a.tsv:2:", "TAB"]),
        ("a\tb\n\tno source\n", ["a.tsv:2:", "empty"]),
        ("a\tb\nno target\t \tmore\n", ["a.tsv:2:", "empty"]),
        ("a\tb\n\n", ["a.tsv:2:"]),
        (b"a\tb\n\xe9\tb\n", ["a.tsv:2:", "UTF-8"]),
        ("", ["a.tsv: the file is empty"]),
        ("a\tb\n", ["1 lines falls to the", "300 different sources"]),
    ],
)
def test_a_bad_table_is_refused_with_file_and_line(tmp_path, content, words):
    write(tmp_path / "a.tsv", content)
    with pytest.raises(CorpusError) as error:
        corpora.load(str(tmp_path / "a.tsv"), "train")
    for word in words:
        assert word in str(error.value)


def test_a_missing_table_is_refused_by_check(tmp_path):
    with pytest.raises(CorpusError, match="no such file"):
        corpora.check(str(tmp_path / "a.tsv"))


# ---- Hashes -------------------------------------------------------------------------------------


def test_the_hash_of_a_split_sees_order_boundaries_and_direction():
    splits = [
        Split(["a", "b"], ["c", "d"]),
        Split(["b", "a"], ["d", "c"]),
        Split(["a\nb"], ["c\nd"]),
        Split(["a", "b", "c"], ["d"]),
        Split(["c", "d"], ["a", "b"]),
        Split(["á", "b"], ["c", "d"]),
    ]
    assert len({split.sha256() for split in splits}) == len(splits)
    assert splits[0].sha256() == Split(["a", "b"], ["c", "d"], ["x", "y"]).sha256()


def test_the_fingerprint_follows_every_file_and_not_the_place(folder, tmp_path):
    before = corpora.fingerprint(str(folder))
    assert before == corpora.fingerprint(str(folder) + "/")
    for file in folder.iterdir():
        content = file.read_bytes()
        write(file, content + b"more\n")
        assert corpora.fingerprint(str(folder)) != before, file
        write(file, content)
    assert corpora.fingerprint(str(folder)) == before
    one = corpora.fingerprint(table(tmp_path / "a.tsv", range(9)))
    assert one != corpora.fingerprint(table(tmp_path / "a.tsv", range(10)))


# ---- tensorflow_datasets ------------------------------------------------------------------------

SIZES = {"train": 5000, "dev": 20, "test": 10}  # train takes more than one batch to read


@pytest.fixture
def ted(tmp_path, monkeypatch):
    """A small archive in the layout of the real one, registered with tfds in its stead."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import downloader

    def refuse(self, url, *args, **kwargs):
        raise AssertionError(f"tfds asks the network for {url}")

    monkeypatch.setattr(downloader._Downloader, "download", refuse)
    archive = tmp_path / "host" / "ted.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        for split, size in SIZES.items():
            for language, word in ("pt", "olá"), ("en", "hello"):
                text = "\n".join(f"{word} {split} {i}" for i in range(size)).encode()
                entry = tarfile.TarInfo(f"datasets/pt_to_en/{language}.{split}")
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setattr(corpora, "TED_ADDRESSES", ("file:///nonexistent", archive.as_uri()))
    registered = tfds.builder("ted_hrlr_translate/pt_to_en").url_infos
    info = tfds.download.checksums.compute_url_info(archive)
    info.filename = registered[corpora.TED_HOST].filename
    monkeypatch.setitem(registered, corpora.TED_HOST, info)
    return archive


NAME = "ted_hrlr_translate/pt_to_en"


def test_a_dead_host_is_replaced_by_the_archived_copy(ted, tmp_path, capfd):
    import tensorflow_datasets as tfds

    assert corpora.splits(NAME) == ["train", "validation", "test"]
    out, err = capfd.readouterr()
    assert "downloading file:///nonexistent\nfailed: " in err and ted.as_uri() in err
    assert out == ""
    ted.unlink()  # from here on only what was prepared can answer
    for split, file in {"train": "train", "validation": "dev", "test": "test"}.items():
        texts = corpora.load(NAME, split)
        assert sorted(texts.sources) == sorted(f"olá {file} {i}" for i in range(SIZES[file]))
        assert [s.replace("olá", "hello") for s in texts.sources] == texts.targets
        in_file_order = tfds.as_numpy(tfds.load(NAME, split=split, data_dir=tmp_path / "tfds"))
        assert texts.sources == [row["pt"].decode() for row in in_file_order]
    assert corpora.load(NAME, "test", reverse=True).sources[0].startswith("hello")
    with pytest.raises(CorpusError, match="no 'dev' split"):
        corpora.load(NAME, "dev")
    before = corpora.fingerprint(NAME)
    (record,) = (tmp_path / "tfds").rglob("*test.tfrecord*")
    write(record, record.read_bytes()[:-1])
    assert corpora.fingerprint(NAME) != before


@pytest.mark.parametrize("damage", ["unreachable", "truncated", "altered"])
def test_a_failed_download_leaves_nothing_and_names_the_ways_without_a_network(
    ted, tmp_path, damage, capfd
):
    content = ted.read_bytes()
    if damage == "unreachable":
        ted.unlink()
    else:
        write(ted, content[:-9] if damage == "truncated" else content[:-1] + b"?")
    with pytest.raises(CorpusError) as error:
        corpora.load(NAME, "train")
    archive = tmp_path / "tfds" / "downloads" / "manual" / "qi18naacl-dataset.tar.gz"
    for way in f"at {archive} yourself", "TFDS_DATA_DIR", "--corpus mini":
        assert way in str(error.value)
    assert "\n" not in str(error.value)
    assert [path for path in (tmp_path / "tfds").rglob("*") if path.is_file()] == []
    assert ("sha256" in capfd.readouterr().err) == (damage != "unreachable")


def test_an_archive_put_in_place_by_hand_is_used_or_refused_by_its_name(ted, tmp_path, capfd):
    archive = tmp_path / "tfds" / "downloads" / "manual" / "qi18naacl-dataset.tar.gz"
    archive.parent.mkdir(parents=True)
    write(archive, ted.read_bytes()[:-9])
    with pytest.raises(CorpusError, match=f"{archive.name}, has wrong checksum") as error:
        corpora.load(NAME, "train")
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "tfds").rglob("*incomplete*"))
    ted.rename(archive)
    assert len(corpora.load(NAME, "test").sources) == SIZES["test"]
    assert "downloading" not in capfd.readouterr().err


def test_a_prepared_dataset_keeps_its_direction_without_its_code(ted, tmp_path):
    """Read back from disk the languages are sorted: ("en", "pt")."""
    corpora.splits(NAME)
    (tmp_path / "tfds" / "ted_hrlr_translate").rename(tmp_path / "tfds" / "my_talks")
    for info in (tmp_path / "tfds" / "my_talks").rglob("dataset_info.json"):
        write(info, info.read_text().replace("ted_hrlr_translate", "my_talks"))
    assert corpora.languages("my_talks/pt_to_en") == ("pt", "en")
