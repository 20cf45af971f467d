"""A file from the network: whole and with the right hash, or not at all."""

import hashlib
import http.client
import os
import sys
import urllib.request
from pathlib import Path

from tqdm import tqdm

from config import first_line

TIMEOUT = 30  # seconds without an answer before a host counts as dead


def fetch(addresses, path: Path, size: int, sha256: str | None = None) -> None:
    """Writes to `path` what the first of the addresses gives that answers rightly.

    What is tried, and what fails, is said on standard error. size: bytes, for the progress bar.
    sha256: None where none is published. Raises OSError when no address gives the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for url in addresses:
        print(f"downloading {url}", file=sys.stderr)
        try:
            return _download(url, path, size, sha256)
        except (OSError, http.client.HTTPException) as error:
            print(f"failed: {first_line(error)}", file=sys.stderr)
    raise OSError(f"no address gave {path.name}")


def _download(url: str, path: Path, size: int, sha256: str | None) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, part.open("wb") as file:
            with tqdm(total=size, unit="B", unit_scale=True, disable=None) as progress:
                while block := answer.read(1 << 20):
                    file.write(block)
                    digest.update(block)
                    progress.update(len(block))
        if sha256 and digest.hexdigest() != sha256:
            raise OSError("filter_logits or altered: its sha256 is not the registered one")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
