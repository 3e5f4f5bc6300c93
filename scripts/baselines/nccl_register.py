#!/usr/bin/env python3
"""What NCCL takes to register windows, all ranks on one GPU. Needs a CUDA driver and libnccl.so.2, such as that of the
pip package nvidia-nccl-cu13; nothing else.

    nccl_register.py [--library PATH] [--modes threads,processes] [--ranks 2,4,8] [--windows 1,64] [--bytes N]

Each sample takes new allocations of ncclMemAlloc, one for each window, outside of the time. Timed are ncclGroupStart, a
ncclCommWindowRegister for each window, and ncclGroupEnd, from the first rank's begin to the last rank's end. One JSON
line for each case. NCCL refuses several ranks on a GPU ("duplicate GPU") unless its experimental mode is on, which this
turns on (NCCL_MULTI_RANK_GPU_ENABLE=1; NCCL 2.30 or newer). Multicast is off (NCCL_NVLS_ENABLE=0).
"""

import argparse
import ctypes
import glob
import multiprocessing
import os
import queue
import site
import sys
import threading
import time

from cases import figure, lasted_us, numbers, run_case, say

WAIT_S = 120
WIN_COLL_SYMMETRIC = 1


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Nccl:
    """The library's calls; one that fails is an exception with the library's own words."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.ncclGetErrorString.restype = ctypes.c_char_p
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        for name, arguments in {
            "ncclCommDestroy": [pointer],
            "ncclCommInitRank": [pointer, ctypes.c_int, UniqueId, ctypes.c_int],
            "ncclCommWindowDeregister": [pointer, pointer],
            "ncclCommWindowRegister": [pointer, pointer, size, pointer, ctypes.c_int],
            "ncclGetUniqueId": [pointer],
            "ncclGetVersion": [pointer],
            "ncclGroupEnd": [],
            "ncclGroupStart": [],
            "ncclMemAlloc": [pointer, size],
            "ncclMemFree": [pointer],
        }.items():
            getattr(self.library, name).argtypes = arguments

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            why = self.library.ncclGetErrorString(result).decode()
            raise RuntimeError(f"{name} failed: {why} ({result}); NCCL_DEBUG=WARN says more")

    def version(self):
        version = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(version))
        return version.value

    def unique_id(self):
        unique = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(unique))
        return ctypes.string_at(ctypes.byref(unique), 128)


def find_library():
    folders = site.getsitepackages() + [site.getusersitepackages()] + sys.path
    for folder in folders:
        for found in glob.glob(os.path.join(folder, "nvidia", "nccl", "lib", "libnccl.so.2")):
            return found
    return "libnccl.so.2"


def rank(path, unique, me, options, barrier):
    """One rank. Returns the spans of its samples: registration and deregistration, in nanoseconds."""
    nccl = Nccl(path)
    comm, identity = ctypes.c_void_p(), UniqueId()
    ctypes.memmove(ctypes.byref(identity), unique, 128)
    nccl.call("ncclCommInitRank", ctypes.byref(comm), options.ranks, identity, me)
    registered, deregistered = [], []
    for _ in range(options.samples + 1):
        buffers = [ctypes.c_void_p() for _ in range(options.windows)]
        windows = [ctypes.c_void_p() for _ in range(options.windows)]
        for buffer in buffers:
            nccl.call("ncclMemAlloc", ctypes.byref(buffer), options.bytes)
        barrier.wait(WAIT_S)
        begin = time.monotonic_ns()
        nccl.call("ncclGroupStart")
        for buffer, window in zip(buffers, windows):
            nccl.call(
                "ncclCommWindowRegister", comm, buffer, options.bytes, ctypes.byref(window), WIN_COLL_SYMMETRIC
            )
        nccl.call("ncclGroupEnd")
        registered.append((begin, time.monotonic_ns()))
        barrier.wait(WAIT_S)
        begin = time.monotonic_ns()
        for window in windows:
            nccl.call("ncclCommWindowDeregister", comm, window)
        deregistered.append((begin, time.monotonic_ns()))
        barrier.wait(WAIT_S)
        for buffer in buffers:
            nccl.call("ncclMemFree", buffer)
    nccl.call("ncclCommDestroy", comm)
    return registered, deregistered


def told(path, unique, me, options, barrier, tell):
    """A rank that says what it found, or why not."""
    try:
        tell((me, rank(path, unique, me, options, barrier), None))
    except Exception as error:  # Whatever it is, it is the case's result.
        barrier.abort()
        tell((me, None, f"rank {me}: {type(error).__name__}: {error}"))


def hear(heard_of, ranks):
    """What the ranks say; after the first one that failed the others have a moment only, as they may hang."""
    heard, limit_s = [], WAIT_S * 4
    while len(heard) < ranks:
        try:
            heard.append(heard_of.get(timeout=limit_s))
        except queue.Empty:
            break
        if heard[-1][2]:
            limit_s = 5
    return heard


def case_of_threads(path, unique, options):
    barrier, heard_of = threading.Barrier(options.ranks), queue.Queue()
    for me in range(options.ranks):
        of_rank = (path, unique, me, options, barrier, heard_of.put)
        threading.Thread(target=told, args=of_rank, daemon=True).start()
    return hear(heard_of, options.ranks)


def case_of_processes(path, unique, options):
    spawn = multiprocessing.get_context("spawn")
    barrier, heard_of = spawn.Barrier(options.ranks), spawn.Queue()
    for me in range(options.ranks):
        of_rank = (path, unique, me, options, barrier, heard_of.put)
        spawn.Process(target=told, args=of_rank, daemon=True).start()
    return hear(heard_of, options.ranks)


def case(mode, options):
    labels = dict(baseline="nccl_register", mode=mode, ranks=options.ranks, windows=options.windows)
    labels["bytes"] = options.bytes
    try:
        nccl = Nccl(options.library)
        labels["version"] = nccl.version()
        how = case_of_threads if mode == "threads" else case_of_processes
        heard = how(options.library, nccl.unique_id(), options)
    except Exception as error:
        say(**labels, error=f"{type(error).__name__}: {error}")
        sys.exit(1)
    errors = [error for _, _, error in heard if error]
    # A rank that only noticed that another one gave up has nothing to say.
    errors = [error for error in errors if "BrokenBarrier" not in error] or errors
    if errors or len(heard) != options.ranks:
        say(**labels, error="; ".join(errors) or "a rank said nothing")
        sys.exit(1)
    registered = [spans for _, (spans, _), _ in sorted(heard)]
    deregistered = [spans for _, (_, spans), _ in sorted(heard)]
    # The first sample is not counted: it makes what the communicator keeps.
    samples = range(1, options.samples + 1)
    per_window = [lasted_us(registered, index) / options.windows for index in samples]
    say(
        **labels,
        first_us_per_window=lasted_us(registered, 0) / options.windows,
        us_per_window=figure(per_window),
        deregister_us_per_window=figure([lasted_us(deregistered, i) / options.windows for i in samples]),
        samples=options.samples,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=find_library(), help="libnccl.so.2")
    parser.add_argument("--modes", default="threads,processes")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--windows", default="1,64", help="how many in one group")
    parser.add_argument("--bytes", type=int, default=4 << 20, help="of each window")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--limit", type=int, default=180, help="seconds that one case may take")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # It must be set before the library is loaded, in every process.
    os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    if options.case:
        options.ranks, options.windows = int(options.ranks), int(options.windows)
        case(options.case, options)
        return 0
    right = True
    for mode in options.modes.split(","):
        for ranks in numbers(options.ranks):
            for windows in numbers(options.windows):
                arguments = ["--case", mode, "--ranks", ranks, "--windows", windows, "--bytes", options.bytes]
                arguments += ["--samples", options.samples, "--library", options.library]
                labels = dict(baseline="nccl_register", mode=mode, ranks=ranks, windows=windows)
                right &= run_case(__file__, arguments, options.limit, **labels)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
