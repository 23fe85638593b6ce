# Functions for scripts that test packages in a Debian of their own; sourced. They use $root, the directory that it is in.

passed=0
ok() {
    passed=$((passed + 1))
    echo "ok $passed - $*"
}
fails() { ! "$@"; }

# Installs the programs that are missing here: those of $1, from packages of the same name.
programs() {
    local missing=
    for program in $1; do
        command -v "$program" >/dev/null || missing="$missing $program"
    done
    [ -n "$missing" ] || return 0
    apt-get update -q </dev/null
    # shellcheck disable=SC2086  # a list of packages
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing </dev/null
}

# Makes an archive of a Debian with packages ($2, with commas; may be empty), unless there is one ($1). $3 is a further suite, whose packages are preferred.
# The Debian comes from the mirrors that this machine's apt uses.
make_debian() {
    [ ! -e "$1" ] || return 0
    local sources preferred=()
    mapfile -t sources < <(find /etc/apt/sources.list /etc/apt/sources.list.d -name '*.list' -o -name '*.sources' 2>/dev/null)
    if [ -n "${3:-}" ]; then
        sources+=("deb http://deb.debian.org/debian $3 main")
        preferred=(--aptopt="APT::Default-Release \"$3\"")
    fi
    # systemd brings what makes users and directories; it does not run there.
    mmdebstrap --quiet --format=tar --variant=minbase --skip=cleanup/apt/lists "${preferred[@]}" --include="systemd,init-system-helpers,procps${2:+,$2}" bookworm "$1.part" "${sources[@]}"
    mv "$1.part" "$1"
}

# Runs a program in the Debian.
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }

# Becomes a program in the Debian with the user and the rights of the switch's unit, so in a subshell only.
as_unit() {
    local rights
    rights=$(sed -n 's/^AmbientCapabilities=//p' "$root/usr/lib/systemd/system/floodway.service" | sed 's/CAP_/+/g; s/ /,/g' | tr '[:upper:]' '[:lower:]')
    exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 setpriv --reuid floodway --regid floodway --clear-groups \
        --no-new-privs --inh-caps "-all,$rights" --ambient-caps "-all,$rights" --bounding-set "-all,$rights" "$@"
}

# Starts the switch as the unit does, and waits until it answers; $switch is its process.
start_switch() {
    as_unit floodway run --config /etc/floodway/floodway.toml 2>>"$root/log" &
    switch=$!
    for _ in $(seq 300); do
        ! inside floodway status >/dev/null 2>&1 || return 0
        kill -0 $switch
        sleep 0.1
    done
    cat "$root/log" >&2
    return 1
}

# Waits until a command succeeds; minutes are for what never comes.
await() {
    for _ in $(seq 1200); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    echo "waited in vain for: $*" >&2
    return 1
}
