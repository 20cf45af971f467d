"""List the tokens with the most similar source embeddings for each token of a text."""

import argparse
from typing import TYPE_CHECKING

import numpy as np

from data.tokenizer import EOS
from evaluation import command_line

if TYPE_CHECKING:
    from evaluation.translator import Translator


def neighbours(
    translator: "Translator", text: str, count: int = 10
) -> list[tuple[str, list[tuple[float, str]]]]:
    """Return each token of a text with its `count` nearest tokens and their cosine similarity."""
    tokenizer = translator.source_tokenizer
    table = translator.model.source_embedding.table.numpy()  # (vocab_size, d_model)
    table = table / np.linalg.norm(table, axis=1, keepdims=True)
    result = []
    for i in tokenizer.encode([text])[0]:
        cosines = table @ table[i]
        cosines[: EOS + 1] = cosines[i] = -np.inf  # special tokens and the token itself
        nearest = np.argsort(-cosines)[:count]
        others = zip(cosines[nearest].tolist(), tokenizer.tokens(nearest), strict=True)
        result.append((tokenizer.tokens([i])[0], list(others)))
    return result


def main(flags: argparse.Namespace) -> None:
    """Print the neighbours. Raises UserError and OSError."""
    for token, others in neighbours(command_line.load(flags), flags.text):
        print(token, *(f"  {cosine:.3f} {other}" for cosine, other in others), sep="\n")


if __name__ == "__main__":
    PARSER = command_line.make_parser(__doc__)
    PARSER.add_argument("text", type=command_line.valid_text, metavar="TEXT")
    command_line.run(main, command_line.parse(PARSER))
