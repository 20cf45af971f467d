"""Ids to batches, and the encoded corpus that is kept on disk."""

import dataclasses

import numpy as np
import pytest

from config import Config
from data import corpora, pipeline, tokenizer
from data.batches import Pairs, Rows, plan
from data.splits import share

SIZE = 20_000


def sentences(lengths, first=4):
    """Rows of these lengths, whose ids are all different."""
    starts = first + np.cumsum([0, *lengths[:-1]])
    return Rows.of([list(range(s, s + n)) for s, n in zip(starts, lengths, strict=True)])


@pytest.fixture(scope="module")
def pairs():
    """As long as the pairs of a real corpus: lognormal, a source about as long as its target."""
    draw = np.random.default_rng(0)
    source = np.exp(draw.normal(2.9, 0.45, SIZE))
    target = source * np.exp(draw.normal(0, 0.15, SIZE))
    return Pairs(*(sentences(np.clip(side, 2, 128).astype(int)) for side in (source, target)))


def longer_side(pairs, indices):
    """The positions of a batch's longer side; the target is one id shorter on its way in."""
    source, target = pairs.batch(indices)
    return len(indices) * max(source.shape[1], target.shape[1] - 1)


def real_share(pairs, batches):
    """The share of a list of batches that is not padding."""
    arrays = [array for indices in batches for array in pairs.batch(indices)]
    return sum(map(np.count_nonzero, arrays)) / sum(array.size for array in arrays)


# ---- One batch ----------------------------------------------------------------------------------


def test_a_batch_is_its_rows_with_zeros_after(pairs):
    indices = np.array([7, 0, SIZE - 1, 7])  # in any order, the last row and a row twice
    for array, rows in zip(pairs.batch(indices), pairs, strict=True):
        expected = [rows.ids[rows.offsets[i] : rows.offsets[i + 1]] for i in indices]
        assert array.dtype == np.int32
        assert array.shape == (4, max(map(len, expected)))  # no longer than its longest row
        for row, ids in zip(array, expected, strict=True):
            assert row.tolist() == ids.tolist() + [0] * (len(row) - len(ids))


# ---- An epoch's plan ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, None])
@pytest.mark.parametrize("epoch", [0, 1])
def test_every_sentence_comes_exactly_once_an_epoch(pairs, seed, epoch):
    batches = plan(pairs, 2048, 64, seed, epoch)
    assert sorted(np.concatenate(batches)) == list(range(SIZE))


def same(a, b):
    return len(a) == len(b) and all(map(np.array_equal, a, b))


def test_the_order_is_a_function_of_seed_and_epoch_alone(pairs):
    np.random.seed(1)
    first = plan(pairs, 2048, 1024, seed=3, epoch=5)
    np.random.seed(2)
    plan(pairs, 2048, 1024, seed=3, epoch=4)  # nothing is left over from another call
    assert same(first, plan(pairs, 2048, 1024, seed=3, epoch=5))


@pytest.mark.parametrize("seed, epoch", [(3, 6), (4, 5), (5, 3)])
def test_another_epoch_or_seed_has_another_order(pairs, seed, epoch):
    assert not same(plan(pairs, 2048, 1024, 3, 5), plan(pairs, 2048, 1024, seed, epoch))


def test_in_another_epoch_sentences_meet_others(pairs):
    """Not only the batches are shuffled: of those that met, no more than half meet again."""
    batch_of = np.empty((2, SIZE), int)
    for epoch in 0, 1:
        for number, batch in enumerate(plan(pairs, 2048, 1024, 0, epoch)):
            batch_of[epoch, batch] = number

    def meetings(groups):
        sizes = np.unique(groups, return_counts=True)[1]
        return (sizes * (sizes - 1)).sum()

    assert meetings(batch_of[0] * SIZE + batch_of[1]) < 0.5 * meetings(batch_of[0])


def test_short_and_long_batches_come_mixed(pairs):
    """Sorted by length, the learning rate's warm-up would see the short sentences alone."""
    lengths = [pairs.target.lengths[batch].mean() for batch in plan(pairs, 2048, 1024, 0, 0)]
    assert abs(np.corrcoef(lengths, np.arange(len(lengths)))[0, 1]) < 0.3


def test_without_a_seed_nothing_is_drawn(pairs):
    assert same(plan(pairs, 2048, 1024), plan(pairs, 2048, 1024))


@pytest.mark.parametrize("budget", [100, 500, 4096])
def test_the_budget_holds_padding_included(pairs, budget):
    for indices in plan(pairs, budget, 1024, 0, 0):
        assert longer_side(pairs, indices) <= budget or len(indices) == 1


def test_the_budget_counts_the_longer_side():
    short, long = sentences([2] * 40), sentences([21] * 40)
    for pairs in Pairs(short, long), Pairs(long, short):
        assert all(len(batch) <= 5 for batch in plan(pairs, 100, 1024, 0, 0))


