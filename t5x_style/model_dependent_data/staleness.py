"""Limits on the age of data that another process builds for a training; shared settings."""


def check(owner: str, max_staleness_steps: int | None, when_stale: str, ahead: int) -> None:
    """Raises ValueError for settings that no training can have.

    Args:
      owner: class whose fields errors name.
      max_staleness_steps: how many steps older than the step a version's parameters may be; None
        is no bound.
      when_stale: 'pause' waits for a newer version, 'warn' reports it and continues.
      ahead: batches that are made before they are needed.
    """
    if ahead < 1:
        raise ValueError(f"{owner}: expected ahead of at least 1, found {ahead}")
    if max_staleness_steps is not None and max_staleness_steps < 1:
        raise ValueError(
            f"{owner}.max_staleness_steps: expected 1 or more, or None for no bound, found "
            f"{max_staleness_steps}"
        )
    if when_stale not in ("pause", "warn"):
        raise ValueError(f"{owner}.when_stale: expected 'pause' or 'warn', found {when_stale!r}")


def require_patience(
    owner: str, max_staleness_steps: int | None, when_stale: str, ahead: int, save_every: int
) -> None:
    """Raises ValueError if a training would wait for a version of a step that it never comes to.

    Args:
      owner, max_staleness_steps, when_stale, ahead: see `check`.
      save_every: steps between two checkpoints.
    """
    min_bound = save_every + ahead + 1
    if (
        when_stale == "pause"
        and max_staleness_steps is not None
        and max_staleness_steps < min_bound
    ):
        raise ValueError(
            f"{owner}.max_staleness_steps: expected at least {min_bound} (a checkpoint "
            f"every {save_every} steps, and {ahead} batches made ahead), found "
            f"{max_staleness_steps}: training would wait for what is made from a checkpoint that "
            "it has not come to. Save more often, or let versions be older."
        )
