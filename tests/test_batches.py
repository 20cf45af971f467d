"""Batches, encoding, and the cache of encoded corpora."""

import dataclasses
import itertools
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import wait_until
from expect import expect
from helpers import load_split, open_corpus, write

from config import Config
from data import encoding, mini, pipeline, tokenizer
from data.__main__ import parse_config, show
from data.arrays import Pairs, Ragged
from data.batches import plan_batches
from data.splits import Corpus, CorpusError, Split, assign_split
from same_code import fingerprint
from utils import UserError, warn

SIZE = 20_000


def sentences(lengths):
    """Ragged of these lengths with distinct ids."""
    starts = 4 + np.cumsum([0, *lengths[:-1]])
    return Ragged.of([list(range(s, s + n)) for s, n in zip(starts, lengths, strict=True)])


@pytest.fixture(scope="module")
def pairs():
    """Pairs with realistic lengths: lognormal, and similar for source and target."""
    draw = np.random.default_rng(0)
    source = np.exp(draw.normal(2.9, 0.45, SIZE))
    target = source * np.exp(draw.normal(0, 0.15, SIZE))
    return Pairs(*(sentences(np.clip(side, 2, 128).astype(int)) for side in (source, target)))


def longer_side(pairs, indices):
    """Number of positions on a batch's longer side, of the target without its last id."""
    source, target = pairs.batch(indices)
    return len(indices) * max(source.shape[1], target.shape[1] - 1)


def fraction_of_tokens(pairs, batches):
    """Fraction of the positions that are not padding."""
    arrays = [array for indices in batches for array in pairs.batch(indices)]
    return sum(map(np.count_nonzero, arrays)) / sum(array.size for array in arrays)


# ---- One batch ----------------------------------------------------------------------------------


def test_a_batch_is_its_rows_padded_with_zeros(pairs):
    indices = np.array([7, 0, SIZE - 1, 7])  # unordered, with the last row, and a row twice
    for array, rows in zip(pairs.batch(indices), pairs, strict=True):
        expected = [rows.ids[rows.offsets[i] : rows.offsets[i + 1]] for i in indices]
        assert array.dtype == np.int32
        assert array.shape == (4, max(map(len, expected)))  # no longer than its longest row
        for row, ids in zip(array, expected, strict=True):
            assert row.tolist() == ids.tolist() + [0] * (len(row) - len(ids))


# ---- The plan of an epoch -----------------------------------------------------------------------


def same(a, b):
    return len(a) == len(b) and all(map(np.array_equal, a, b))


@pytest.mark.exercise("batches")
def test_every_pair_is_in_one_batch_and_the_order_depends_only_on_seed_and_epoch(pairs):
    plans = {}
    for seed, epoch in (3, 5), (3, 6), (4, 5), (5, 3), (None, 0), (None, 1):
        plans[seed, epoch] = plan_batches(pairs, 2048, 64, seed, epoch)
        indices = np.sort(np.concatenate(plans[seed, epoch]))
        missing = {f"{SIZE - len(indices)} pairs are in no batch": len(indices) < SIZE}
        expect(indices, range(SIZE), missing)
        np.random.seed(epoch)  # has no effect
    assert same(plans[3, 5], plan_batches(pairs, 2048, 64, seed=3, epoch=5))
    others = [same(plans[3, 5], plans[key]) for key in ((3, 6), (4, 5), (5, 3), (None, 0))]
    mistakes = {
        "the order is the same in every epoch: draw it from the seed and the epoch": others[0],
        "the order is the same for every seed: draw it from the seed and the epoch": others[1],
    }
    expect(others, [False] * 4, mistakes)
    assert same(plans[None, 0], plans[None, 1])


def test_batches_are_regrouped_in_every_epoch(pairs):
    """Of the pairs in the same batch, at most half are together again in the next epoch."""
    batch_of = np.empty((2, SIZE), int)
    for epoch in 0, 1:
        for number, batch in enumerate(plan_batches(pairs, 2048, 1024, 0, epoch)):
            batch_of[epoch, batch] = number

    def pairings(groups):
        sizes = np.unique(groups, return_counts=True)[1]
        return (sizes * (sizes - 1)).sum()

    assert pairings(batch_of[0] * SIZE + batch_of[1]) < 0.5 * pairings(batch_of[0])