def test_a_sentence_above_the_budget_comes_alone():
    lengths = [3, 50, 3, 60, 3]
    batches = plan(Pairs(sentences(lengths), sentences(lengths)), 20, 1024, 0, 0)
    assert sorted(sorted(batch.tolist()) for batch in batches) == [[0, 2, 4], [1], [3]]


def test_no_batch_has_more_sentences_than_allowed(pairs):
    sizes = [len(batch) for batch in plan(pairs, 4096, 17, 0, 0)]
    assert max(sizes) == 17


def test_batches_are_filled_up(pairs):
    """Small ones would waste the machine: but for a few, none has room for one more row."""
    batches = plan(pairs, 2048, 1024, 0, 0)
    filled = [longer_side(pairs, b) * (len(b) + 1) / len(b) > 2048 * 0.9 for b in batches]
    assert np.mean(filled) > 0.95


def test_nine_in_ten_positions_are_real_tokens(pairs):
    batches = plan(pairs, 2048, 1024, 0, 0)
    order = np.random.default_rng(0).permutation(SIZE)
    at_random = np.array_split(order, len(batches))
    assert real_share(pairs, at_random) < 0.6  # what grouping by length is for
    assert real_share(pairs, batches) > 0.9


def test_no_sentences_make_no_batches():
    nothing = Rows.of([])
    assert plan(Pairs(nothing, nothing), 2048, 1024, 0, 0) == []
    assert plan(Pairs(nothing, nothing), 2048, 1024) == []


# ---- Encoding -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made():
    split = corpora.load("mini:300", "train")
    return tokenizer.train(split.sources + split.targets, 400)


def id_rows(side):
    return [side.ids[a:b].tolist() for a, b in zip(side.offsets, side.offsets[1:], strict=False)]


def test_a_source_ends_in_eos_and_a_target_is_bos_to_eos(made):
    split = corpora.Split(["o livro", "a casa"], ["the book", "the house"])
    pairs, _ = pipeline.encode(split, made, made, max_length=128)
    assert id_rows(pairs.source) == [[*ids, 3] for ids in made.encode(split.sources)]
    assert id_rows(pairs.target) == [[2, *ids, 3] for ids in made.encode(split.targets)]


def test_over_long_pairs_are_dropped_and_counted(made):
    lengths = [len(ids) for ids in made.encode(["o", "o livro" * 9])]
    assert lengths[0] < 9 < lengths[1]
    o, livro = "o", "o livro" * 9  # either side can be the long one
    split = corpora.Split([o, livro, o, livro], [o, o, livro, livro])
    for max_length, kept in (9, 1), (lengths[1] - 1, 1), (lengths[1], 4):
        pairs, dropped = pipeline.encode(split, made, made, max_length)
        assert (len(pairs.source.lengths), dropped) == (kept, 4 - kept)
        assert len(pairs.target.lengths) == kept


