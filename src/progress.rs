//! What work that lasts tells whoever waits for it.

/// Is told the stage, and how much of it is done out of how much.
pub type OnProgress<'o> = &'o dyn Fn(&str, usize, usize);
