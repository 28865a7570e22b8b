"""Write the demo cohort: synthetic heads with tumours as NIfTI and DICOM, a case table, and a list of what was written."""

import argparse
import sys

from teravox import demo
from teravox.errors import run_command


def main(args: argparse.Namespace) -> None:
    demo.write_cohort(args.out, args.seed, args.cases, args.scale)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--out", required=True, default=argparse.SUPPRESS, help="folder to write to; the paths in its cases.tsv begin with it as given"
    )
    parser.add_argument("--seed", type=int, default=2020, help="another seed makes other patients")
    parser.add_argument("--cases", type=int, default=len(demo.SCANS), help=f"write the first 1 to {len(demo.SCANS)} cases")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the voxels' edges: 2 makes a tiny cohort for tests")
    sys.exit(run_command(main, parser))
