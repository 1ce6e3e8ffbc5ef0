#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The long versions of what CI samples: sh scripts/soak.sh [faults|chaos|power|sim|fuzz|equiv|precision|plan ...]; no argument = all.
# Runs for hours on two cores. The last line is "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
sh scripts/setup.sh test || exit 1
dir="${ZTRAIN_SOAK_BUILD:-build-soak}"
[ -f "$dir/build.ninja" ] || meson setup "$dir" -Dfailpoints=true >/dev/null || exit 1
ninja -C "$dir" >/dev/null || exit 1
passed=0; failed=0
try() { echo "== $*"; if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi; }

[ $# -gt 0 ] || set -- faults chaos power sim fuzz equiv precision plan
for what in "$@"; do
    case $what in
    faults) try env ZT_FAULT_ROUNDS="${ZT_FAULT_ROUNDS:-100}" "$dir/tests/integration/test_integration_faults" -j1 --timeout 36000 ;;
    chaos) # a line of JSON a schedule, then how long faults took to be noticed and to be over
        try env ZT_FAULT_ROUNDS="${ZT_FAULT_ROUNDS:-100}" "$dir/tests/integration/test_integration_chaos" -j1 --timeout 36000 ;;
    power) # power lost at every call of a save, with every subset of at most 12 things that were not synced, else 1,000
        try env ZT_POWER_FEW=12 ZT_POWER_SOME=1000 "$dir/tests/checkpoint/test_faults" -j1 --timeout 36000 ;;
    sim) try "$dir/tests/coordinator/coordinator_sim" --first 2000 --seeds 100000 ;;
    fuzz) try env ZT_FUZZ_RUNS=100000000 sh scripts/fuzz.sh "$dir/fuzz" ;;
    equiv) # shellcheck disable=SC2086 # no number: all
        try "$dir/tests/engine/test_equiv_plain" --product ${ZT_EQUIV_RUNS:-} ;;
    precision) # every recipe, mode, number of ranks and reduce type
        for t in test_precision test_precision_bytes; do
            try env ZT_TEST_FULL=1 "$dir/tests/engine/$t" -j1 --timeout 7200
        done ;;
    plan) # runs drawn from the whole product of options, each held against its plan
        try env ZT_PLAN_RUNS="${ZT_PLAN_RUNS:-2000}" "$dir/tests/engine/test_plan_exact" -j1 --filter 'plan_exact/drawn_*' --timeout 36000 ;;
    *) echo "soak.sh: no part '$what'; there are faults chaos power sim fuzz equiv precision plan" >&2; exit 2 ;;
    esac
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
