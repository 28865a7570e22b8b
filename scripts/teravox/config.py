"""The configuration: checked against its schema, completed with the schema's defaults, and cut into the part each stage reads."""

import copy
import difflib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import yaml

from teravox.errors import UserError

SCHEMAS = Path(__file__).resolve().parents[2] / "workflow" / "schemas"

# Of `resample` what changes a value; memory_mb does not.
RESAMPLE = [
    *(f"resample.{key}" for key in ("spacing", "axes", "field_of_view", "crop", "crop_above", "crop_margin_mm", "min_size", "max_size")),
    *(f"resample.{key}" for key in ("interpolation", "label", "ceiling_tolerance_mm")),
]
# Of `train` what changes a model; how far it reads ahead does not.
TRAIN = [
    *(f"train.{key}" for key in ("levels", "filters", "steps", "learning_rate", "weight_decay", "average", "threads")),
    *(f"train.{key}" for key in ("patch_size", "patch_foreground", "augment")),
]
SHARD = ["shard.block_mb", "shard.compression"]
GRID = ["channels.name", "channels.background", "channels.match.modality", "labels", "ignore_value", *RESAMPLE]

# What each stage reads, as dotted keys. A stage is redone when one of these changes, and for no other setting.
STAGE_SETTINGS = {
    "ingest": ["channels.name", "channels.match", "labels", "ignore_value", "ingest"],
    "split": ["dataset", "channels.name", "channels.match", "labels", "ignore_value", "ingest.tilt", "split", "on_rejected"],  # what names the cases
    "resample": GRID,
    "ceiling": [*GRID, "resample.ceiling_spacings"],
    "fingerprint": ["channels.name", "labels", "ignore_value"],
    "shard": ["channels.name", *SHARD],
    "plan": [
        "channels.name",
        "labels",
        "train.folds",
        "train.levels",
        "train.filters",
        "train.threads",
        "train.patch_size",
        "train.prefetch_mb",
        "shard.count",
        "shard.target_mb",
    ],
    "train": ["seed", "channels", "labels", "ignore_value", *TRAIN],
    "predict": ["labels", "predict"],
    "evaluate": ["labels", "ignore_value", "regions", "evaluate"],
    "report": [
        "seed",
        "on_rejected",
        "dataset",
        "channels",
        "labels",
        "ignore_value",
        "regions",
        "split",
        *RESAMPLE,
        "shard.count",
        *SHARD,
        "train.folds",
        *TRAIN,
        "predict",
        "evaluate",
    ],
}


def schema(name: str) -> dict[str, Any]:
    """The JSON schema `config` or `cases`."""
    return yaml.safe_load((SCHEMAS / f"{name}.schema.yaml").read_text(encoding="utf-8"))


def describe(error: jsonschema.ValidationError) -> str:
    """One line for a schema violation: which key, what was found, what was expected."""
    where = ".".join(str(part) for part in error.absolute_path)
    part: Any = error.schema
    instance: Any = error.instance
    limit: Any = error.validator_value
    if error.validator == "additionalProperties":
        known = list(part["properties"])
        unknown = sorted(map(str, set(instance) - set(known)))[0]  # YAML has keys that are no text: 1, yes, null
        close = difflib.get_close_matches(unknown, known, n=1)
        hint = f", did you mean '{close[0]}'?" if close else f", expected one of {', '.join(known)}"
        return f"unknown key '{f'{where}.' if where else ''}{unknown}'{hint}"
    if error.validator == "required":
        missing = sorted(set(limit) - set(instance))[0]
        return f"key '{f'{where}.' if where else ''}{missing}' is missing"
    expected = {
        "enum": lambda v: f"one of {', '.join(map(str, v))}",
        "type": lambda v: f"a value of type {v if isinstance(v, str) else ' or '.join(v)}",
        "pattern": lambda v: "letters, digits, _ and - only" if "./" not in v else "letters, digits and _ . / - only",
        "minimum": lambda v: f"at least {v}",
        "exclusiveMinimum": lambda v: f"more than {v}",
        "maximum": lambda v: f"at most {v}",
        "exclusiveMaximum": lambda v: f"less than {v}",
        "minItems": lambda v: f"at least {v} {'entry' if v == 1 else 'entries'}",
        "maxItems": lambda v: f"at most {v} entries",
        "minLength": lambda v: "a text that is not empty",
        "uniqueItems": lambda v: "no entry twice",
    }.get(str(error.validator), lambda v: f"{error.validator} {v}")(limit)
    return f"'{where}' is {error.instance!r}, expected {expected}"


