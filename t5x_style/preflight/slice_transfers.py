"""Transfers between slices, in programs that libtpu compiles for several.

A collective that crosses slices becomes one inside each slice and a `send` and `recv` of its arrays
to the runtime, which exchanges them with the same device of the other slices.
"""

import re

KINDS = {
    "ALL_REDUCE": "all-reduce",
    "ALL_GATHER": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
}
_IDS_OF_A_SLICE = 100_000  # slice 0 has the devices 100000, 100001, ...


class TransferError(ValueError):
    """A transfer in a form that is not known here."""


def kind(attributes: str) -> str | None:
    """Collective that a `send` belongs to; None if it does not go to another slice.

    Raises:
      TransferError: none that is known.
    """
    match = re.search(r'_xla_megascale_transfer_type="(\w+)"', attributes)
    if match is None:
        return None
    if match[1] not in KINDS:
        raise TransferError(
            f"expected a transfer between slices among {sorted(KINDS)}, found {match[1]!r}: "
            "another version of libtpu may be installed than the one of this package's extras"
        )
    return KINDS[match[1]]


def slices(attributes: str) -> int:
    """Number of slices that take part in a transfer.

    >>> slices('_xla_megascale_target="{1,2}x{0:3}"')  # devices 0 to 3 of slices 1 and 2
    2
    >>> slices("_xla_megascale_target={{100000,100001,200000,200001},{100002,200002}}")
    2
    >>> slices("_xla_megascale_target={{100000->200000},{200000->300000},{300000->100000}}")
    3

    Raises:
      TransferError: the slices are in another form.
    """
    if match := re.search(r'_xla_megascale_target="\{([\d,]+)\}x', attributes):
        return len(match[1].split(","))
    match = re.search(r"_xla_megascale_target=\{(\{[\d,{}>-]*\})\}", attributes)
    if match is None:
        raise TransferError(f"expected _xla_megascale_target with slices or devices: {attributes}")
    return len({int(device) // _IDS_OF_A_SLICE for device in re.findall(r"\d+", match[1])})
