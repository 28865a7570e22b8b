rule write_shard:
    input:
        lambda wildcards: volumes_of(shard_cases(wildcards)),
        lambda wildcards: resampled(shard_cases(wildcards)),
        split=ancient(f"{RESULTS}/split.json"),
        code=code("shard"),
    output:
        shard=f"{RESULTS}/shards/{{shard}}.tfrecord",
        index=f"{RESULTS}/shards/{{shard}}.index.json",
    log:
        f"{RESULTS}/logs/write_shard/{{shard}}.log",
    conda:
        "../../envs/tensorflow.yaml"
    params:
        settings=settings("shard"),
        versions=versions("shard"),
    shell:
        f"python scripts/shard.py --split {{input.split}} --resampled {RESULTS}/resample"
        f" --shard {{wildcards.shard}} --count {SHARDS} --settings {{params.settings:q}}"
        f" --out {RESULTS}/shards > {{log}} 2>&1"
