"""Download a file, from the first host that has it. A given hash is verified."""

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from utils import first_line, print_line, progress_bar

TIMEOUT = 30  # seconds without a response


def fetch(urls: Sequence[str], path: Path, size: int, sha256: str | None = None) -> None:
    """Download a file from the first URL that works, and report on standard error.

    size: in bytes, for the progress bar. Raises OSError if no URL works.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for url in urls:
        print_line(f"downloading {url}")
        try:
            return download(url, path, size, sha256)
        except (OSError, http.client.HTTPException) as error:
            print_line(f"failed: {first_line(error)}")
    raise OSError(f"{path.name} could not be downloaded")


def download(url: str, path: Path, size: int, sha256: str | None) -> None:
    """Download a file from one URL. Raises OSError and HTTPException."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response, part.open("wb") as file:
            with progress_bar(total=size, unit="B", unit_scale=True) as progress:
                while block := response.read(1 << 20):
                    file.write(block)
                    digest.update(block)
                    progress.update(len(block))
        if sha256 and digest.hexdigest() != sha256:
            raise OSError("the file is truncated or altered: its sha256 differs")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
