//! Progress of long work: its stage, and the completed fraction.

/// A callback that receives the stage, the number of completed steps, and the number of all steps.
pub type OnProgress<'o> = &'o dyn Fn(&str, usize, usize);