# ---- The cache ----------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path):
    """A corpus of one's own, in a folder, and a cache beside it."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for split, texts in (("train", 80), ("validation", 8)):
        numbers = range(texts)
        for language, words in (("en", "one house and {} books"), ("pt", "uma casa e {} livros")):
            text = "".join(words.format(number) + "\n" for number in numbers)
            (corpus / f"{split}.{language}").write_text(text, "utf-8")
    return Config(corpus=str(corpus), cache_dir=str(tmp_path / "cache"), vocab_size=300)


@pytest.fixture
def trained(monkeypatch):
    """The number of tokenizers trained so far, as the length of a list."""
    calls, train = [], tokenizer.train
    monkeypatch.setattr(tokenizer, "train", lambda *a, **k: calls.append(a) or train(*a, **k))
    return calls


def equal(a, b):
    """Whether two Dataset are the same, to the last id."""
    arrays = [[array for pairs in x[:2] for side in pairs for array in side] for x in (a, b)]
    models = [(x.source_tokenizer.model, x.target_tokenizer.model) for x in (a, b)]
    return (
        all(map(np.array_equal, *arrays)) and models[0] == models[1]
        and a.validation_texts == b.validation_texts and a.facts == b.facts
    )  # fmt: skip


def test_the_second_time_nothing_is_made_again(settings, trained, monkeypatch):
    first = pipeline.load(settings)
    monkeypatch.setattr(corpora, "load", lambda *a: pytest.fail("the texts were read again"))
    assert equal(first, pipeline.load(settings)) and len(trained) == 1


def test_the_cache_holds_what_the_texts_say(settings):
    data = pipeline.load(settings)
    split = corpora.load(settings.corpus, "train")
    assert data.source_tokenizer.decode(id_rows(data.train.source)) == split.sources
    assert data.target_tokenizer.decode(id_rows(data.train.target)) == split.targets
    assert data.validation_texts == corpora.load(settings.corpus, "validation")
    facts = {"sha256": split.sha256(), "pairs": 80, "dropped": 0}
    assert data.facts["splits"]["train"] == facts


@pytest.mark.parametrize("file", ["train.en", "train.pt", "validation.en"])
def test_the_cache_notices_changed_text(settings, trained, file, tmp_path):
    before = pipeline.load(settings)
    path = tmp_path / "corpus" / file
    path.write_text(path.read_text("utf-8").replace(" 7 ", " 9 "), "utf-8")  # of equal length
    after = pipeline.load(settings)
    assert len(trained) == 2 and before.facts != after.facts


@pytest.mark.parametrize(
    "change", [{"vocab_size": 290}, {"lowercase": True}, {"shared_vocabulary": False},
               {"max_length": 20}, {"reverse": True}],
)  # fmt: skip
def test_the_cache_notices_changed_settings(settings, trained, change):
    before = pipeline.load(settings)
    other = dataclasses.replace(settings, **change)
    after = pipeline.load(other)
    count = len(trained)
    assert count > 1
    assert equal(before, pipeline.load(settings)) and equal(after, pipeline.load(other))
    assert len(trained) == count  # the two live side by side


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"epochs": 1}, {"d_model": 64}, {"batch_tokens": 99}, {"name": "x"}]
)
def test_the_cache_serves_runs_that_differ_elsewhere(settings, trained, change):
    first = pipeline.load(settings)
    assert equal(first, pipeline.load(dataclasses.replace(settings, **change)))
    assert len(trained) == 1


class Interrupted(BaseException):
    """Like KeyboardInterrupt: no `except Exception` catches it."""


@pytest.mark.parametrize("error", [ValueError, OSError, Interrupted])
def test_nothing_half_written_remains_after_a_failure(settings, tmp_path, monkeypatch, error):
    def fail(*arguments):
        raise error("in the middle")

    with monkeypatch.context() as broken:
        broken.setattr(pipeline, "encode", fail)  # the tokenizers are already written
        with pytest.raises((error, corpora.CorpusError)):
            pipeline.load(settings)
    assert list((tmp_path / "cache").iterdir()) == []
    assert len(pipeline.load(settings).train.source.lengths) == 80


def test_a_cache_killed_midway_is_not_read(settings, tmp_path, monkeypatch):
    """kill -9 runs no clean-up: what it leaves must not be taken for a cache."""
    monkeypatch.setattr(pipeline.shutil, "rmtree", lambda *a, **k: None)
    with monkeypatch.context() as broken:
        broken.setattr(pipeline, "encode", lambda *a: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            pipeline.load(settings)
    assert list((tmp_path / "cache").iterdir())  # half a cache, with a tokenizer in it
    assert len(pipeline.load(settings).train.source.lengths) == 80


def test_a_vocabulary_smaller_than_the_alphabet_is_an_error_that_can_be_shown(settings):
    with pytest.raises(corpora.CorpusError, match="vocab"):
        pipeline.load(dataclasses.replace(settings, vocab_size=264))


def test_a_corpus_without_short_pairs_says_so(settings, tmp_path):
    with pytest.raises(corpora.CorpusError, match="--max-length"):
        pipeline.load(dataclasses.replace(settings, max_length=1))
    assert list((tmp_path / "cache").iterdir()) == []


def labelled(path, rows):
    path.write_text("".join(f"{label}\t{text}\n" for label, text in rows), "utf-8")
    return Config(model="classifier", corpus=str(path), cache_dir=str(path.parent / "cache"),
                  vocab_size=300, max_length=4)  # fmt: skip


def test_a_labelled_text_is_cut_and_its_label_is_all_that_follows_bos(tmp_path):
    rows = [("ab"[i % 2], f"text number {i}") for i in range(500)]
    data = pipeline.load(labelled(tmp_path / "a.tsv", rows))
    assert data.train.source.lengths.max() == 4 + 1 and data.facts["splits"]["train"]["cut"] > 0
    assert len(data.train.source.lengths) == data.facts["splits"]["train"]["pairs"]
    labels = dict(zip((f"text number {i}" for i in range(500)), "ab" * 250, strict=True))
    split = corpora.load(str(tmp_path / "a.tsv"), "train", labelled=True)
    for text, target in zip(split.sources, id_rows(data.train.target), strict=True):
        assert target == [2, 4 + "ab".index(labels[text])]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_label_that_training_never_saw_is_refused_by_name(tmp_path, split):
    text = next(f"only {i}" for i in range(999) if share(f"only {i}") == split)
    rows = [("ab"[i % 2], f"text number {i}") for i in range(500)] + [("rare", text)]
    with pytest.raises(corpora.CorpusError, match=f"{split} split: .*'rare', only a, b"):
        pipeline.load(labelled(tmp_path / "a.tsv", rows))


def test_columns_the_wrong_way_round_are_noticed(tmp_path):
    rows = [(f"text number {i}", "ab"[i % 2] + str(i)) for i in range(500)]
    with pytest.raises(corpora.CorpusError, match="the label comes first"):
        pipeline.load(labelled(tmp_path / "a.tsv", rows))


def test_a_corpus_needs_a_validation_split(settings, tmp_path):
    for file in (tmp_path / "corpus").glob("validation.*"):
        file.unlink()
    with pytest.raises(corpora.CorpusError, match="validation"):
        pipeline.load(settings)
