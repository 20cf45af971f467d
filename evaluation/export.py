"""Export a model for production, as a CTranslate2 model or a TensorFlow SavedModel."""

import argparse
import importlib.util
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import utils
from config import TASKS
from data import tokenizer
from evaluation import command_line
from evaluation.search import Search
from training.records import check_path
from utils import UserError

if TYPE_CHECKING:
    import tensorflow as tf

    from evaluation.generator import Generator
    from evaluation.translator import Translator
    from model.attention import MultiHeadAttention
    from model.layers import Dense, LayerNorm
    from model.transformer import Stack


def export_ctranslate2(predictor: "Translator | Generator", folder: Path) -> None:
    """Write a Transformer as a CTranslate2 model, with its tokenizer.

    A translator becomes a model for `ctranslate2.Translator`, which adds eos and bos itself. Its
    beam search divides by length^penalty, ours by ((5 + length) / 6)^penalty. A language model
    becomes one for `ctranslate2.Generator`. Its texts must begin with the "bos_token" of
    `config.json`, and it does not stop at `max_length` tokens. Raises UserError if the model was
    edited so that CTranslate2 computes something else: only weights are exported.
    """
    import ctranslate2

    is_generator = hasattr(predictor, "start")
    tokenizers = predictor.source_tokenizer, predictor.target_tokenizer
    tokenizer.save_pair(folder, *tokenizers)
    kind = ctranslate2.Generator if is_generator else ctranslate2.Translator
    try:
        specification(ctranslate2.specs, predictor, is_generator).save(str(folder))
        exported = kind(str(folder), compute_type="float32", intra_threads=1)
        expected, computed = log_probabilities(exported, predictor, is_generator)
        same = np.allclose(expected, computed, rtol=1e-4)
    except (AttributeError, ValueError):  # a part is missing, or has another shape
        same = False
    if not same:
        raise UserError(
            "CTranslate2 does not compute the same as this model, which has been edited: export it "
            "as a saved_model"
        )


def specification(specs: Any, predictor: "Translator | Generator", is_generator: bool) -> Any:
    """Return a Transformer as the spec of a model. specs: the module ctranslate2.specs."""
    from model.layers import EPSILON, LayerNorm, TiedProjection

    model = predictor.model
    attention = model.decoder.layers[0].attention
    sizes = {
        "num_heads": attention.num_heads,
        "head_dim": attention.head_dim,
        "pre_norm": isinstance(model.decoder.final_norm, LayerNorm),
    }
    # CTranslate2 reads at most 1,024 tokens by default; our outputs can be longer.
    margin = 0 if is_generator else predictor.margin
    length = max(1025, 2 * (predictor.max_length + 1) + margin)
    decoder = specs.TransformerDecoderSpec(
        len(model.decoder.layers), with_encoder_attention=not is_generator, **sizes
    )
    copy_stack(decoder, decoder.embeddings, model.decoder, length)
    if isinstance(model.output, TiedProjection):
        decoder.projection.weight = decoder.embeddings.weight
    else:
        copy_dense(decoder.projection, model.output)
    tokenizers = predictor.source_tokenizer, predictor.target_tokenizer
    source_tokens, target_tokens = (each.tokens(range(each.vocab_size)) for each in tokenizers)
    start = target_tokens[predictor.start if is_generator else tokenizer.BOS]
    if is_generator:
        spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(target_tokens)
    else:
        encoder = specs.TransformerEncoderSpec(len(model.encoder.layers), **sizes)
        copy_stack(encoder, encoder.embeddings[0], model.encoder, length)
        spec = specs.TransformerSpec(encoder, decoder)
        spec.register_source_vocabulary(source_tokens)
        spec.register_target_vocabulary(target_tokens)
        spec.config.add_source_eos, spec.config.decoder_start_token = True, start
    spec.config.layer_norm_epsilon = EPSILON
    spec.config.unk_token, spec.config.bos_token = target_tokens[tokenizer.UNK], start
    spec.config.eos_token = target_tokens[tokenizer.EOS]
    spec.validate()
    spec.optimize()
    return spec


