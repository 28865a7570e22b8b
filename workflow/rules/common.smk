# Validation, the case table, wildcards and input functions; no rules.
import base64
import functools
import json
import os
import shlex
import sys
from pathlib import Path

from snakemake.resources import Resource

sys.path.insert(0, str(Path(workflow.basedir) / "scripts"))

from teravox import cases as case_table
from teravox import config as configuration
from teravox import files, imports, manifest, numa, pseudonyms, sharding
from teravox import plan as planning
from teravox import split as splitting
from teravox.errors import UserError


def recorded(output):
    """Whether Snakemake's folder knows of a job that made, or began to make, an output."""
    name = base64.urlsafe_b64encode(output.encode()).decode()
    return len(name) > 250 or any(  # longer ones are cut into several names
        Path(".snakemake", folder, name).exists()
        for folder in ("metadata", "incomplete")
    )


DEMO = "data/demo"  # the embedded cohort; its rule makes what the case table names below this folder


def in_demo(path):
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(DEMO))


try:
    CONFIG = configuration.complete(config)
    CASES = {case.case: case for case in case_table.read_cases(CONFIG)}
    if CONFIG["on_rejected"] == "stop":
        problems = case_table.missing_sources(list(CASES.values()), DEMO)
        for problem in problems[1:]:
            print(f"error: {problem}", file=sys.stderr)
        for problem in problems[:1]:
            raise UserError(f"{problem}; mend it, or set on_rejected: exclude")
except UserError as error:
    sys.exit(f"error: {error}")

RESULTS = Path(CONFIG["results"]).as_posix()  # "./r/" and "r" are one folder
FOLDS = CONFIG["train"]["folds"]
SHARDS = CONFIG["shard"]["count"]
IDENTIFIERS = {
    name: case.patient for name, case in CASES.items()
}  # of the patients; never written below RESULTS
KEY_FILE = Path(CONFIG["private"], "pseudonym.key")

# Without Snakemake's own records nothing is compared, and a changed setting would leave old numbers standing.
documents = [
    path
    for path in (
        f"{RESULTS}/split.json",
        *(f"{RESULTS}/ingest/{case}/case.json" for case in CASES),
    )
    if Path(path).exists()
]
if documents and not any(map(recorded, documents)):
    sys.exit(
        f"error: {RESULTS}: was made in another folder, or .snakemake was deleted, so what has changed since cannot be told;"
        f" move {RESULTS} away, or bring back the .snakemake that belongs to it"
    )

# The demo cohort alone has the public key. Any other has its own, which is drawn here and written once jobs start.
OWN_KEY = not all(
    in_demo(path) for case in CASES.values() for path in case.sources.values()
)
NEW_KEY = OWN_KEY and not KEY_FILE.exists()
try:
    if NEW_KEY:
        KEY = pseudonyms.new_key()
        for path in documents:
            if pseudonyms.made_with_own_key(files.read_json(Path(path))):
                raise UserError(
                    f"{KEY_FILE}: missing, and {path} was made with it; bring it back, or move {RESULTS} away to have new pseudonyms"
                )
    else:
        KEY = pseudonyms.key_of(str(KEY_FILE) if OWN_KEY else pseudonyms.PUBLIC)
    PSEUDONYMS = pseudonyms.pseudonyms(IDENTIFIERS.values(), KEY)
except UserError as error:
    sys.exit(f"error: {error}")


onstart:
    if NEW_KEY:
        try:
            pseudonyms.write_key(KEY_FILE, KEY)
        except (UserError, OSError) as error:
            sys.exit(f"error: {error}")


# `python` in a rule is the one that runs Snakemake, unless a conda environment is deployed.
imports.put_own_python_first()

# Jobs name the memory they need (mem_mb); without a limit on the command line the machine's own is the limit.
if "mem_mb" not in workflow.global_resources:
    workflow.global_resources["mem_mb"] = Resource(
        "mem_mb", numa.granted_bytes() // 10**6
    )


wildcard_constraints:
    case=r"[A-Za-z0-9_-]+",
    fold=r"\d+",
    shard=r"\d{5}-of-\d{5}",


TEMPLATES = {
    name: ["page.html.j2", f"{name}.html.j2"] for name in ("report", "ingest_report")
}


def code(command):
    """Every file that a command depends on, relative to the working directory: compared by content."""
    script = Path(workflow.basedir) / "scripts" / f"{command}.py"
    root = Path(workflow.basedir)
    found = [str(path.relative_to(root)) for path in imports.library_files(script)]
    return found + [f"scripts/teravox/{name}" for name in TEMPLATES.get(command, [])]


def versions(command):
    """The versions of the packages that a command imports, as one canonical text."""
    script = Path(workflow.basedir) / "scripts" / f"{command}.py"
    return files.canonical_json(imports.package_versions(script))


def settings(stage):
    """The part of the configuration that a stage reads, as one canonical text."""
    return files.canonical_json(configuration.stage_settings(CONFIG, stage))


def made_sources(wildcards):
    """The demo cohort's inventory for a case that lies in it; users' files enter by `sources_request`."""
    inside = any(map(in_demo, CASES[wildcards.case].sources.values()))
    return [f"{DEMO}/cohort.json"] if inside else []


