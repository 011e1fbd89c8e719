//! Draws decisions from random bytes. Fewer and smaller bytes give a smaller case.

use crate::common::numbers::Numbers;

/// Decisions from random bytes. After the last byte, each decision is the first choice.
pub struct Tape<'t> {
    bytes: &'t [u8],
}

impl<'t> Tape<'t> {
    pub fn new(bytes: &'t [u8]) -> Self {
        Tape { bytes }
    }

    fn byte(&mut self) -> u8 {
        self.bytes.split_off_first().copied().unwrap_or(0)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        if end <= 1 {
            0
        } else {
            usize::from(self.byte()) % end
        }
    }

    /// True with a probability of `percent` percent.
    pub fn chance(&mut self, percent: usize) -> bool {
        usize::from(self.byte()) * 100 >= (100 - percent) * 256
    }

    /// One of the elements.
    pub fn pick<T: Clone>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())].clone()
    }

    /// A source of numbers that a single decision determines.
    pub fn numbers(&mut self) -> Numbers {
        Numbers::new(u64::from(self.byte()))
    }
}
