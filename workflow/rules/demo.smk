rule make_demo_cohort:
    input:
        code=code("demo"),
    output:
        f"{DEMO}/cohort.json",
    log:
        "data/demo.log",
    params:
        versions=versions("demo"),
    shell:
        "{PYTHON} scripts/demo.py --out " + DEMO + " > {log} 2>&1"
