"""Test sets that sacreBLEU downloads, such as wmt14/full."""

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from data.remote import TIMEOUT
from data.splits import Corpus, CorpusError, Row
from data.text import read_lines
from utils import first_line, warn


def testset(name: str, languages: Sequence[str]) -> Corpus:
    """Open a test set of sacreBLEU. Its only split is `test`; of several references, the first.

    languages: source and target. The files are in the directory in the environment variable
    SACREBLEU, by default ~/.sacrebleu. Raises CorpusError.
    """
    import sacrebleu  # reads SACREBLEU

    pair = "-".join(languages)
    if name not in sacrebleu.get_available_testsets():
        raise CorpusError(f"sacreBLEU has no test set {name!r}: `sacrebleu --list` prints them")
    if pair not in (pairs := sacrebleu.get_langpairs_for_testset(name)):
        choices = " or ".join(x.replace("-", ",", 1) for x in sorted(pairs))
        raise CorpusError(f"{name} is not for {pair}: use --languages {choices}")

    def files() -> dict[str, list[Path]]:
        default = socket.getdefaulttimeout()
        socket.setdefaulttimeout(TIMEOUT)
        try:
            source = sacrebleu.get_source_file(name, pair)
            references = sacrebleu.get_reference_files(name, pair)
        except (Exception, SystemExit) as error:  # HTTPException, TarError, LockException, …
            folder = Path(sacrebleu.SACREBLEU_DIR, name)
            raise CorpusError(
                f"{name} cannot be downloaded: {first_line(error)}; delete {folder} and repeat, "
                f"or, with a network, run `sacrebleu -t {name} -l {pair} --echo src`, and copy "
                "that directory to this machine"
            ) from error
        finally:
            socket.setdefaulttimeout(default)
        if len(references) > 1:
            warn(f"{name}: the first of {len(references)} references is used")
        return {"test": [Path(source), Path(references[0])]}

    def pairs_of(split: str) -> Iterator[Row]:
        return zip(*map(read_lines, files()[split]), strict=True)

    return Corpus(name, tuple(languages), files, pairs_of)
