# shellcheck shell=bash
# What ci/siw-image, ci/nic-image, ci/arm-kernel and ci/rdma-headers share. Sourced with `set -euo pipefail` on;
# $here is the directory ci, $work the directory of the build, $recipe_of the files that an image is
# made by.

cache=${XDG_CACHE_HOME:-$HOME/.cache}/rnic

say() { echo "${0##*/}: $*" >&2; }
die() {
    say "$*"
    exit 1
}

recipe() { find "${recipe_of[@]}" -type f | LC_ALL=C sort | xargs cat | sha256sum | cut -d' ' -f1; }

is_current() { [[ -f $1/recipe && $(<"$1/recipe") == "$(recipe)" ]]; }

newest_image() { # of those whose names begin with $1 and that were built from the present recipe
    local found
    for found in $(printf '%s\n' "$cache/$1"* | sort -rV); do
        if is_current "$found"; then
            echo "$found"
            return
        fi
    done
}

# Has apt-get read these suites of Debian alone, with lists and a record of installed packages of
# its own.
use_own_apt() {
    local mirror suite apt=$work/apt
    # shellcheck disable=SC2016 # apt-get fills it in
    mirror=$(apt-get indextargets --format '$(SITE)' 'Identifier: Packages' 'Origin: Debian' |
        awk '!/security/ && !found++')
    [[ -n $mirror ]] || die "apt knows no Debian mirror: see /etc/apt/sources.list"
    mkdir -p "$apt"/{etc/preferences.d,etc/apt.conf.d,state/lists/partial,cache/archives/partial}
    : >"$apt/state/status"
    for suite in "$@"; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
    done >"$apt/etc/sources.list"
    cat >"$apt/conf" <<END
Dir "$apt/";
Dir::Etc "etc/";
Dir::State "state/";
Dir::State::status "$apt/state/status";
Dir::Cache "cache/";
APT::Architecture "amd64";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
END
    export APT_CONFIG=$apt/conf
}

download() { # into $1: the packages named after it, as NAME or NAME=VERSION
    local directory=$1
    shift
    mkdir -p "$directory"
    (cd "$directory" && apt-get download "$@" >"$work/download.log" 2>&1)
}

module_files() { # in $1, for kernel $2: every module that the others need, in loading order, each once
    local root=$1 kernel=$2 module
    shift 2
    depmod -b "$root" "$kernel"
    for module in "$@"; do
        modprobe -d "$root" -S "$kernel" --show-depends "$module"
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

install_modules() { # from the list in $1 into the initramfs tree $2
    local file name
    while read -r file; do
        name=$(basename "${file%.zst}" .xz)
        case $file in
        *.xz) xz -dc "$file" >"$2/lib/modules/$name" ;;
        *.zst) zstd -dcq "$file" >"$2/lib/modules/$name" ;;
        *) cp "$file" "$2/lib/modules/" ;;
        esac
        echo "/lib/modules/$name"
    done <"$1" >"$2/lib/modules/order"
}

pack_initramfs() { # the tree $1 into the file $2
    (cd "$1" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0 | gzip -1) >"$2"
}

# Builds one image at a time: what is to be built after this is built already if somebody else did
# it meanwhile.
lock_builds() {
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock -n 9 || { say "waiting for another build" && flock 9; }
}

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; }
