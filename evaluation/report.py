"""What a measurement leaves behind: a table on the screen, a line a sentence in a file."""

import time

from data import encoded
from evaluation import scores


def measure(model, split):
    """Scores of an Inference on a Split → a dict for the table and the file, the translations."""
    model.translate(split.sources[:1])  # traces the graph
    began = time.perf_counter()
    translations = model.translate(split.sources, progress=True)
    seconds = time.perf_counter() - began
    pieces = sum(map(len, model.tokenizers[1].encode(translations)))
    pairs, dropped = encoded.encode(split, *model.tokenizers, model.max_length)
    result = scores.score(translations, split.targets)
    signatures = result.pop("signatures")
    if len(pairs.source.lengths):
        result["loss"], result["accuracy"] = model.loss_and_accuracy(pairs)
    result |= {
        "sentences_per_second": len(translations) / seconds,
        "tokens_per_second": pieces / seconds,
        "sentences": len(translations),
        "sentences_too_long_for_loss": dropped,
        "search": str(model.search),
        "signatures": signatures,
    }
    if split.tags:
        result["exact_match_by_tag"] = scores.by_tag(translations, split.targets, split.tags)
    return result, translations


def print_table(result):
    """Every number with its name; then exact match by phenomenon, where the corpus has tags."""
    for name, value in result.items():
        if isinstance(value, float):
            signature = result["signatures"].get(name, "")
            print(f"{name:22}{value:10.4g}  {signature}".rstrip())
    for tag, (count, exact) in result.get("exact_match_by_tag", {}).items():
        print(f"  {tag:20}{exact:10.4g}  exact match of {count} sentences")


def write_sentences(path, split, translations):
    """A tab-separated line for each sentence, under a line of names."""
    columns = {"source": split.sources, "reference": split.targets, "translation": translations}
    if split.tags:
        columns["tag"] = split.tags
    for name, values in scores.sentence_scores(translations, split.targets).items():
        columns[name] = [f"{value:.2f}" for value in values]
    rows = [columns, *zip(*columns.values(), strict=True)]
    lines = ("\t".join(cell.replace("\t", " ") for cell in row) for row in rows)
    path.write_text("\n".join(lines) + "\n", "utf-8")
