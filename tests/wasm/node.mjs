// Tests the npm package in Node.js: each model of the digits becomes the bytes that the command writes, and is proved.
//     node tests/wasm/node.mjs target/wasm/npm target/release/unfold [MODEL...]

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

const [folder, command, ...others] = process.argv.slice(2);
const { fuse, inspect, prove } = await import(pathToFileURL(resolve(folder, "node.js")));

/** A model that the command folds with some options. */
function expected(path, options = []) {
  const work = mkdtempSync(join(tmpdir(), "unfold-"));
  const result = join(work, "fused.onnx");
  execFileSync(command, ["fuse", path, "-o", result, "--quiet", "--verify", "off", ...options]);
  const bytes = readFileSync(result);
  rmSync(work, { recursive: true });
  return bytes;
}

/** Runs a call, and returns its result and its seconds. */
async function timed(call) {
  const begin = performance.now();
  const result = await call();
  return [result, (performance.now() - begin) / 1000];
}

/** Checks one model, and returns the seconds of its fold and of its proof. */
async function check(path) {
  const model = readFileSync(path);
  const [fused, folding] = await timed(() => fuse(model, { prove: false }));
  assert.ok(expected(path).equals(fused.model), `${path}: other bytes`);
  const [proof, proving] = await timed(() => prove(model, fused.model));
  assert.equal(proof.verdict, "proved", `${path}: ${proof.reason}`);
  const { sites, page } = await inspect(model, { name: path });
  assert.deepEqual(sites, fused.sites);
  assert.match(page, /^<!doctype html>/);
  console.log(`${path}: folded in ${folding.toFixed(2)} s, proved in ${proving.toFixed(2)} s`);
}

/** Checks that a call fails with a message of one line. */
async function fails(call, message) {
  await assert.rejects(call, (error) => message.test(error.message) && !error.message.includes("\n"));
}

const digits = "models/digits";
for (const name of readdirSync(digits).filter((name) => name.endsWith(".onnx"))) {
  await check(join(digits, name));
}
for (const path of others) {
  await check(path);
}

const path = join(digits, "ln-dynamo.onnx");
const model = readFileSync(path);
const { proof } = await fuse(model);
assert.equal(proof.verdict, "proved");
const options = { target: "portable", maxGrowth: 0, skip: ["blocks.0.*"] };
const words = ["--target", "portable", "--max-growth", "0", "--skip", "blocks.0.*"];
const fused = await fuse(model, options);
assert.ok(expected(path, words).equals(fused.model));
const unchanged = await fuse(fused.model, { skip: ["*", "constant", "duplicate"], target: "portable" });
assert.ok(!unchanged.changed && unchanged.model === fused.model);
const other = readFileSync(join(digits, "un-dynamo.onnx"));
assert.equal((await prove(model, other)).verdict, "disproved");

await fails(() => fuse(model, { grow: 5 }), /^options: unknown field `grow`/);
await fails(() => fuse(model.subarray(0, 1000)), /is truncated/);
await fails(() => fuse(new Uint8Array()), /is not an ONNX model/);
await fails(() => fuse("model.onnx"), /a model is a Uint8Array/);

const module = readFileSync(join(folder, "unfold.wasm"));
console.log(`unfold.wasm has ${module.length} bytes, ${gzipSync(module, { level: 9 }).length} compressed`);
