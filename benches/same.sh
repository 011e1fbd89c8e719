#!/bin/sh
# Whether two builds of unfold make the same of the same models: the same plans, and files alike byte for byte.
#
# usage: same.sh BEFORE AFTER [FOLDER ...]
#
# BEFORE and AFTER are programs. The models are those under models/digits, the zoo with seed 0, and every *.onnx in
# the folders: `UNFOLD_GRAPHS=FOLDER cargo test --release` keeps the graphs of the tests in one. Lists what differs,
# and fails if anything does.
set -eu
before=$(realpath "$1")
after=$(realpath "$2")
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/zoo"
"$before" zoo list | while read -r network norms; do
    for norm in $(echo "$norms" | tr -d ,); do
        "$before" zoo "$network" --norm "$norm" -o "$work/zoo/$network.$norm.onnx" > "$work/log" || exit 1
    done
done

# One model: the output of each program, and its result under one name.
cat > "$work/one" <<'ONE'
set -u
model=$(realpath "$4")
place=$(mktemp -d "$1/model-XXXXXX")
for build in before after; do
    [ "$build" = before ] && program=$2 || program=$3
    mkdir "$place/$build"
    cd "$place/$build"
    "$program" fuse "$model" -o out.onnx --verify off --json > plan.json 2> errors
    echo "exit code $?" >> errors
done
diff -rq "$place/before" "$place/after" > "$place/differences" || echo "$4: $(tr '\n' ' ' < "$place/differences")"
rm -r "$place"
ONE

folder=$(dirname "$0")/../models/digits
find "$folder" "$work/zoo" "$@" -name '*.onnx' > "$work/models"
xargs -P 2 -I MODEL sh "$work/one" "$work" "$before" "$after" MODEL < "$work/models" > "$work/differences"
cat "$work/differences"
echo "$(wc -l < "$work/differences") of $(wc -l < "$work/models") models differ"
[ ! -s "$work/differences" ]
