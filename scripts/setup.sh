#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what ztrain needs on Debian 12: the one list of packages.
#   sh scripts/setup.sh         to build and run
#   sh scripts/setup.sh test    also to test: a second compiler, sanitizers, fuzzer, unit test library
# gnuplot-nox is needed to run only by those who ask for charts (--svg); it is on the list of what testing needs.
set -eu

build="gcc libc6-dev pkg-config meson ninja-build
  libuv1-dev libprotobuf-c-dev protobuf-c-compiler libsqlite3-dev libyaml-dev libjansson-dev libssl-dev
  libxxhash-dev libsmartcols-dev libdnnl-dev libopenblas0-pthread"
test="clang libclang-rt-14-dev llvm libcriterion-dev libasan8 libubsan1 libtsan2 procps nftables gnuplot-nox"

packages="$build"
[ "${1:-}" = test ] && packages="$build $test"

missing=""
for p in $packages; do
    state=$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null || true)
    [ "$state" = "install ok installed" ] || missing="$missing $p"
done
[ -z "$missing" ] && exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup.sh: these packages are missing and need root to install:$missing" >&2; exit 1; }
    as_root=sudo
fi
echo "setup.sh: installing$missing"
$as_root apt-get update -q
# shellcheck disable=SC2086  # a list of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
