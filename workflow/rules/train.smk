rule plan:
    input:
        lambda wildcards: resampled(assigned()["cases"]),
        split=f"{RESULTS}/split.json",
        code=code("plan"),
    output:
        json=f"{RESULTS}/plan.json",
        table=f"{RESULTS}/plan.tsv",
        shards=f"{RESULTS}/plan_shards.tsv",
    log:
        f"{RESULTS}/logs/plan.log",
    conda:
        "../../envs/volumes.yaml"
    resources:
        numa=CONFIG["numa"]["policy"],  # a resource starts no rerun
    params:
        shards=shard_members,
        settings=settings("plan"),
        versions=versions("plan"),
    shell:
        f"python scripts/plan.py --split {{input.split}} --resampled {RESULTS}/resample"
        f" {{params.shards}} --policy {{resources.numa}} --settings {{params.settings:q}} --out {{output.json}}"
        " > {log} 2>&1"


# No edge between two jobs may be ancient alone: Snakemake would then overlook the second job's own reasons to run.
# So bulk files are ancient, and the small document of the same job is not.
rule train_fold:
    input:
        ancient(
            expand(
                f"{RESULTS}/shards/{{shard}}.tfrecord",
                shard=sharding.shard_names(SHARDS),
            )
        ),
        expand(
            f"{RESULTS}/shards/{{shard}}.index.json",
            shard=sharding.shard_names(SHARDS),
        ),
        fingerprint=f"{RESULTS}/fingerprint/fold{{fold}}.json",
        code=code("train"),
    output:
        weights=f"{RESULTS}/train/fold{{fold}}/weights.npz",
        history=f"{RESULTS}/train/fold{{fold}}/history.csv",
        model=f"{RESULTS}/train/fold{{fold}}/model.json",
    log:
        f"{RESULTS}/logs/train_fold/{{fold}}.log",
    conda:
        "../../envs/tensorflow.yaml"
    threads: CONFIG["train"]["threads"]
    resources:
        mem_mb=planned_mb,
        # Where it runs, what it checks and how far it reads ahead change no number: resources start no rerun.
        numa=CONFIG["numa"]["policy"],
        check=CONFIG["shard"]["check"],
        prefetch=str(CONFIG["train"]["prefetch_mb"]),
    params:
        settings=settings("train"),
        versions=versions("train"),
    shell:
        f"python scripts/pin.py --policy {{resources.numa}} --need-mb {{resources.mem_mb}} --"
        f" python scripts/train.py --fold {{wildcards.fold}} --fingerprint {{input.fingerprint}}"
        f" --shards {RESULTS}/shards --count {SHARDS} --check {{resources.check}}"
        f" --prefetch-mb {{resources.prefetch}} --settings {{params.settings:q}}"
        f" --out {RESULTS}/train/fold{{wildcards.fold}} > {{log}} 2>&1"


rule predict_case:
    input:
        lambda wildcards: ancient(
            expand(
                f"{RESULTS}/train/fold{{fold}}/weights.npz",
                fold=case_models(wildcards),
            )
        ),
        lambda wildcards: expand(
            f"{RESULTS}/train/fold{{fold}}/model.json", fold=case_models(wildcards)
        ),
        image=ancient(f"{RESULTS}/resample/{{case}}/image.nii"),
        resampled=f"{RESULTS}/resample/{{case}}/case.json",
        ingested=f"{RESULTS}/ingest/{{case}}/case.json",
        code=code("predict"),
    output:
        native=f"{RESULTS}/predict/{{case}}.nii.gz",
        grid=f"{RESULTS}/predict/{{case}}.grid.nii.gz",
        document=f"{RESULTS}/predict/{{case}}.json",
    log:
        f"{RESULTS}/logs/predict_case/{{case}}.log",
    conda:
        "../../envs/tensorflow.yaml"
    threads: CONFIG["predict"]["threads"]
    params:
        models=lambda wildcards: " ".join(
            f"{RESULTS}/train/fold{fold}" for fold in case_models(wildcards)
        ),
        settings=settings("predict"),
        versions=versions("predict"),
    shell:
        f"python scripts/predict.py --model {{params.models}} --ingested {RESULTS}/ingest/{{wildcards.case}}"
        f" --resampled {RESULTS}/resample/{{wildcards.case}} --settings {{params.settings:q}}"
        f" --out {RESULTS}/predict > {{log}} 2>&1"
