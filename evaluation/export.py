"""Export a model for production, as a CTranslate2 model or a TensorFlow SavedModel."""

import argparse
import importlib.util
import shutil
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

import utils
from data import tokenizer
from evaluation import command_line
from evaluation.search import Search
from utils import UserError

if TYPE_CHECKING:
    import tensorflow as tf

    from evaluation.translator import Translator
    from model.attention import MultiHeadAttention
    from model.layers import Dense, LayerNorm

EDITED = (
    "CTranslate2 does not compute the same as this model, which has been edited: export it as a "
    "saved_model"
)


def export_ctranslate2(translator: "Translator", folder: Path) -> None:
    """Write a Transformer as a model for `ctranslate2.Translator`, with its tokenizer.

    The exported model maps source tokens to target tokens; it adds eos and bos itself. Its beam
    search divides by length^penalty, ours by ((5 + length) / 6)^penalty; without a penalty they are
    the same. With `--lowercase` or `--tokenizer word`, texts must first go through
    `data.tokenizer.preprocess`. Raises UserError if the model was edited so that CTranslate2
    computes something else.
    """
    import ctranslate2

    tokenizer.save_pair(folder, translator.source_tokenizer, translator.target_tokenizer)
    try:
        specification(ctranslate2.specs, translator).save(str(folder))
        exported = ctranslate2.Translator(str(folder), compute_type="float32")
        check_log_probabilities(exported, translator)
    except (AttributeError, ValueError) as error:  # a part is missing, or has another shape
        raise UserError(EDITED) from error


def specification(specs: ModuleType, translator: "Translator") -> Any:
    """Return a Transformer as a TransformerSpec. specs: the module ctranslate2.specs."""
    from model.layers import EPSILON, LayerNorm, TiedProjection

    model = translator.model
    encoder, decoder = model.encoder, model.decoder
    attention = decoder.layers[0].self_attention
    pre_norm = isinstance(decoder.final_norm, LayerNorm)
    sizes = {"num_heads": attention.num_heads, "pre_norm": pre_norm, "head_dim": attention.head_dim}
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(len(encoder.layers), **sizes),
        specs.TransformerDecoderSpec(len(decoder.layers), **sizes),
    )
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = EPSILON
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    source_tokens, target_tokens = (each.tokens(range(each.vocab_size)) for each in tokenizers)
    spec.register_source_vocabulary(source_tokens)
    spec.register_target_vocabulary(target_tokens)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = target_tokens[1:4]
    spec.config.decoder_start_token = spec.config.bos_token
    # CTranslate2 reads at most 1,024 tokens by default; our outputs can be longer.
    length = max(1025, 2 * (translator.max_length + 1) + 20)
    for target, stack in ((spec.encoder, encoder), (spec.decoder, decoder)):
        target.scale_embeddings = True
        target.position_encodings.encodings = stack.positions(0, length).numpy()
        if pre_norm:
            copy_norm(target.layer_norm, stack.final_norm)
    spec.encoder.embeddings[0].weight = encoder.embedding.table.numpy()
    spec.decoder.embeddings.weight = decoder.embedding.table.numpy()
    if isinstance(model.output, TiedProjection):
        spec.decoder.projection.weight = decoder.embedding.table.numpy()
    else:
        copy_dense(spec.decoder.projection, model.output)
    for target, layer in zip(spec.encoder.layer, encoder.layers, strict=True):
        copy_attention(target.self_attention, layer.attention, norm_of(layer, "attention"))
        copy_feed_forward(target.ffn, layer)
    for target, layer in zip(spec.decoder.layer, decoder.layers, strict=True):
        copy_attention(target.self_attention, layer.self_attention, norm_of(layer, "self"))
        copy_attention(target.attention, layer.cross_attention, norm_of(layer, "cross"))
        copy_feed_forward(target.ffn, layer)
    spec.validate()
    spec.optimize()
    return spec


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