@pytest.mark.exercise("batches")
def test_the_order_of_batches_does_not_depend_on_length(pairs):
    lengths = [
        pairs.target.lengths[batch].mean() for batch in plan_batches(pairs, 2048, 1024, 0, 0)
    ]
    correlation = np.corrcoef(lengths, np.arange(len(lengths)))[0, 1]
    ordered = {"the batches are in the order of their lengths: shuffle them": True}
    expect(abs(correlation) < 0.3, True, ordered)


@pytest.mark.parametrize("budget, most", [(100, 1024), (500, 1024), (4096, 17)])
@pytest.mark.exercise("batches")
def test_batch_tokens_includes_padding_and_batch_sentences_is_a_maximum(pairs, budget, most):
    padding = "padding does not count: a batch has its longest length times its pairs"
    more = {"a batch has one pair more than batch_sentences": most + 1}
    for data in Pairs(pairs.source, pairs.source), pairs:
        batches = plan_batches(data, budget, most, 0, 0)
        largest = max(map(len, batches))
        expect(max(largest, most), most, more)
        large = [x for x in batches if len(x) > 1 and longer_side(data, x) > budget]
        uncounted = large and data is not pairs and data.source.lengths[large[0]].sum() <= budget
        expect(len(large), 0, {padding: bool(uncounted)})


@pytest.mark.exercise("batches")
def test_batch_tokens_counts_the_longer_side():
    short, long = sentences([2] * 40), sentences([21] * 40)
    for pairs, longer in (Pairs(short, long), "target"), (Pairs(long, short), "source"):
        most = max(map(len, plan_batches(pairs, 100, 1024, 0, 0)))
        expect(min(most, 5), most, {f"the length of the {longer} does not count": True})
    last = {"the decoder does not get the last id of a target, so it does not count": 4}
    expect(max(map(len, plan_batches(Pairs(short, long), 100, 1024, 0, 0))), 5, last)


@pytest.mark.exercise("batches")
def test_a_pair_longer_than_batch_tokens_is_a_batch_of_one():
    lengths = [3, 50, 3, 60, 3]
    batches = plan_batches(Pairs(sentences(lengths), sentences(lengths)), 20, 1024, 0, 0)
    assert sorted(sorted(batch.tolist()) for batch in batches) == [[0, 2, 4], [1], [3]]


@pytest.mark.exercise("batches")
def test_batches_are_full(pairs):
    """Almost none has space for another pair, and nine in ten positions are tokens."""
    batches = plan_batches(pairs, 2048, 1024, 0, 0)
    at_random = np.array_split(np.random.default_rng(0).permutation(SIZE), len(batches))
    assert fraction_of_tokens(pairs, at_random) < 0.6
    padding = 1 - fraction_of_tokens(pairs, batches)
    unsorted = f"{padding:.0%} of the positions are padding: group pairs of similar lengths"
    expect(padding < 0.1, True, {unsorted: True})
    filled = [longer_side(pairs, b) * (len(b) + 1) / len(b) > 2048 * 0.9 for b in batches]
    assert np.mean(filled) > 0.95


@pytest.mark.exercise("batches")
def test_an_empty_corpus_has_no_batches():
    empty = Pairs(Ragged.of([]), Ragged.of([]))
    assert plan_batches(empty, 2048, 1024, 0, 0) == plan_batches(empty, 2048, 1024) == []


# ---- Encoding -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained_tokenizer():
    split = load_split("mini:300", "train")
    return tokenizer.train(split.sources + split.targets, 400)


def id_rows(side):
    return [side.ids[a:b].tolist() for a, b in zip(side.offsets, side.offsets[1:], strict=False)]


def test_a_source_ends_in_eos_and_a_target_is_bos_to_eos(trained_tokenizer):
    split = Split(["o livro", "a casa"], ["the book", "the house"])
    pairs, _ = encoding.encode(split, trained_tokenizer, trained_tokenizer, max_length=128)
    sources, targets = map(trained_tokenizer.encode, split[:2])
    assert id_rows(pairs.source) == [[*ids, 3] for ids in sources]
    assert id_rows(pairs.target) == [[2, *ids, 3] for ids in targets]


def test_long_pairs_are_dropped_and_counted(trained_tokenizer):
    short, long = "o", "o livro" * 9
    length = len(trained_tokenizer.encode([long])[0])
    split = Split([short, long, short, long], [short, short, long, long])
    for max_length, kept in (9, 1), (length - 1, 1), (length, 4):
        pairs, dropped = encoding.encode(split, trained_tokenizer, trained_tokenizer, max_length)
        assert (len(pairs.source.lengths), dropped) == (kept, 4 - kept)
        assert len(pairs.target.lengths) == kept


