# What the README promises. Everything is installed into .venv from envs/requirements.lock.
.PHONY: run setup test test-slow lint bench lock clean

run: setup
	.venv/bin/snakemake --cores all

setup:
	@sh envs/setup.sh

test: setup
	.venv/bin/python -m pytest

test-slow: setup
	.venv/bin/python -m pytest -m slow

lint: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/snakefmt --check Snakefile workflow
	.venv/bin/snakemake --lint

bench: setup
	.venv/bin/python tests/benchmarks/plan_memory.py
	.venv/bin/python tests/benchmarks/ingest.py
	.venv/bin/python tests/benchmarks/labels.py
	.venv/bin/python tests/benchmarks/resample.py
	.venv/bin/python tests/benchmarks/shards.py

# Needs uv (https://docs.astral.sh/uv); writes no address of an index into the file.
lock:
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-emit-index-url --no-emit-find-links --no-header \
		envs/requirements.in --output-file envs/requirements.lock

# Removes what runs and tests made; keeps .venv and your own data.
clean:
	rm -rf results results_msd_hippocampus data/demo data/demo.log .snakemake .mypy_cache .ruff_cache .pytest_cache .hypothesis
