"""Settings of the search for a translation. Does not import TensorFlow."""

from dataclasses import dataclass, fields
from typing import Any

from utils import UserError, flag, setting


@dataclass(frozen=True)
class Search:
    """Greedy search, beam search or sampling. Raises UserError if a value is invalid."""

    beam: int = setting(1, "hypotheses per sentence; 1 is greedy search", group="search")
    length_penalty: float = setting(0.6, "with --beam: exponent of the length penalty")
    n_best: int = setting(1, "with --beam: outputs per text (not for evaluate.py)")
    sample: bool = setting(
        False, "sample each token; required by the flags below", group="sampling"
    )
    temperature: float = setting(1.0, "divides the logits")
    top_k: int = setting(0, "sample from the K most likely tokens; 0 for all")
    top_p: float = setting(1.0, "sample from the most likely tokens with this total probability")
    seed: int = setting(0, "random seed")

    def __post_init__(self):
        for name, valid, rule in (
            ("beam", self.beam >= 1, "at least 1"),
            ("length_penalty", 0 <= self.length_penalty < float("inf"), "finite and at least 0"),
            ("n_best", 1 <= self.n_best <= self.beam, f"at least 1 and at most --beam {self.beam}"),
            ("temperature", 0 < self.temperature < float("inf"), "finite and greater than 0"),
            ("top_k", 0 <= self.top_k < 2**31, "at least 0 and less than 2**31"),
            ("top_p", 0 < self.top_p <= 1, "greater than 0 and at most 1"),
            ("seed", 0 <= self.seed < 2**31, "at least 0 and less than 2**31"),
        ):
            if not valid:
                raise UserError(f"{flag(name)} {getattr(self, name)}: must be {rule}")
        if self.sample and self.beam > 1:
            raise UserError("--sample and --beam exclude each other: remove one of them")
        for name in self.changed():
            if name in ("temperature", "top_k", "top_p", "seed") and not self.sample:
                raise UserError(f"{flag(name)} has no effect without --sample")
            if name == "length_penalty" and self.beam == 1:
                raise UserError("--length-penalty has no effect without --beam")

    def changed(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        values = {field: getattr(self, field.name) for field in fields(self)}
        return {f.name: value for f, value in values.items() if value != f.default}

    def __str__(self) -> str:
        if self.sample:
            return (
                f"sampled, temperature {self.temperature:g}, top-k {self.top_k}, top-p "
                f"{self.top_p:g}, seed {self.seed}"
            )
        if self.beam > 1:
            return f"beam {self.beam}, length penalty {self.length_penalty:g}"
        return "greedy"

    @property
    def suffix(self) -> str:
        """Part of file names: the settings that change a translation; empty for greedy search."""
        return "".join(
            f"-{name.replace('_', '-')}" + ("" if value is True else f"{value:.12g}")
            for name, value in self.changed().items()
            if name != "n_best"
        )
