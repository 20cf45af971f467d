"""Records on disk: written whole or not at all, and read as what anybody may have written.

Nothing of it runs, nothing outside its folder is touched, and what cannot be used is refused in a
sentence.
"""

import json
import os
import stat
from pathlib import Path


def check_folder(folder):
    """Raise ValueError where a folder holds anything but files and folders of its own, or what
    cannot be looked at.

    A link may lead to a file that is not the run's to overwrite, and from a pipe one reads for
    ever. The folder itself may be a link.
    """

    def refuse(error):
        if not isinstance(error, FileNotFoundError):  # a run that goes on has just renamed it
            raise ValueError(f"{error.filename}: {error.strerror}")

    for place, folders, files in os.walk(folder, onerror=refuse):
        for name in (*folders, *files):
            path = Path(place, name)
            try:
                kind = path.lstat().st_mode
            except OSError as error:
                refuse(error)
                continue
            if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
                what = "a link" if stat.S_ISLNK(kind) else "no file"
                raise ValueError(f"{path} is {what}: a run has files of its own alone; remove it")


def read_json(path):
    """The dict of a JSON file. Raises OSError, and ValueError in a sentence that names the file."""
    return parsed(Path(path).read_bytes(), path)


def read_json_lines(path):
    """The dicts of a file with one in each line; a last line without its end is still being
    written, and left out. Raises OSError, ValueError.
    """
    lines = Path(path).read_bytes().split(b"\n")[:-1]
    return [parsed(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def write_json(path, value):
    """Write a file whole or not at all. Raises OSError."""
    path = Path(path)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
    os.replace(unfinished, path)


def get(value, *keys):
    """What lies under keys in dicts within dicts, None where there is nothing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def parsed(text, where):
    """The dict of a JSON text. Raises ValueError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} does not hold a dict")
    return value
