rule ledger:
    input:
        f"{RESULTS}/report.json",
        code=code("audit"),
    output:
        f"{RESULTS}/audit/ledger.json",
    log:
        f"{RESULTS}/logs/ledger.log",
    conda:
        "../../envs/volumes.yaml"
    params:
        folds=" ".join(map(str, FOLDS)),
        versions=versions("audit"),
    shell:
        f"python scripts/audit.py {RESULTS} --folds {{params.folds}} --count {SHARDS} --out {{output}}"
        " > {log} 2>&1"
