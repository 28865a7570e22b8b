rule write_shard:
    input:
        after_split,
        lambda wildcards: volumes_of(shard_cases(wildcards)),
        lambda wildcards: resampled(shard_cases(wildcards)),
        code=code("shard"),
    output:
        shard=f"{RESULTS}/shards/{{shard}}.tfrecord",
        index=f"{RESULTS}/shards/{{shard}}.index.json",
    log:
        f"{RESULTS}/logs/write_shard/{{shard}}.log",
    conda:
        "../../envs/tensorflow.yaml"
    params:
        cases=shard_arguments,
        settings=settings("shard"),
        versions=versions("shard"),
    shell:
        f"python scripts/shard.py --shard {{wildcards.shard}} {{params.cases}}"
        f" --resampled {RESULTS}/resample --settings {{params.settings:q}}"
        f" --out {RESULTS}/shards > {{log}} 2>&1"
