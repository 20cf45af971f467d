"""Export a model for production, as a CTranslate2 model or a TensorFlow SavedModel."""

import argparse
import importlib.util
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
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

EDITED = (
    "CTranslate2 does not compute the same as this model, which has been edited: export it as a "
    "saved_model"
)


def export_ctranslate2(predictor: "Translator | Generator", folder: Path) -> None:
    """Write a Transformer as a CTranslate2 model, with its tokenizer.

    A translator becomes a model for `ctranslate2.Translator`. It maps source tokens to target
    tokens, and adds eos and bos itself. The beam search of CTranslate2 divides by length^penalty,
    ours by ((5 + length) / 6)^penalty; without a penalty they are the same. Texts must first go
    through `data.text.normalize_source`, and with `--lowercase` be in lower case.

    A language model becomes a model for `ctranslate2.Generator`. Every text must begin with the
    "bos_token" of `config.json`, which the exported model does not add. It does not stop at
    `max_length` tokens, although it was trained on no longer texts.

    Raises UserError if the model was edited so that CTranslate2 computes something else.
    """
    import ctranslate2

    from evaluation.generator import Generator

    tokenizer.save_pair(folder, predictor.source_tokenizer, predictor.target_tokenizer)
    kind = ctranslate2.Generator if isinstance(predictor, Generator) else ctranslate2.Translator
    try:
        specification(ctranslate2.specs, predictor).save(str(folder))
        exported = kind(str(folder), compute_type="float32")
        check_log_probabilities(exported, predictor)
    except (AttributeError, ValueError) as error:  # a part is missing, or has another shape
        raise UserError(EDITED) from error


def specification(specs: ModuleType, predictor: "Translator | Generator") -> Any:
    """Return a Transformer as the spec of a model. specs: the module ctranslate2.specs."""
    from evaluation.generator import Generator
    from model.layers import EPSILON, LayerNorm, TiedProjection

    model, is_generator = predictor.model, isinstance(predictor, Generator)
    start = predictor.start if is_generator else tokenizer.BOS
    attention = model.decoder.layers[0].attention
    sizes = {
        "num_heads": attention.num_heads,
        "head_dim": attention.head_dim,
        "pre_norm": isinstance(model.decoder.final_norm, LayerNorm),
    }
    # CTranslate2 reads at most 1,024 tokens by default; our outputs can be longer.
    margin = getattr(predictor, "margin", 0)  # a text generator has none
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
    if is_generator:
        spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(target_tokens)
    else:
        encoder = specs.TransformerEncoderSpec(len(model.encoder.layers), **sizes)
        copy_stack(encoder, encoder.embeddings[0], model.encoder, length)
        spec = specs.TransformerSpec(encoder, decoder)
        spec.register_source_vocabulary(source_tokens)
        spec.register_target_vocabulary(target_tokens)
        spec.config.add_source_eos = True
        spec.config.decoder_start_token = target_tokens[start]
    spec.config.layer_norm_epsilon = EPSILON
    spec.config.unk_token = target_tokens[tokenizer.UNK]
    spec.config.bos_token = target_tokens[start]
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
        copy_feed_forward(of_target.ffn, layer)


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
    if len(target.linear) == 2:  # self-attention
        copy_dense(target.linear[0], attention.query, attention.key, attention.value)
    else:
        copy_dense(target.linear[0], attention.query)
        copy_dense(target.linear[1], attention.key, attention.value)
    copy_dense(target.linear[-1], attention.output)


def copy_feed_forward(target: Any, layer: Any) -> None:
    """Copy the FeedForward of a layer."""
    copy_norm(target.layer_norm, norm_of(layer, "feed_forward"))
    copy_dense(target.linear_0, layer.feed_forward.inner)
    copy_dense(target.linear_1, layer.feed_forward.outer)


