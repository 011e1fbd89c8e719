//! Writes a convolution after a nearest Resize as several convolutions with fewer taps, which read
//! the value before the Resize.
//!
//! Before: `conv(W, resize(x))`, with a Resize by an integer factor s. After: s² convolutions of x,
//! one for each phase of the result, which a Concat and a DepthToSpace merge.
//!
//! This is exact: tap t of place `s·q + φ` reads the place `q + ⌊(φ + t − p)/s⌋` of x, where p is
//! the number of zeros before the image. So all taps of a phase that read one place become one tap,
//! whose weight is the sum of their weights. A tap reads zeros around the larger image if and only
//! if the place `q + ⌊(φ + t − p)/s⌋` is outside of x. Stride and dilation must be 1, and the
//! convolution must keep the number of places.

use super::layer::are_all;
use super::{PlacementMove, WorkTerm, are_in_one_body, places};
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::builder::{Maker, int, ints, strings};
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::CONV;
use crate::onnx::proto::{AttributeProto, AttributeType};
use crate::onnx::tensor::DataType;
use crate::passes::placement::factor::ResizeFactor;
use crate::passes::placement::resize::Enlarged;
use crate::recipe::Recipe;

/// The rank of an image. DepthToSpace allows no other rank.
const IMAGE: usize = 4;

/// The number of axes before the spatial axes.
const SPACE: usize = 2;

/// The least number of multiplications to save for each place and channel of the result, since
/// Concat and DepthToSpace move each place twice.
const LEAST: usize = 256;

/// The first operator set in which a DepthToSpace has a mode.
const HAS_MODE: i64 = 11;

/// The largest factor of the Resize. The number of convolutions is the square of the factor.
const MOST_TIMES: usize = 4;

/// The taps of one phase along an axis: for each place that the phase reads, the taps of the
/// convolution that read that place.
struct Phase {
    /// The first place of x that the phase reads, relative to place `q`, for place `s·q + φ` of the
    /// result.
    first: i64,
    taps: Vec<Vec<usize>>,
}

/// A convolution after a nearest Resize.
struct Phases<'a> {
    analysis: &'a Analysis<'a>,
    node: NodeId,
    /// The value before the Resize.
    small: ValueId,
    weight: Recipe,
    data_type: DataType,
    group: i64,
    times: usize,
    /// The phases of the rows.
    rows: Vec<Phase>,
    /// The phases of the columns.
    columns: Vec<Phase>,
}

/// The move that splits a convolution into phases. `None` if the split is not exact, or if it saves
/// too few multiplications.
pub(super) fn find(analysis: &Analysis, node: NodeId) -> Option<PlacementMove> {
    let graph = &analysis.graph;
    let (enlarged, phases) = Phases::read(analysis, node)?;
    let image = graph.input(node, 0)?;
    let output = graph.only_output(node)?;
    let is_own = graph.only_reader(image).is_some();
    let nodes = if is_own {
        vec![enlarged.node, node]
    } else {
        vec![node]
    };
    if !are_in_one_body(graph, &[enlarged.node, node]) {
        return None;
    }
    let taps = count_taps(&phases.rows) * count_taps(&phases.columns);
    let &[outer, inner, rows, columns] = phases.weight.shape() else {
        return None;
    };
    let area = phases.times * phases.times;
    let saved = (area * rows * columns).checked_sub(taps)? * inner / area;
    if saved < LEAST {
        return None;
    }
    let mut maker = Maker::new(graph, node);
    phases.write(&mut maker)?;
    let before = [WorkTerm::new(
        phases.weight.len(),
        places(analysis, image, 1)?,
    )];
    let after = [WorkTerm::new(
        outer * inner * taps,
        places(analysis, phases.small, 1)?,
    )];
    Some(PlacementMove::new(
        analysis,
        ("phases", node),
        nodes,
        maker,
        output,
        [&before, &after],
    ))
}

fn count_taps(phases: &[Phase]) -> usize {
    phases.iter().map(|phase| phase.taps.len()).sum()
}

impl<'a> Phases<'a> {
    fn read(analysis: &'a Analysis<'a>, node: NodeId) -> Option<(Enlarged, Self)> {
        let graph = &analysis.graph;
        let at = analysis.at(node);
        if graph.domain_op(node) != ("", "Conv") {
            return None;
        }
        let enlarged = Enlarged::making(analysis, at.input(0).ok()?).filter(Enlarged::repeats)?;
        let &[
            ResizeFactor::Same,
            ResizeFactor::Same,
            ResizeFactor::Times(times),
            ResizeFactor::Times(other),
        ] = &enlarged.factors[..]
        else {
            return None;
        };
        at.only_attributes(CONV).ok()?;
        let weight = at
            .constant(1)
            .ok()
            .filter(|weight| weight.rank() == IMAGE)?;
        let is_plain = times == other
            && times <= MOST_TIMES
            && are_all(&at, "strides", 1)?
            && are_all(&at, "dilations", 1)?;
        let before = zeros_before(&at, &weight.shape()[SPACE..]).filter(|_| is_plain)?;
        let [rows, columns] =
            [0, 1].map(|axis| phases(times, weight.shape()[SPACE + axis], before[axis]));
        let data_type = analysis
            .facts
            .data_type(at.input(1).ok()?)
            .filter(|data_type| data_type.is_float())?;
        let small = enlarged.value;
        let group = at.attr("group", 1).ok()?;
        Some((
            enlarged,
            Phases {
                analysis,
                node,
                small,
                weight,
                data_type,
                group,
                times,
                rows,
                columns,
            },
        ))
    }

