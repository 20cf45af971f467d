"""A trained model for production: as a CTranslate2 model, or as a SavedModel. Each is a folder."""

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from data import tokenizer
from evaluation.translator import decode_with
from model import IDS
from model.layers import EPSILON, LayerNorm, TiedProjection
from model.loss import cross_entropy, teacher_forcing
from model.transformer import Transformer

EDITED = (
    "CTranslate2 does not compute what this model computes: was model/ edited? "
    "--export saved_model takes any model"
)


def ctranslate2(inference, folder):
    """Write an Translator as a model for `ctranslate2.Translator`, the tokenizer beside it.

    It takes the pieces of a source, and gives those of its translation; eos and bos are added by
    itself. Its beam search divides by length^penalty where ours divides by ((5 + length) /
    6)^penalty: with a penalty of 0 they are the same. A run with `--lowercase` or with `--tokenizer
    word` wants its texts as `data.tokenizer.prepared` makes them. Raises ValueError and
    FileExistsError.
    """
    try:
        import ctranslate2
    except ImportError:
        raise ValueError('this needs CTranslate2: pip install -e ".[export]"') from None
    if not isinstance(inference.model, Transformer):
        raise ValueError("CTranslate2 takes a Transformer alone; --export saved_model any model")
    try:
        spec = specification(ctranslate2.specs, inference)
    except AttributeError:  # a part that it has not any more
        raise ValueError(EDITED) from None
    with new_folder(folder) as made:
        spec.save(str(made))
        tokenizer.save_pair(made, *inference.tokenizers)
        check(ctranslate2.Translator(str(made), compute_type="float32"), inference)


def specification(specs, inference):
    """An Translator of a Transformer as CTranslate2's own TransformerSpec; specs: its module."""
    model = inference.model
    encoder, decoder = model.encoder, model.decoder
    heads = decoder.layers[0].self_attention
    pre_norm = isinstance(decoder.last_norm, LayerNorm)
    sizes = {"num_heads": heads.num_heads, "pre_norm": pre_norm, "head_dim": heads.key_dim}
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(len(encoder.layers), **sizes),
        specs.TransformerDecoderSpec(len(decoder.layers), **sizes),
    )
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = EPSILON
    pieces = [made.tokens(range(made.vocab_size)) for made in inference.tokenizers]
    spec.register_source_vocabulary(pieces[0])
    spec.register_target_vocabulary(pieces[1])
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = pieces[1][1:4]
    spec.config.decoder_start_token = spec.config.bos_token
    # It reads 1,024 pieces at the most, and so many it writes if nobody tells it less.
    length = max(1025, 2 * (inference.max_length + 1) + 20)

    def stack(to, ours):
        to.scale_embeddings = True
        to.position_encodings.encodings = ours.positions(0, length).numpy()
        if pre_norm:
            norm(to.layer_norm, ours.last_norm)

    stack(spec.encoder, encoder)
    stack(spec.decoder, decoder)
    spec.encoder.embeddings[0].weight = encoder.embedding.table.numpy()
    spec.decoder.embeddings.weight = decoder.embedding.table.numpy()
    if isinstance(model.output, TiedProjection):
        spec.decoder.projection.weight = decoder.embedding.table.numpy()
    else:
        linear(spec.decoder.projection, model.output)
    for to, ours in zip(spec.encoder.layer, encoder.layers, strict=True):
        attention(to.self_attention, ours.attention, ours.attention_residual)
        feed_forward(to.ffn, ours)
    for to, ours in zip(spec.decoder.layer, decoder.layers, strict=True):
        attention(to.self_attention, ours.self_attention, ours.self_residual)
        attention(to.attention, ours.cross_attention, ours.cross_residual)
        feed_forward(to.ffn, ours)
    spec.validate()
    spec.optimize()
    return spec


def check(translator, inference):
    """Raise ValueError where the exported model has other log probabilities than ours.

    Only weights are exported; what model/ does with them may have been edited.
    """
    draw = np.random.default_rng(0)
    ids = [draw.integers(4, made.vocab_size, (8, 12)) for made in inference.tokenizers]
    pieces = [
        [made.tokens(row) for row in rows]
        for made, rows in zip(inference.tokenizers, ids, strict=True)
    ]
    theirs = [sum(found.log_probs) for found in translator.score_batch(*pieces)]
    with_eos = [np.pad(x, [(0, 0), (0, 1)], constant_values=tokenizer.EOS) for x in ids]
    target = np.pad(with_eos[1], [(0, 0), (1, 0)], constant_values=tokenizer.BOS)
    source, target = (tf.constant(x, tf.int32) for x in (with_eos[0], target))
    losses = cross_entropy(*teacher_forcing(inference.model, source, target))
    ours = -tf.reduce_sum(tf.reshape(losses, (8, 13)), axis=1)
    if not np.allclose(ours, theirs, rtol=1e-4):
        raise ValueError(EDITED)


def linear(to, *ours):
    """Dense layers side by side, as one; there a kernel is (d_out, d_in)."""
    to.weight = np.concatenate([dense.kernel.numpy() for dense in ours], axis=1).T.copy()
    to.bias = np.concatenate([dense.bias.numpy() for dense in ours])


def norm(to, ours):
    """A LayerNorm."""
    to.gamma, to.beta = ours.scale.numpy(), ours.offset.numpy()


def attention(to, ours, residual):
    """A MultiHeadAttention: what is projected from the same place is one matrix there."""
    norm(to.layer_norm, residual.norm)
    projections = (ours.query, ours.key, ours.value)
    if len(to.linear) == 2:  # self-attention
        linear(to.linear[0], *projections)
    else:
        linear(to.linear[0], ours.query)
        linear(to.linear[1], *projections[1:])
    linear(to.linear[-1], ours.output)


def feed_forward(to, layer):
    """A layer's FeedForward."""
    norm(to.layer_norm, layer.feed_forward_residual.norm)
    linear(to.linear_0, layer.feed_forward.inner)
    linear(to.linear_1, layer.feed_forward.outer)


def saved_model(inference, folder):
    """Write an Translator as a SavedModel, the tokenizer in its `assets`.

    Served by `tf.saved_model.load(folder).translate(source)`, which needs none of this code: source
    (batch, source_len), int32, sentences that end in eos, 0 = padding → a dict of "ids" (batch,
    n_best, output_len) and "scores" (batch, n_best). The search is that of the Translator; samples
    are drawn from the seed alone. Texts: see `ctranslate2`. Raises FileExistsError.
    """

    def translate(source):
        outputs, scores = decode_with(
            inference.search, inference.model, source, one_token=inference.labelled
        )
        return {"ids": outputs, "scores": scores}

    module = tf.Module()
    module.model = inference.model  # its variables are saved
    module.translate = tf.function(translate, [IDS])
    with new_folder(folder) as made:
        tf.saved_model.save(module, str(made), signatures={"serving_default": module.translate})
        tokenizer.save_pair(made / "assets", *inference.tokenizers)


@contextlib.contextmanager
def new_folder(path):
    """A folder to write in, which comes to its place once it is whole; else nothing does.

    Raises FileExistsError where there is something already.
    """
    path = Path(path).resolve()
    if path.exists() and any(path.iterdir()):
        raise FileExistsError(f"{path} is not empty: name a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as scratch:
        made = Path(scratch, "made")
        made.mkdir()
        yield made
        if path.exists():
            path.rmdir()
        made.rename(path)
