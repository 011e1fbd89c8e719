//! Evaluates a Resize of a constant by its definition, with a bound on the errors.
//!
//! Along each axis, an element of the result is a weighted sum of elements of the input. The
//! weights follow from a coordinate that engines compute in float32, so the rounding of the
//! coordinate changes the weights.

use ndarray::{ArrayD, Axis, Zip};

use super::rounded::{ErrorBound, FloatRounding, ROUNDINGS, Rounded};
use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::axes::axes;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::{DataType, rounded};
use crate::shape::facts::extent;

/// The first operator set in which a Resize defines its coordinates.
const COORDINATES: i64 = 11;

/// The maximum number of elements of a result that is evaluated.
const ELEMENTS: usize = 1 << 24;

/// The number of float operations with which a coordinate is computed.
const OPERATIONS: f64 = 5.0;

/// Half a unit in the last place of 1 in float32.
const UNIT: f64 = f32::EPSILON as f64 / 2.0;

/// Evaluates a Resize with linear or cubic interpolation. `None` for other modes, if an extent or a
/// coordinate is unknown, or if the result is too large.
pub(super) fn value(
    analysis: &Analysis,
    node: NodeId,
    input: &Rounded,
    data_type: DataType,
) -> Option<Rounded> {
    let mut changed = resized_axes(analysis, node, input.values.shape())?;
    let rule = Interpolation::new(analysis.graph.node(node))?;
    let is_cropped = rule.coordinates == "tf_crop_and_resize";
    changed.retain(|axis| is_cropped || axis.from != axis.to || axis.scale != 1.0);
    let mut image = Image {
        values: input.values.clone(),
        errors: input.values.mapv(|element| input.error.at(element)),
        unit: FloatRounding::new(data_type)?.unit,
    };
    for axis in &changed {
        image = image.resized(axis.axis, &rule.taps(axis)?);
    }
    if is_cropped {
        changed
            .iter()
            .for_each(|axis| image.extrapolate(axis, &rule));
    }
    let values = image.values.mapv(|element| rounded(data_type, element));
    let errors = image.errors + values.mapv(|element| image.unit * element.abs());
    let error = ErrorBound::covering(values.iter().zip(&errors));
    Some(Rounded { values, error })
}

/// An axis that a Resize changes.
struct InterpolatedAxis {
    axis: usize,
    from: usize,
    to: usize,
    scale: f32,
    /// The start and the end of the region to which `tf_crop_and_resize` crops, as fractions of the
    /// extent.
    region: [f32; 2],
}

/// The axes along which the Resize interpolates. `None` before operator set 11, if an extent is
/// unknown, if the input is empty, or if the result is too large.
fn resized_axes(
    analysis: &Analysis,
    node: NodeId,
    from: &[usize],
) -> Option<Vec<InterpolatedAxis>> {
    let graph = &analysis.graph;
    if graph.model().own_opset() < COORDINATES {
        return None;
    }
    let shape = analysis.facts.shape(graph.output(node, 0)?)?;
    let to: Vec<usize> = shape.iter().map(extent).collect::<Option<_>>()?;
    let size = to
        .iter()
        .try_fold(1_usize, |size, &extent| size.checked_mul(extent));
    if to.len() != from.len() || size? > ELEMENTS || from.contains(&0) {
        return None;
    }
    let attributes = graph.node(node);
    let named: Vec<usize> = match attributes.attr_ints("axes").ok()? {
        Some(list) => axes(list, from.len()).ok()?,
        None => (0..from.len()).collect(),
    };
    let floats = [1, 2].map(|slot| {
        graph
            .input(node, slot)
            .map(|value| analysis.constants.read(value))
    });
    let [region, factors] =
        floats.map(|read| read.and_then(Result::ok).filter(|list| !list.is_empty()));
    let mut changed = vec![];
    for (place, &axis) in named.iter().enumerate() {
        let (from, to) = (from[axis], to[axis]);
        let factor = factors
            .as_ref()
            .map(|factors| factors.iter().nth(place).copied());
        let scale = match factor {
            Some(factor) => factor? as f32,
            None => to as f32 / from as f32,
        };
        let bounds = region
            .as_ref()
            .map(|region| [place, place + named.len()].map(|at| region.iter().nth(at)));
        let region = match bounds {
            Some([start, end]) => [*start? as f32, *end? as f32],
            None => [0.0, 1.0],
        };
        changed.push(InterpolatedAxis {
            axis,
            from,
            to,
            scale,
            region,
        });
    }
    Some(changed)
}

