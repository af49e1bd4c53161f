# shellcheck shell=sh
# How published programs are built. Sourced by the Dockerfile, dist.sh, pgo.sh and reproducible.sh, which set `root`.
#
# The program is independent of the folders that it is built in: the compilers write these folders into messages of panics and
# of assertions in C. It is optimised with the recorded profile of calls (`make pgo`). The profile has the version of its
# compiler in its name, because the names of functions differ with each.
# shellcheck disable=SC2154
cargo_home=${CARGO_HOME:-$HOME/.cargo}

# RUSTFLAGS and CFLAGS end a flag at whitespace. CARGO_ENCODED_RUSTFLAGS does not, but CFLAGS has no such form: the build script
# of aws-lc-sys always splits it.
need_plain() { # PATH...
    for path in "$@"; do
        case $path in
        *[[:space:]]*)
            printf '%s: the path "%s" has whitespace, which the flags of the compilers cannot have: use another folder\n' "${0##*/}" "$path" >&2
            exit 2
            ;;
        esac
    done
}
need_plain "$root" "$cargo_home"

build_host=$(rustc -vV | sed -n 's/^host: //p')
build_profile=$root/broker/pgo/mcp-broker-$(rustc -vV | sed -n 's/^release: //p').profdata
plain_rustflags="${RUSTFLAGS:-} --remap-path-prefix=$root=/src --remap-path-prefix=$cargo_home=/cargo"
RUSTFLAGS=$plain_rustflags
if [ -e "$build_profile" ]; then
    RUSTFLAGS="$RUSTFLAGS -Cprofile-use=$build_profile"
fi
CFLAGS="${CFLAGS:-} -ffile-prefix-map=$root=/src -ffile-prefix-map=$cargo_home=/cargo"
CXXFLAGS="${CXXFLAGS:-} -ffile-prefix-map=$root=/src -ffile-prefix-map=$cargo_home=/cargo"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-315532800}
export RUSTFLAGS CFLAGS CXXFLAGS SOURCE_DATE_EPOCH CARGO_INCREMENTAL=0
