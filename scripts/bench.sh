#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs our benchmark programs and their PyTorch peers, round by round in turn, so that both see the same
# machine; prints medians and ratios (above 1: we are faster), and every raw JSON line to a file.
#   sh scripts/bench.sh [--build DIR] [--rounds N] [--only NAME] [--quick | --full] [--out FILE]
# NAME: adamw, gemm, attention, collective or train_step; without a peer, our own against our own: modes (sharding
# against ddp), overlap (a slow link, prefetch 0 and 1), wrap (sizes of a unit), overhead (of measuring), chunk
# (peaks with the head in pieces), plan_speed (seconds to plan), plan (estimated steps after zctl calibrate against
# measured ones), checkpoint (what saving costs the step loop; saving and loading against the disk itself). The peers need python3-torch; without it the rows say so.
# Times on a busy machine mean little: look at other_load in the raw lines.
set -eu
cd "$(dirname "$0")/.."
build=build rounds=3 only= size=normal out=
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --quick) size=quick; shift ;;
    --full) size=full; shift ;;
    *) echo "bench.sh: unknown argument '$1'; see the head of the script" >&2; exit 2 ;;
    esac
done
case $rounds in '' | *[!0-9]* | 0) echo "bench.sh: --rounds wants a number of at least 1" >&2; exit 2 ;; esac
if [ ! -x "$build/bench/bench-adamw" ]; then
    echo "bench.sh: $build/bench/bench-adamw is not there; run: meson setup $build && ninja -C $build" >&2
    exit 2
fi

# Settings that people use to tune a BLAS would change what is compared.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE OPENBLAS_NUM_THREADS OMP_NUM_THREADS MKL_NUM_THREADS || :
python=
for p in /usr/bin/python3 python3; do
    if "$p" -c 'import torch' 2>/dev/null; then python=$p; break; fi
done
export PYTHONDONTWRITEBYTECODE=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
[ -n "$out" ] || out=$build/bench/results.jsonl
: >"$out"

# value METRIC FILE: the metric of every line, one a line; a null has none
values() { sed -n 's/.*"'"$1"'":\(-\{0,1\}[0-9.][0-9.eE+-]*\)[,}].*/\1/p' "$2"; }
median() { sort -n | awk '{v[NR]=$1} END {if (NR) printf "%.3f", NR%2 ? v[(NR+1)/2] : (v[NR/2]+v[NR/2+1])/2}'; }

# row METRIC PROGRAM PEER ARGUMENTS...: PROGRAM and PEER take the same arguments
failed=0
row() {
    metric=$1 program=$2 peer=$3
    shift 3
    [ -z "$only" ] || [ "$only" = "$peer" ] || return 0
    if [ ! -x "$build/bench/$program" ]; then
        printf '%-12s %-70s %s\n' "$peer" "$*" "not built"
        return 0
    fi
    : >"$scratch/ours"
    : >"$scratch/peer"
    i=0
    while [ $i -lt "$rounds" ]; do
        if ! "$build/bench/$program" "$@" >>"$scratch/ours"; then
            printf '%-12s %-70s %s\n' "$peer" "$*" "FAILED"
            failed=1
            return 0
        fi
        [ -z "$python" ] || "$python" "bench/peer_$peer.py" "$@" >>"$scratch/peer" 2>"$scratch/errors" || :
        i=$((i + 1))
    done
    cat "$scratch/ours" "$scratch/peer" >>"$out"
    a=$(values "$metric" "$scratch/ours" | median)
    b=$(values "$metric" "$scratch/peer" | median)
    if [ -z "$python" ]; then
        b="peer not installed" ratio=
    elif [ -z "$b" ]; then
        b="peer cannot" ratio=
    else
        ratio=$(awk -v a="$a" -v b="$b" 'BEGIN {if (a > 0) printf "%.2f", b / a}')
    fi
    printf '%-12s %-70s %-8s %12s %18s %7s\n' "$peer" "$*" "$metric" "$a" "$b" "$ratio"
}

