//! Numbers for models and their inputs.

use ndarray::ArrayD;

/// The role of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Weight,
    Scale,
    Shift,
    Divisor,
    Input,
}

/// The kind of random numbers: `Exact` ones whose sums of products are exact, or `Real` ones.
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
    /// Numbers that the seed determines.
    pub fn new(seed: u64) -> Self {
        Numbers { state: seed }
    }

    /// Numbers that the name determines.
    pub fn from_recipe(name: &str) -> Self {
        Numbers::new(name.bytes().fold(7, |state: u64, byte| {
            state.wrapping_mul(31).wrapping_add(u64::from(byte))
        }))
    }

    /// The next 64 random bits.
    pub fn any(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn among(&mut self, list: &[f64]) -> f64 {
        list[(self.any() % list.len() as u64) as usize]
    }

    /// One number that float32 represents exactly.
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
        let uniform = (self.any() >> 40) as f64 / (1_u64 << 24) as f64;
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
