rule write_shard:
    input:
        after_split,
        lambda wildcards: volumes_of(shard_cases(wildcards)),
        lambda wildcards: resampled(shard_cases(wildcards)),
        code=code("write_shard"),
    output:
        shard=f"{RESULTS}/shards/{{shard}}.tfrecord",
        index=f"{RESULTS}/shards/{{shard}}.index.json",
    log:
        f"{RESULTS}/logs/write_shard/{{shard}}.log",
    conda:
        "../../envs/volumes.yaml"
    threads: shard_threads
    resources:
        mem_mb=lambda wildcards, threads: planning.sharding_mb(CONFIG["shard"], threads),
    params:
        cases=shard_arguments,
        settings=settings("shard"),
        versions=versions("write_shard"),
    shell:
        f"python scripts/write_shard.py --shard {{wildcards.shard}} {{params.cases}} --threads {{threads}}"
        f" --resampled {RESULTS}/resample --settings {{params.settings:q}}"
        f" --out {RESULTS}/shards > {{log}} 2>&1"
