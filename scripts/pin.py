"""Start a command under numactl where its memory belongs, and say what was done.

Usage: pin.py [--policy POLICY] [--need-bytes N | --plan plan.json --fold F] -- COMMAND [ARGUMENT ...]
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from teravox import files, numa
from teravox.errors import UserError, run_command


def main(args: argparse.Namespace) -> None:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UserError("pin: no command given, expected -- COMMAND after the options")
    need = args.need_bytes
    if args.plan is not None:
        planned = {entry["fold"]: entry["predicted_peak_bytes"] for entry in files.read_json(args.plan)["trainings"]}
        if args.fold not in planned:
            raise UserError(f"{args.plan}: holds no fold {args.fold}; run the plan with it")
        need = planned[args.fold]
    arguments, reason = numa.choose(numa.topology(), need, args.policy)
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
    parser.add_argument("--need-bytes", type=int, default=0, help="predicted peak memory of the command")
    parser.add_argument("--plan", type=Path, help="plan.json, instead of --need-bytes")
    parser.add_argument("--fold", type=int, default=0, help="which training of the plan")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the command with its arguments")
    sys.exit(run_command(main, parser))
