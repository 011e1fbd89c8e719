// The package in Node.js, which reads the module from its file.

import { readFile } from "node:fs/promises";
import { load } from "./unfold.js";

load(() => readFile(new URL("unfold.wasm", import.meta.url)));

export * from "./unfold.js";
