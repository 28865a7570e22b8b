rule evaluate_case:
    input:
        after_split,
        ancient(f"{RESULTS}/predict/{{case}}.nii.gz"),
        ancient(f"{RESULTS}/predict/{{case}}.grid.nii.gz"),
        ancient(f"{RESULTS}/resample/{{case}}/label.nii"),
        prediction=f"{RESULTS}/predict/{{case}}.json",
        ingested=f"{RESULTS}/ingest/{{case}}/case.json",
        resampled=f"{RESULTS}/resample/{{case}}/case.json",
        code=code("evaluate"),
    output:
        scores=f"{RESULTS}/evaluation/cases/{{case}}.json",
        figure=f"{RESULTS}/evaluation/figures/{{case}}.png",
    log:
        f"{RESULTS}/logs/evaluate_case/{{case}}.log",
    conda:
        "../../envs/report.yaml"
    params:
        side=case_side,
        settings=settings("evaluate"),
        versions=versions("evaluate"),
    shell:
        "python scripts/evaluate.py case --prediction {input.prediction} {params.side}"
        f" --ingested {RESULTS}/ingest/{{wildcards.case}} --resampled {RESULTS}/resample/{{wildcards.case}}"
        " --figure {output.figure} --settings {params.settings:q} --out {output.scores} > {log} 2>&1"


rule evaluate:
    input:
        lambda wildcards: expand(
            f"{RESULTS}/evaluation/cases/{{case}}.json", case=scored_cases()
        ),
        split=f"{RESULTS}/split.json",
        code=code("evaluate"),
    output:
        table=f"{RESULTS}/evaluation/metrics.csv",
        summary=f"{RESULTS}/evaluation/summary.json",
    log:
        f"{RESULTS}/logs/evaluate.log",
    conda:
        "../../envs/report.yaml"
    params:
        folds=" ".join(map(str, FOLDS)),
        settings=settings("evaluate"),
        versions=versions("evaluate"),
    shell:
        f"python scripts/evaluate.py all --cases {RESULTS}/evaluation/cases --folds {{params.folds}}"
        " --split {input.split} --settings {params.settings:q} --out {output.summary} > {log} 2>&1"


rule report:
    input:
        lambda wildcards: ancient(
            expand(f"{RESULTS}/evaluation/figures/{{case}}.png", case=scored_cases())
        ),
        lambda wildcards: expand(f"{RESULTS}/train/fold{{fold}}/model.json", fold=FOLDS),
        f"{RESULTS}/evaluation/summary.json",
        f"{RESULTS}/split.json",
        f"{RESULTS}/plan.json",
        code=code("report"),
    output:
        page=f"{RESULTS}/report.html",
        document=f"{RESULTS}/report.json",
    log:
        f"{RESULTS}/logs/report.log",
    conda:
        "../../envs/report.yaml"
    params:
        settings=settings("report"),
        versions=versions("report"),
    shell:
        f"python scripts/report.py {RESULTS} --settings {{params.settings:q}} --out {{output.page}}"
        " > {log} 2>&1"
