#!/bin/sh
# How much faster many models are in one call than in one call after another.
#
# usage: many.sh [COPIES [UNFOLD]]
#
# The models are so many copies of those under models/digits, 200 unless another number is given; three times each way,
# turn by turn. Prints the seconds.
set -eu
copies=${1:-200}
unfold=${2:-unfold}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/in" "$work/one" "$work/all"
made=0
while [ "$made" -lt "$copies" ]; do
    for model in "$(dirname "$0")"/../models/digits/*.onnx; do
        [ "$made" -lt "$copies" ] || break
        cp "$model" "$work/in/$made.onnx"
        made=$((made + 1))
    done
done
now() { date +%s.%N; }
for _ in 1 2 3; do
    start=$(now)
    for model in "$work/in"/*.onnx; do
        "$unfold" fuse "$model" -o "$work/one/$(basename "$model")" --quiet
    done
    between=$(now)
    "$unfold" fuse "$work/in"/*.onnx -o "$work/all/" --quiet
    end=$(now)
    diff -r "$work/one" "$work/all"
    echo "$start $between $end" |
        awk -v n="$copies" '{ a = $2 - $1; b = $3 - $2; printf "%d models: %.2f s in as many calls, %.2f s in one: %.2f times as fast\n", n, a, b, a / b }'
done
