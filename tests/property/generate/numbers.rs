//! Scalars for all channels, and operators that scalars move through.

use ndarray::{ArrayD, IxDyn};

use super::Maker;
use crate::common::numbers::Role;

impl Maker<'_> {
    /// A factor for all channels, and optionally a shift.
    pub fn number(&mut self, value: &str) -> Option<String> {
        let factor = self.tape.pick(&[2.0, 0.5, -2.0, 1.0, 0.0]);
        let factor = self.scalar(factor);
        let scaled = match self.tape.chance(20) {
            true => self.emit("Div", &[value, &factor], vec![])?,
            false => self.either_order("Mul", value, &factor)?,
        };
        if self.tape.chance(50) {
            return Some(scaled);
        }
        let shift = match self.tape.chance(30) {
            true => self.scalar(0.0),
            false => self.constant(Role::Shift, &[1]),
        };
        self.either_order("Add", &scaled, &shift)
    }

    /// Operators that rearrange, select or add elements, and piecewise linear operators.
    pub fn rearranged(&mut self, value: &str) -> Option<String> {
        let shape = self.shape(value);
        let rank = shape.len();
        match self.tape.below(8) {
            0 if rank > 0 => {
                let axis = self.tape.below(rank);
                let places = (0..shape.iter().product::<usize>())
                    .map(|_| self.tape.below(shape[axis]) as i64);
                let places = ArrayD::from_shape_vec(IxDyn(&shape), places.collect()).ok()?;
                let places = self.indices(places)?;
                let axis = self.axis(axis, rank);
                self.emit(
                    "GatherElements",
                    &[value, &places],
                    vec![("axis", axis.into())],
                )
            }
            1 if rank > 0 => {
                let axis = self.tape.below(rank);
                let axis = self.axis(axis, rank);
                let axis = self.ints(&[axis]);
                self.emit("CumSum", &[value, &axis], vec![])
            }
            2 if rank >= 2 && self.opset >= 14 => {
                let upper = i64::from(self.tape.chance(50));
                self.emit("Trilu", &[value], vec![("upper", upper.into())])
            }
            3 if rank == 4 => {
                let op = self.tape.pick(&["DepthToSpace", "SpaceToDepth"]);
                self.emit(op, &[value], vec![("blocksize", 2.into())])
            }
            4 => {
                let other = if self.tape.chance(50) {
                    self.scalar(0.0)
                } else {
                    value.to_owned()
                };
                let against = self.constant(Role::Shift, &shape);
                let zero = self.scalar(0.0);
                let which = self.emit("Greater", &[&against, &zero], vec![])?;
                self.emit("Where", &[&which, value, &other], vec![])
            }
            5 if rank > 0 => {
                let op = self.tape.pick(&["ReduceMax", "ReduceMin", "ReduceL1"]);
                let axis = self.tape.below(rank);
                let axis = self.axis(axis, rank);
                let since = 18;
                self.emit_listed(
                    op,
                    value,
                    "axes",
                    vec![axis],
                    since,
                    vec![("keepdims", 1.into())],
                )
            }
            6 => self.emit("LeakyRelu", &[value], vec![("alpha", 0.5_f32.into())]),
            7 if rank > 0 && self.opset >= 13 && self.tape.chance(50) => {
                let axis = self.tape.below(rank);
                let sizes: Vec<i64> = (0..rank)
                    .map(|other| (shape[other] * if other == axis { 2 } else { 1 }) as i64)
                    .collect();
                let (sizes, mode) = (self.ints(&sizes), self.tape.pick(&["linear", "nearest"]));
                let place = "coordinate_transformation_mode";
                let attrs = vec![
                    ("mode", mode.into()),
                    ("nearest_mode", "floor".into()),
                    (place, "asymmetric".into()),
                ];
                self.emit("Resize", &[value, "", "", &sizes], attrs)
            }
            _ => self.emit("Relu", &[value], vec![]),
        }
    }
}
