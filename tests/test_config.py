"""The configuration: one clear line per mistake, defaults, and what each stage reads."""

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemake.utils import update_config

from teravox import config, files
from teravox.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATIONS = ("config.yaml", "msd_hippocampus.yaml")


def minimal(**changes: Any) -> dict[str, Any]:
    base = {
        "dataset": {"layout": "table", "path": "cases.tsv"},
        "channels": [{"name": "t1"}, {"name": "t2"}],
        "labels": [{"name": "core", "value": 1}, {"name": "rim", "value": 4}],
    }
    return {**base, **changes}


MISTAKES = [
    (minimal(splitt={}), "unknown key 'splitt', did you mean 'split'?"),
    (minimal(train={"step": 3}), "unknown key 'train.step', did you mean 'steps'?"),
    (minimal(split={"zzz": 3}), "unknown key 'split.zzz', expected one of folds, seed, test_fraction"),
    (minimal(train={"augment": {"mirror": []}}), "unknown key 'train.augment.mirror', expected one of flip, rotate_degrees, scale, intensity"),
    (minimal(split={1: 2, "folds": 3, "fold": 3}), "unknown key 'split.1', expected one of"),
    (minimal(**{"on_rejected": True}), "'on_rejected' is True, expected one of stop, exclude"),
    (minimal(train={"steps": "many"}), "'train.steps' is 'many', expected a value of type integer"),
    (minimal(train={"steps": 2000.0}), "'train.steps' is 2000.0, expected a value of type integer"),
    (minimal(train={"steps": True}), "'train.steps' is True, expected a value of type integer"),
    (minimal(train={"learning_rate": True}), "'train.learning_rate' is True, expected a value of type number"),
    (minimal(train={"learning_rate": float("nan")}), "'train.learning_rate' is nan, expected a value of type number"),
    (minimal(resample={"spacing": float("inf")}), "'resample.spacing' is inf, expected a value of type number or array or string"),
    (minimal(resample={"spacing": "fine"}), "'resample.spacing' is 'fine', expected a number, three numbers or auto"),
    (minimal(resample={"spacing": [1, 1]}), "'resample.spacing' is [1, 1], expected at least 3 entries"),
    (minimal(resample={"spacing": [1, 0, 1]}), "'resample.spacing.1' is 0, expected at least 0.001"),
    (minimal(resample={"spacing_mm": 1}), "unknown key 'resample.spacing_mm', did you mean 'spacing'?"),
    (minimal(resample={"min_size": 5, "max_size": [9, 4, 9]}), "'resample.min_size' is 5, expected no more than max_size ([9, 4, 9])"),
    (minimal(channels=[{"name": "t1", "background": "dark"}]), "'channels.0.background' is 'dark', expected a number or auto"),
    (minimal(resample={"spacing": 0}), "'resample.spacing' is 0, expected at least 0.001"),
    (minimal(resample=None), "'resample' is None, expected a value of type object"),
    (minimal(split={"folds": 1}), "'split.folds' is 1, expected at least 2"),
    (minimal(split={"test_fraction": 0.95}), "'split.test_fraction' is 0.95, expected at most 0.9"),
    (minimal(train={"average": 1}), "'train.average' is 1, expected less than 1"),
    (minimal(train={"folds": []}), "'train.folds' is [], expected at least 1 entry"),
    (minimal(train={"folds": [0, 0]}), "'train.folds' is [0, 0], expected no entry twice"),
    (minimal(channels=[{"name": "t 1"}]), "'channels.0.name' is 't 1', expected letters, digits, _ and - only"),
    (minimal(channels=[{"name": "t1", "normalise": "minmax"}]), "'channels.0.normalise' is 'minmax', expected one of zscore, cohort"),
    (minimal(results="a b"), "'results' is 'a b', expected letters, digits and _ . / - only"),
    (minimal(results=""), "'results' is '', expected letters, digits and _ . / - only"),
    (minimal(labels=[{"name": "core"}]), "key 'labels.0.value' is missing"),
    (minimal(labels=[{"name": "core", "value": 0}]), "'labels.0.value' is 0, expected at least 1"),
    (
        minimal(labels=[{"name": "core", "value": 1}, {"name": "rim", "value": 2, "segment": "(rim"}]),
        "'labels.1.segment' is '(rim', expected a regular expression (missing )",
    ),
    (minimal(dataset={"layout": "table"}), "key 'dataset.path' is missing"),
    ({}, "key 'channels' is missing"),
    (minimal(labels=[{"name": "core", "value": 1}, {"name": "core", "value": 2}]), "'labels' names name 'core' more than once"),
    (minimal(labels=[{"name": "core", "value": 1}, {"name": "rim", "value": 1}]), "'labels' names value 1 more than once"),
    (minimal(ignore_value=4), "'ignore_value' is 4, the value of a label; expected another"),
    (minimal(ignore_value=0), "'ignore_value' is 0, expected at least 1"),
    (minimal(ignore_value=65536), "'ignore_value' is 65536, expected at most 65535"),
    (minimal(channels=[{"name": "t1"}, {"name": "t1"}]), "'channels' names name 't1' more than once"),
    (minimal(channels=[{"name": "label"}]), "'channels' uses the reserved name 'label'; choose another"),
    (minimal(regions=[{"name": "all", "labels": ["core", "rimm"]}]), "region 'all' unites label 'rimm', expected labels out of core, rim"),
    (minimal(regions=[{"name": "rim", "labels": ["core"]}]), "region 'rim' has the name of a label; choose another"),
    (minimal(regions=[{"name": "a", "labels": ["core"]}] * 2), "'regions' names name 'a' more than once"),
    (
        minimal(channels=[{"name": "t1", "match": {"echo_time_ms": [50, 5]}}]),
        "'channels.0.match.echo_time_ms' is [50, 5], expected the smallest before the largest",
    ),
    (minimal(train={"folds": [5]}), "'train.folds' names fold 5, expected 0 to 4 (split.folds)"),
    (minimal(evaluate={"picture_channel": "t3"}), "'evaluate.picture_channel' is 't3', expected one of t1, t2"),
]


