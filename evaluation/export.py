"""Export a model for production, as a CTranslate2 model or a TensorFlow SavedModel."""

import argparse
import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import utils
from config import TASKS
from data.tokenizer import EOS, PAD, UNK, save_pair
from evaluation import command_line
from evaluation.search import Search
from training.records import check_path
from utils import UserError

if TYPE_CHECKING:
    from evaluation.predictor import Predictor


def export_ctranslate2(predictor: "Predictor", folder: Path) -> None:
    """Write a Transformer as a CTranslate2 model, with its tokenizer.

    A translator becomes a model for `ctranslate2.Translator`, which adds eos and bos itself. Its
    beam search divides by length^penalty, ours by ((5 + length) / 6)^penalty. A language model
    becomes one for `ctranslate2.Generator`. Its texts must begin with the "bos_token" of
    `config.json`, and it does not stop at `max_length` tokens. Raises UserError for other models,
    and if the model was edited so that CTranslate2 computes something else.
    """
    save_pair(folder, predictor.source_tokenizer, predictor.target_tokenizer)
    try:
        specification(predictor).save(str(folder))
        same = np.isclose(*log_probabilities(predictor, folder), rtol=1e-4)
    except (AttributeError, ValueError):  # a part is missing, or has another shape
        same = False
    if not same:
        raise UserError(
            "CTranslate2 only computes Transformers that have a decoder and have not been edited: "
            "export this model as a saved_model"
        )


def specification(predictor: "Predictor") -> Any:
    """Return a Transformer as the spec of a CTranslate2 model."""
    from ctranslate2 import specs

    from model.layers import EPSILON, TiedProjection

    model, translates = predictor.model, hasattr(predictor.model, "encoder")
    # CTranslate2 reads at most 1,024 tokens by default; our outputs can be longer. No margin of
    # their length is more than `max_length`.
    length = max(1025, 3 * predictor.max_length + 2)
    tokenizers = predictor.source_tokenizer, predictor.target_tokenizer
    source_tokens, target_tokens = (each.tokens(range(each.vocab_size)) for each in tokenizers)
    options = {"with_encoder_attention": translates}
    decoder = stack_spec(specs.TransformerDecoderSpec, model.decoder, length, **options)
    decoder.embeddings.weight = model.decoder.embedding.table.numpy()
    if isinstance(model.output, TiedProjection):
        decoder.projection.weight = decoder.embeddings.weight
    else:
        copy_dense(decoder.projection, model.output)
    if translates:
        encoder = stack_spec(specs.TransformerEncoderSpec, model.encoder, length)
        encoder.embeddings[0].weight = model.encoder.embedding.table.numpy()
        spec = specs.TransformerSpec(encoder, decoder)
        spec.register_source_vocabulary(source_tokens)
        spec.register_target_vocabulary(target_tokens)
        spec.config.add_source_eos = True
    else:
        spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(target_tokens)
        spec.config.bos_token = target_tokens[predictor.start]
    spec.config.layer_norm_epsilon = EPSILON
    spec.validate()
    spec.optimize()
    return spec


def stack_spec(kind: type, stack: Any, length: int, **options) -> Any:
    """Return the layers of a Stack as a spec, with the encodings of `length` positions.

    CTranslate2 joins projections that have the same input. options: those of the spec's class.
    """
    first, pre_norm = stack.layers[0].attention, hasattr(stack.final_norm, "scale")
    spec = kind(len(stack.layers), first.num_heads, pre_norm, head_dim=first.head_dim, **options)
    spec.position_encodings.encodings = stack.positions(0, length).numpy()
    place = "pre_norm" if pre_norm else "post_norm"
    if pre_norm:
        copy_norm(spec, stack.final_norm)
    for part, layer in zip(spec.layer, stack.layers, strict=True):
        own, cross, network = layer.attention, layer.cross_attention, layer.feed_forward
        copy_norm(part.self_attention, getattr(layer, f"attention_{place}"))
        copy_dense(part.self_attention.linear[0], own.query, own.key, own.value)
        copy_dense(part.self_attention.linear[1], own.output)
        if cross:
            copy_norm(part.attention, getattr(layer, f"cross_{place}"))
            copy_dense(part.attention.linear[0], cross.query)
            copy_dense(part.attention.linear[1], cross.key, cross.value)
            copy_dense(part.attention.linear[2], cross.output)
        copy_norm(part.ffn, getattr(layer, f"feed_forward_{place}"))
        copy_dense(part.ffn.linear_0, network.inner)
        copy_dense(part.ffn.linear_1, network.outer)
    return spec


def copy_norm(target: Any, norm: Any) -> None:
    """Copy the LayerNorm of a part."""
    target.layer_norm.gamma, target.layer_norm.beta = norm.scale.numpy(), norm.offset.numpy()


def copy_dense(target: Any, *layers: Any) -> None:
    """Copy Dense layers into one, whose kernel is (d_out, d_in)."""
    target.weight = np.concatenate([dense.kernel.numpy() for dense in layers], axis=1).T.copy()
    target.bias = np.concatenate([dense.bias.numpy() for dense in layers])


