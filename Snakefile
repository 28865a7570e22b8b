from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


rule all:
    input:
        f"{RESULTS}/report.html",
        f"{RESULTS}/audit/ledger.json",


include: "workflow/rules/demo.smk"
include: "workflow/rules/ingest.smk"
include: "workflow/rules/resample.smk"
include: "workflow/rules/shard.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/audit.smk"
