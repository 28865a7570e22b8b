rule make_demo_cohort:
    input:
        code=code("demo"),
    output:
        f"{DEMO}/cohort.json",
    log:
        "data/demo.log",
    conda:
        "../../envs/volumes.yaml"
    params:
        versions=versions("demo"),
    shell:
        f"python scripts/demo.py --out {DEMO} > {{log}} 2>&1"