def log_probabilities(predictor: "Predictor", folder: Path) -> tuple[float, float]:
    """Return the log probability of random texts, of the model and of the exported one."""
    import ctranslate2

    from model.loss import loss_sums

    rng = np.random.default_rng(0)
    tokenizers = predictor.source_tokenizer, predictor.target_tokenizer
    source, target = (rng.integers(4, each.vocab_size, (8, 14), np.int32) for each in tokenizers)
    source[:, -1], target[:, 0], target[:, -1] = EOS, predictor.start, EOS
    sources = [predictor.source_tokenizer.tokens(row) for row in source[:, :-1]]
    targets = [predictor.target_tokenizer.tokens(row) for row in target]
    if hasattr(predictor.model, "encoder"):  # the exported model adds bos and eos itself
        targets = [row[1:-1] for row in targets]
        results = ctranslate2.Translator(str(folder)).score_batch(sources, targets)
    else:
        results, source = ctranslate2.Generator(str(folder)).score_batch(targets), source[:, :0]
    loss = loss_sums(*predictor.model.teacher_forced(source, target)[:2]).loss
    return -float(loss), sum(sum(each.log_probs) for each in results)


def export_saved_model(predictor: "Predictor", folder: Path) -> None:
    """Write a model as a SavedModel, with its tokenizer in `assets`.

    `tf.saved_model.load(folder)` needs no code of this project. Its `translate(source)`: source
    (batch, source_len), int32, ids with or without eos, 0 = padding → a dict of "ids" (batch,
    n_best, output_len), 0 = padding, and "scores" (batch, n_best). Sources are truncated to
    `max_length` tokens, as in translate.py.

    A language model has `generate(prompt, tokens)` instead: prompt (batch, prompt_len), int32, ids
    without padding or unknown ones; tokens: the maximum number of new tokens → the same dict, whose
    ids do not include the prompt. Both have at most `max_length` tokens in all. Of a prompt with
    `max_length` tokens or more, only the last `max_length` // 2 are read.

    The search is that of the predictor. Samples are drawn with its seed: equal calls return equal
    samples, but rows of a batch get different ones.
    """
    import tensorflow as tf

    from evaluation.generator import Generator
    from evaluation.predictor import decode_with
    from model import IDS

    module, max_length = tf.Module(), predictor.max_length
    module.model = predictor.model  # its variables are saved

    def decode(source, **options):
        ids, scores = decode_with(predictor.search, predictor.model, source, **options)
        return {"ids": ids, "scores": scores}

    @tf.function(input_signature=[IDS], autograph=False)
    def translate(source):
        read = (source != PAD) & (source != EOS)
        if not predictor.source_tokenizer.words:
            read &= source != UNK  # as in `encode_source`
        tokens = tf.ragged.boolean_mask(source, read)
        eos = tf.fill((tf.shape(source)[0], 1), EOS)
        source = tf.concat([tokens[:, :max_length], eos], axis=1).to_tensor()
        return decode(source, limit=predictor.output_limit(source))

    @tf.function(input_signature=[IDS, tf.TensorSpec([], tf.int32)], autograph=False)
    def generate(prompt, tokens):
        batch = tf.shape(prompt)[0]
        read = tf.concat([tf.fill((batch, 1), predictor.start), prompt], axis=1)
        length = tf.shape(read)[1]
        length = tf.where(length > max_length, max(1, max_length // 2), length)  # as in `ids`
        limit = tf.fill([batch], tf.minimum(tokens, max_length - length + 1))
        return decode(read[:, -length:-1], bos=read[:, -1], limit=limit)

    if isinstance(predictor, Generator):
        module.generate = function = generate
    else:
        module.translate = function = translate
    tf.saved_model.save(module, str(folder), signatures=function)
    save_pair(folder / "assets", predictor.source_tokenizer, predictor.target_tokenizer)


EXPORTS = {"ctranslate2": export_ctranslate2, "saved_model": export_saved_model}


def main(flags: argparse.Namespace) -> None:
    """Export the model. Raises UserError and OSError."""
    if flags.format == "ctranslate2" and flags.search != Search():
        raise UserError("CTranslate2 gets its search flags at each call: remove them")
    if flags.format == "ctranslate2" and not importlib.util.find_spec("ctranslate2"):
        raise UserError('ctranslate2 is not installed: run pip install -e ".[export]"')
    if flags.config.task == "language modeling" and flags.search.max_tokens:
        raise UserError(
            "a language model gets the number of tokens at each call: remove --max-tokens"
        )
    check_path(flags.folder)
    flags.folder.mkdir(parents=True)  # a new one; fails before TensorFlow loads
    try:
        predictor = command_line.load(flags)
        EXPORTS[flags.format](predictor, flags.folder)
    except BaseException:  # KeyboardInterrupt and SystemExit, too
        shutil.rmtree(flags.folder)
        raise
    print(f"{flags.folder}: see the section Export of docs/commands.md for how to use it")


if __name__ == "__main__":
    PARSER = command_line.make_parser(__doc__)
    PARSER.add_argument("format", choices=EXPORTS, metavar="FORMAT", help="%(choices)s")
    PARSER.add_argument("folder", type=Path, metavar="DIR", help="a new directory")
    utils.add_flags(PARSER, Search)
    command_line.run(main, command_line.parse(PARSER, TASKS.values()))