# ---- our own against our own: variants in turn, round by round ----

wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }
# take NAME ARGUMENTS...: one run of the trainer's benchmark, its line added to the variant's
take() {
    name=$1; shift
    "$build/bench/bench-train-step" "$@" >"$scratch/line" || { echo "FAILED: bench-train-step $*"; failed=1; return 0; }
    cat "$scratch/line" >>"$scratch/own.$name"
    cat "$scratch/line" >>"$out"
}
# med NAME METRIC: median over the variant's lines
med() { [ ! -f "$scratch/own.$1" ] || values "$2" "$scratch/own.$1" | median; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {if (a != "" && b > 0) printf "%.3f", a / b; else printf "-"}'; }

# modes WORLD ARGUMENTS...: every mode against ddp
modes() {
    world=$1; shift
    for round in $(seq "$rounds"); do
        for mode in ddp zero1 zero2 zero3 fsdp; do take "$mode.$world" --mode $mode --world "$world" "$@"; done
    done
    printf '\nmodes, %s workers: %s\n%-8s %12s %8s %12s %8s %10s %12s %10s\n' "$world" "$*" \
        mode tokens/s "of ddp" "peak MiB" "of ddp" "sent MiB" collectives exposed
    for mode in ddp zero1 zero2 zero3 fsdp; do
        t=$(med "$mode.$world" tokens_per_second) p=$(med "$mode.$world" peak_allocated_mib)
        printf '%-8s %12s %8s %12s %8s %10s %12s %10s\n' "$mode" "$t" "$(ratio "$t" "$(med "ddp.$world" tokens_per_second)")" \
            "$p" "$(ratio "$p" "$(med "ddp.$world" peak_allocated_mib)")" "$(med "$mode.$world" sent_mib)" \
            "$(med "$mode.$world" collectives)" "$(med "$mode.$world" exposed_share)"
    done
}

# variants TITLE KEY VALUES ARGUMENTS...: one key of the run file, fsdp on two workers
variants() {
    title=$1 key=$2 list=$3; shift 3
    for round in $(seq "$rounds"); do
        for v in $list; do take "$title.$v" --mode fsdp --world 2 --threads 1 --set "parallelism.$key=$v" "$@"; done
    done
    printf '\n%s: fsdp, 2 workers: %s\n%-14s %10s %12s %12s %10s %12s %10s\n' "$title" "$*" \
        "$key" ms "comm ms" "exposed ms" exposed collectives "peak MiB"
    for v in $list; do
        printf '%-14s %10s %12s %12s %10s %12s %10s\n' "$v" "$(med "$title.$v" ms)" "$(med "$title.$v" comm_ms)" \
            "$(med "$title.$v" exposed_comm_ms)" "$(med "$title.$v" exposed_share)" "$(med "$title.$v" collectives)" \
            "$(med "$title.$v" peak_allocated_mib)"
    done
}

overhead() {
    for round in $(seq "$rounds"); do
        take overhead.1 --overhead 1 --world 1 --threads 1 "$@"
        take overhead.2 --overhead 1 --world 2 --threads 1 "$@"
    done
    printf '\noverhead of measuring, percent of a step (median over pairs of steps): %s\n' "$*"
    printf '1 worker %s, 2 workers %s\n' "$(med overhead.1 overhead_percent)" "$(med overhead.2 overhead_percent)"
}

# chunk: the head and its loss in pieces of so many tokens, against whole: peaks as planned and as measured
chunk() {
    for n in 0 "$@"; do
        take "chunk.$n" --family llama --kv-heads 2 --ffn 688 --layers 2 --seq 1024 --vocab 50304 --batch 4 --steps 3 --warmup 1 \
            --predict cpu --set "loss.chunk_tokens=$n"
    done
    printf '\nchunk: llama, 2 layers x 256, vocabulary 50304, 4 x 1024 tokens\n%-12s %14s %14s %14s %14s %10s\n' chunk_tokens \
        "planned MiB" "measured MiB" "saved GiB plan" "saved GiB" ms
    for n in 0 "$@"; do
        p=$(med "chunk.$n" predicted_peak_mib) m=$(med "chunk.$n" peak_allocated_mib)
        printf '%-12s %14s %14s %14s %14s %10s\n' "$n" "$p" "$m" "$(saved predicted_peak_mib "$p")" \
            "$(saved peak_allocated_mib "$m")" "$(med "chunk.$n" ms)"
    done
}
# saved METRIC MIB: what a peak is below that of the whole head
saved() { awk -v a="$(med chunk.0 "$1")" -v b="$2" 'BEGIN {if (a != "" && b != "") printf "%.3f", (a - b) / 1024}'; }

# How long planning takes: a big model on many ranks; the table of all modes of a small one
plan_speed() {
    printf '\nplan_speed: %-50s %10s %12s %14s\n' "" seconds "of CPU" "resident MiB"
    for what in "fsdp 96 12288 96 1024 1" "fsdp 96 12288 96 8 1" "table 18 2048 16 8 1" "table 18 2048 16 8 8"; do
        # shellcheck disable=SC2086 # words
        set -- $what
        for round in $(seq "$rounds"); do
            "$build/bench/bench-plan-speed" --mode "$1" --layers "$2" --dim "$3" --heads "$4" --ranks "$5" --micro "$6" >"$scratch/line" ||
                { echo "FAILED: bench-plan-speed $what"; failed=1; continue; }
            cat "$scratch/line" >>"$scratch/own.plan.$1.$5.$6"
            cat "$scratch/line" >>"$out"
        done
        printf '%-62s %10s %12s %14s\n' "$1, $2 layers x $3, $5 ranks, $6 micro-steps" "$(med "plan.$1.$5.$6" seconds)" \
            "$(med "plan.$1.$5.$6" cpu_seconds)" "$(med "plan.$1.$5.$6" resident_mib)"
    done
}

# plan: zctl calibrate in a folder of its own, then the same runs planned and measured. The error is the median of
# predicted / measured - 1 over the rounds.
plan() {
    XDG_STATE_HOME=$scratch XDG_CONFIG_HOME=$scratch/none
    export XDG_STATE_HOME XDG_CONFIG_HOME
    echo "calibrating: about 80 s"
    "$build/clients/zctl/zctl" calibrate --device single --threads 1 --duration 20 >/dev/null
    "$build/clients/zctl/zctl" calibrate --device one --threads 2 --duration 20 >/dev/null
    "$build/clients/zctl/zctl" calibrate --device two --workers 2 --threads 1 --comm --duration 40 >/dev/null
    nano="--layers 4 --dim 128 --heads 4 --seq 128 --batch 8 --steps 40 --warmup 10"
    small="--layers 4 --dim 256 --heads 4 --seq 256 --batch"
    middle="--layers 6 --dim 384 --heads 6 --seq 256 --batch"
    for round in $(seq "$rounds"); do
        # shellcheck disable=SC2086 # words
        {
            take plan.nano.cpu --predict single --threads 1 $nano
            take plan.4x256.cpu --predict single --threads 1 $small 8 --steps 5 --warmup 1
            take plan.6x384.cpu --predict single --threads 1 $middle 4 --steps 5 --warmup 1
            take plan.nano.1 --predict one --threads 2 $nano
            take plan.nano.2 --predict two --threads 1 --world 2 $nano
            take plan.4x256.1 --predict one --threads 2 $small 8 --steps 8 --warmup 2
            take plan.4x256.2 --predict two --threads 1 --world 2 $small 4 --steps 8 --warmup 2
            take plan.4x256-fsdp.2 --predict two --threads 1 --world 2 --mode fsdp $small 4 --steps 8 --warmup 2
            take plan.6x384.1 --predict one --threads 2 $middle 8 --steps 4 --warmup 1
            take plan.6x384.2 --predict two --threads 1 --world 2 $middle 4 --steps 4 --warmup 1
        }
    done
    printf '\nplan: estimated and measured step, after zctl calibrate (cpu: one worker of one thread, its CPU time, which\n'
    printf 'other load hardly moves; 1: one worker, two threads; 2: two workers: both by the wall clock)\n'
    printf '%-18s %12s %12s %10s %18s\n' run "estimate ms" "measured ms" "error" "CPU ms of rank 0"
    for v in nano.cpu 4x256.cpu 6x384.cpu; do
        e=$(med "plan.$v" predicted_ms) t=$(med "plan.$v" cpu_ms)
        printf '%-18s %12s %12s %9s%%\n' "$v" "$e" "$t" "$(awk -v e="$e" -v t="$t" 'BEGIN {printf "%.0f", 100 * (e / t - 1)}')"
    done
    for v in nano.1 nano.2 4x256.1 4x256.2 4x256-fsdp.2 6x384.1 6x384.2; do
        printf '%-18s %12s %12s %9s%% %18s\n' "$v" "$(med "plan.$v" predicted_ms)" "$(med "plan.$v" ms)" \
            "$(med "plan.$v" plan_error | awk '{printf "%.0f", 100 * $1}')" "$(med "plan.$v" cpu_ms)"
    done
}

# checkpoint: a run that saves, then as many bytes plainly, then going on from the newest; in the folder TMPDIR
checkpoint() {
    for round in $(seq "$rounds"); do
        for what in "small 4 256 4 fsdp" "middle 6 384 6 fsdp" "middle-ddp 6 384 6 ddp"; do
            # shellcheck disable=SC2086 # words
            set -- $what
            "$build/bench/bench-checkpoint" --layers "$2" --dim "$3" --heads "$4" --world 2 --mode "$5" --folder "${TMPDIR:-/tmp}" >"$scratch/line" ||
                { echo "FAILED: bench-checkpoint $what"; failed=1; continue; }
            cat "$scratch/line" >>"$scratch/own.ckpt.$1"
            cat "$scratch/line" >>"$out"
        done
    done
    printf '\ncheckpoint: 2 workers; blocked and writer: of the step loop at the default interval of 500 steps (goal: blocked below 2 %%)\n'
    printf '%-12s %8s %9s %9s %10s %10s %11s %11s %11s %11s\n' run MiB "step ms" "stall ms" "blocked %" "writer %" \
        "save MiB/s" "disk MiB/s" "load MiB/s" "disk MiB/s"
    for v in small middle middle-ddp; do
        printf '%-12s %8s %9s %9s %10s %10s %11s %11s %11s %11s\n' "$v" "$(med "ckpt.$v" mib)" "$(med "ckpt.$v" step_ms)" \
            "$(med "ckpt.$v" stall_ms)" "$(med "ckpt.$v" blocked_percent)" "$(med "ckpt.$v" writer_percent)" \
            "$(med "ckpt.$v" save_mib_s)" "$(med "ckpt.$v" disk_write_mib_s)" "$(med "ckpt.$v" load_mib_s)" \
            "$(med "ckpt.$v" disk_read_mib_s)"
    done
}

sharding() {
    slow="--layers 8 --dim 256 --heads 4 --seq 256 --batch 4 --steps 8 --alpha-us $1"
    # shellcheck disable=SC2086 # words
    {
        ! wanted overlap || variants overlap prefetch "0 1 2" $slow
        ! wanted wrap || variants wrap wrap "part block 2" $slow
        ! wanted modes || modes 2 --layers 6 --dim 256 --heads 4 --seq 128 --batch 4 --threads 1
        ! wanted modes || modes 4 --layers 6 --dim 256 --heads 4 --seq 128 --batch 4 --threads 1
        ! wanted overhead || overhead --layers 4 --dim 256 --heads 4 --seq 128 --batch 4 --steps 200
    }
}

if [ "$only" = plan_speed ]; then
    plan_speed
    echo "raw lines: $out"
    exit $failed
fi
if [ "$only" = chunk ]; then
    chunk 1024 256
    echo "raw lines: $out"
    exit $failed
fi
if [ "$only" = checkpoint ]; then
    checkpoint
    echo "raw lines: $out"
    exit $failed
fi
if [ "$only" = plan ]; then
    plan
    echo "raw lines: $out"
    exit $failed
fi
case $only in modes | overlap | wrap | overhead)
    sharding 8000
    echo "raw lines: $out"
    exit $failed ;;