@pytest.mark.parametrize(("raw", "expected"), MISTAKES, ids=[text for _, text in MISTAKES])
def test_a_mistake_is_one_line_that_names_it(raw: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        config.complete(raw, "config.yaml")
    assert str(caught.value).startswith(f"config.yaml: {expected}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("private", ["out", "out/deep", "./x/../out", "link", "link/deep", ".", "deep/.."])
def test_the_key_lies_neither_in_the_results_nor_around_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    with pytest.raises(UserError, match="expected a folder neither in 'results'"):
        config.complete(minimal(results="out", private=private))
    for allowed in ("private", "out2", "../out", "deep/out"):
        assert config.complete(minimal(results="out", private=allowed))["private"] == allowed


def test_defaults_are_those_of_the_schema() -> None:
    raw = minimal(train={"steps": 7})
    before = copy.deepcopy(raw)
    found = config.complete(raw)
    assert raw == before
    for key, part in config.documented_keys():
        if "[]" in key or "default" not in part or part["type" if "type" in part else "enum"] == "object":
            continue
        value: Any = found
        for name in key.split("."):
            value = value[name]
        assert value == (7 if key == "train.steps" else part["default"]), key
    assert [(channel["name"], channel["normalise"], channel["match"]["prefer"]) for channel in found["channels"]] == [
        ("t1", "zscore", "only"),
        ("t2", "zscore", "only"),
    ]
    found["train"]["folds"].append(9)
    assert config.complete(minimal())["train"]["folds"] == [0]
    assert config.complete(config.complete(minimal())) == config.complete(minimal())


def test_every_key_is_described_and_has_a_default_or_is_required() -> None:
    def check(part: dict[str, Any], prefix: str) -> int:
        count = 0
        for key, child in part.get("properties", {}).items():
            assert child.get("description", "").endswith("."), f"{prefix}{key}"
            assert ("default" in child) != (key in part.get("required", [])), f"{prefix}{key}"
            inner = child.get("items", {}) if child.get("type") == "array" else child
            count += 1 + check(inner, f"{prefix}{key}.")
        if part.get("type") == "object":
            assert part["additionalProperties"] is False, prefix
        return count

    assert check(config.schema("config"), "") == len(list(config.documented_keys()))


def test_the_defaults_satisfy_the_schema() -> None:
    config.complete(config.complete(minimal()))


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("stage", config.STAGE_SETTINGS)
def test_a_stage_gets_what_it_names_and_nothing_else(name: str, stage: str) -> None:
    whole = config.load(ROOT / "config" / name)
    part = config.stage_settings(whole, stage)
    assert set(part) == {key.split(".")[0] for key in config.STAGE_SETTINGS[stage]}
    for key in config.STAGE_SETTINGS[stage]:
        if key.startswith("channels."):
            _, *names = key.split(".")
            for channel, whole_channel in zip(part["channels"], whole["channels"], strict=True):
                assert functools.reduce(dict.__getitem__, names, channel) == functools.reduce(dict.__getitem__, names, whole_channel)
                assert set(channel) == {other.split(".")[1] for other in config.STAGE_SETTINGS[stage] if other.startswith("channels.")}
        else:
            names = key.split(".")
            assert functools.reduce(dict.__getitem__, names, part) == functools.reduce(dict.__getitem__, names, whole)
    files.canonical_json(part)
    before = copy.deepcopy(whole)
    part["channels" if "channels" in part else "labels"].clear()
    assert whole == before


def test_only_the_stages_that_read_a_key_change_with_it() -> None:
    whole = config.load(ROOT / "config" / "config.yaml")
    changed = copy.deepcopy(whole)
    changed["train"]["steps"] += 1
    changed["numa"]["policy"] = "none"
    differ = {stage for stage in config.STAGE_SETTINGS if config.stage_settings(whole, stage) != config.stage_settings(changed, stage)}
    assert differ == {"train", "report"}
    changed["train"]["folds"] = [2]
    assert config.stage_settings(whole, "plan") != config.stage_settings(changed, "plan")
    changed["train"]["steps"] -= 1
    ignoring = {**copy.deepcopy(whole), "ignore_value": 255}
    differ = {stage for stage in config.STAGE_SETTINGS if config.stage_settings(whole, stage) != config.stage_settings(ignoring, stage)}
    assert differ == {"ingest", "split", "resample", "ceiling", "fingerprint", "train", "evaluate", "report"}
    assert config.stage_settings(whole, "train") == config.stage_settings(changed, "train")  # a further fold retrains no other


def test_what_names_the_cases_reaches_the_stage_that_asks_for_them() -> None:
    """`split` reads the data set's layout again, and with it the entities of a channel and the values of the labels."""
    whole = config.complete(minimal())
    keys: dict[tuple[Any, ...], Any] = {
        ("dataset", "derivatives"): "x",
        ("dataset", "label", "bids"): ["suffix=mask"],
        ("channels", 0, "match", "bids"): ["suffix=T1w"],
        ("labels", 0, "value"): 9,
        ("ignore_value",): 9,
    }
    for path, value in keys.items():
        changed = copy.deepcopy(whole)
        functools.reduce(lambda part, key: part[key], path[:-1], changed)[path[-1]] = value
        assert config.stage_settings(changed, "split") != config.stage_settings(whole, "split"), path


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_configurations_in_the_repository_are_complete(name: str) -> None:
    raw = yaml.safe_load((ROOT / "config" / name).read_text())
    assert config.load(ROOT / "config" / name) == config.complete(raw)


def test_no_key_of_the_demo_reaches_another_configuration() -> None:
    demo, other = (yaml.safe_load((ROOT / "config" / name).read_text()) for name in CONFIGURATIONS)
    merged = copy.deepcopy(demo)
    update_config(merged, copy.deepcopy(other))
    assert config.complete(merged) == config.complete(other)


@pytest.mark.parametrize(("text", "expected"), [("a: [", "not readable as YAML"), ("- 1", "found list, expected a mapping"), ("", "found NoneType")])
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=expected) as caught:
        config.load(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="not readable"):
        config.load(tmp_path / "none.yaml")