def copy_stack(target: Any, embedding: Any, stack: "Stack", length: int) -> None:
    """Copy a Stack, with the encodings of `length` positions.

    embedding: the part of the spec that holds the table of the embedding.
    """
    target.scale_embeddings = True
    target.position_encodings.encodings = stack.positions(0, length).numpy()
    embedding.weight = stack.embedding.table.numpy()
    if target.pre_norm:
        copy_norm(target.layer_norm, stack.final_norm)
    for of_target, layer in zip(target.layer, stack.layers, strict=True):
        copy_attention(of_target.self_attention, layer.attention, norm_of(layer, "attention"))
        if hasattr(of_target, "attention"):
            copy_attention(of_target.attention, layer.cross_attention, norm_of(layer, "cross"))
        copy_norm(of_target.ffn.layer_norm, norm_of(layer, "feed_forward"))
        copy_dense(of_target.ffn.linear_0, layer.feed_forward.inner)
        copy_dense(of_target.ffn.linear_1, layer.feed_forward.outer)


def norm_of(layer: Any, sublayer: str) -> "LayerNorm":
    """Return the layer norm before or after a sublayer, whichever there is."""
    pre, post = (getattr(layer, f"{sublayer}_{place}_norm") for place in ("pre", "post"))
    return pre if hasattr(pre, "scale") else post


def copy_norm(target: Any, norm: "LayerNorm") -> None:
    """Copy a LayerNorm into a CTranslate2 spec."""
    target.gamma, target.beta = norm.scale.numpy(), norm.offset.numpy()


def copy_dense(target: Any, *layers: "Dense") -> None:
    """Copy Dense layers into one CTranslate2 spec, whose kernel is (d_out, d_in)."""
    target.weight = np.concatenate([dense.kernel.numpy() for dense in layers], axis=1).T.copy()
    target.bias = np.concatenate([dense.bias.numpy() for dense in layers])


def copy_attention(target: Any, attention: "MultiHeadAttention", norm: "LayerNorm") -> None:
    """Copy a MultiHeadAttention. CTranslate2 joins projections that have the same input."""
    copy_norm(target.layer_norm, norm)
    inputs = [attention.query, attention.key, attention.value]
    split = 3 if len(target.linear) == 2 else 1  # self-attention has one input
    copy_dense(target.linear[0], *inputs[:split])
    if split == 1:
        copy_dense(target.linear[1], *inputs[1:])
    copy_dense(target.linear[-1], attention.output)


