//! The growth of an axis by a Resize, a Tile or an Expand.

/// The ratio between the extents of an axis after and before an operator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ResizeFactor {
    /// The extent stays.
    Same,
    /// An integer factor above 1, which holds for every extent.
    Times(usize),
    /// A factor above 1 that is not an integer. It holds only for the known extents of the axis.
    Larger(f64),
}

impl ResizeFactor {
    /// The ratio of the extent after the operator to the extent before it.
    pub(super) fn ratio(self) -> f64 {
        match self {
            ResizeFactor::Same => 1.0,
            ResizeFactor::Times(times) => times as f64,
            ResizeFactor::Larger(ratio) => ratio,
        }
    }
}