esac

printf '%-12s %-70s %-8s %12s %18s %7s\n' what arguments metric ztrain pytorch ratio
step="--layers 4 --dim 256 --heads 4 --seq 256 --vocab 256"
llama="--family llama --kv-heads 2 --ffn 688"
if [ $size = quick ]; then
    row ms bench-adamw adamw --n 1000000 --threads 1
    row cpu_ms bench-gemm gemm --op fwd --rows 2048 --in 256 --out 1024 --threads 1
    row cpu_ms bench-attention attention --pass backward --seq 256 --kv-heads 2 --threads 1
    row us bench-collective collective --op all_reduce --world 2 --bytes 1048576
    for family in "" "--family llama --kv-heads 1 --ffn 344"; do
        # shellcheck disable=SC2086 # words
        row ms bench-train-step train_step $family --layers 2 --dim 128 --heads 2 --seq 64 --batch 4 --steps 4 --warmup 1
    done
    exit $failed
fi
for threads in 1 2; do
    # of one thread the CPU time, which what else runs hardly moves
    [ $threads = 1 ] && time=cpu_ms || time=ms
    row $time bench-adamw adamw --n 1000000 --threads $threads
    row $time bench-adamw adamw --n 30000000 --threads $threads
    row norm_ms bench-adamw adamw --n 30000000 --threads $threads
    for op in fwd dx dw; do
        for type in fp32 bf16; do
            row $time bench-gemm gemm --op $op --rows 2048 --in 256 --out 1024 --threads $threads --type $type
            row $time bench-gemm gemm --op $op --rows 2048 --in 768 --out 3072 --threads $threads --type $type
        done
    done
