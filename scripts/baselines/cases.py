"""What the baselines share: cases run in processes of their own, with a time limit, and say one JSON line each."""

import json
import os
import signal
import statistics
import subprocess
import sys


def say(**what):
    print(json.dumps(what), flush=True)


def run_case(script, arguments, limit_s, **labels):
    """Runs `script` with these arguments and passes its JSON lines on; what goes wrong is such a line too."""
    command = [sys.executable, script, *map(str, arguments)]
    # A session of its own, so that a case that hangs goes with all of its ranks.
    case = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, errors = case.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        end(case)
        case.communicate()
        say(**labels, error=f"did not end within {limit_s} s")
        return False
    finally:
        end(case)
    lines = [line for line in said.splitlines() if line.startswith("{")]
    for line in lines:
        print(line, flush=True)
    if case.returncode != 0 and not any("error" in json.loads(line) for line in lines):
        say(**labels, error=f"ended with status {case.returncode}", stderr=errors[-2000:])
    return case.returncode == 0


def end(case):
    """Ends all processes of a case that are left."""
    try:
        os.killpg(case.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def figure(samples):
    """Median and range of microseconds."""
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples)}


def lasted_us(spans, index):
    """From the first rank's begin to the last rank's end of a sample, in microseconds; `spans` is by rank."""
    begins = [rank[index][0] for rank in spans]
    ends = [rank[index][1] for rank in spans]
    return (max(ends) - min(begins)) / 1e3


def numbers(text):
    return [int(number) for number in text.split(",")]
