#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the libFuzzer targets with clang and the sanitizers in a folder and runs each.
#   sh scripts/fuzz.sh [BUILD-FOLDER] [RUNS]      default build-fuzz, 1000000 runs (ZT_FUZZ_RUNS); the parser of run
#                                                 files, fifty times slower than a frame, gets a twentieth, the
#                                                 traces of a step and .jsonl files a fifth, manifests of checkpoints a tenth,
#                                                 DeepSpeed files a two-hundredth
# Ends with "N targets, 0 findings" and 0, or names the target and the file that shows the fault.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$here/build-fuzz}
all_runs=${2:-${ZT_FUZZ_RUNS:-1000000}}
if [ ! -f "$build/build.ninja" ]; then
    CC=clang meson setup "$build" "$here" -Dfuzz=true -Dtests=true \
        -Db_sanitize=address,undefined -Db_lundef=false >"$build.log" 2>&1 || {
        cat "$build.log"; exit 1; }
    mv "$build.log" "$build/setup.log"
fi
targets=$(cd "$here/tests/fuzz" && ls fuzz_*.c | sed 's/\.c$//')
# shellcheck disable=SC2086
ninja -C "$build" -j2 $(for t in $targets; do echo "tests/fuzz/$t"; done) >"$build/build.log" 2>&1 || {
    tail -50 "$build/build.log"; exit 1; }
done=0
failed=0
for t in $targets; do
    name=${t#fuzz_}
    found=$build/fuzz-$name
    mkdir -p "$found/work"
    seeds=
    max=8192
    runs=$all_runs
    [ "$name" = spec ] && runs=$((all_runs / 20))
    [ "$name" = deepspeed ] && runs=$((all_runs / 200))
    [ "$name" = jsonl ] && runs=$((all_runs / 5))
    [ "$name" = checkpoint ] && runs=$((all_runs / 10)) # each is read, written and read again
    [ "$name" = trace ] && runs=$((all_runs / 5)) # one message, where the frame has all
    [ "$name" = frame ] && max=2048 # over the limit of 4096 before the hello lies in the unit tests
    [ -d "$here/tests/fuzz/corpus/$name" ] && seeds=$here/tests/fuzz/corpus/$name
    [ "$name" = spec ] && [ -d "$here/examples" ] && seeds="$seeds $here/examples"
    start=$(date +%s)
    # new inputs go to the build folder; the committed corpus is only read
    # shellcheck disable=SC2086
    if "$build/tests/fuzz/$t" -runs="$runs" -max_len="$max" -timeout=10 -rss_limit_mb=2048 -seed=1 \
        -print_final_stats=1 -artifact_prefix="$found/" "$found/work" $seeds >"$found/log" 2>&1; then
        n=$(sed -n 's/^stat::number_of_executed_units: *//p' "$found/log")
        echo "$t: ${n:-0} runs in $(($(date +%s) - start)) s, 0 findings"
        if [ "${n:-0}" -lt "$runs" ]; then
            echo "$t: fewer runs than asked for ($runs)"
            failed=$((failed + 1))
        fi
    else
        echo "$t: FINDING, see $found"
        tail -60 "$found/log"
        failed=$((failed + 1))
    fi
    done=$((done + 1))
done
echo "$done targets, $failed findings"
[ "$failed" -eq 0 ]
