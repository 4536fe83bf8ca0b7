"""How `kennel tpu` ends: its exit codes."""

import enum


class Ending(enum.IntEnum):
    """An exit code of `kennel tpu up`; the other verbs use some of them."""

    DONE = 0
    JOB_FAILED = 1
    REFUSED = 2
    NAME_TAKEN = 3
    NO_PERMISSION = 4
    NO_QUOTA = 5
    NOT_PROVIDED = 6
    NO_SETUP = 7
    KILLED = 8
    UNREACHABLE = 9
    INTERRUPTED = 130


MEANINGS = {
    Ending.DONE: "the job is done",
    Ending.JOB_FAILED: "the job failed, and would fail again: it is not started again",
    Ending.REFUSED: "the command line or the request is refused; nothing was created",
    Ending.NAME_TAKEN: "the name belongs to another run, which is left alone",
    Ending.NO_PERMISSION: "gcloud has no account, or the account may not do this",
    Ending.NO_QUOTA: "the project's quota is used up",
    Ending.NOT_PROVIDED: "Google had no slices within --valid_until, or refused several times",
    Ending.NO_SETUP: "the hosts could not be set up three times",
    Ending.KILLED: "the job was killed (134, 137, 143) too often on healthy slices",
    Ending.UNREACHABLE: "Google or the hosts did not answer for long; the job may be running",
    Ending.INTERRUPTED: "the launcher was stopped; the job continues",
}
# After these the run needs its slices no more; after others the job may run, or is not ours.
FINAL = (Ending.DONE, Ending.JOB_FAILED, Ending.NO_SETUP, Ending.KILLED)