impl InterpolatedAxis {
    /// Maps a place of the output to its coordinate in the input, in float32. `None` if engines
    /// differ on the coordinate, or if the mode `coordinates` is unknown.
    fn coordinate(&self, place: usize, coordinates: &str) -> Option<f32> {
        let [from, to, place] = [self.from, self.to, place].map(|number| number as f32);
        let half_pixel = (place + 0.5) / self.scale - 0.5;
        let [start, end] = self.region;
        Some(match coordinates {
            "half_pixel" => half_pixel,
            "pytorch_half_pixel" if self.to > 1 => half_pixel,
            "half_pixel_symmetric" => {
                let adjustment = to / (self.scale * from);
                from / 2.0 * (1.0 - adjustment) + half_pixel
            }
            "asymmetric" => place / self.scale,
            // Engines differ on the corners if `scale·from` is not an integer.
            "align_corners" if self.scale * from != to => return None,
            "align_corners" if self.to == 1 => 0.0,
            "align_corners" => place * (from - 1.0) / (to - 1.0),
            "tf_crop_and_resize" if self.to > 1 => {
                start * (from - 1.0) + place * (end - start) * (from - 1.0) / (to - 1.0)
            }
            "tf_crop_and_resize" => 0.5 * (start + end) * (from - 1.0),
            _ => return None,
        })
    }

    /// A bound on the rounding error of a coordinate.
    fn coordinate_error(&self, coordinate: f32) -> f64 {
        let [start, end] = self.region.map(|part| f64::from(part.abs()));
        let largest = (self.from as f64 * (start + end).max(1.0)).max(coordinate.abs().into());
        OPERATIONS * ROUNDINGS * UNIT * (largest + 1.0)
    }
}

/// A place of the input that an element of the output reads.
struct Tap {
    place: usize,
    weight: f64,
    /// A bound on the error of the weight.
    error: f64,
}

/// The attributes of an interpolation.
struct Interpolation<'n> {
    coordinates: &'n str,
    is_cubic: bool,
    /// The attribute `cubic_coeff_a`, the coefficient a of the cubic polynomials.
    coefficient: f64,
    is_outside_excluded: bool,
    extrapolation: f64,
}

impl<'n> Interpolation<'n> {
    /// Reads the attributes. `None` if the mode is neither linear nor cubic, if antialiasing is on,
    /// or if the result keeps the aspect ratio.
    fn new(node: &'n NodeProto) -> Option<Self> {
        let mode = node.attr_s("mode").ok()?.unwrap_or("nearest");
        let policy = node.attr_s("keep_aspect_ratio_policy").ok()?;
        let is_smoothed = node.attr_i("antialias").ok()?.unwrap_or(0) != 0;
        if !["linear", "cubic"].contains(&mode)
            || is_smoothed
            || policy.is_some_and(|policy| policy != "stretch")
        {
            return None;
        }
        let coordinates = node.attr_s("coordinate_transformation_mode").ok()?;
        Some(Self {
            coordinates: coordinates.unwrap_or("half_pixel"),
            is_cubic: mode == "cubic",
            coefficient: node.attr_f("cubic_coeff_a").ok()?.unwrap_or(-0.75).into(),
            is_outside_excluded: node.attr_i("exclude_outside").ok()?.unwrap_or(0) != 0,
            extrapolation: node
                .attr_f("extrapolation_value")
                .ok()?
                .unwrap_or(0.0)
                .into(),
        })
    }

    /// The taps of each output place along an axis. `None` if a coordinate is not known.
    fn taps(&self, axis: &InterpolatedAxis) -> Option<Vec<Vec<Tap>>> {
        (0..axis.to)
            .map(|place| self.taps_of(axis, place))
            .collect()
    }

