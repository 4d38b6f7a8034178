"""Which kernels fit which GPU, at the sizes of real models.

    python -m tests.benchmarks.engine.kernel_fit [CAPABILITY ...]

No GPU is needed. Prints what does not run as it is configured, and how many forms there are; about two minutes a GPU.
Exit code 1: something that is not a type that the GPU lacks is left to its twin.
"""

from __future__ import annotations

import argparse
import sys

import torch

from kernels.dispatch import load_ops
from tests.support.kernels.other_gpus import SHARED_BYTES, distinct, fit, launches_of


def main(capabilities: list[int]) -> int:
    """Prints a line for each kernel that does not fit, and one for each GPU."""
    launches = distinct([found for op in load_ops() for found in launches_of(op, torch.device("meta"))])
    num_lost = 0
    for capability in capabilities:
        num_as_configured = num_fewer = num_without_type = 0
        for name, launch in launches.items():
            found = fit(launch, capability)
            if found.num_stages == launch.config.num_stages:
                num_as_configured += 1
                continue
            print(f"sm_{capability}  {name}: {found.num_stages or 'no'} stages; {found.reason[-120:]}", flush=True)
            num_fewer += bool(found.num_stages)
            num_without_type += "not supported in this architecture" in found.reason
        lost = len(launches) - num_as_configured - num_fewer - num_without_type
        num_lost += lost
        print(
            f"sm_{capability}  {len(launches)} forms: {num_as_configured} as configured, {num_fewer} with fewer "
            f"stages, {num_without_type} of a type it lacks, {lost} left to their twins for other reasons",
            flush=True,
        )
    return 1 if num_lost else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capabilities", nargs="*", type=int, metavar="CAPABILITY", help="90 for Hopper; default: all")
    sys.exit(main(parser.parse_args().capabilities or sorted(SHARED_BYTES)))
