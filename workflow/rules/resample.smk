rule resample_case:
    input:
        *after_spacing,
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
    threads: case_threads
    resources:
        mem_mb=resampling_mb,
        memory_mb=CONFIG["resample"]["memory_mb"],  # changes no value
    params:
        settings=grid_settings("resample"),
        versions=versions("resample"),
    shell:
        "python scripts/resample.py {input.case} --settings {params.settings:q} --threads {threads}"
        f" --memory-mb {{resources.memory_mb}} --out {RESULTS}/resample/{{wildcards.case}} > {{log}} 2>&1"


rule ceiling_case:
    input:
        *after_spacing,
        case=f"{RESULTS}/ingest/{{case}}/case.json",
        code=code("ceiling"),
    output:
        f"{RESULTS}/ceiling/{{case}}.json",
    log:
        f"{RESULTS}/logs/ceiling_case/{{case}}.log",
    conda:
        "../../envs/volumes.yaml"
    threads: case_threads
    resources:
        mem_mb=resampling_mb,
        memory_mb=CONFIG["resample"]["memory_mb"],
    params:
        settings=grid_settings("ceiling"),
        versions=versions("ceiling"),
    shell:
        "python scripts/ceiling.py case {input.case} --settings {params.settings:q} --threads {threads}"
        " --memory-mb {resources.memory_mb} --out {output} > {log} 2>&1"


# A target of its own: what a spacing costs the labels, before anything else is made.
rule ceiling:
    input:
        lambda wildcards: expand(
            f"{RESULTS}/ceiling/{{case}}.json", case=assigned()["cases"]
        ),
        split=ancient(f"{RESULTS}/split.json"),
        code=code("ceiling"),
    output:
        document=f"{RESULTS}/ceiling.json",
        table=f"{RESULTS}/ceiling.tsv",
    log:
        f"{RESULTS}/logs/ceiling.log",
    conda:
        "../../envs/volumes.yaml"
    params:
        settings=grid_settings("ceiling"),
        versions=versions("ceiling"),
    shell:
        f"python scripts/ceiling.py all --split {{input.split}} --cases {RESULTS}/ceiling --settings {{params.settings:q}}"
        " --out {output.document} 2>&1 | tee {log}"


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
