#!/usr/bin/env bash
# Runs what scripts/gpu-bundle has collected. Needs bash, and a CUDA driver that the system finds.
#
#   ./run.sh test [ARGUMENT..]       the tests; arguments go to each of them, such as a part of a name
#   ./run.sh bench                   symwin beside the bare driver and bare kernels, all ranks on one GPU
#   ./run.sh sanitize [ARGUMENT..]   the tests under compute-sanitizer's memcheck
#
# Logs go to $OUT, or to ./out where that is not set. The status is 0 if everything went well, 1 if something did not,
# 2 if there was nothing to run. LIMIT is the longest that one command may take, in seconds [default: 600].
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-out}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
limit=${LIMIT:-600}
export SYMWIN_TEST_PROGRAM="$here/symwin" SYMWIN_TEST_GPU=1 RUST_BACKTRACE=1
failed=0

# run NAME COMMAND..: its output goes to NAME.log, one line to the terminal; of a failure the log's end too.
run() {
    local log="$out/$1.log" status began=$SECONDS
    shift
    local command=("$@")
    if command -v timeout >/dev/null; then
        command=(timeout --kill-after=10 "$limit" "$@")
    fi
    "${command[@]}" >"$log" 2>&1 </dev/null
    status=$?
    if [ "$status" -eq 0 ]; then
        printf 'ok      %4d s  %s\n' "$((SECONDS - began))" "${log##*/}"
        return
    fi
    failed=1
    [ "$status" -ne 124 ] || printf 'ended after %s s\n' "$limit" >>"$log"
    printf 'FAILED  %4d s  %s (status %d)\n' "$((SECONDS - began))" "${log##*/}" "$status"
    local lines
    mapfile -t lines <"$log"
    local first=$((${#lines[@]} > 15 ? ${#lines[@]} - 15 : 0))
    [ "${#lines[@]}" -eq 0 ] || printf '        | %s\n' "${lines[@]:first}"
}

# The tests have more streams than the CUDA driver has queues, and kernels that wait for each other: see
# `symwin::driver::cuda`. Benchmarks have fewer, and are slower so.
every_stream() {
    export CUDA_DEVICE_MAX_CONNECTIONS=32
}

machine() {
    command -v nvidia-smi >/dev/null || return 0
    nvidia-smi >"$out/machine.log" 2>&1 </dev/null
}

# tests PREFIX -- COMMAND.. -- ARGUMENT..: each test executable after the command. One test at a time: they share a GPU.
tests() {
    local prefix=$1 before=() ran=0
    shift 2
    while [ "$#" -gt 0 ] && [ "$1" != -- ]; do
        before+=("$1")
        shift
    done
    shift
    for test in "$here"/tests/*; do
        [ -x "$test" ] || continue
        ran=1
        run "$prefix-${test##*/}" ${before[@]+"${before[@]}"} "$test" --include-ignored --nocapture --test-threads="${TEST_THREADS:-1}" "$@"
    done
    [ "$ran" -eq 1 ] || {
        echo 'this bundle has no tests' >&2
        exit 2
    }
}

sanitizer() {
    local found
    for found in "$(command -v compute-sanitizer)" /usr/local/cuda*/bin/compute-sanitizer \
        /opt/nvidia/compute-sanitizer/compute-sanitizer; do
        [ -x "$found" ] || continue
        printf '%s' "$found"
        return
    done
    return 1
}

bench() {
    local ranks how
    for ranks in 2 4 8; do
        local on=(--backend cuda --ranks "$ranks" --ranks-per-gpu "$ranks")
        run "run-threads-$ranks" "$here/symwin" run "${on[@]}" --json
        for how in own arena; do
            run "register-threads-$ranks-$how" \
                "$here/symwin" bench register "${on[@]}" --windows 1,64 "--$how" --json
        done
        run "barrier-threads-$ranks" "$here/symwin" bench barrier "${on[@]}" --json
        run "allreduce-threads-$ranks" \
            "$here/symwin" bench allreduce "${on[@]}" --bytes 4K,4MiB,32MiB --json
        [ "$ranks" -le 4 ] || continue
        run "run-processes-$ranks" "$here/symwin" run "${on[@]}" --procs --json
        for how in own arena; do
            run "register-processes-$ranks-$how" \
                "$here/symwin" bench register "${on[@]}" --procs --windows 1,64 "--$how" --json
        done
    done
}

case ${1:-} in
    test)
        machine
        every_stream
        tests test -- -- "${@:2}"
        ;;
    bench)
        machine
        bench
        ;;
    sanitize)
        tool=$(sanitizer) || {
            echo 'compute-sanitizer is not here: nothing was checked; install the CUDA toolkit' >&2
            exit 2
        }
        machine
        every_stream
        tests sanitize -- "$tool" --tool memcheck --report-api-errors no --target-processes all --error-exitcode 86 -- "${@:2}"
        ;;
    *)
        printf 'usage: %s test|bench|sanitize\n' "$0" >&2
        exit 2
        ;;
esac
exit "$failed"