    /// Writes a convolution for each phase, and the Concat and DepthToSpace that merge their
    /// results. `None` if a weight cannot be computed.
    fn write(&self, maker: &mut Maker) -> Option<String> {
        let mut made = vec![];
        for row in &self.rows {
            for column in &self.columns {
                made.push(self.convolution(row, column, maker)?);
            }
        }
        let made: Vec<&str> = made.iter().map(String::as_str).collect();
        let deep = maker.op("Concat", &made, vec![int("axis", 1)]);
        let mut attributes = vec![int("blocksize", self.times as i64)];
        if maker.opset() >= HAS_MODE {
            attributes.push(text("mode", "DCR"));
        }
        Some(maker.op("DepthToSpace", &[&deep], attributes))
    }

    /// Writes the convolution of a phase. Returns the name of its result. `None` if the weight
    /// cannot be computed.
    fn convolution(&self, row: &Phase, column: &Phase, maker: &mut Maker) -> Option<String> {
        let weight = summed_taps(&summed_taps(&self.weight, SPACE, row)?, SPACE + 1, column)?;
        let replaces = self.input_name(1)?;
        let weight = maker.weight(self.data_type, &weight, replaces, (1..IMAGE).collect());
        let kernel = [row, column].map(|phase| phase.taps.len() as i64);
        let before = [row, column].map(|phase| -phase.first);
        let after = [0, 1].map(|axis| kernel[axis] - 1 - before[axis]);
        let attributes = vec![
            ints("dilations", &[1, 1]),
            int("group", self.group),
            ints("kernel_shape", &kernel),
            ints("pads", &[before, after].concat()),
            ints("strides", &[1, 1]),
        ];
        let inputs: Vec<&str> = [self.analysis.graph.value_name(self.small), &weight]
            .into_iter()
            .chain(self.input_name(2))
            .collect();
        Some(maker.op("Conv", &inputs, attributes))
    }

    fn input_name(&self, slot: usize) -> Option<&'a str> {
        let graph = &self.analysis.graph;
        Some(graph.value_name(graph.input(self.node, slot)?))
    }
}

fn text(name: &str, value: &str) -> AttributeProto {
    let mut attribute = strings(name, &[]);
    attribute.r#type = Some(AttributeType::String as i32);
    attribute.s = Some(value.to_owned().into_bytes().into());
    attribute
}

/// The zeros before the image along each axis. `None` if the convolution changes the number of
/// places.
fn zeros_before(at: &At, kernel: &[usize]) -> Option<Vec<i64>> {
    let kernel: Vec<i64> = kernel
        .iter()
        .map(|&taps| i64::try_from(taps).ok())
        .collect::<Option<_>>()?;
    let stated = at.attr_ints("kernel_shape").ok()?;
    if stated.is_some_and(|stated| stated != kernel) || kernel.contains(&0) {
        return None;
    }
    let pads = match at.attr_text("auto_pad", "NOTSET").ok()? {
        "NOTSET" => at
            .attr_ints("pads")
            .ok()?
            .unwrap_or_else(|| vec![0; 2 * kernel.len()]),
        "SAME_UPPER" | "SAME_LOWER" if kernel.iter().all(|taps| taps % 2 == 1) => {
            kernel.iter().chain(&kernel).map(|taps| taps / 2).collect()
        }
        _ => return None,
    };
    if pads.len() != 2 * kernel.len() {
        return None;
    }
    let (before, after) = pads.split_at(kernel.len());
    let keeps_extents = (0..kernel.len()).all(|axis| {
        let (before, after) = (before[axis], after[axis]);
        before >= 0 && after >= 0 && before.checked_add(after) == Some(kernel[axis] - 1)
    });
    keeps_extents.then(|| before.to_vec())
}

/// The phases of a kernel with `taps` taps, along an axis that the Resize makes `times` times
/// longer. There are `before` zeros before the image.
fn phases(times: usize, taps: usize, before: i64) -> Vec<Phase> {
    let mut phases = vec![];
    for phase in 0..times {
        let places: Vec<i64> = (0..taps)
            .map(|tap| ((phase + tap) as i64 - before).div_euclid(times as i64))
            .collect();
        phases.push(Phase::reading(&places));
    }
    phases
}

impl Phase {
    /// The phase of which tap `t` reads the place `places[t]`. From tap to tap, the place stays the
    /// same or increases by 1.
    fn reading(places: &[i64]) -> Self {
        let mut taps: Vec<Vec<usize>> = vec![];
        for (tap, place) in places.iter().enumerate() {
            match taps.last_mut() {
                Some(last) if tap > 0 && places[tap - 1] == *place => last.push(tap),
                _ => taps.push(vec![tap]),
            }
        }
        Phase {
            first: places[0],
            taps,
        }
    }
}

/// The weight of a phase along an axis: for each place, the sum of the taps that read this place.
fn summed_taps(weight: &Recipe, axis: usize, phase: &Phase) -> Option<Recipe> {
    let mut places = vec![];
    for taps in &phase.taps {
        let picked = weight.pick(axis, taps.iter().map(|&tap| Some(tap)))?;
        let sum = if taps.len() == 1 {
            picked
        } else {
            picked.sum(axis)?
        };
        places.push(sum);
    }
    if let [only] = &places[..] {
        Some(only.clone())
    } else {
        Recipe::concat(axis, &places)
    }
}