def check_log_probabilities(exported: Any, translator: "Translator") -> None:
    """Raise UserError if the exported model gives random pairs other log probabilities.

    Only weights are exported; the equations of an edited model/ are not.
    """
    import tensorflow as tf

    from model.loss import teacher_forced_logits

    rng = np.random.default_rng(0)
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    ids = [rng.integers(4, each.vocab_size, (8, 12)) for each in tokenizers]
    tokens = [
        [each.tokens(row) for row in rows] for each, rows in zip(tokenizers, ids, strict=True)
    ]
    exported_log_probs = [sum(result.log_probs) for result in exported.score_batch(*tokens)]
    source, target = (
        np.pad(rows, [(0, 0), (0, 1)], constant_values=tokenizer.EOS).astype(np.int32)
        for rows in ids
    )
    target = np.pad(target, [(0, 0), (1, 0)], constant_values=tokenizer.BOS)
    logits, labels = teacher_forced_logits(translator.model, source, target)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (tokens,)
    log_probs = -tf.reduce_sum(tf.reshape(losses, (8, 13)), axis=1)
    if not np.allclose(log_probs, exported_log_probs, rtol=1e-4):
        raise UserError(EDITED)


def end_with_eos(source: "tf.Tensor", max_length: int) -> "tf.Tensor":
    """Truncate each row to `max_length` tokens and end it with exactly one eos.

    (batch, source_len) → (batch, at most max_length + 1), int32, padded with 0.
    """
    import tensorflow as tf

    tokens = tf.ragged.boolean_mask(source, (source != tokenizer.PAD) & (source != tokenizer.EOS))
    eos = tf.fill((tf.shape(source)[0], 1), tokenizer.EOS)
    return tf.concat([tokens[:, :max_length], eos], axis=1).to_tensor()


def export_saved_model(translator: "Translator", folder: Path) -> None:
    """Write a model as a SavedModel, with its tokenizer in `assets`.

    `tf.saved_model.load(folder).translate(source)` needs no code of this project: source (batch,
    source_len), int32, ids with or without eos, 0 = padding → a dict of "ids" (batch, n_best,
    output_len) and "scores" (batch, n_best). Sources are truncated to `max_length` tokens, as in
    translate.py. The search is that of the Translator; samples are drawn with its seed, so equal
    calls return equal samples. Texts: see `export_ctranslate2`.
    """
    import tensorflow as tf

    from evaluation.translator import decode_with
    from model import IDS

    module = tf.Module()
    module.model = translator.model  # its variables are saved

    @tf.function(input_signature=[IDS], autograph=False)
    def translate(source):
        source = end_with_eos(source, translator.max_length)
        ids, scores = decode_with(
            translator.search, translator.model, source, one_token=translator.labelled
        )
        return {"ids": ids, "scores": scores}

    module.translate = translate
    tf.saved_model.save(module, str(folder), signatures={"serving_default": translate})
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    tokenizer.save_pair(folder / "assets", *tokenizers)


EXPORTS = {"ctranslate2": export_ctranslate2, "saved_model": export_saved_model}


def main(flags: argparse.Namespace) -> None:
    """Export the model. Raises UserError and OSError."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # deletes what is unfinished
    if flags.format == "ctranslate2":
        if flags.search != Search():
            raise UserError("CTranslate2 gets its search flags at each call: remove them")
        if flags.config.model != "transformer":
            raise UserError("CTranslate2 has only Transformers: use saved_model")
        if not importlib.util.find_spec("ctranslate2"):
            raise UserError('CTranslate2 is not installed: pip install -e ".[export]"')
    if flags.folder.exists():
        raise UserError(f"{flags.folder} exists: name a new directory")
    flags.folder.parent.mkdir(parents=True, exist_ok=True)  # fails before TensorFlow loads
    translator = command_line.load(flags)
    flags.folder.mkdir()
    try:
        EXPORTS[flags.format](translator, flags.folder)
    except BaseException:  # SystemExit, too
        shutil.rmtree(flags.folder)
        raise
    print(f"{flags.folder}: see the section Export of docs/commands.md for how to use it")


if __name__ == "__main__":
    PARSER = command_line.make_parser(__doc__)
    PARSER.add_argument("format", choices=EXPORTS, metavar="FORMAT", help="%(choices)s")
    PARSER.add_argument("folder", type=Path, metavar="DIR", help="a new directory")
    utils.add_flags(PARSER, Search)
    command_line.run(main, command_line.parse(PARSER))
