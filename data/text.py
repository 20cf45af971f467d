"""Lines of files, and the normalization of texts: Unicode's form NFC, line breaks, white space."""

import gzip
import re
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path

from utils import UserError, first_line

# Characters without width, such as a soft hyphen or a mark of direction.
INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


class CorpusError(UserError):
    """A corpus cannot be used. The message names the place, the reason and the remedy."""


def read_lines(path: Path, longest: int = -1) -> Iterator[str]:
    """Read the lines of a UTF-8 file, compressed if its name ends in .gz. Raises CorpusError.

    Lines end in LF, CRLF or CR, which are read as a line feed, and nowhere else: U+2028, for
    example, does not end a line. A byte order mark is removed. longest: in characters; a longer
    line is divided.
    """
    number, form = 1, {"encoding": "utf-8-sig"}
    try:
        with gzip.open(path, "rt", **form) if path.suffix == ".gz" else path.open(**form) as file:
            while line := file.readline(longest):
                yield line
                number += line.endswith("\n")
    except UnicodeDecodeError as error:
        number += error.object[: error.start].count(b"\n")
        raise CorpusError(f"{path}:{number}: not UTF-8; convert the file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: cannot be read: {first_line(error)}") from error


def to_nfc(text: str) -> str:
    """Compose letters and their accents: Unicode's normalization form C."""
    return unicodedata.normalize("NFC", text)


def to_line(text: str) -> str:
    """Return a text in NFC as one line. U+2028, for example, also ends a line."""
    return " ".join(to_nfc(text).splitlines())


def normalize_source(text: str) -> str:
    """Return a text in NFC without white space other than single spaces between words."""
    return " ".join(to_nfc(text).split())


def without_markup(text: str) -> str:
    """Replace <br /> with line feeds, and remove those at the ends."""
    return re.sub(r"<br\s*/?>", "\n", text).strip("\n")


def visible_text(text: str) -> str:
    """Return what decides the split of a text: its normalized source, without what is invisible."""
    return normalize_source(INVISIBLE.sub("", text))
