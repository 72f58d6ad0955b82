# shellcheck shell=bash
# Fetches packages of PyPI. Sourced with `set -euo pipefail` on.

cache=${XDG_CACHE_HOME:-$HOME/.cache}/rnic
unneeded=()

# Prints the directory NAME-VERSION of the cache, which has these packages without what they depend
# on, for Debian's Python, which every user may run. Fetches them with pip, and removes the patterns
# in `unneeded`. Code 3: they cannot be had.
pypi() { # NAME-VERSION PACKAGE==VERSION...
    local place=$cache/$1 name=$1 work
    shift
    if [[ ! -d $place ]]; then
        work=$(mktemp -d)
        # shellcheck disable=SC2064 # what it is now
        trap "rm -rf '$work'" EXIT
        if ! { /usr/bin/python3 -m venv "$work/venv" &&
            "$work/venv/bin/pip" install --quiet --only-binary :all: --no-deps --target "$work/found" "$@"; } \
            >"$work/log" 2>&1 </dev/null; then
            echo "ci/${name%%-*}: pip cannot fetch $*: $(tail -n 1 "$work/log")" >&2
            exit 3
        fi
        (cd "$work/found" && rm -rf "${unneeded[@]}")
        mkdir -p "$cache"
        # Another one may have been faster.
        mv -T "$work/found" "$place" 2>/dev/null || [[ -d $place ]]
    fi
    echo "$place"
}
