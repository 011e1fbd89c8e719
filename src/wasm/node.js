// The package in Node.js, which reads the module from its file.

import { readFile } from "node:fs/promises";
import { load } from "./index.js";

load(() => readFile(new URL("unfold.wasm", import.meta.url)));

export * from "./index.js";
