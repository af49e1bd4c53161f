# shellcheck shell=bash
# Makes a program independent of the folders that it is built in. Sourced by dist.sh and reproducible.sh, which set `root`.
# The compilers write these folders into messages of panics and of assertions in C.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$root=/src --remap-path-prefix=$cargo_home=/cargo"
export CFLAGS="${CFLAGS:-} -ffile-prefix-map=$root=/src -ffile-prefix-map=$cargo_home=/cargo"
export CXXFLAGS="${CXXFLAGS:-} -ffile-prefix-map=$root=/src -ffile-prefix-map=$cargo_home=/cargo"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-315532800} CARGO_INCREMENTAL=0