done
for seq in 1024 2048 4096; do
    for heads in 8 2; do
        row ms bench-attention attention --pass forward --seq $seq --kv-heads $heads --threads 2
        row ms bench-attention attention --pass backward --seq $seq --kv-heads $heads --threads 2
    done
done
row us bench-collective collective --op barrier --world 2
for world in 2 4; do
    for op in all_reduce all_gather reduce_scatter broadcast; do
        for bytes in 16384 1048576 16777216; do
            row us bench-collective collective --op $op --world $world --bytes $bytes
        done
    done
done
for family in "" "$llama"; do
    row ms bench-train-step train_step $family $step --batch 8 --threads 1
    row ms bench-train-step train_step $family $step --batch 8 --threads 2
    row ms bench-train-step train_step $family $step --batch 4 --threads 1 --world 2
done
if [ $size = full ]; then
    for family in "" "--family llama --kv-heads 2 --ffn 1024"; do
        row ms bench-train-step train_step $family --layers 6 --dim 384 --heads 6 --batch 8 --threads 2
        row ms bench-train-step train_step $family --layers 6 --dim 384 --heads 6 --batch 4 --threads 1 --world 2
    done
    for family in "" "--family llama --kv-heads 4 --ffn 2048"; do
        row ms bench-train-step train_step $family --layers 12 --dim 768 --heads 12 --vocab 50304 --batch 4 --steps 3 --warmup 1
    done
fi
sharding 8000
! wanted chunk || chunk 1024 256
! wanted plan_speed || plan_speed
! wanted checkpoint || checkpoint
echo "raw lines: $out"
exit $failed