# ---- The cache ----------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path):
    """A corpus in a directory, and an empty cache."""
    for split, texts in (("train", 80), ("validation", 8)):
        for language, words in (("en", "one house and {} books"), ("pt", "uma casa e {} livros")):
            text = "".join(words.format(number) + "\n" for number in range(texts))
            write(tmp_path / "corpus" / f"{split}.{language}", text)
    corpus, cache = str(tmp_path / "corpus"), str(tmp_path / "cache")
    return Config(corpus=corpus, cache_dir=cache, vocab_size=300)


@pytest.fixture
def trained(monkeypatch):
    """A list with an item for each tokenizer that has been trained."""
    calls, train = [], tokenizer.train
    monkeypatch.setattr(tokenizer, "train", lambda *a, **k: calls.append(a) or train(*a, **k))
    return calls


def equal(a, b):
    """Compare two Datasets."""
    arrays = [[array for pairs in x[:2] for side in pairs for array in side] for x in (a, b)]
    models = [(x.source_tokenizer.model, x.target_tokenizer.model) for x in (a, b)]
    rest = [(x.validation_texts, x.corpus_info) for x in (a, b)]
    return all(map(np.array_equal, *arrays)) and models[0] == models[1] and rest[0] == rest[1]


def test_a_cached_corpus_is_equal_and_is_not_encoded_again(settings, trained, monkeypatch):
    """Though settings of other things differ."""
    first = pipeline.load(settings)
    monkeypatch.setattr(Corpus, "read", lambda *a: pytest.fail("read the texts again"))
    changes = {"seed": 1, "epochs": 1, "d_model": 64, "batch_tokens": 99, "name": "x"}
    assert equal(first, pipeline.load(dataclasses.replace(settings, **changes)))
    assert len(trained) == 1


@pytest.mark.parametrize("reverse", [False, True])
def test_a_dataset_decodes_to_the_texts(settings, reverse):
    data = pipeline.load(dataclasses.replace(settings, reverse=reverse))
    split = load_split(settings.corpus, "train", reverse=reverse)
    assert data.source_tokenizer.decode(id_rows(data.train.source)) == split.sources
    assert data.target_tokenizer.decode(id_rows(data.train.target)) == split.targets
    assert data.validation_texts == load_split(settings.corpus, "validation", reverse=reverse)
    assert data.corpus_info["languages"] == ["pt", "en"][:: 1 if reverse else -1]
    sha256 = open_corpus(settings.corpus, reverse=reverse).summarize("train", 1).sha256
    counts = {"sha256": sha256, "pairs": 80, "used": 80, "dropped": 0, "unknown": [0, 0]}
    counts["tokens"] = len(data.train.source.ids) + len(data.train.target.ids)
    assert data.corpus_info["splits"]["train"] == counts


@pytest.mark.parametrize(
    "change", [{"lowercase": True}, {"shared_vocabulary": False}, {"max_length": 20}]
)
def test_changed_data_settings_are_encoded_separately(settings, trained, change):
    before = pipeline.load(settings)
    other = dataclasses.replace(settings, **change)
    after = pipeline.load(other)
    count = len(trained)
    assert count > 1
    assert equal(before, pipeline.load(settings)) and equal(after, pipeline.load(other))
    assert len(trained) == count