def case_arguments(wildcards):
    """A row of the case table as arguments of the ingestion command."""
    case = CASES[wildcards.case]
    images = [f"--image={name}={path}" for name, path in case.images.items()]
    stacked = ["--stacked"] if case.stacked else []
    fault = [f"--fault={case.fault}"] if case.fault else []
    return shlex.join(
        [
            f"--case={case.case}",
            f"--patient={PSEUDONYMS[case.patient]}",
            f"--set={case.set}",
            f"--label={case.label}",
            *images,
            *stacked,
            *fault,
        ]
    )


def sources_request(wildcards):
    """Changes when the bytes of a case's sources changed; see teravox.manifest."""
    return manifest.request(
        Path(f"{RESULTS}/ingest/{wildcards.case}/case.json"),
        CASES[wildcards.case].sources,
        KEY,
    )


@functools.cache
def split_document(path):
    return files.read_json(Path(path))


def assigned():
    """split.json, once ingestion has run: which cases were accepted, and where each belongs."""
    return split_document(checkpoints.split.get().output[0])


def after_split(wildcards):
    """No file, but the split comes first: parameters that read it may then be asked for, also for a single target."""
    checkpoints.split.get()
    return []


AUTO_SPACING = CONFIG["resample"]["spacing"] == "auto"
after_spacing = [after_split] if AUTO_SPACING else []


def grid_settings(stage):
    """`settings` of a stage that makes a grid; with `spacing: auto` the value that the split found."""

    def resolved(wildcards):
        found = configuration.stage_settings(CONFIG, stage)
        found["resample"]["spacing"] = assigned()["spacing_mm"]
        return files.canonical_json(found)

    return resolved if AUTO_SPACING else settings(stage)


def case_threads(wildcards):
    """A case's share of the cores, when all cases run side by side; it changes no value."""
    return max(1, (workflow.cores or 1) // len(CASES))


def shard_threads(wildcards):
    """A shard's share of the cores, when all are written side by side; it changes no byte."""
    return max(1, (workflow.cores or 1) // SHARDS)


def resampling_mb(wildcards, input):
    """The predicted peak of resampling a case in MB (10^6 bytes), from its headers."""
    # A case.json that does not exist yet must raise FileNotFoundError: Snakemake then asks again once it does.
    case = json.loads(Path(input.case).read_text())
    if case["verdict"] == "rejected":
        return 0  # it fails, and says why
    options = CONFIG["resample"]
    spacing = assigned()["spacing_mm"] if AUTO_SPACING else options["spacing"]
    return (
        planning.resampling_bytes(case, options, spacing, options["memory_mb"]) // 10**6
        + 1
    )


def resampled(names):
    return [f"{RESULTS}/resample/{name}/case.json" for name in names]


def volumes_of(names):
    """Bulk volumes: needed, but compared through the case.json beside them."""
    return [
        ancient(f"{RESULTS}/resample/{name}/{file}.nii")
        for name in names
        for file in ("image", "label")
    ]


def scored_cases():
    return splitting.scored_cases(assigned(), FOLDS)


def training_cases(wildcards):
    return splitting.training_cases(assigned(), int(wildcards.fold))


def shard_cases(wildcards):
    """By the patients' identifiers in the case table: no key decides in which shard a patient is."""
    return sharding.cases_in(wildcards.shard, SHARDS, assigned()["cases"], IDENTIFIERS)


def shard_arguments(wildcards):
    """The cases of a shard with their patients' pseudonyms, as arguments of the sharding command."""
    cases = assigned()["cases"]
    return " ".join(
        f"--case={name}={cases[name]['patient']}" for name in shard_cases(wildcards)
    )


def shard_members(wildcards):
    """Which cases are in which shard, as arguments of the planning command."""
    cases = assigned()["cases"]
    names = sharding.shard_names(SHARDS)
    found = {
        name: sharding.cases_in(name, SHARDS, cases, IDENTIFIERS) for name in names
    }
    return " ".join(f"--shard={name}={','.join(found[name])}" for name in names)


def case_models(wildcards):
    """The folds that predict a case: the one that has not seen it, or all trained ones for a test case."""
    case = assigned()["cases"][wildcards.case]
    return FOLDS if case["set"] == "test" else [case["fold"]]


def case_side(wildcards):
    """Patient, set and fold of a case as arguments: what of split.json its evaluation depends on."""
    case = assigned()["cases"][wildcards.case]
    side = "--test" if case["set"] == "test" else f"--fold={case['fold']}"
    return f"--patient={case['patient']} {side}"


def planned_mb(wildcards, input):
    """The predicted peak of a training in MB (10^6 bytes), from its fold's fingerprint."""
    # A fingerprint that does not exist yet must raise FileNotFoundError: Snakemake then asks again once it does.
    fingerprint = json.loads(Path(input.fingerprint).read_text())
    need = planning.fold_plan(
        fingerprint,
        configuration.stage_settings(CONFIG, "train"),
        CONFIG["train"]["prefetch_mb"],
    )
    return need["predicted_peak_bytes"] // 10**6 + 1
