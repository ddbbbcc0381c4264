"""Whether a finding is a failure: what decides it is in contradictions.toml. Imports no torch."""

from clearhead.doctor.catalogue.faults import read

_TABLES = read("contradictions.toml")
AGAINST: dict[str, str] = _TABLES["against"]  # by the name of a check
SIGNS: frozenset[str] = frozenset(_TABLES["signs"])
SECOND: dict[str, str] = _TABLES["second"]  # by its name and an id
OF_MASKS: frozenset[str] = frozenset(_TABLES["of_masks"])
FIRST_SIGHT: dict[str, tuple[int, int, int]] = _TABLES["first_sight"]


def is_failure(check: str, id: str, against: str, second: str) -> bool:
    """Whether a finding of a check is more than a warning.

    A kind that was not right more often than latent and wrong together, on models that nobody had looked at, needs two
    observations.

    Args:
        against: what else the model does or says that the finding contradicts.
        second: another observation that speaks against the model, its own or that of `SECOND`.
    """
    kind = f"{check} {id}"
    right, latent, wrong = FIRST_SIGHT.get(kind, (1, 0, 0))
    return bool(against) and kind not in SIGNS and (bool(second) or right > latent + wrong)
