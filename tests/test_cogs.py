"""The corpus `cogs`, downloaded from a local server."""

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from helpers import load_split

from ablation.worker import load_texts
from config import Config
from data import corpora, remote
from data.splits import CorpusError

ROWS = "A cat slept .\t{0} ( x _ 1 )\t{0}\nLina\tLina\tprimitive\n"


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Serve small files in the place of the real ones. Returns their directory."""
    host, hashes = tmp_path / "host", {}
    host.mkdir()
    for name in remote.COGS_SHA256:
        (host / f"{name}.tsv").write_text(ROWS.format(name), "utf-8", newline="\n")
        hashes[name] = hashlib.sha256((host / f"{name}.tsv").read_bytes()).hexdigest()
    handler = partial(SimpleHTTPRequestHandler, directory=host)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
        monkeypatch.setattr(remote, "COGS_URL", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setattr(remote, "COGS_SHA256", hashes)
        yield host
        server.shutdown()


def test_each_file_is_a_split_whose_pairs_have_the_kind_as_a_tag(served, capfd):
    splits = corpora.from_config(Config(corpus="cogs")).splits
    assert splits == ["train", "validation", "test", "generalization"]
    assert capfd.readouterr().err.count("downloading http://127.0.0.1") == 4
    for split, file in zip(splits, remote.COGS_SHA256, strict=True):
        texts = load_split("cogs", split)
        assert texts.sources == ["A cat slept .", "Lina"]
        assert texts.targets == [f"{file} ( x _ 1 )", "Lina"] and texts.tags == [file, "primitive"]
    assert "downloading" not in capfd.readouterr().err
    assert load_split("cogs", "test", reverse=True).targets == ["A cat slept .", "Lina"]


@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_a_file_that_is_missing_or_altered_is_named_and_not_kept(served, tmp_path, damage):
    path = served / "gen.tsv"
    path.unlink() if damage == "missing" else path.write_text("A\tB\tC\n", "utf-8")
    with pytest.raises(CorpusError, match=r"save http.*gen\.tsv as .*cogs-gen\.tsv"):
        corpora.from_config(Config(corpus="cogs")).files()
    left = sorted(path.name for path in (tmp_path / "tfds").rglob("*.*") if path.is_file())
    assert left == ["cogs-dev.tsv", "cogs-test.tsv", "cogs-train.tsv"]


def test_the_final_score_is_of_the_other_sentences(served, monkeypatch):
    rows = [f"Cat {i} slept .\tsleep ( {i} )\tkind {i % 2}\n" for i in range(40)]
    (served / "gen.tsv").write_text("".join(rows), "utf-8", newline="\n")
    hashes = {"gen": hashlib.sha256((served / "gen.tsv").read_bytes()).hexdigest()}
    monkeypatch.setattr(remote, "COGS_SHA256", remote.COGS_SHA256 | hashes)
    sample, rest = (load_texts(["--corpus", "cogs"], 8, final) for final in (False, True))
    assert len(sample.sources) == 8 and len({*sample.sources, *rest.sources}) == 40
    assert len(rest.sources) == 32 and {*sample.tags} == {"kind 0", "kind 1"}
    sample, rest = (load_texts(["--corpus", "cogs"], 50, final) for final in (False, True))
    assert len(sample.sources) == len(rest.sources) == 20  # a recipe wants more than there are
