#!/bin/sh
# Make .venv from the hash-pinned lock, and see that numactl is there. Does nothing when both are.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Run a package manager's command when this user may; never ask for a password.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo -n "$@"; else return 1; fi
}
install_package() {
    command -v apt-get >/dev/null || return 1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$1" >/dev/null 2>&1 && return 0
    as_root apt-get update -q >/dev/null 2>&1 || return 1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$1" >/dev/null 2>&1
}
suitable() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

stamp=".venv/requirements.sha256"
wanted=$(sha256sum envs/requirements.lock | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ] || ! [ -x .venv/bin/python ]; then
    chosen=""
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if suitable "$candidate"; then chosen=$candidate; break; fi
    done
    [ -n "$chosen" ] || fail "found no Python 3.11 to 3.13; install one, or name it: make setup PYTHON=/path/to/python3.12"
    if ! "$chosen" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$chosen" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        say "installing $version"
        install_package "$version" || fail "$chosen cannot make virtual environments; run: apt-get install $version"
    fi
    say "making .venv with $("$chosen" --version) (a few minutes the first time)"
    rm -rf .venv
    "$chosen" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r envs/requirements.lock
    printf '%s\n' "$wanted" > "$stamp"
fi

if ! command -v numactl >/dev/null; then
    say "installing numactl"
    install_package numactl || say "numactl is missing and may not be installed by this user; trainings will run unpinned and say so. To pin them: apt-get install numactl"
fi
