#!/usr/bin/env python3
"""What PyTorch's symmetric memory takes to make windows, processes on one GPU. Needs PyTorch with CUDA.

    torch_symm_mem.py [--ranks 2,4] [--windows 20] [--bytes N]

Timed for each window: `empty` and `rendezvous`, from the first rank's begin to the last rank's end. All windows live
until the end. One JSON line for each number of ranks. Several ranks on a GPU are allowed
(TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1) and multicast is off (TORCH_SYMM_MEM_DISABLE_MULTICAST=1).
"""

import argparse
import datetime
import os
import sys
import tempfile
import time

from cases import figure, lasted_us, numbers, run_case, say

WAIT_S = 120


def rank(me, options, folder):
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem

    torch.cuda.set_device(0)
    # Only the group's store and barrier are needed, which must not use the GPU.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=me,
        world_size=options.ranks,
        timeout=datetime.timedelta(seconds=WAIT_S),
    )
    group = dist.group.WORLD.group_name
    kept, made, met = [], [], []
    # The first window is not counted: it makes what the process keeps.
    for _ in range(options.windows + 1):
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.monotonic_ns()
        window = symm_mem.empty(options.bytes, dtype=torch.uint8, device="cuda:0")
        between = time.monotonic_ns()
        handle = symm_mem.rendezvous(window, group)
        end = time.monotonic_ns()
        kept.append((window, handle))
        made.append((begin, end))
        met.append((between, end))
    everyone = [None] * options.ranks
    dist.all_gather_object(everyone, (made, met))
    if me == 0:
        windows = range(1, options.windows + 1)
        both, rendezvous = ([of_rank[which] for of_rank in everyone] for which in (0, 1))
        say(
            **labels(options.ranks, options),
            version=torch.__version__,
            device=torch.cuda.get_device_name(0),
            first_us=lasted_us(both, 0),
            us_per_window=figure([lasted_us(both, index) for index in windows]),
            rendezvous_us_per_window=figure([lasted_us(rendezvous, index) for index in windows]),
        )
    dist.barrier()
    torch.cuda.synchronize()
    # Nobody frees memory that another rank still has mapped; the process's end does the rest.
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def labels(ranks, options):
    return dict(baseline="torch_symm_mem", mode="processes", ranks=ranks, windows=options.windows, bytes=options.bytes)


def case(options):
    try:
        import torch
        import torch.multiprocessing as torch_processes

        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no GPU: ask nvidia-smi, or install a build with CUDA")
        with tempfile.TemporaryDirectory() as folder:
            torch_processes.spawn(rank, args=(options, folder), nprocs=options.ranks)
    except Exception as error:  # Whatever it is, it is the case's result.
        say(**labels(options.ranks, options), error=f"{type(error).__name__}: {error}"[-2000:])
        sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--bytes", type=int, default=4 << 20, help="of each window")
    parser.add_argument("--limit", type=int, default=180, help="seconds that one case may take")
    parser.add_argument("--case", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    if options.case:
        options.ranks = int(options.ranks)
        case(options)
        return 0
    right = True
    for ranks in numbers(options.ranks):
        arguments = ["--case", "--ranks", ranks, "--windows", options.windows, "--bytes", options.bytes]
        right &= run_case(__file__, arguments, options.limit, **labels(ranks, options))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
