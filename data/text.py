"""Normalization of texts: Unicode's form NFC, line breaks and other white space."""

import unicodedata


def to_nfc(text: str) -> str:
    """Compose letters and their accents: Unicode's normalization form C."""
    return unicodedata.normalize("NFC", text)


def to_line(text: str) -> str:
    """Return a text in NFC as one line. U+2028, for example, also ends a line."""
    return " ".join(to_nfc(text).splitlines())


def normalize_source(text: str) -> str:
    """Return a text in NFC without white space other than single spaces between words."""
    return " ".join(to_nfc(text).split())