@pytest.mark.parametrize("file", ["encoding.py", "mini/lexicon.tsv", "new.py", "batches.py"])
def test_an_edit_of_the_code_encodes_again_but_a_comment_does_not(
    settings, tmp_path, monkeypatch, file
):
    copy = shutil.copytree(Path(mini.__file__).parents[1], tmp_path / "data")
    monkeypatch.setattr(pipeline, "fingerprint", lambda use: fingerprint(use, tmp_path))
    folders = []
    for line in ("ZERO = 0\n", "# A comment.\n", "ONE = 1\n"):
        with (copy / file).open("a") as code:
            code.write(line)
        folders.append(pipeline.cache_folder(settings, open_corpus("mini:9")))
    assert (folders[0] == folders[1]) == file.endswith(".py")
    assert (folders[1] == folders[2]) == (file == "batches.py")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_preparation_starts_again(settings, tmp_path, monkeypatch, error):
    settings = dataclasses.replace(settings, max_length=16)  # drops some pairs
    expected = pipeline.load(dataclasses.replace(settings, cache_dir=str(tmp_path / "other")))
    calls, encode = itertools.count(), encoding.encode
    monkeypatch.setattr(encoding, "PART", 3)

    def fail_at_the_third_part(*arguments):
        if next(calls) == 2:
            raise error("in the middle")
        return encode(*arguments)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(encoding, "encode", fail_at_the_third_part)
        interrupted.setattr(shutil, "rmtree", lambda *_, **options: None)  # as if it was killed
        with pytest.raises(error):
            pipeline.load(settings)
    (unfinished,) = (tmp_path / "cache").glob("*.unfinished")
    data = pipeline.load(settings)
    assert equal(data, expected) and not unfinished.exists()
    used = len(data.train.source.lengths)
    sizes = f"train 80 pairs ({80 - used} dropped), validation "
    assert data.describe_splits().startswith(sizes) and 0 < used < 80


@pytest.mark.parametrize("damage", ["other", "truncated", "empty"])
def test_a_damaged_cache_is_rejected(settings, tmp_path, damage):
    data = pipeline.load(settings)
    (ids,) = (tmp_path / "cache").glob("*/train.source.ids")
    content = ids.read_bytes()
    ids.write_bytes({"other": b"12345678", "truncated": content[:-9], "empty": b""}[damage])
    with pytest.raises(CorpusError, match=f"{ids.parent} is damaged"):
        pipeline.load(settings)
    ids.write_bytes(content)
    assert equal(data, pipeline.load(settings))


def test_a_second_process_waits_for_the_first(settings, monkeypatch, trained, capfd):
    write, others = pipeline.write, []

    def load_in_another_thread(*arguments):
        monkeypatch.setattr(pipeline, "write", write)
        others.append(ThreadPoolExecutor(1).submit(pipeline.load, settings))
        wait_until(lambda: "waiting" in capfd.readouterr().err)
        write(*arguments)

    monkeypatch.setattr(pipeline, "write", load_in_another_thread)
    first = pipeline.load(settings)
    assert equal(first, others[0].result(timeout=60)) and len(trained) == 1


def test_only_a_sample_of_a_large_corpus_is_kept_in_memory(settings, monkeypatch, capfd):
    whole = pipeline.load(settings)
    monkeypatch.setattr(pipeline, "TOKENIZER_PAIRS", 30)
    monkeypatch.setattr(pipeline, "VALIDATION_PAIRS", 3)
    changed = dataclasses.replace(settings, vocab_size=299)  # not in the cache
    data = pipeline.load(changed)
    err = capfd.readouterr().err
    assert "on 20 of 80 pairs" in err
    assert data.describe_splits() == "train 80 pairs, validation 8 pairs"
    assert len(data.train.source.lengths) == 80 and len(data.validation.source.lengths) == 2
    assert data.validation_texts == whole.validation_texts.take([0, 4])
    for name in ("train", "validation"):
        one, other = (each.corpus_info["splits"][name] for each in (data, whole))
        assert one["sha256"] == other["sha256"] and one["pairs"] == other["pairs"]


def test_a_corpus_without_short_pairs_is_rejected(settings, tmp_path):
    with pytest.raises(CorpusError, match="--max-length"):
        pipeline.load(dataclasses.replace(settings, max_length=1))
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def labelled(path, rows):
    corpus = write(path, "".join(f"{label}\t{text}\n" for label, text in rows))
    flags = {"model": "classifier", "vocab_size": 300, "max_length": 4}
    return Config(**flags, corpus=corpus, cache_dir=str(path.parent / "cache"))


def test_labelled_texts_are_cut_and_targets_are_bos_and_a_label(tmp_path):
    rows = [("ab"[i % 2], f"text number {i}") for i in range(500)]
    data = pipeline.load(labelled(tmp_path / "a.tsv", rows))
    counts, lengths = data.corpus_info["splits"]["train"], data.train.source.lengths
    assert lengths.max() == 4 + 1 and counts["cut"] > 0 and len(lengths) == counts["pairs"]
    labels = dict(zip((f"text number {i}" for i in range(500)), "ab" * 250, strict=True))
    split = load_split(tmp_path / "a.tsv", "train", model="classifier")
    for text, target in zip(split.sources, id_rows(data.train.target), strict=True):
        assert target == [2, 4 + "ab".index(labels[text])]


