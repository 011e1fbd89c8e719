/** Options of a fold, as in the command: `maxGrowth` is `--max-growth`. */
export interface FoldOptions {
  /** Sites and passes to leave out: names, kinds, or patterns with `*` and `?`. */
  skip?: string[];
  /** The limit for growth by copies of shared weights, in percent. The default is 5. */
  maxGrowth?: number;
  /** Centres residual streams for the target "portable" too. */
  centre?: boolean;
  /** Removes normalizers that only others follow; the result is equal up to their ε. */
  mergeNorms?: boolean;
  /** Takes normalizers as constant whose ε hides their variance in floating point. */
  constantNorms?: boolean;
  /** Scales residual streams by 2^-k, so that they fit into float16; 1 to 40. */
  scaleStream?: number;
  /** The engines for which the result is written. The default is "cpu". */
  target?: "cpu" | "portable" | "onnxruntime" | "tract";
  /** Sizes to which open dimensions of the inputs are fixed. */
  fix?: Record<string, number>;
  /** The pass, or the number of changes, after which the fold stops. */
  stopAfter?: string;
}

/** The verdict of a proof. `docs/proof.md` defines it. */
export type Proof =
  | { verdict: "proved"; points: number; bound: number; tensors: number }
  | { verdict: "disproved"; at: string; site: number | null; reason: string }
  | { verdict: "invalid"; at: string; reason: string }
  | { verdict: "undecided"; reason: string };

/** A reason for which a part of a site stays. */
export interface Refusal {
  /** The refused direction or part. */
  what: string;
  /** The name of the reason, as in `docs/refusals.md`. */
  reason: string;
  /** The reason in words. */
  words: string;
  /** The operator or the value at which the fold stopped. */
  at: string;
}

/** A part of a site. */
export interface Part {
  part: string;
  /** The direction in which the part folds; null if it stays. */
  goes: string | null;
  /** The operators that absorb the part. */
  into: string[];
  /** The reasons for which the part, or some of it, stays. */
  refusals: Refusal[];
}

/** A normalizer, scale or bias, and its outcome. */
export interface Site {
  name: string;
  kind: string;
  /** The formula that the site computes. */
  form: string;
  channels: number;
  axis: number;
  state: "folded" | "partly" | "refused" | "left";
  /** The names of its operators. */
  nodes: string[];
  parts: Part[];
}

/** The result of a fold. */
export interface Folded {
  /** The folded model, or the given one if nothing folds. */
  model: Uint8Array;
  /** Whether the result differs from the given model. */
  changed: boolean;
  sites: Site[];
  /** The proof that the result is the same function, unless it was not wanted. */
  proof?: Proof;
  /** The page about the model and its result, if a title was given. */
  page?: string;
}

/**
 * Folds everything in a model that is exact to fold.
 *
 * `prove`, by default true, proves that the result is the same function; if it is not, the call fails. `page` is the
 * title of a page about the model and its result.
 */
export function fuse(model: Uint8Array, options?: FoldOptions & { prove?: boolean; page?: string }): Promise<Folded>;

/** Lists the sites of a model, and writes the page of `unfold inspect --html` with `name` as its title. */
export function inspect(
  model: Uint8Array,
  options?: FoldOptions & { name?: string },
): Promise<{ sites: Site[]; page: string }>;

/** Proves that two models are the same function. The second one may be the result of a fold. */
export function prove(original: Uint8Array, other: Uint8Array): Promise<Proof>;

/** The module, its bytes, or an address from which it is fetched. */
export type Source = WebAssembly.Module | BufferSource | URL | string;

/** Names the module for all later calls. Without this, `unfold.wasm` next to the package is taken. */
export function load(source: Source | (() => Source | Promise<Source>)): void;