# JSON schema takes 2.0 for an integer and infinity for a number; neither is what a setting means.
VALIDATOR = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
            "number": lambda _, value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
        }
    ),
)


def validate(value: Any, name: str, source: str) -> None:
    """Check a value against a schema. Raises UserError with one line that begins with `source`."""
    validator = VALIDATOR(schema(name))
    errors = sorted(validator.iter_errors(value), key=lambda error: (len(error.absolute_path), str(error.absolute_path)))
    if errors:
        raise UserError(f"{source}: {describe(errors[0])}")


def _with_defaults(value: Any, part: dict[str, Any]) -> Any:
    if part.get("type") == "object":
        value = dict(value)
        for key, child in part.get("properties", {}).items():
            if key not in value and "default" in child:
                value[key] = copy.deepcopy(child["default"])
            if key in value:
                value[key] = _with_defaults(value[key], child)
        return value
    if part.get("type") == "array":
        return [_with_defaults(item, part.get("items", {})) for item in value]
    return value


def _patterns(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every regular expression of a configuration with its key."""
    yield from ((f"labels.{number}.segment", label["segment"]) for number, label in enumerate(config["labels"]))
    yield "dataset.label.description", config["dataset"]["label"]["description"]
    for number, channel in enumerate(config["channels"]):
        for key in ("description", "sequence", "image_type"):
            yield f"channels.{number}.match.{key}", channel["match"][key] or ""


def defaults(key: str) -> dict[str, Any]:
    """The schema's defaults of a block, such as `ingest` or `channels[].match`."""
    part = schema("config")
    for name in key.split("."):
        part = part["properties"][name.removesuffix("[]")]
        part = part["items"] if name.endswith("[]") else part
    return _with_defaults({}, part)


def filled(settings: dict[str, Any], stage: str) -> dict[str, Any]:
    """A stage's settings with the schema's defaults where they leave a key out, for a command that is started by hand."""
    parts = schema("config")["properties"]
    heads = {key.partition(".")[0] for key in STAGE_SETTINGS[stage]}
    required = sorted(head for head in heads if "default" not in parts[head])
    part = {"type": "object", "properties": {head: parts[head] for head in heads}, "required": required}
    errors = sorted(VALIDATOR(part).iter_errors(settings), key=lambda error: str(error.absolute_path))
    if errors:
        raise UserError(f"settings: {describe(errors[0])}")
    given = {head: settings[head] if head in settings else copy.deepcopy(parts[head].get("default")) for head in heads}
    complete_settings = {head: _with_defaults(value, parts[head]) for head, value in given.items()}
    if "resample" in heads:
        _check_grid(complete_settings, "settings")
        if complete_settings["resample"]["spacing"] == "auto":
            raise UserError("settings: 'resample.spacing' is 'auto', which takes a workflow that knows the other cases; expected a number or three")
    return complete_settings


def _check_grid(config: dict[str, Any], source: str) -> None:
    """What the schema cannot say of the settings of a grid. Raises UserError."""
    for number, channel in enumerate(config["channels"]):
        if isinstance(channel["background"], str) and channel["background"] != "auto":
            raise UserError(f"{source}: 'channels.{number}.background' is {channel['background']!r}, expected a number or auto")
    options = config["resample"]
    if isinstance(options["spacing"], str) and options["spacing"] != "auto":
        raise UserError(f"{source}: 'resample.spacing' is {options['spacing']!r}, expected a number, three numbers or auto")
    if options["min_size"] is not None and options["max_size"] is not None and np.any(np.array(options["min_size"]) > options["max_size"]):
        raise UserError(f"{source}: 'resample.min_size' is {options['min_size']}, expected no more than max_size ({options['max_size']})")


def complete(raw: dict[str, Any], source: str = "configuration") -> dict[str, Any]:
    """Validate a configuration and fill in the schema's defaults. Raises UserError with one line."""
    validate(raw, "config", source)
    config = _with_defaults(raw, schema("config"))

    def unique(key: str, field: str) -> list[Any]:
        values = [item[field] for item in config[key]]
        for value in values:
            if values.count(value) > 1:
                raise UserError(f"{source}: '{key}' names {field} {value!r} more than once")
        return values

    names = unique("labels", "name")
    if config["ignore_value"] in unique("labels", "value"):
        raise UserError(f"{source}: 'ignore_value' is {config['ignore_value']}, the value of a label; expected another")
    for place, pattern in _patterns(config):
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{source}: '{place}' is {pattern!r}, expected a regular expression ({reason})") from None
    unique("channels", "name")
    for number, channel in enumerate(config["channels"]):
        times = channel["match"]["echo_time_ms"]
        if times and times[0] > times[1]:
            raise UserError(f"{source}: 'channels.{number}.match.echo_time_ms' is {times}, expected the smallest before the largest")
    _check_grid(config, source)
    unique("regions", "name")
    reserved = {"case", "patient", "label", "set", "image"} & {channel["name"] for channel in config["channels"]}
    if reserved:
        raise UserError(f"{source}: 'channels' uses the reserved name {sorted(reserved)[0]!r}; choose another")
    for region in config["regions"]:
        if region["name"] in names:
            raise UserError(f"{source}: region {region['name']!r} has the name of a label; choose another")
        for label in region["labels"]:
            if label not in names:
                raise UserError(f"{source}: region {region['name']!r} unites label {label!r}, expected labels out of {', '.join(names)}")
    channel, names = config["evaluate"]["picture_channel"], [channel["name"] for channel in config["channels"]]
    if channel and channel not in names:
        raise UserError(f"{source}: 'evaluate.picture_channel' is {channel!r}, expected one of {', '.join(names)}")
    results, private = (Path(os.path.realpath(config[key])) for key in ("results", "private"))
    if private.is_relative_to(results) or results.is_relative_to(private):
        raise UserError(f"{source}: 'private' is {config['private']!r}, expected a folder neither in 'results' ({config['results']!r}) nor around it")
    for fold in config["train"]["folds"]:
        if fold >= config["split"]["folds"]:
            raise UserError(f"{source}: 'train.folds' names fold {fold}, expected 0 to {config['split']['folds'] - 1} (split.folds)")
    return config


def _pick(config: Any, keys: list[str]) -> Any:
    head, *rest = keys
    if isinstance(config, list):
        return [_pick(item, keys) for item in config]
    return {head: _pick(config[head], rest) if rest else config[head]}


def _merge(into: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif isinstance(value, list) and isinstance(into.get(key), list):  # two keys of the same items
            for item, more in zip(into[key], value, strict=True):
                _merge(item, more)
        else:
            into[key] = value


def stage_settings(config: dict[str, Any], stage: str) -> dict[str, Any]:
    """The part of a completed configuration that a stage reads, with the configuration's own nesting."""
    settings: dict[str, Any] = {}
    for key in STAGE_SETTINGS[stage]:
        _merge(settings, copy.deepcopy(_pick(config, key.split("."))))
    return settings


def load(path: Path) -> dict[str, Any]:
    """Read, validate and complete a YAML configuration file. Raises UserError."""
    try:
        raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable as YAML ({' '.join(str(error).split())})") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: found {type(raw).__name__}, expected a mapping of keys to values")
    return complete(raw, str(path))


def documented_keys(part: dict[str, Any] | None = None, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every dotted key of the config schema with its subschema; list items carry `[]`."""
    for key, child in (part or schema("config")).get("properties", {}).items():
        yield f"{prefix}{key}", child
        if child.get("type") == "object":
            yield from documented_keys(child, f"{prefix}{key}.")
        elif child.get("type") == "array" and child["items"].get("type") == "object":
            yield from documented_keys(child["items"], f"{prefix}{key}[].")
