rule ledger:
    input:
        f"{RESULTS}/report.json",
        code=code("audit"),
    output:
        f"{RESULTS}/audit/ledger.json",
    log:
        f"{RESULTS}/logs/ledger.log",
    params:
        folds=" ".join(map(str, FOLDS)),
        versions=versions("audit"),
    shell:
        "{PYTHON} scripts/audit.py "
        + RESULTS
        + " --folds {params.folds} --count "
        + str(SHARDS)
        + " --out {output} > {log} 2>&1"
