//! Progress of long work: its stage, and how much of it is done.

/// Is told the stage, and how much of it is done out of how much.
pub type OnProgress<'o> = &'o dyn Fn(&str, usize, usize);
