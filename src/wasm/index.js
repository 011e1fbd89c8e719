// The package in browsers and bundlers, which fetch the module.

import { load } from "./unfold.js";

load(() => new URL("unfold.wasm", import.meta.url));

export * from "./unfold.js";
