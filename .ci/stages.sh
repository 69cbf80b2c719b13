# What .ci/run and .ci/nightly share: the machine, stages, and lanes of stages that run beside each other.
# Sourced by bash, from the root of the tree.

install_from_debian() { # package…
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "missing: $*; install it and run again" >&2
        exit 1
    fi
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "$@"
}

major() { # the first whole number of a version text
    sed -n '1s/[^0-9]*\([0-9][0-9]*\).*/\1/p'
}

check_machine() {
    local missing=() node=none java=none
    command -v make >/dev/null || missing+=(make)
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    command -v nginx >/dev/null || missing+=(nginx-light)
    command -v chromium >/dev/null || missing+=(chromium)
    if [ ${#missing[@]} -gt 0 ]; then install_from_debian "${missing[@]}"; fi
    python3 --version

    if command -v node >/dev/null; then node=$(node --version | major); fi
    if command -v java >/dev/null; then java=$(java -version 2>&1 | major); fi
    if [ "$node" = none ] || [ "$node" -lt 20 ]; then
        echo "Node 20 or newer is missing (found: $node): the conformance stages will fail." >&2
    fi
    if [ "$java" = none ] || [ "$java" -lt 17 ]; then
        echo "Java 17 or newer is missing (found: $java): the Spark stages will fail." >&2
    fi
}

# --- stages ---

# A Python process that gets SIGABRT prints what each of its threads is doing.
export PYTHONFAULTHANDLER=1
LOGS=$(mktemp -d)
SUMMARY=$LOGS/summary
: >"$SUMMARY"

# Seconds of CPU of this shell's children that have ended, and of theirs.
cpu_seconds() {
    times >"$1" # In this shell: a pipe would make another one, which has no children.
    awk 'NR == 2 { split($1, u, /[ms]/); split($2, k, /[ms]/); printf "%d\n", u[1] * 60 + u[2] + k[1] * 60 + k[2] }' \
        "$1" >"$1.sum"
    read -r cpu <"$1.sum"
}

# Runs a command. Its output is printed when it ends, in one piece, because stages of other lanes run meanwhile; where
# it fails, at the end of the run. With KEEP_GOING the next stage is run all the same.
stage() { # name command…
    local name=$1 log status=0 began=$SECONDS cpu cpu_before
    shift
    log=$(mktemp "$LOGS/stage.XXXXXX")
    echo "=== $name: begins"
    echo "$name" >"$log.running"
    cpu_seconds "$log.cpu" && cpu_before=$cpu
    # Not `"$@" || status=$?`: in there a function would go on behind its first failure. And without the trap it
    # would ignore Ctrl-C, as whatever a shell starts in the background does.
    (trap - INT QUIT; "$@") >"$log" 2>&1 &
    wait $! || status=$?
    if [ -e "$LOGS/is-over" ]; then exit 1; fi # It was ended, and did not fail.
    cpu_seconds "$log.cpu" && cpu=$((cpu - cpu_before))
    rm "$log.running"
    printf '%-36s %5d s %6d s of CPU  %s\n' "$name" $((SECONDS - began)) "$cpu" \
        "$([ "$status" -eq 0 ] || echo "FAILED, exit code $status")" >>"$SUMMARY"
    if [ "$status" -ne 0 ]; then
        mv "$log" "$LOGS/failed.${log##*.}"
        echo "=== $name: FAILED after $((SECONDS - began)) s, exit code $status" >>"$LOGS/failed.${log##*.}"
        [ -n "${KEEP_GOING:-}" ] || return "$status"
        return 0
    fi
    { echo "=== $name"; cat "$log"; echo "=== $name: $((SECONDS - began)) s, $cpu s of CPU"; } | flock "$LOGS/lock" cat
}

# --- lanes ---

LANES=()

# Each lane is a function that runs stages. A failure in one ends the others, and the run.
run_lanes() { # function…
    local lane status
    # Each says its exit code here when it ends; `wait -n` may miss one that ended before.
    mkfifo "$LOGS/ended"
    exec 3<>"$LOGS/ended"
    set -m # Each lane is a process group, so that it can be ended with all that it started.
    for lane in "$@"; do
        (set +m; trap 'echo $? >&3' EXIT; "$lane") &
        LANES+=($!)
    done
    set +m
    for lane in "$@"; do
        read -r status <&3
        [ "$status" -eq 0 ] || exit "$status"
    done
}

print_stacks() { # of what the lanes run; it does not survive this
    local lane
    ulimit -c 0
    for lane in "${LANES[@]}"; do kill -ABRT -- "-$lane" 2>/dev/null || true; done
    sleep 2
}

end_group() { # process group: all of it is gone afterwards
    local tries
    for tries in {1..100}; do
        kill -TERM -- "-$1" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "-$1" 2>/dev/null || true
}

# At the end: the table of all stages, and last what failed. Of a stage that was ended: its last lines.
finish() {
    local status=$? lane log lines=60
    trap - EXIT
    trap '' INT TERM
    : >"$LOGS/is-over"
    if [ "$status" -eq 143 ]; then print_stacks; lines=600; fi
    for lane in "${LANES[@]}"; do end_group "$lane"; done
    for log in "$LOGS"/stage.*.running; do
        [ -e "$log" ] || continue
        echo "=== $(<"$log"): was ended; its last lines:"
        tail -n "$lines" "${log%.running}"
    done
    echo "=== stages"
    cat "$SUMMARY"
    echo "=== all: $SECONDS s"
    for log in "$LOGS"/failed.*; do
        [ -e "$log" ] || continue
        [ "$status" -ne 0 ] || status=1
        cat "$log"
    done
    rm -rf "$LOGS"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- stages of both runs ---

install_everything() { # stamps of the Makefile's environments…
    make .venv/.installed-local
    make -j 3 install "$@" # Beside each other: much of it is waiting.
}

spark_environment() { # version of PySpark, as the Makefile names it
    make SPARK_VERSION="$1" ".venv-spark-$1/.installed"
}