    /// The taps of one output place. `None` if its coordinate is not known. The bound on the error
    /// of a weight is the sum of two terms: the change of the weight if the coordinate moves by its
    /// error, and the rounding of the polynomial.
    fn taps_of(&self, axis: &InterpolatedAxis, place: usize) -> Option<Vec<Tap>> {
        let coordinate = axis.coordinate(place, self.coordinates)?;
        let error = axis.coordinate_error(coordinate);
        let moved = [0.0, error, -error]
            .map(|moved| self.weights(f64::from(coordinate) + moved, axis.from));
        let [weights, right, left] = moved;
        let taps = weights.iter().zip(right.iter().zip(&left)).enumerate();
        let taps = taps.map(|(place, (&(weight, rounding), (right, left)))| Tap {
            place,
            weight,
            error: rounding + (right.0 - weight).abs().max((left.0 - weight).abs()),
        });
        Some(
            taps.filter(|tap| tap.weight != 0.0 || tap.error != 0.0)
                .collect(),
        )
    }

    /// For each place of the input, its weight at a coordinate, and the error of computing the
    /// weight.
    fn weights(&self, coordinate: f64, extent: usize) -> Vec<(f64, f64)> {
        let (base, part) = (coordinate.floor(), coordinate - coordinate.floor());
        let a = self.coefficient;
        let near = [a + 2.0, -(a + 3.0), 0.0, 1.0];
        let far = [a, -5.0 * a, 8.0 * a, -4.0 * a];
        let taps = match self.is_cubic {
            true => vec![
                (-1.0, horner(&far, 1.0 + part)),
                (0.0, horner(&near, part)),
                (1.0, horner(&near, 1.0 - part)),
                (2.0, horner(&far, 2.0 - part)),
            ],
            false => vec![
                (0.0, horner(&[-1.0, 1.0], part)),
                (1.0, horner(&[1.0, 0.0], part)),
            ],
        };
        let last = extent as f64 - 1.0;
        let mut weights = vec![(0.0, 0.0); extent];
        for (offset, (weight, error)) in taps {
            let place = base + offset;
            if self.is_outside_excluded && !(0.0..=last).contains(&place) {
                continue;
            }
            let (sum, errors) = &mut weights[place.clamp(0.0, last) as usize];
            *sum += weight;
            *errors += error;
        }
        if self.is_outside_excluded {
            normalize(&mut weights);
        }
        weights
    }
}

/// Divides the weights by their sum. Each pair is a weight and its error.
fn normalize(weights: &mut [(f64, f64)]) {
    let [sum, errors] =
        [0, 1].map(|at| weights.iter().map(|pair| [pair.0, pair.1][at]).sum::<f64>());
    for (weight, error) in weights {
        *weight /= sum;
        *error = (*error + weight.abs() * (errors + ROUNDINGS * UNIT)) / sum.abs();
    }
}

/// Evaluates a polynomial by Horner's method, with a running bound on the error in float32.
fn horner(coefficients: &[f64], at: f64) -> (f64, f64) {
    let (mut value, mut error) = (0.0_f64, 0.0_f64);
    for coefficient in coefficients {
        let product = value * at;
        value = product + coefficient;
        error = error * at.abs() + ROUNDINGS * UNIT * (product.abs() + value.abs());
    }
    (value, error)
}

/// An image with a bound on the error of each element.
struct Image {
    values: ArrayD<f64>,
    errors: ArrayD<f64>,
    unit: f64,
}

impl Image {
    /// Interpolates along one axis.
    fn resized(&self, axis: usize, taps: &[Vec<Tap>]) -> Self {
        let mut shape = self.values.shape().to_vec();
        shape[axis] = taps.len();
        let [mut values, mut errors] = [(); 2].map(|()| ArrayD::zeros(shape.clone()));
        for (at, taps) in taps.iter().enumerate() {
            let rounding = taps.len() as f64 * ROUNDINGS * self.unit;
            let mut values = values.index_axis_mut(Axis(axis), at);
            let mut errors = errors.index_axis_mut(Axis(axis), at);
            for tap in taps {
                let [own, of_own] = [&self.values, &self.errors]
                    .map(|array| array.index_axis(Axis(axis), tap.place));
                let size = tap.weight.abs();
                values.zip_mut_with(&own, |sum, &element| *sum += tap.weight * element);
                Zip::from(&mut errors)
                    .and(&own)
                    .and(&of_own)
                    .for_each(|sum, &element, &error| {
                        *sum += size * error
                            + tap.error * (element.abs() + error)
                            + rounding * size * element.abs();
                    });
            }
        }
        Self {
            values,
            errors,
            unit: self.unit,
        }
    }

