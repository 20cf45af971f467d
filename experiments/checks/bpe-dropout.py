"""Checks of bpe-dropout.patch."""

from types import SimpleNamespace

import numpy as np
import pytest

from config import Config
from data import mini, tokenizer
from data.batches import Pairs, Ragged, plan_batches
from data.splits import Split
from data.tokenizer import BOS, EOS
from training.run import Run

TEXTS = Split.of(mini.generate("train", 300))
SOURCE_TOKENIZER, TARGET_TOKENIZER = (tokenizer.train(side, 600) for side in TEXTS[:2])
SOURCES = [[*row, EOS] for row in SOURCE_TOKENIZER.encode(TEXTS.sources)]
TARGETS = [[BOS, *row, EOS] for row in TARGET_TOKENIZER.encode(TEXTS.targets)]
PAIRS = Pairs(Ragged.of(SOURCES), Ragged.of(TARGETS))


def batches(epoch, position=0, pairs=PAIRS, sentences=99):
    """Return (indices, source, target) of each batch of an epoch, from `position` on."""
    config = Config(batch_tokens=256, batch_sentences=sentences)
    plan = plan_batches(pairs, config.batch_tokens, sentences, config.seed, epoch)
    dataset = SimpleNamespace(
        train=pairs, source_tokenizer=SOURCE_TOKENIZER, target_tokenizer=TARGET_TOKENIZER
    )
    run = SimpleNamespace(config=config, dataset=dataset, epoch=epoch, position=position)
    run.step, run.last_step = len(plan) * epoch + position, 999
    run.progress = SimpleNamespace(begin_epoch=lambda *_: None)
    result = []
    for indices, (source, target) in zip(plan[position:], Run.batches(run), strict=True):
        result.append((indices, source, target))
        run.step += 1
    return result


def test_batches_have_the_planned_texts_with_bos_and_eos():
    for indices, source, target in batches(epoch=1):
        assert SOURCE_TOKENIZER.decode(source) == [TEXTS.sources[i] for i in indices]
        assert TARGET_TOKENIZER.decode(target) == [TEXTS.targets[i] for i in indices]
        assert np.all(target[:, 0] == BOS) and not np.any(source == BOS)
        for ids in (source, target):
            assert ids.dtype == np.int32 and np.all(np.sum(ids == EOS, axis=1) == 1)


def test_a_text_is_segmented_anew_in_every_batch_and_epoch_and_not_in_evaluation():
    copies = Pairs(Ragged.of(SOURCES[:1] * 20), Ragged.of(TARGETS[:1] * 20))
    rows = [batches(epoch, pairs=copies, sentences=1) for epoch in (0, 1)]
    for side in (1, 2):
        first, second = ([batch[side].tolist() for batch in epoch] for epoch in rows)
        assert len({*map(str, first)}) > 3
        assert np.mean([one == other for one, other in zip(first, second, strict=True)]) < 0.5
    assert [[*row, EOS] for row in SOURCE_TOKENIZER.encode(TEXTS.sources)] == SOURCES


def test_a_resumed_epoch_has_the_batches_of_an_uninterrupted_one():
    uninterrupted, resumed = batches(1)[3:], batches(1, position=3)
    for arrays, others in zip(uninterrupted, resumed, strict=True):
        assert all(map(np.array_equal, arrays, others))


def test_a_merge_is_left_out_with_probability_0_1():
    single = tokenizer.train(["a"] * 9, 264)  # the only merge is that of ▁ and a
    ids = np.int32(single.encode(["a"] * 4000))
    assert ids.shape == (4000, 1)
    tokens = np.count_nonzero(single.resegment(ids, seed=0), axis=1) - 1  # without eos
    assert np.mean(tokens == 2) == pytest.approx(0.1, abs=0.02)
