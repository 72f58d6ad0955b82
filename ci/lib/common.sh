# shellcheck shell=bash
# Functions that ci/demo and ci/test share. Sourced with `set -euo pipefail` on; $root is the source
# tree.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=ci/deps
source "$root/ci/deps"

say() { printf '%s\n' "$*"; }
die() {
    printf '%s\n' "$*" >&2
    exit 1
}

need_cargo() {
    # A toolchain that rustup installed is often not on root's PATH.
    command -v cargo >/dev/null || PATH=$PATH:$HOME/.cargo/bin
    command -v cargo >/dev/null || die "no cargo here: install a Rust toolchain (https://rustup.rs), 1.89 or newer"
}

# Builds the release binaries of packages. Cargo builds what packages depend on with the features
# that those packages ask for, and anew for each selection of packages; ci/test, which needs most of
# them, builds the whole workspace once, for all steps.
build_release() { # -p PACKAGE..., and perhaps --bin NAME, the only one that is wanted
    local targets=(--lib --bins)
    if [[ -n ${RNIC_BUILD_ALL-} ]]; then
        set -- --workspace --example play
    elif [[ " $* " == *' --bin '* ]]; then
        targets=()
    fi
    cargo build --release --locked "${targets[@]}" "$@" --manifest-path "$root/Cargo.toml"
}

# `cargo xtask`, from any directory.
xtask() { (cd "$root" && cargo xtask "$@"); }

# Installs a program of cargo into $tools. It runs for seconds, so that it is not optimised: that
# would take minutes.
install_tool() { # crate, options of cargo
    # shellcheck disable=SC2154 # the caller has it
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --locked --root "$tools" "$@"
}

target_dir() { echo "${CARGO_TARGET_DIR:-$root/target}"; }

# Reserves at least $1 pages of 2 MiB until the end. `hugepages_restore` belongs into the EXIT trap.
hugepages_reserve() {
    local file=/proc/sys/vm/nr_hugepages
    (($(<$file) < $1)) || return 0
    hugepages_before=$(<$file)
    if ! { echo "$1" >$file; } 2>/dev/null || (($(<$file) < $1)); then
        say "only $(<$file) of $1 hugepages are available; ordinary pages are used for the rest"
    fi
}

hugepages_restore() {
    [[ -z ${hugepages_before-} ]] || echo "$hugepages_before" >/proc/sys/vm/nr_hugepages
    hugepages_before=
}

# Has the scheduler treat all processes alike until the end, whatever session they are of.
# `sessions_restore` belongs into the EXIT trap. Each test program has a session of its own. Linux
# 6.18 may leave all processors to one session for many seconds while its threads wake each other.
sessions_ungroup() {
    local file=/proc/sys/kernel/sched_autogroup_enabled
    [[ -e $file && $(<$file) != 0 ]] || return 0
    sessions_before=$(<$file)
    { echo 0 >$file; } 2>/dev/null || sessions_before=
}

sessions_restore() {
    [[ -z ${sessions_before-} ]] || echo "$sessions_before" >/proc/sys/kernel/sched_autogroup_enabled
    sessions_before=
}

# Deletes the network namespaces of tests and benchmarks that were killed: their names are
# rnic-WHAT-PID-NUMBER, and no process has that PID any more.
namespaces_sweep() {
    local namespace pid
    for namespace in $(ip netns list 2>/dev/null | grep -oE '^rnic-[^ ]*-[0-9]+-[0-9]+'); do
        pid=${namespace%-*} pid=${pid##*-}
        [[ -d /proc/$pid ]] || ip netns delete "$namespace" 2>/dev/null || true
    done
}
