//! Decisions and numbers, drawn from random bytes: fewer and smaller bytes make a smaller case.

use ndarray::ArrayD;

/// Decisions, taken from random bytes until there are none left; then always the first choice.
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
        if end <= 1 { 0 } else { usize::from(self.byte()) % end }
    }

    /// Yes in so many cases out of a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        usize::from(self.byte()) * 100 >= (100 - percent) * 256
    }

    /// One of them.
    pub fn pick<T: Clone>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())].clone()
    }

    /// A source of numbers that a single decision sets.
    pub fn numbers(&mut self) -> Numbers {
        Numbers { state: u64::from(self.byte()) }
    }
}

/// What numbers are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Weight,
    Scale,
    Shift,
    Divisor,
    Input,
}

/// Whether every sum of products is exact, or numbers are as they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Exact,
    Real,
}

/// Pseudo-random numbers (SplitMix64).
pub struct Numbers {
    state: u64,
}

impl Numbers {
    /// Numbers that belong to a name.
    pub fn of(name: &str) -> Self {
        Numbers { state: name.bytes().fold(7, |state, byte| state * 31 + u64::from(byte)) }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn among(&mut self, list: &[f64]) -> f64 {
        list[(self.next() % list.len() as u64) as usize]
    }

    /// One number, which a float32 holds.
    pub fn number(&mut self, role: Role, kind: Kind) -> f64 {
        if kind == Kind::Exact {
            return match role {
                Role::Weight => self.among(&[-2.0, -1.0, 0.0, 1.0, 1.0, 2.0, 3.0]),
                Role::Scale => self.among(&[2.0, -1.0, 3.0, 0.5, 1.0, -2.0, 0.0]),
                Role::Shift => self.among(&[-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]),
                Role::Divisor => self.among(&[2.0, 4.0, 0.5, 1.0, -2.0]),
                Role::Input => self.among(&[-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0]),
            };
        }
        let uniform = (self.next() >> 40) as f64 / (1_u64 << 24) as f64;
        let real = match role {
            Role::Weight => uniform - 0.5,
            Role::Scale | Role::Shift | Role::Input => 4.0 * uniform - 2.0,
            Role::Divisor => uniform + 0.5,
        };
        f64::from(real as f32)
    }

    /// An array of numbers.
    pub fn array(&mut self, shape: &[usize], role: Role, kind: Kind) -> ArrayD<f64> {
        ArrayD::from_shape_simple_fn(shape, || self.number(role, kind))
    }
}
