#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything CI runs, in flavours, each in its own folder under build-test/:
#   gcc     all tests, with failpoints
#   clang   compiles clean with the second compiler; all but the long tests and those that start daemons
#   asan    AddressSanitizer + UndefinedBehaviorSanitizer: all tests but those that kill processes for minutes, of covers of
#           options every fourth row, of faults fewer rounds
#   tsan    ThreadSanitizer: the plain programs over everything with threads, and whole runs with daemons built so
#   fuzz    one million executions of the frame decoder and dispatcher, fewer of the slower run file parser
# Usage: sh scripts/test.sh [flavour...]; no argument = all. The last line is "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
sh scripts/setup.sh test || exit 1

root="${ZTRAIN_TEST_BUILD:-build-test}"
mkdir -p "$root"
root=$(cd "$root" && pwd)
passed=0
failed=0

count() { # Ok and Fail lines of a meson test log: count LOG
    ok=$(sed -n 's/^Ok: *\([0-9]*\).*/\1/p' "$1" | tail -1)
    bad=$(sed -n -e 's/^Fail: *\([0-9]*\).*/\1/p' -e 's/^Timeout: *\([0-9]*\).*/\1/p' -e 's/^Unexpected Pass: *\([0-9]*\).*/\1/p' "$1" |
          awk '{n += $1} END {print n + 0}')
    passed=$((passed + ${ok:-0}))
    failed=$((failed + bad))
    [ -n "$ok" ] && [ "$ok" -gt 0 ] || failed=$((failed + 1)) # nothing ran: that is a failure
}

# Fails for every sanitizer report of DIR/sanitizer.*, but for leaks that the test library itself allocated (its
# frame is the first below the interceptor; leaks of test bodies and of ours have our frames there).
judge_reports() {
    for report in "$1"/sanitizer.*; do
        [ -f "$report" ] || continue
        if awk '/ERROR: LeakSanitizer/ {leak = 1} /ERROR: AddressSanitizer|runtime error|WARNING: ThreadSanitizer/ {other = 1}
                /leak of/ {blocks++} /#1 .*libcriterion\.so/ && !/criterion_internal_test_main/ {theirs++}
                END {exit !(leak && !other && blocks > 0 && blocks == theirs)}' "$report"; then
            echo "-- $report: leaks of the test library only"
            continue
        fi
        echo "-- $report"; head -60 "$report"
        failed=$((failed + 1))
    done
}

# flavour NAME CC SETUP-ARGS -- TEST-ARGS
flavour() {
    name=$1; compiler=$2; shift 2
    dir="$root/$name"
    setup=""
    while [ "$1" != -- ]; do setup="$setup $1"; shift; done
    shift
    echo "== $name =="
    # shellcheck disable=SC2086
    if [ ! -f "$dir/build.ninja" ]; then
        CC=$compiler meson setup "$dir" $setup >"$root/$name.setup.log" 2>&1 || { cat "$root/$name.setup.log"; failed=$((failed + 1)); return; }
    fi
    ninja -C "$dir" >"$root/$name.build.log" 2>&1 || { tail -40 "$root/$name.build.log"; failed=$((failed + 1)); return; }
    rm -f "$dir"/sanitizer.*
    meson test -C "$dir" --no-rebuild --print-errorlogs "$@" >"$root/$name.test.log" 2>&1
    grep -vE '^(ninja|Build)' "$root/$name.test.log" | tail -n 400
    count "$root/$name.test.log"
    judge_reports "$dir" # a leaking test can count as passing otherwise
}

# The unit test library does not start under TSan, so the driver of the gcc flavour drives daemons of the tsan one.
daemons_under_tsan() {
    driver="$root/gcc/tests/integration/test_integration_run"
    [ -x "$driver" ] && [ -x "$root/tsan/coordinator/zcoord" ] || { echo "tsan: the gcc flavour must be built first"; failed=$((failed + 1)); return; }
    if TSAN_OPTIONS="halt_on_error=0:log_path=$root/tsan/sanitizer" ZT_PROGRAMS="$root/tsan" timeout 600 "$driver" -j1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
    judge_reports "$root/tsan"
}

run() {
    case $1 in
    gcc) flavour gcc gcc -Dfailpoints=true -- ;;
    clang) flavour clang clang -Dfailpoints=true -- --no-suite integration --no-suite long ;;
    asan) flavour asan gcc -Dfailpoints=true -Db_sanitize=address,undefined -- --setup=asan --no-suite processes ;;
    tsan)
        flavour tsan gcc -Dfailpoints=true -Db_sanitize=thread -- --setup=tsan --suite tsan
        daemons_under_tsan ;;
    fuzz)
        echo "== fuzz =="
        if sh scripts/fuzz.sh "$root/fuzz"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi ;;
    *) echo "test.sh: no flavour '$1'; there are gcc clang asan tsan fuzz" >&2; exit 2 ;;
    esac
}

started=$(date +%s)
[ $# -gt 0 ] || set -- gcc clang asan tsan fuzz
for f in "$@"; do
    run "$f"
    echo "-- $f done after $(($(date +%s) - started)) s"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