def check_log_probabilities(exported: Any, predictor: "Translator | Generator") -> None:
    """Raise UserError if the exported model gives random texts other log probabilities.

    Only weights are exported; the equations of an edited model/ are not.
    """
    import tensorflow as tf

    from evaluation.generator import Generator

    rng = np.random.default_rng(0)
    tokenizers = predictor.source_tokenizer, predictor.target_tokenizer
    source, target = (rng.integers(4, each.vocab_size, (8, 14), np.int32) for each in tokenizers)
    source[:, -1] = target[:, -1] = tokenizer.EOS
    if isinstance(predictor, Generator):
        source = source[:, :0]
        target[:, 0] = predictor.start
        results = exported.score_batch([tokenizers[1].tokens(row) for row in target])
    else:  # the exported model adds bos and eos itself
        target[:, 0] = tokenizer.BOS
        results = exported.score_batch(
            [tokenizers[0].tokens(row[:-1]) for row in source],
            [tokenizers[1].tokens(row[1:-1]) for row in target],
        )
    logits, labels, _ = predictor.model.teacher_forced(source, target)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (tokens,)
    log_probs = -tf.reduce_sum(tf.reshape(losses, (8, 13)), axis=1)
    if not np.allclose(log_probs, [sum(each.log_probs) for each in results], rtol=1e-4):
        raise UserError(EDITED)


def end_with_eos(source: "tf.Tensor", max_length: int) -> "tf.Tensor":
    """Truncate each row to `max_length` tokens and end it with exactly one eos.

    (batch, source_len) → (batch, at most max_length + 1), int32, padded with 0.
    """
    import tensorflow as tf

    tokens = tf.ragged.boolean_mask(source, (source != tokenizer.PAD) & (source != tokenizer.EOS))
    eos = tf.fill((tf.shape(source)[0], 1), tokenizer.EOS)
    return tf.concat([tokens[:, :max_length], eos], axis=1).to_tensor()


def translate_function(translator: "Translator") -> Callable:
    """Return the `translate` of a SavedModel as a tf.function."""
    import tensorflow as tf

    from evaluation.predictor import decode_with
    from model import IDS

    @tf.function(input_signature=[IDS], autograph=False)
    def translate(source):
        source = end_with_eos(source, translator.max_length)
        limit = translator.output_limit(source)
        ids, scores = decode_with(translator.search, translator.model, source, limit=limit)
        return {"ids": ids, "scores": scores}

    return translate


def generate_function(generator: "Generator") -> Callable:
    """Return the `generate` of a SavedModel as a tf.function."""
    import tensorflow as tf

    from evaluation.predictor import decode_with
    from model import IDS

    @tf.function(input_signature=[IDS, tf.TensorSpec([], tf.int32)], autograph=False)
    def generate(prompt, tokens):
        batch, max_length = tf.shape(prompt)[0], generator.max_length
        read = tf.concat([tf.fill((batch, 1), generator.start), prompt], axis=1)
        length = tf.shape(read)[1]
        if_long = max(1, max_length // 2)  # as in `Generator.latest`
        length = tf.where(length > max_length, if_long, length)
        source, last = read[:, -length:-1], read[:, -1]  # (batch, length − 1), (batch,)
        limit = tf.fill([batch], tf.minimum(tokens, max_length - length + 1))
        ids, scores = decode_with(generator.search, generator.model, source, bos=last, limit=limit)
        return {"ids": ids, "scores": scores}

    return generate


def export_saved_model(predictor: "Translator | Generator", folder: Path) -> None:
    """Write a model as a SavedModel, with its tokenizer in `assets`.

    `tf.saved_model.load(folder)` needs no code of this project. Its `translate(source)`: source
    (batch, source_len), int32, ids with or without eos, 0 = padding → a dict of "ids" (batch,
    n_best, output_len), 0 = padding, and "scores" (batch, n_best). Sources are truncated to
    `max_length` tokens, as in translate.py.

    A language model has `generate(prompt, tokens)` instead, which continues a text: prompt (batch,
    prompt_len), int32, ids without padding; prompt_len may be 0. tokens: the maximum number of new
    tokens, at least 1 → the same dict, whose ids do not include the prompt. The prompt and its
    continuation have at most `max_length` tokens in all. Of a prompt with `max_length` tokens or
    more, only the last `max_length` // 2 are read.

    The search is that of the predictor. Samples are drawn with its seed: equal calls return equal
    samples, but rows of a batch get different ones. Texts: see `export_ctranslate2`.
    """
    import tensorflow as tf

    from evaluation.generator import Generator

    module = tf.Module()
    module.model = predictor.model  # its variables are saved
    if isinstance(predictor, Generator):
        module.generate = function = generate_function(predictor)
    else:
        module.translate = function = translate_function(predictor)
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