def test_labels_missing_in_training_are_rejected(tmp_path):
    text = next(f"only {i}" for i in range(999) if assign_split(f"only {i}") == "validation")
    rows = [("ab"[i % 2], f"text number {i}") for i in range(500)] + [("rare", text)]
    with pytest.raises(UserError, match="'rare'.* a, b"):
        pipeline.load(labelled(tmp_path / "a.tsv", rows))


# ---- What is used of a corpus -------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_an_empty_split_is_named(settings, tmp_path, split):
    for language in ("en", "pt"):
        (tmp_path / "corpus" / f"{split}.{language}").write_text("\n\n", "utf-8")
    with pytest.raises(UserError, match=f"{split} split is empty"):
        pipeline.load(settings)


def test_sources_that_are_also_in_train_are_counted(settings, tmp_path, capfd):
    for language, more in {"en": ["new", "new"], "pt": ["novo", "nova"]}.items():
        texts = (tmp_path / "corpus" / f"train.{language}").read_text("utf-8").split("\n")
        lines = "\n".join(texts[:6] * 2 + more)
        (tmp_path / "corpus" / f"test.{language}").write_text(lines, "utf-8")
    splits = pipeline.load(settings).corpus_info["splits"]
    assert splits["test"]["seen"] == pytest.approx(12 / 14) and splits["validation"]["seen"] == 1
    assert "85.7% of test is" in capfd.readouterr().err


@pytest.mark.parametrize(("kind", "unknown"), [("char", True), ("word", True), ("byte", False)])
def test_unknown_tokens_are_counted_and_named_at_every_start(
    settings, tmp_path, capfd, kind, unknown
):
    """Of each side: the Greek of the validation split is not in the training texts."""
    (tmp_path / "corpus/validation.pt").write_text("τρία σπίτια\n" * 8, "utf-8")
    config = dataclasses.replace(settings, tokenizer=kind, vocab_size=500)
    for _ in range(2):  # the second time from the cache
        warn.cache_clear()
        data = pipeline.load(config)
        assert ("tokens of validation are unknown" in capfd.readouterr().err) == unknown
    splits = data.corpus_info["splits"]
    assert splits["train"]["unknown"] == [0, 0] and splits["validation"]["unknown"][0] == 0
    ids = data.validation.target.ids
    assert splits["validation"]["unknown"][1] == pytest.approx(np.mean(ids == tokenizer.UNK))
    assert (np.mean(ids == tokenizer.UNK) > 0.4) == unknown


# ---- python -m data -----------------------------------------------------------------------------


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    """Run `python -m data` in this process. Returns what it prints."""

    def run(*flags):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["data", *flags])
        show(parse_config())
        return capsys.readouterr().out

    return run


def test_a_corpus_is_shown_with_examples_and_statistics(shown, settings):
    out = shown(settings.corpus, "--vocab-size", "290")
    for text in ("train 80 pairs", "▁", "290 tokens", "0.00% unk", "median"):
        assert text in out
    train = out.partition("evenly spaced")[2].partition("\n\n")[0].splitlines()
    assert len(train) == 25
    assert train[-4:-1:2] == ["  one house and 79 books", "  uma casa e 79 livros"]


def test_a_text_is_shown_with_its_splits_and_tokens(shown, tmp_path):
    lines = "".join(f"Line {i}: it's “wörld” {i % 7}.\n\n" for i in range(400))
    (tmp_path / "a.txt").write_text(lines, "utf-8")
    flags = ("--model", "language_model", "--tokenizer")
    out = shown("a.txt", *flags, "char")
    for words in ("a.txt: text\n", "721 texts", "  Line 0: it's “wörld” 0.⏎", "L i n e ▁ "):
        assert words in out, words
    assert "0.00% unknown" in out
    assert "0.00% unknown" not in shown("a.txt", *flags, "word", "--vocab-size", "300")


@pytest.mark.parametrize("flags", ["", "mini:300 --nosuch", "mini:300 --epochs 3"])
def test_invalid_command_lines_exit_with_status_2(shown, flags, capsys):
    with pytest.raises(SystemExit) as error:
        shown(*flags.split())
    assert error.value.code == 2 and capsys.readouterr().err.startswith("error: ")
