"""What a measurement leaves behind: a table on the screen, a line a sentence in a file."""

import time

from data import pipeline
from evaluation import metrics


def validation(model, data):
    """How an Translator does on an Dataset's validation split → a dict, and three samples.

    A sample is (source, reference, output). BLEU of translations alone: accuracy is all of labels.
    """
    loss, accuracy = model.loss_and_accuracy(data.validation)
    values = {"validation_loss": loss, "validation_accuracy": accuracy}
    sources, references, _ = data.validation_texts
    shown = [0, len(sources) // 2, len(sources) - 1]
    if model.labelled:
        outputs = model.translate([sources[i] for i in shown])
    else:
        everything = model.translate(sources, progress=True)
        values["validation_bleu"] = metrics.bleu(everything, references)
        outputs = [everything[i] for i in shown]
    return values, [
        (sources[i], references[i], output) for i, output in zip(shown, outputs, strict=True)
    ]


def measure(model, split):
    """Scores of an Translator on a Split → a dict for the table and the file, the translations."""
    model.translate(split.sources[:1])  # traces the graph
    began = time.perf_counter()
    translations = model.translate(split.sources, progress=True)
    seconds = time.perf_counter() - began
    pieces = sum(map(len, model.tokenizers[1].encode(translations)))
    pairs, dropped = pipeline.encode(split, *model.tokenizers, model.max_length)
    result = metrics.score(translations, split.targets)
    signatures = result.pop("signatures")
    if len(pairs.source.lengths):
        result["loss"], result["accuracy"] = model.loss_and_accuracy(pairs)
    result |= {
        "sentences_per_second": len(translations) / seconds,
        "tokens_per_second": pieces / seconds,
        "sentences": len(translations),
        "parameters": model.parameters,
        "sentences_too_long_for_loss": dropped,
        "search": str(model.search),
        "signatures": signatures,
    }
    if split.tags:
        result["exact_match_by_tag"] = metrics.by_tag(translations, split.targets, split.tags)
    return result, translations


def print_numbers(result, signatures=None):
    """Every number with its name, and by which rules it was counted, where it has a signature."""
    for name, value in result.items():
        if isinstance(value, (int, float)):
            shown = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
            print(f"{name:28}{shown:>10}  {(signatures or {}).get(name, '')}".rstrip())


def print_table(result):
    """Every number, and exact match by phenomenon, where the corpus has tags."""
    print_numbers(result, result["signatures"])
    for tag, (count, exact) in result.get("exact_match_by_tag", {}).items():
        print(f"  {tag:26}{exact:10.4g}  exact match of {count} sentences")


def write(folder, ending, split, translations):
    """Write the translations, a line each → the names of the files."""
    name = f"translations-{ending}.txt"
    text = "".join(translation + "\n" for translation in translations)
    (folder / name).write_text(text, "utf-8")
    return [name]


def write_table(path, columns):
    """A tab-separated line for each text, under a line of names: {name: a text for each}."""
    rows = [columns, *zip(*columns.values(), strict=True)]
    lines = ("\t".join(cell.replace("\t", " ") for cell in row) for row in rows)
    path.write_text("\n".join(lines) + "\n", "utf-8")


def write_sentences(path, split, translations):
    """A tab-separated line for each sentence, under a line of names."""
    columns = {"source": split.sources, "reference": split.targets, "translation": translations}
    if split.tags:
        columns["tag"] = split.tags
    for name, values in metrics.sentence_scores(translations, split.targets).items():
        columns[name] = [f"{value:.2f}" for value in values]
    write_table(path, columns)
