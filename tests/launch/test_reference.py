"""The reference of macros follows the gin files, and knows macros with two meanings."""

import pytest

from launch import reference


@pytest.fixture(scope="module")
def found():
    return reference.entries()


def test_the_page_is_what_the_gin_files_say(found):
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(found)


def test_a_macro_is_listed_with_type_default_meaning_and_users(found):
    (row,) = [line for line in reference.page(found).splitlines() if "| `LEARNING_RATE` |" in line]
    assert "`float \\| None`" in row and "`optimizers.fine_tuning_rate.rate`: at the peak" in row
    assert "runs/training/by_epochs, runs/training/train" in row
    (row,) = [line for line in reference.page(found).splitlines() if "| `LOG_EVERY` |" in line]
    assert "| `50` |" in row and "`trainer.Cadence.log_every`" in row


def use(annotation):
    return reference.Use("module.name.parameter", annotation, "", "file.gin")


@pytest.mark.parametrize(
    ("types", "wrong"),
    [
        (["int", "int | None"], False),
        (["float", "int"], False),
        (["str", "bool"], True),
        (["Sequence[str]", "tuple[str, ...]"], False),
        (["int", "", "Any"], False),
        (["Mapping[str, str]", "Sequence[str] | str"], True),
    ],
)
def test_types_without_anything_in_common_are_two_meanings(types, wrong):
    entry = reference.Entry([use(one) for one in types])
    assert bool(reference.conflicts({"MACRO": entry})) == wrong


def test_no_other_macro_has_two_meanings(found):
    """Interfaces that one object answers are no conflict."""
    interfaces = {"CORPUS_TABLE", "ENCODER"}
    assert set(reference.conflicts(found)) == interfaces
