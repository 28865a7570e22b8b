"""Start a command under numactl where its memory belongs, and say what was done.

Usage: pin.py [--policy POLICY] [--need-mb N] -- COMMAND [ARGUMENT ...]
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys

from teravox import numa
from teravox.errors import UserError, run_command


def main(args: argparse.Namespace) -> None:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UserError("pin: no command given, expected -- COMMAND after the options")
    arguments, reason = numa.choose(numa.topology(), args.need_mb * 10**6, args.policy)
    pinned = bool(arguments)
    if arguments and shutil.which("numactl") is None:
        pinned, reason = False, "numactl is not installed (on Debian and Ubuntu: apt-get install numactl)"
    elif arguments:
        trial = subprocess.run(["numactl", *arguments, "true"], capture_output=True, text=True)
        if trial.returncode or trial.stderr.strip():
            pinned, reason = False, f"numactl is not permitted here ({' '.join(trial.stderr.split()) or f'exit status {trial.returncode}'})"
    if pinned:
        command = ["numactl", *arguments, *command]
    os.environ["TERAVOX_PINNING"] = json.dumps({"pinned": pinned, "policy": args.policy, "arguments": arguments if pinned else [], "reason": reason})
    print(f"{'pinned' if pinned else 'NOT PINNED'}: {reason}\n{shlex.join(command)}", flush=True)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UserError(f"{command[0]}: {error.strerror}") from None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", choices=["auto", "none", "bind", "interleave"], default="auto", help="where to put the process (default: auto)")
    parser.add_argument("--need-mb", type=int, default=0, help="predicted peak memory of the command in MB (10^6 bytes)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the command with its arguments")
    sys.exit(run_command(main, parser))
