rule write_shard:
    input:
        lambda wildcards: volumes_of(shard_cases(wildcards)),
        lambda wildcards: resampled(shard_cases(wildcards)),
        split=f"{RESULTS}/split.json",
        code=code("shard"),
    output:
        shard=f"{RESULTS}/shards/{{shard}}.tfrecord",
        index=f"{RESULTS}/shards/{{shard}}.index.json",
    log:
        f"{RESULTS}/logs/write_shard/{{shard}}.log",
    params:
        settings=settings("shard"),
        versions=versions("shard"),
    shell:
        "{PYTHON} scripts/shard.py --split {input.split} --resampled "
        + RESULTS
        + "/resample"
        " --shard {wildcards.shard} --count "
        + str(SHARDS)
        + " --settings {params.settings:q}"
        " --out " + RESULTS + "/shards > {log} 2>&1"
