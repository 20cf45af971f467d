"""How a translation is looked for. Knows nothing of TensorFlow, so that flags are checked first."""

from dataclasses import dataclass, fields

from config import UserError, flag, setting


@dataclass(frozen=True)
class Search:
    """Greedy, unless there is a beam or a draw. Raises ValueError, in a sentence."""

    beam: int = setting(1, "hypotheses per sentence in beam search; 1 is greedy search")
    length_penalty: float = setting(0.6, "exponent of the length penalty in beam search")
    n_best: int = setting(1, "translations per line, as 'line number TAB score TAB text'")
    sample: bool = setting(False, "sample each token instead of searching")
    temperature: float = setting(1.0, "with --sample: divides the logits")
    top_k: int = setting(0, "with --sample: only the K most likely tokens; 0 for all")
    top_p: float = setting(1.0, "with --sample: only the most likely tokens with this total mass")
    seed: int = setting(0, "with --sample: random seed")

    def __post_init__(self):
        for name in ("beam", "n_best"):
            if getattr(self, name) < 1:
                raise UserError(f"{flag(name)} {getattr(self, name)} is not at least 1")
        if self.n_best > self.beam:
            raise UserError(f"--n-best {self.n_best} is more than --beam {self.beam} can find")
        if not 0 <= self.length_penalty < float("inf"):
            raise UserError(f"--length-penalty {self.length_penalty} is not at least 0")
        if self.sample and self.beam > 1:
            raise UserError("--sample draws one translation: it does not go with --beam")
        if not 0 < self.temperature < float("inf"):
            raise UserError(f"--temperature {self.temperature} is not above 0")
        if not 0 <= self.top_k < 2**31:
            raise UserError(f"--top-k {self.top_k} is not at least 0")
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top-p {self.top_p} is not above 0 and at most 1")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"--seed {self.seed} is not at least 0 and below 2**31")
        for name in self.changed():
            if name in ("temperature", "top_k", "top_p", "seed") and not self.sample:
                raise UserError(f"{flag(name)} goes with --sample")
            if name == "length_penalty" and self.beam == 1:
                raise UserError("--length-penalty goes with --beam")

    def changed(self):
        """The fields that are not as they are by default, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {f.name: values[f.name] for f in fields(self) if values[f.name] != f.default}

    def __str__(self):
        if self.sample:
            return (
                f"sampled, temperature {self.temperature:g}, top-k {self.top_k}, top-p "
                f"{self.top_p:g}, seed {self.seed}"
            )
        if self.beam > 1:
            return f"beam {self.beam}, length penalty {self.length_penalty:g}"
        return "greedy"

    @property
    def suffix(self):
        """In names of files: all that makes a difference; greedy search has none."""
        parts = {name: value for name, value in self.changed().items() if name != "n_best"}
        return "".join(
            f"-{name.replace('_', '-')}" + ("" if value is True else f"{value:.12g}")
            for name, value in parts.items()
        )
