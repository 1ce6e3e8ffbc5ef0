#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From a bare Debian 12 to a model that trains on four workers: installs, builds, runs the quickstart.
set -eu
cd "$(dirname "$0")/.."
sh scripts/setup.sh
build="${ZTRAIN_BUILD:-build}"
[ -f "$build/build.ninja" ] || meson setup "$build" -Dtests=false --buildtype=release >/dev/null
ninja -C "$build" >/dev/null || ninja -C "$build"
exec "$build/clients/zctl/zctl" run examples/quickstart.yaml --workers 4 "$@"
