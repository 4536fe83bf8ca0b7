"""The licence of a fine-tuned model: the one given, else that of the encoder it started from."""

import difflib
from pathlib import Path
from typing import Any

from models.interop import front_matter

# The ids that the Hugging Face Hub takes (docs/hub/repositories-licenses there).
KNOWN = frozenset(
    """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m
    bigscience-bloom-rail-1.0 bigscience-openrail-m bsd bsd-2-clause bsd-3-clause
    bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0
    cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
    cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0
    epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0
    gpl-3.0 grok2-community h-research intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2
    llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1
    openmdw-1.0 openrail openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib
    """.split()
)
_FIELDS = ("license", "license_name", "license_link")
MACRO = "LICENCE"


class LicenceError(ValueError):
    """No licence, or one that the Hub refuses; the message says what to write."""


def chosen(published: str, licence: str | None) -> dict[str, Any]:
    """The fields of a card that say its licence: `license`, and with it perhaps its name and link.

    A given id must be one that the Hub knows. A typing error costs nothing before the first stage,
    and the Hub refuses the card after the last one; a licence without an id is `other`. What the
    published card says is used unchanged, since the Hub accepted it.

    Args:
        published: folder of the encoder that the training started from.
        licence: an id of KNOWN; None takes what README.md in the folder says.

    Raises:
        LicenceError: an id is unknown, or nothing says a licence.
        FrontMatterError: README.md there begins with YAML that cannot be read.
    """
    if licence is not None:
        _require_known(licence)
        return {"license": licence}
    card = Path(published) / "README.md"
    found = front_matter.read(card)
    fields = {name: found[name] for name in _FIELDS if found.get(name)}
    if "license" not in fields:
        what = "has no `license` in its first lines" if card.is_file() else "is not there"
        raise LicenceError(
            f"{MACRO}: the model card of a fine-tuned encoder names its licence, and {card}, which "
            f"could name that of the encoder, {what}. Find out the licence of the encoder and of "
            f"your data, and write it: {MACRO}=apache-2.0, or another id that the Hugging Face Hub "
            f"knows; {MACRO}=other for one without an id."
        )
    return fields


def _require_known(licence: str) -> None:
    if licence in KNOWN:
        return
    near = difflib.get_close_matches(licence.lower(), sorted(KNOWN), n=3, cutoff=0.6)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    raise LicenceError(
        f"{MACRO}: expected an id that the Hugging Face Hub knows, in lower case, such as "
        f"apache-2.0 or mit, found {licence!r}.{meant} Write {MACRO}=other for a licence without "
        "an id there."
    )
