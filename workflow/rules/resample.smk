rule resample_case:
    input:
        case=f"{RESULTS}/ingest/{{case}}/case.json",
        code=code("resample"),
    output:
        image=f"{RESULTS}/resample/{{case}}/image.nii",
        label=f"{RESULTS}/resample/{{case}}/label.nii",
        case=f"{RESULTS}/resample/{{case}}/case.json",
    log:
        f"{RESULTS}/logs/resample_case/{{case}}.log",
    conda:
        "../../envs/volumes.yaml"
    params:
        settings=settings("resample"),
        versions=versions("resample"),
    shell:
        "python scripts/resample.py {input.case} --settings {params.settings:q} --threads {threads}"
        f" --out {RESULTS}/resample/{{wildcards.case}} > {{log}} 2>&1"


rule fingerprint_fold:
    input:
        lambda wildcards: volumes_of(training_cases(wildcards)),
        lambda wildcards: resampled(training_cases(wildcards)),
        split=ancient(f"{RESULTS}/split.json"),
        code=code("fingerprint"),
    output:
        f"{RESULTS}/fingerprint/fold{{fold}}.json",
    log:
        f"{RESULTS}/logs/fingerprint_fold/{{fold}}.log",
    conda:
        "../../envs/volumes.yaml"
    params:
        settings=settings("fingerprint"),
        versions=versions("fingerprint"),
    shell:
        "python scripts/fingerprint.py --split {input.split} --fold {wildcards.fold}"
        f" --resampled {RESULTS}/resample --settings {{params.settings:q}} --out {{output}} > {{log}} 2>&1"