def log_probabilities(
    exported: Any, predictor: "Translator | Generator", is_generator: bool
) -> tuple[np.ndarray, list[float]]:
    """Return the log probabilities of random texts, of the model and of the exported one."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    tokenizers = predictor.source_tokenizer, predictor.target_tokenizer
    source, target = (rng.integers(4, each.vocab_size, (8, 14), np.int32) for each in tokenizers)
    source[:, -1] = target[:, -1] = tokenizer.EOS
    if is_generator:
        source, target[:, 0] = source[:, :0], predictor.start
        results = exported.score_batch([tokenizers[1].tokens(row) for row in target])
    else:  # the exported model adds bos and eos itself
        target[:, 0] = tokenizer.BOS
        results = exported.score_batch(
            [tokenizers[0].tokens(row[:-1]) for row in source],
            [tokenizers[1].tokens(row[1:-1]) for row in target],
        )
    logits, labels, _ = predictor.model.teacher_forced(source, target)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (tokens,)
    return -losses.numpy().reshape(8, 13).sum(axis=1), [sum(each.log_probs) for each in results]


def end_with_eos(source: "tf.Tensor", max_length: int) -> "tf.Tensor":
    """Truncate each row to `max_length` tokens and end it with exactly one eos.

    (batch, source_len) → (batch, at most max_length + 1), int32, padded with 0.
    """
    import tensorflow as tf

    tokens = tf.ragged.boolean_mask(source, (source != tokenizer.PAD) & (source != tokenizer.EOS))
    eos = tf.fill((tf.shape(source)[0], 1), tokenizer.EOS)
    return tf.concat([tokens[:, :max_length], eos], axis=1).to_tensor()


def export_saved_model(predictor: "Translator | Generator", folder: Path) -> None:
    """Write a model as a SavedModel, with its tokenizer in `assets`.

    `tf.saved_model.load(folder)` needs no code of this project. Its `translate(source)`: source
    (batch, source_len), int32, ids with or without eos, 0 = padding → a dict of "ids" (batch,
    n_best, output_len), 0 = padding, and "scores" (batch, n_best). Sources are truncated to
    `max_length` tokens, as in translate.py.

    A language model has `generate(prompt, tokens)` instead: prompt (batch, prompt_len), int32, ids
    without padding; tokens: the maximum number of new tokens → the same dict, whose ids do not
    include the prompt. Both have at most `max_length` tokens in all. Of a prompt with `max_length`
    tokens or more, only the last `max_length` // 2 are read.

    The search is that of the predictor. Samples are drawn with its seed: equal calls return equal
    samples, but rows of a batch get different ones.
    """
    import tensorflow as tf

    from evaluation.predictor import decode_with
    from model import IDS

    module, max_length = tf.Module(), predictor.max_length
    module.model = predictor.model  # its variables are saved

    def decode(source, **options):
        ids, scores = decode_with(predictor.search, predictor.model, source, **options)
        return {"ids": ids, "scores": scores}

    @tf.function(input_signature=[IDS], autograph=False)
    def translate(source):
        source = end_with_eos(source, max_length)
        return decode(source, limit=predictor.output_limit(source))

    @tf.function(input_signature=[IDS, tf.TensorSpec([], tf.int32)], autograph=False)
    def generate(prompt, tokens):
        batch = tf.shape(prompt)[0]
        read = tf.concat([tf.fill((batch, 1), predictor.start), prompt], axis=1)
        length = tf.shape(read)[1]
        length = tf.where(length > max_length, max(1, max_length // 2), length)  # as in `ids`
        limit = tf.fill([batch], tf.minimum(tokens, max_length - length + 1))
        return decode(read[:, -length:-1], bos=read[:, -1], limit=limit)

    if hasattr(predictor, "start"):
        module.generate = function = generate
    else:
        module.translate = function = translate
    tf.saved_model.save(module, str(folder), signatures={"serving_default": function})
    tokenizers = predictor.source_tokenizer, predictor.target_tokenizer
    tokenizer.save_pair(folder / "assets", *tokenizers)


EXPORTS = {"ctranslate2": export_ctranslate2, "saved_model": export_saved_model}


def main(flags: argparse.Namespace) -> None:
    """Export the model. Raises UserError and OSError."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # deletes what is unfinished
    if flags.format == "ctranslate2":
        if flags.search != Search():
            raise UserError("CTranslate2 gets its search flags at each call: remove them")
        if flags.config.model not in ("transformer", "language_model"):
            raise UserError(
                f"CTranslate2 has no equivalent of --model {flags.config.model}: use saved_model"
            )
        if not importlib.util.find_spec("ctranslate2"):
            raise UserError('CTranslate2 is not installed: pip install -e ".[export]"')
    check_path(flags.folder)
    if flags.folder.exists():
        raise UserError(f"{flags.folder} exists: name a new directory")
    flags.folder.parent.mkdir(parents=True, exist_ok=True)  # fails before TensorFlow loads
    predictor = command_line.load(flags)
    flags.folder.mkdir()
    try:
        EXPORTS[flags.format](predictor, flags.folder)
    except BaseException:  # SystemExit, too
        shutil.rmtree(flags.folder)
        raise
    print(f"{flags.folder}: see the section Export of docs/commands.md for how to use it")


if __name__ == "__main__":
    PARSER = command_line.make_parser(__doc__)
    PARSER.add_argument("format", choices=EXPORTS, metavar="FORMAT", help="%(choices)s")
    PARSER.add_argument("folder", type=Path, metavar="DIR", help="a new directory")
    utils.add_flags(PARSER, Search)
    command_line.run(main, command_line.parse(PARSER, TASKS.values()))
