"""Settings of retrieval on the host that cannot work are refused."""

import pytest

from t5x_style.interfaces.batch_source import ModelDependentSource
from tests.kits.host_kit import build, retrieval
from tests.kits.tiny_corpus import TinyCorpus


def test_what_would_wait_without_end_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected at least 4 .a checkpoint every 2 steps"):
        build(tmp_path, host=retrieval(tmp_path, max_staleness_steps=3))
    patient = retrieval(tmp_path, max_staleness_steps=3, when_stale="warn")
    patient.require_patience(2)


class Unnamed:
    """Half a source."""

    def specs(self):
        raise NotImplementedError

    def batch(self, step, rows=None):
        raise NotImplementedError


class Bound(ModelDependentSource):
    """Needs a model."""

    clean = None

    def bind(self, view):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": None}, "source: expected a batch source, found NoneType, which has no specs"),
        ({"source": Unnamed()}, "found Unnamed, which has no batches and no fingerprint: another"),
        ({"source": Bound()}, "source: expected a source that needs no model, found Bound"),
        ({"ahead": 0}, "ahead of at least 1"),
        ({"max_staleness_steps": 0}, "expected 1 or more"),
        ({"when_stale": "stop"}, "'pause' or 'warn'"),
        ({"exclude": ("book",)}, r"found \['book'\]"),
        ({"length": 11}, "expected 12 or more"),
        ({"corpus": TinyCorpus(3)}, "more than 3 rows"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        retrieval(tmp_path, **changes)