    /// Writes the extrapolation value where the coordinate is outside of the image.
    fn extrapolate(&mut self, axis: &InterpolatedAxis, rule: &Interpolation) {
        let inside = 0.0..=axis.from as f32 - 1.0;
        for place in 0..axis.to {
            let coordinate = axis.coordinate(place, rule.coordinates);
            if coordinate.is_some_and(|coordinate| !inside.contains(&coordinate)) {
                self.values
                    .index_axis_mut(Axis(axis.axis), place)
                    .fill(rule.extrapolation);
                self.errors.index_axis_mut(Axis(axis.axis), place).fill(0.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: [f64; 4] = [1.0, 3.0, -2.0, 5.0];

    fn rule(coordinates: &str, is_cubic: bool) -> Interpolation<'_> {
        Interpolation {
            coordinates,
            is_cubic,
            coefficient: -0.75,
            is_outside_excluded: false,
            extrapolation: 0.0,
        }
    }

    /// `DATA` resized to eight elements.
    fn doubled(rule: &Interpolation) -> Image {
        let axis = InterpolatedAxis {
            axis: 0,
            from: 4,
            to: 8,
            scale: 2.0,
            region: [0.0, 1.0],
        };
        let image = Image {
            values: ndarray::arr1(&DATA).into_dyn(),
            errors: ArrayD::zeros(vec![4]),
            unit: UNIT,
        };
        image.resized(0, &rule.taps(&axis).unwrap())
    }

    fn check(rule: &Interpolation, wanted: [f64; 8]) {
        let image = doubled(rule);
        for ((element, error), wanted) in image.values.iter().zip(&image.errors).zip(wanted) {
            assert!((element - wanted).abs() < 1e-6, "{:?}", image.values);
            assert!(*error < 3e-5, "{:?}", image.errors);
        }
    }

    #[test]
    fn elements_are_those_of_the_definition() {
        // Each element is 1/4 of one neighbour plus 3/4 of the other.
        let linear = [1.0, 1.5, 2.5, 1.75, -0.75, -0.25, 3.25, 5.0];
        check(&rule("half_pixel", false), linear);
        let steps = [0.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 21.0].map(|step| step / 7.0);
        let aligned = steps.map(|at: f64| {
            let base = at.floor().min(2.0);
            let [left, right] = [0, 1].map(|next| DATA[base as usize + next]);
            left + (at - base) * (right - left)
        });
        check(&rule("align_corners", false), aligned);
    }

    #[test]
    fn error_covers_a_resize_in_float32() {
        for is_cubic in [false, true] {
            let rule = rule("half_pixel", is_cubic);
            let image = doubled(&rule);
            let data = DATA.map(|number| number as f32);
            for (place, (element, error)) in image.values.iter().zip(&image.errors).enumerate() {
                let at = (place as f32 + 0.5) / 2.0 - 0.5;
                let rounded = rule.weights(at.into(), 4);
                let products = rounded.iter().zip(data);
                let sum: f32 = products
                    .map(|(weight, number)| weight.0 as f32 * number)
                    .sum();
                assert!((f64::from(sum) - element).abs() <= *error);
            }
        }
    }

    #[test]
    fn cubic_weights_sum_to_one_and_meet_the_table_of_the_definition() {
        // The weights at 3/4 for a = −0.75, from the test of the operator's specification.
        let weights = rule("half_pixel", true).weights(1.75, 4);
        let wanted = [-0.03515625, 0.26171875, 0.87890625, -0.10546875];
        for ((weight, _), wanted) in weights.into_iter().zip(wanted) {
            assert!((weight - wanted).abs() < 1e-12, "{weight}");
        }
    }
}
