"""Folds and test set by patient."""

import random
from typing import Any

import pytest

from teravox import split
from teravox.errors import UserError


def case(name: str, patient: str, voxels: dict[str, int] | None = None, set_: str = "train", image: str | None = None) -> dict[str, Any]:
    channels = {"t1": {"voxels": image or f"hash of {name}", "min": 0.0, "max": 9.0}}
    return {"case": name, "patient": patient, "set": set_, "label": {"voxels": voxels or {"core": 5}}, "channels": channels}


COHORT = [case(f"c{i:02d}{visit}", f"p{i:02d}", {"core": 9, "rare": int(i % 5 == 0)}) for i in range(25) for visit in "ab"[: 1 + i % 2]]


def test_a_patient_s_cases_stay_together() -> None:
    found = split.split(COHORT, 5, 1, 0.2)
    sides: dict[str, set[Any]] = {}
    for entry in found.values():
        sides.setdefault(entry["patient"], set()).add((entry["set"], entry["fold"]))
    assert all(len(side) == 1 for side in sides.values())
    assert len({patient for patient, side in sides.items() if next(iter(side))[0] == "test"}) == 5
    assert all((entry["fold"] is None) == (entry["set"] == "test") for entry in found.values())
    assert list(found) == sorted(entry["case"] for entry in COHORT)
    split.check_leaks(COHORT, found)


def test_folds_are_of_one_size_and_share_a_rare_label() -> None:
    found = split.split(COHORT, 5, 1, 0)
    patients = {entry["patient"]: entry["fold"] for entry in found.values()}
    assert sorted(list(patients.values()).count(fold) for fold in range(5)) == [5] * 5
    rare = [fold for patient, fold in patients.items() if int(patient[1:]) % 5 == 0]
    assert sorted(rare) == [0, 1, 2, 3, 4]


def test_the_order_of_the_input_does_not_matter() -> None:
    expected = split.split(COHORT, 4, 7, 0.1)
    for seed in range(3):
        assert split.split(random.Random(seed).sample(COHORT, len(COHORT)), 4, 7, 0.1) == expected


def test_the_seed_does() -> None:
    assert split.split(COHORT, 4, 1, 0) != split.split(COHORT, 4, 2, 0)
    assert split.split(COHORT, 4, 1, 0.2) != split.split(COHORT, 4, 2, 0.2)
    assert split.order(list("abcdefgh"), 1, "fold") != split.order(list("abcdefgh"), 1, "test")


def test_another_patient_does_not_change_the_order_of_the_rest() -> None:
    before = split.order([f"p{i}" for i in range(20)], 3, "fold")
    after = split.order([f"p{i}" for i in range(21)], 3, "fold")
    assert [patient for patient in after if patient != "p20"] == before


def test_named_test_cases_train_nothing() -> None:
    cohort = [*COHORT, case("t1", "q1", set_="test"), case("t2", "q1", set_="test")]
    found = split.split(cohort, 5, 1, 0)
    assert found["t1"] == {"patient": "q1", "set": "test", "fold": None}
    document = {"cases": found}
    for fold in range(5):
        trained = split.training_cases(document, fold)
        assert not {"t1", "t2"} & set(trained)
        own = {name for name, entry in found.items() if entry["fold"] == fold}
        assert own and set(trained) == set(found) - own - {"t1", "t2"}
    assert set(split.scored_cases(document, [2])) == {"t1", "t2"} | {name for name, entry in found.items() if entry["fold"] == 2}


def test_pseudonyms_of_one_key_and_table() -> None:
    identifiers = {"a": "p1", "b": "p1", "c": "p2"}
    cohort = [{"case": name, "patient": f"P{identifier}", "key": "k"} for name, identifier in identifiers.items()]
    split.check_pseudonyms(cohort, identifiers)
    split.check_pseudonyms(cohort[:1], identifiers)
    for changed in (
        [*cohort[:2], {**cohort[2], "key": "other"}],
        [cohort[0], {**cohort[1], "patient": "Pother"}, cohort[2]],  # one patient, two pseudonyms
        [*cohort[:2], {**cohort[2], "patient": "Pp1"}],  # two patients, one pseudonym
    ):
        with pytest.raises(UserError, match=r"^split: the ingested cases hold pseudonyms of several keys") as caught:
            split.check_pseudonyms(changed, identifiers)
        assert "p1" not in str(caught.value)


def test_too_few_patients() -> None:
    with pytest.raises(UserError, match=r"split: 3 patients to train on, expected at least 4 \(split\.folds\)"):
        split.split([case(name, f"p{name[0]}") for name in ("1a", "1b", "2a", "3a")], 4, 1, 0)
    with pytest.raises(UserError, match="0 patients"):
        split.split([case("a", "p", set_="test")], 2, 1, 0)


def test_a_small_fraction_still_gives_a_test_patient() -> None:
    assert sum(entry["set"] == "test" for entry in split.split([case(c, c) for c in "abcde"], 2, 1, 0.01).values()) == 1


def test_identical_voxels_on_two_sides_are_a_leak() -> None:
    cohort = [case("a", "p1", image="same"), case("b", "p2", image="same")]
    with pytest.raises(UserError, match="cases 'a' and 'b' have a voxel-identical image but stand on two sides"):
        split.check_leaks(cohort, split.split(cohort, 2, 1, 0))
    with pytest.raises(UserError, match="voxel-identical"):
        split.check_leaks(cohort, {"a": {"fold": None}, "b": {"fold": 0}})
    split.check_leaks(cohort, {"a": {"fold": 1}, "b": {"fold": 1}})


def test_blank_images_are_no_leak() -> None:
    cohort = [case("a", "p1", image="same"), case("b", "p2", image="same")]
    for entry in cohort:
        entry["channels"]["t1"]["max"] = 0.0
    split.check_leaks(cohort, {"a": {"fold": 0}, "b": {"fold": 1}})


def test_a_patient_on_two_sides_is_a_leak() -> None:
    cohort = [case("a", "p1"), case("b", "p1")]
    with pytest.raises(UserError, match="belong to one patient"):
        split.check_leaks(cohort, {"a": {"fold": 0}, "b": {"fold": 1}})
