"""Looking inside a trained model: where it attends, what its embeddings hold, how training went."""

import tempfile
from pathlib import Path

import numpy as np

from data.tokenizer import BOS, EOS, PAD
from evaluation import metrics, page, pictures, plots
from model.optimizer import learning_rate
from training import records

# What the models call a kind of attention: its name, who looks, who is looked at.
KINDS = {
    "encoder": ("encoder self-attention", "source", "source"),
    "decoder": ("decoder self-attention", "said", "read"),
    "cross": ("cross-attention", "said", "source"),
}
# Words of a source, in the plot of BLEU by length.
SPANS = ((1, 5), (6, 10), (11, 15), (16, 20), (21, 30), (31, 40), (41, None))
SHOWN_POSITIONS = 128
SHOWN_STEPS = 5000  # of the learning rate


def attention(model, text, target=None):
    """The attention weights of a Translator on one text → {name: (weights, queries, keys)}, output.

    weights (num_layers, num_heads, query_len, key_len); queries and keys are pieces. A decoder's
    row bears the token that is said there, which is not read before the next one. target: what is
    said instead of the model's own output. Raises ValueError for an empty text.
    """
    source_tokenizer, target_tokenizer = model.tokenizers
    source = source_tokenizer.encode([text])[0][: model.max_length]
    if not source:
        raise ValueError("an empty text has nothing to attend to: give one with words")
    source = np.int32([[*source, EOS]])
    if target is None:
        said = model.decode(source, 0)[0].numpy()[0, 0]
        said = said[said != PAD].tolist()
    else:
        said = [*target_tokenizer.encode([target])[0], *target_tokenizer.ending]
    read = [BOS, *said[:-1]]
    pieces = {
        "source": source_tokenizer.tokens(source[0]),
        "read": target_tokenizer.tokens(read),
        "said": target_tokenizer.tokens(said),
    }
    found = {}
    for kind, weights in model.model.attention(source, np.int32([read])).items():
        name, queries, keys = KINDS[kind]
        found[name] = weights[0].numpy(), pieces[queries], pieces[keys]
    return found, target_tokenizer.decode([said])[0]


def draw_attention(model, text, folder):
    """Pictures of every kind of attention and a page to explore it → the files' paths."""
    folder.mkdir(exist_ok=True)
    found, output = attention(model, text)
    if not found:
        raise ValueError("this model has no attention to draw")
    title = f"{text} → {output}"
    for name, value in found.items():
        pictures.attention(folder / name.replace(" ", "-"), *value, f"{name}: {title}")
    page.write(folder / "attention.html", found, title)
    return sorted(path for path in folder.iterdir() if path.suffix in (".png", ".svg", ".html"))


def attention_image(model, split):
    """Where the model looks in one text of a Split and its target, as a PNG's bytes, or None.

    The text is always the same one, of about ten words; each layer is the mean of its heads. None:
    the model has no attention.
    """
    i = min(range(len(split.sources)), key=lambda i: abs(len(split.sources[i].split()) - 10))
    found, _ = attention(model, split.sources[i], split.targets[i])
    if not found:
        return None
    *_, (name, (weights, queries, keys)) = found.items()
    mean = weights.mean(axis=1)[np.newaxis]  # the layers side by side, where heads would be
    with tempfile.TemporaryDirectory() as folder:
        stem = Path(folder, "attention")
        pictures.attention(stem, mean, queries, keys, name, panel="layer {head}, mean of heads")
        return stem.with_suffix(".png").read_bytes()


def by_length(split, outputs):
    """BLEU of sentences by the number of words in their source: rows of `plots.by_length`.

    Fewer than one in a hundred say nothing: they join the sentences that are just shorter.
    """
    lengths = np.array([len(text.split()) for text in split.sources])
    inside = lambda low, high: (lengths >= low) & (lengths <= (high or np.inf))  # noqa: E731
    spans = []
    for low, high in SPANS:
        count = np.count_nonzero(inside(low, high))
        if spans and 0 < count < len(lengths) / 100:
            spans[-1] = (spans[-1][0], high)
        elif count:
            spans.append((low, high))
    rows = []
    for span in spans:
        found = np.flatnonzero(inside(*span))
        bleu = metrics.bleu([outputs[i] for i in found], [split.targets[i] for i in found])
        rows.append((*span, len(found), bleu))
    return rows


def finite(value):
    """Whether a value is a number that can be drawn."""
    return isinstance(value, int | float) and abs(value) < 1e308


def metrics_of(run):
    """The lines of a run's metrics.jsonl, as dicts. Raises ValueError where there are none yet."""
    path = run / "metrics.jsonl"
    lines = records.read_json_lines(path)
    if not lines:
        raise ValueError(f"{path} is still empty: wait for the first epoch")
    for number, line in enumerate(lines, 1):
        wrong = [name for name, value in line.items() if not finite(value)]
        if wrong or not 1 <= line.get("step", 0) < 2**31:
            raise ValueError(f"{path}:{number} is no line of metrics: look at {wrong or 'step'}")
    return lines


def draw(run, config, model, split, outputs, others):
    """Pictures of a run in its folder `plots` → their paths.

    split and outputs: what was scored. others: {run: outputs} of other runs' folders, drawn beside
    in the plots of training and of BLEU by length. Of labels there are no scores to draw.
    """
    folder = run / "plots"
    metrics = metrics_of(run)
    last = int(max(line["step"] for line in metrics))
    steps = [*np.linspace(1, last, min(last, SHOWN_STEPS)), min(config.warmup_steps, last)]
    steps = np.unique(np.round(steps))
    rates = learning_rate(steps, config.d_model, config.warmup_steps, config.learning_rate_scale)
    plots.schedule(folder / "learning-rate", steps, rates)
    names = [other.name for other in (run, *others)]
    name = lambda run: run.name if names.count(run.name) == 1 else str(run)  # noqa: E731
    beside = {name(other): metrics_of(other) for other in others}
    plots.training(folder / "training", metrics, beside)
    if config.positions != "none" and config.model != "recurrent":
        length = min(config.max_length + 1, SHOWN_POSITIONS)
        plots.positions(folder / "positions", model.model.encoder.positions(0, length))
    if not model.labelled:
        runs = {name(run): outputs} | {name(other): found for other, found in others.items()}
        rows = {shown: by_length(split, found) for shown, found in runs.items()}
        plots.by_length(folder / "bleu-by-length", rows)
        columns = metrics.sentence_scores(outputs, split.targets)
        plots.agreement(folder / "agreement", columns)
    return sorted(path for path in folder.iterdir() if path.suffix in (".png", ".svg"))


def neighbours(model, text, count=10):
    """The pieces of a text and those whose embeddings are nearest: [(piece, [(cosine, other)])]."""
    tokenizer = model.tokenizers[0]
    table = model.model.source_embedding.table.numpy()
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    found = []
    for i in tokenizer.encode([text])[0]:
        cosines = table @ table[i]
        cosines[: EOS + 1], cosines[i] = -np.inf, -np.inf  # neither special ones nor itself
        nearest = np.argsort(-cosines)[:count]
        others = zip(cosines[nearest].tolist(), tokenizer.tokens(nearest), strict=True)
        found.append((*tokenizer.tokens([i]), list(others)))
    return found
