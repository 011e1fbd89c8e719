#!/bin/sh
# Writes docs/benchmarks.md: the text beside this script, then what `unfold bench` measures of the zoo.
# Arguments go to `unfold bench`, such as --all; UNFOLD names the program.
set -eu
cd "$(dirname "$0")/.."
measured=$(mktemp)
trap 'rm -f "$measured"' EXIT
"${UNFOLD:-unfold}" bench --markdown "$@" > "$measured"
{
    cat benches/benchmarks.md.in
    echo "$(date -u +%F): \`unfold bench --markdown${*:+ $*}\`."
    echo
    cat "$measured"
} > docs/benchmarks.md
