rule ingest_case:
    input:
        made_sources,
        code=code("ingest"),
    output:
        f"{RESULTS}/ingest/{{case}}/case.json",
    log:
        f"{RESULTS}/logs/ingest_case/{{case}}.log",
    conda:
        "../../envs/volumes.yaml"
    resources:
        key=str(KEY_FILE) if OWN_KEY else pseudonyms.PUBLIC,  # where the key lies changes nothing; its content is in the pseudonym
    params:
        case=case_arguments,
        request=sources_request,
        settings=settings("ingest"),
        versions=versions("ingest"),
    shell:
        "python scripts/ingest.py {params.case} --key {resources.key} --request={params.request}"
        f" --settings {{params.settings:q}} --on-rejected record --out {RESULTS}/ingest/{{wildcards.case}}"
        " > {log} 2>&1"


# A target of its own: it needs no case to be accepted.
rule ingest_report:
    input:
        expand(f"{RESULTS}/ingest/{{case}}/case.json", case=CASES),
        code=code("ingest_report"),
    output:
        page=f"{RESULTS}/ingest/report.html",
        document=f"{RESULTS}/ingest/report.json",
        table=f"{RESULTS}/ingest/verdicts.tsv",
    log:
        f"{RESULTS}/logs/ingest_report.log",
    conda:
        "../../envs/report.yaml"
    resources:
        private=CONFIG["private"],
    params:
        settings=settings("split"),
        versions=versions("ingest_report"),
    shell:
        f"python scripts/ingest_report.py {RESULTS}/ingest --settings {{params.settings:q}}"
        " --private {resources.private:q} --out {output.page}"
        " > {log} 2>&1"


checkpoint split:
    input:
        expand(f"{RESULTS}/ingest/{{case}}/case.json", case=CASES),
        code=code("split"),
    output:
        f"{RESULTS}/split.json",
    log:
        f"{RESULTS}/logs/split.log",
    conda:
        "../../envs/volumes.yaml"
    resources:
        private=CONFIG["private"],
    params:
        settings=settings("split"),
        versions=versions("split"),
    shell:
        f"python scripts/split.py --ingested {RESULTS}/ingest --settings {{params.settings:q}}"
        " --private {resources.private:q} --out {output} > {log} 2>&1"
