"""Checks of winners.patch."""

from ablation import experiments


def changed_lines(name):
    lines = experiments.read(name).diff.splitlines()
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def test_it_makes_the_changes_of_its_parts():
    parts = [line for name in ("fixnorm", "rope", "muon") for line in changed_lines(name)]
    assert sorted(changed_lines("winners")) == sorted(parts)
    assert experiments.read("winners").flags == experiments.read("rope").flags
