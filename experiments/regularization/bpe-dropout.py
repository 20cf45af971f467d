"""Checks of bpe-dropout.patch."""

import collections
import random
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from config import Config
from data import mini, tokenizer
from data.arrays import Pairs, Ragged
from data.batches import plan_batches
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
    run.bar, run.restart_clocks = MagicMock(), MagicMock()
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


class Constant(random.Random):
    """Draws that are all equal: 0.0 leaves out every merge, 1.0 none."""

    def __init__(self, value):
        self.random = lambda: value


def test_without_dropout_tokens_are_those_of_sentencepiece_and_without_merges_characters():
    for rows, tokenizer_of_side in ((SOURCES, SOURCE_TOKENIZER), (TARGETS, TARGET_TOKENIZER)):
        ids = Ragged.of(rows).padded(np.arange(len(rows)))
        np.testing.assert_array_equal(tokenizer_of_side.resegment(ids, Constant(1.0)), ids)
        characters = tokenizer_of_side.resegment(ids[:1], Constant(0.0))[0]
        tokens = tokenizer_of_side.tokens(characters[characters > EOS])
        assert {*map(len, tokens)} == {1} and "".join(tokens).count("▁") > 3


def test_before_each_merge_a_possible_one_is_left_out_with_probability_0_1():
    pair = tokenizer.train(["ab"] * 9, 270)
    assert pair.tokens(range(260, 263)) == ["ab", "▁ab", "▁a"]  # in the order of merging
    words = [" ".join(pair.merge("▁ab", random.Random(seed))) for seed in range(9000)]
    shares = {tokens: count / 9000 for tokens, count in collections.Counter(words).items()}
    both, first = 0.9 * 0.9 + 0.1 * 0.9 * 0.9, 0.9 * 0.1
    expected = {"▁ab": both, "▁ ab": first, "▁a b": 0.1 * first, "▁ a b": 0.1 * 0.1}
    assert shares == pytest.approx(expected, abs=0.01)


def test_text_with_a_character_that_is_no_token_is_encoded_as_bytes():
    ids = np.int32([[*SOURCE_TOKENIZER.encode(["o 猫 viu"])[0], EOS]])
    np.testing.assert_array_equal(SOURCE_TOKENIZER.resegment(ids, random.Random(0)), ids)


def test_segmentations_do_not_depend_on_the_process(tmp_path):
    """Those of SentencePiece do: its generator is salted."""
    path = tmp_path / "tokenizer.model"
    path.write_bytes(SOURCE_TOKENIZER.model)
    ids = PAIRS.source.padded(np.arange(20))
    program = f"""
from random import Random
import numpy as np
from data.tokenizer import Tokenizer
tokenizer = Tokenizer(open({str(path)!r}, "rb").read())
print(tokenizer.resegment(np.int32({ids.tolist()}), Random("0/1")).tolist())
"""
    outputs = {subprocess.check_output([sys.executable, "-c", program]) for _ in range(2)}
    assert outputs == {
        f"{SOURCE_TOKENIZER.resegment(ids, random.Random('0/1')).tolist()}\n".encode()
    }
