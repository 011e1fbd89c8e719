//! Random linear operators on channels, next to random maps of places. The pass `placement` or
//! `demand` exchanges the two, or leaves both. The results must be equal.
//! the other, or leaves both; the results are equal.
//!
//! Many of the pairs do not commute. Examples are a bias after a sum, windows that count zeros
//! around the image, fractional coordinates, reflected borders, indices out of range, and operands
//! whose open extent is 1.
//! are no quotient, reflected borders, indices out of range, operands whose open extent is 1.

use unfold::onnx::Model;
use unfold::plan::Placed;
use unfold::{FuseOptions, Pipeline};

use crate::Counts;
use crate::common::numbers::{Kind, Role};
use crate::common::{Attrs, Builder, judge, text};
use crate::tape::Tape;

/// The tolerance, relative to the largest number. The reference computes in float64, and all
/// weights are exact.
const TOLERANCE: f64 = 1e-9;

/// The extents for all open axes.
const OPEN: [usize; 3] = [1, 2, 5];

/// The number of channels of an image or of tokens.
const CHANNELS: [usize; 5] = [2, 16, 4, 64, 1];

/// Runs each of both passes separately on a random model, and compares the results.
pub fn check(bytes: &[u8], counts: &mut Counts) -> Result<(), String> {
    let model = PlacedModel::draw(bytes);
    *counts.entry("model".into()).or_default() += 1;
    for pass in ["placement", "demand"] {
        compare(&model, pass, counts)
            .map_err(|why| format!("{pass}: {why}\n{}", text::print(&model)))?;
    }
    Ok(())
}

fn compare(model: &Model, pass: &str, counts: &mut Counts) -> Result<(), String> {
    let options = FuseOptions {
        max_growth: f64::INFINITY,
        ..FuseOptions::default()
    };
    let pipeline = Pipeline::only(pass).map_err(|error| error.to_string())?;
    let fused = match pipeline.run(model, &options) {
        Ok(fused) => fused,
        // A model that the checker rejects does not run either.
        Err(_) => {
            *counts.entry("invalid".into()).or_default() += 1;
            return Ok(());
        }
    };
    let moved = fused.plan.placed.iter().filter(|placed| placed.is_moved());
    let rules: Vec<&Placed> = moved.collect();
    let selected = fused.plan.tidy.selected;
    if rules.is_empty() && selected == 0 {
        return Ok(());
    }
    let mut runs = 0;
    for open in OPEN {
        let inputs = judge::inputs(model, open, true, Kind::Exact);
        runs += usize::from(judge::agree(model, &fused.model, &inputs, TOLERANCE)?);
    }
    for placed in rules.iter().filter(|_| runs > 0) {
        *counts
            .entry(format!("moved by {}", placed.rule))
            .or_default() += 1;
    }
    if runs > 0 && selected > 0 {
        *counts.entry("moved by demand".into()).or_default() += 1;
    }
    *counts.entry("run".into()).or_default() += runs;
    Ok(())
}

/// A model while it is drawn.
struct PlacedModel<'t> {
    builder: Builder,
    tape: Tape<'t>,
    /// The extents of the last value; `None` for an open one.
    shape: Vec<Option<usize>>,
    /// The name of the last value.
    value: String,
    /// The axis of the channels.
    channels: usize,
}

impl<'t> PlacedModel<'t> {
    /// Draws a model of a few operators.
    fn draw(bytes: &'t [u8]) -> Model {
        let mut tape = Tape::new(bytes);
        if tape.chance(12) {
            return repeated_heads(&mut tape);
        }
        let is_image = tape.chance(60);
        let mut drawn = Self::input(tape, is_image);
        let is_first = drawn.tape.chance(50);
        for step in 0..2 + drawn.tape.below(3) {
            if drawn.shape.len() < 2 {
                break;
            }
            if drawn.tape.chance(25) {
                drawn.element_wise();
            }
            let is_linear = (step % 2 == 0) == is_first;
            match (is_linear, is_image) {
                (true, true) => drawn.conv(),
                (true, false) if drawn.tape.chance(25) => drawn.matmul_of_rows(),
                (true, false) => drawn.matmul(),
                (false, true) => drawn.map_of_images(),
                (false, false) => drawn.map_of_tokens(),
            }
        }
        let PlacedModel { builder, value, .. } = drawn;
        builder.model(&[&value])
    }

    fn input(mut tape: Tape<'t>, is_image: bool) -> Self {
        let mut builder = Builder::new(17);
        let channels = tape.pick(&CHANNELS);
        let mut extents = vec![tape.pick(&["batch", "2", "1"])];
        let channels_name = channels.to_string();
        for name in if is_image {
            &["h", "w"][..]
        } else {
            &["tokens"]
        } {
            extents.push(tape.pick(&["3", "4", "5", "1", name]));
        }
        let axis = if is_image { 1 } else { extents.len() };
        extents.insert(axis, &channels_name);
        let value = builder.input("x", &extents);
        let shape = extents.iter().map(|extent| extent.parse().ok()).collect();
        PlacedModel {
            builder,
            tape,
            shape,
            value,
            channels: axis,
        }
    }

    /// The number of channels.
    fn width(&self) -> usize {
        self.shape[self.channels].unwrap_or(1)
    }

    /// Records that an axis of the last value was removed.
    fn remove_axis(&mut self, axis: usize) {
        self.shape.remove(axis);
        self.channels -= usize::from(axis < self.channels);
        self.channels = self.channels.min(self.shape.len().saturating_sub(1));
    }

    fn constant(&mut self, shape: &[usize], role: Role) -> String {
        let array = self.tape.numbers().array(shape, role, Kind::Exact);
        self.builder.constant(&array)
    }

    fn ints(&mut self, numbers: &[i64]) -> String {
        self.builder.ints(numbers)
    }

    /// Adds an operator on the last value and on other values.
    fn then(&mut self, op: &str, others: &[&str], attributes: Attrs) {
        let value = self.value.clone();
        let inputs: Vec<&str> = [value.as_str()]
            .into_iter()
            .chain(others.iter().copied())
            .collect();
        self.value = self.builder.op(op, &inputs, attributes);
    }

    fn element_wise(&mut self) {
        match self.tape.below(4) {
            0 => self.then("Relu", &[], vec![]),
            1 => {
                let mut shape = vec![1; self.shape.len()];
                shape[self.channels] = self.width();
                let scale = self.constant(&shape, Role::Scale);
                self.then("Mul", &[&scale], vec![]);
            }
            2 => {
                // An operand whose extents may be 1.
                let names = vec!["batch"; self.shape.len()];
                let other = self
                    .builder
                    .input("other", &names[..1 + self.tape.below(names.len())]);
                let op = self.tape.pick(&["Add", "Mul"]);
                self.then(op, &[&other], vec![]);
                self.shape = vec![None; self.shape.len()];
            }
            _ => self.then("Sigmoid", &[], vec![]),
        }
    }

    fn conv(&mut self) {
        if self.shape.len() != 4 || self.shape[1].is_none() {
            return;
        }
        let inner = self.width();
        let kernel = self.tape.pick(&[1, 1, 3, 2]);
        let groups = self.tape.pick(&[1, 1, 2, inner]);
        let group = if inner.is_multiple_of(groups) {
            groups
        } else {
            1
        };
        let outer = group * (1 + self.tape.below(3));
        let weight = self.constant(&[outer, inner / group, kernel, kernel], Role::Weight);
        let mut others = vec![weight];
        if self.tape.chance(60) {
            others.push(self.constant(&[outer], Role::Shift));
        }
        let total = kernel as i64 - 1;
        let before = self.tape.pick(&[total / 2, total, 0]);
        let mut attributes: Attrs = vec![("group", (group as i64).into())];
        let keeps_extents = self.tape.chance(85);
        let after = if keeps_extents { total - before } else { 1 };
        attributes.push(("pads", vec![before, before, after, after].into()));
        if self.tape.chance(10) {
            attributes.push(("strides", vec![2, 2].into()));
        }
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        self.then("Conv", &others, attributes);
        self.shape = vec![self.shape[0], Some(outer), None, None];
    }

    fn matmul(&mut self) {
        let Some(Some(inner)) = self.shape.last().copied() else {
            return;
        };
        let outer = self.tape.pick(&CHANNELS);
        let weight = self.constant(&[inner, outer], Role::Weight);
        let before = self.value.clone();
        self.then("MatMul", &[&weight], vec![]);
        let last = self.shape.len() - 1;
        self.shape[last] = Some(outer);
        if self.tape.chance(50) {
            let bias = self.constant(&[outer], Role::Shift);
            self.then("Add", &[&bias], vec![]);
        }
        if inner == outer && self.tape.chance(30) {
            self.then("Add", &[&before], vec![]);
        }
    }

    /// A product of tokens that are rows of one matrix. Afterwards, the rows may be divided
    /// differently.
    fn matmul_of_rows(&mut self) {
        let [_, Some(tokens), Some(inner)] = self.shape[..] else {
            return self.matmul();
        };
        let rows = self.ints(&[-1, inner as i64]);
        self.then("Reshape", &[&rows], vec![]);
        self.shape = vec![None, Some(inner)];
        self.channels = 1;
        self.matmul();
        let outer = self.width();
        let run = self.tape.pick(&[tokens, tokens, 2]);
        let apart = self.ints(&[-1, run as i64, outer as i64]);
        self.then("Reshape", &[&apart], vec![]);
        self.shape = vec![None, Some(run), Some(outer)];
        self.channels = 2;
    }

    fn map_of_images(&mut self) {
        if self.shape.len() != 4 {
            return;
        }
        match self.tape.below(10) {
            0 | 1 => self.average_pool(),
            2 => self.then("GlobalAveragePool", &[], vec![]),
            3 => self.reduction(),
            4 | 5 => self.resize(),
            6 => self.pad(),
            7 | 8 => self.resized_concat(),
            _ => self.selection(),
        }
    }

    fn map_of_tokens(&mut self) {
        match self.tape.below(7) {
            0 => self.reduction(),
            1 => self.tile(),
            2 => self.expand(),
            3 => self.pad(),
            4 => {
                self.selection();
                if self.shape.len() > 1 {
                    self.reduction();
                }
            }
            _ => self.selection(),
        }
    }

    fn average_pool(&mut self) {
        let kernel = 1 + self.tape.below(3) as i64;
        let pads = self.tape.pick(&[0, 1]).min(kernel - 1);
        let stride = 1 + self.tape.below(3) as i64;
        let attributes: Attrs = vec![
            ("kernel_shape", vec![kernel; 2].into()),
            ("strides", vec![stride; 2].into()),
            ("pads", vec![pads; 4].into()),
            ("count_include_pad", i64::from(self.tape.chance(40)).into()),
            ("ceil_mode", i64::from(self.tape.chance(15)).into()),
        ];
        self.then("AveragePool", &[], attributes);
        self.shape[2..].fill(None);
    }

    fn reduction(&mut self) {
        let rank = self.shape.len();
        let first = self.tape.below(rank);
        let axes: Vec<i64> = match self.tape.chance(50) {
            true if rank == 4 => vec![-2, -1],
            true => vec![1],
            false => vec![first as i64],
        };
        let keeps = self.tape.chance(70);
        let keepdims = ("keepdims", i64::from(keeps).into());
        if self.tape.chance(65) {
            self.then(
                "ReduceMean",
                &[],
                vec![("axes", axes.clone().into()), keepdims],
            );
        } else {
            let list = self.ints(&axes);
            self.then("ReduceSum", &[&list], vec![keepdims]);
        }
        let places: Vec<usize> = axes
            .iter()
            .map(|&axis| axis.rem_euclid(rank as i64) as usize)
            .collect();
        for &place in places.iter().rev() {
            if keeps {
                self.shape[place] = Some(1);
            } else {
                self.remove_axis(place);
            }
        }
    }

    fn resize(&mut self) {
        let attributes = self.resize_attributes();
        if let [_, _, Some(rows), Some(columns)] = self.shape[..]
            && let [Some(samples), Some(channels)] = self.shape[..2]
            && self.tape.chance(30)
        {
            // Sizes that are odd, or equal to the old size along one axis.
            let sizes = [samples, channels, rows + self.tape.below(4), columns * 2];
            let list = self.ints(&sizes.map(|size| size as i64));
            self.then("Resize", &["", "", &list], attributes);
        } else {
            let factor = self.tape.pick(&[2.0, 3.0, 1.0, 1.5]);
            let value = self.value.clone();
            self.value = self.resized(&value, factor, attributes);
        }
        self.shape[2..].fill(None);
    }

    /// Adds a Resize of the rows and columns of a value.
    fn resized(&mut self, value: &str, factor: f64, attributes: Attrs) -> String {
        let factors = ndarray::arr1(&[1.0, 1.0, factor, factor]).into_dyn();
        let factors = self.builder.constant(&factors);
        self.builder
            .op("Resize", &[value, "", &factors], attributes)
    }

    fn resize_attributes(&mut self) -> Attrs {
        let modes = ["nearest", "nearest", "linear"];
        let coordinates = [
            "asymmetric",
            "half_pixel",
            "tf_half_pixel_for_nn",
            "align_corners",
        ];
        let rounding = ["floor", "round_prefer_floor", "round_prefer_ceil", "ceil"];
        vec![
            ("mode", self.tape.pick(&modes).into()),
            (
                "coordinate_transformation_mode",
                self.tape.pick(&coordinates).into(),
            ),
            ("nearest_mode", self.tape.pick(&rounding).into()),
        ]
    }

    /// Resizes the value, and concatenates it with other values of as many places along the
    /// channels.
    fn resized_concat(&mut self) {
        let [samples, Some(channels), rows, columns] = self.shape[..] else {
            return;
        };
        let factor = self.tape.pick(&[2, 3]);
        let plain = self.value.clone();
        let attributes = self.resize_attributes();
        let resized = self.resized(&plain, factor as f64, attributes);
        let other = match (samples, rows, columns) {
            (Some(samples), Some(rows), Some(columns)) if self.tape.chance(50) => {
                let extents = [samples, channels, factor * rows, factor * columns];
                let extents = extents.map(|extent| extent.to_string());
                let name = self.builder.fresh("other");
                self.builder
                    .input(&name, &extents.each_ref().map(String::as_str))
            }
            _ => {
                let attributes = self.resize_attributes();
                self.resized(&plain, factor as f64, attributes)
            }
        };
        self.value = resized;
        self.then("Concat", &[&other], vec![("axis", 1.into())]);
        self.shape[1] = Some(2 * channels);
        self.shape[2..].fill(None);
    }

    fn pad(&mut self) {
        let rank = self.shape.len();
        let mut pads = vec![0; 2 * rank];
        let axis = (0..rank).rfind(|&axis| axis != self.channels).unwrap_or(0);
        pads[axis] = self.tape.below(2) as i64;
        pads[rank + axis] = 1;
        let list = self.ints(&pads);
        let mode = self.tape.pick(&["constant", "reflect", "edge"]);
        let attributes: Attrs = vec![("mode", mode.into())];
        if mode == "constant" && self.tape.chance(50) {
            let number = ndarray::arr0(self.tape.pick(&[0.0, 1.0])).into_dyn();
            let number = self.builder.constant(&number);
            self.then("Pad", &[&list, &number], attributes);
        } else {
            self.then("Pad", &[&list], attributes);
        }
        self.shape[axis] = self.shape[axis].map(|extent| extent + (pads[axis] + 1) as usize);
    }

    fn tile(&mut self) {
        let mut repeats = vec![1; self.shape.len()];
        let axis = self.tape.below(repeats.len());
        repeats[axis] = 2;
        let list = self.ints(&repeats);
        self.then("Tile", &[&list], vec![]);
        self.shape[axis] = self.shape[axis].map(|extent| 2 * extent);
    }

    fn expand(&mut self) {
        let axis = self.tape.below(self.shape.len());
        if self.shape[axis] != Some(1) {
            return;
        }
        let mut extents = vec![1; self.shape.len()];
        extents[axis] = 3;
        let list = self.ints(&extents);
        self.then("Expand", &[&list], vec![]);
        self.shape[axis] = Some(3);
    }

    /// Selects one or two places of an axis. Some indices are out of range.
    fn selection(&mut self) {
        let axis = self.tape.below(self.shape.len());
        let along = ("axis", (axis as i64).into());
        match self.tape.below(4) {
            0 => {
                let place = self.tape.pick(&[0, -1, 1, 4]);
                let places = self.ints(&[place]);
                self.then("Gather", &[&places], vec![along]);
                self.shape[axis] = Some(1);
            }
            1 => {
                let places = [self.tape.below(3) as i64, -1];
                let places = self.ints(&places);
                self.then("Gather", &[&places], vec![along]);
                self.shape[axis] = Some(2);
            }
            2 => {
                let index = self.builder.fresh("index");
                let dims = self.tape.pick(&[&[][..], &["1"]]);
                let info = crate::common::declared(&index, unfold::onnx::DataType::Int64, dims);
                self.builder.graph().input.push(info);
                self.then("Gather", &[&index], vec![along]);
                if dims.is_empty() {
                    self.remove_axis(axis);
                } else {
                    self.shape[axis] = Some(1);
                }
            }
            _ => {
                let start = self.tape.pick(&[0, 1, -1]);
                let end = self.tape.pick(&[1, 2, i64::MAX]);
                let [starts, ends, axes] =
                    [start, end, axis as i64].map(|number| self.ints(&[number]));
                self.then("Slice", &[&starts, &ends, &axes], vec![]);
                self.shape[axis] = None;
            }
        }
    }
}

/// A product of queries with keys that are repeated for the heads, either each key in turn or all
/// keys in blocks.
fn repeated_heads(tape: &mut Tape) -> Model {
    let mut builder = Builder::new(17);
    let [keys, group] = [1 + tape.below(3), 1 + tape.below(3)];
    let heads = (keys * group).to_string();
    let own = keys.to_string();
    let columns = tape.pick(&["cached", "3", "1"]);
    let rows = tape.pick(&["tokens", "2", "1"]);
    let queries = builder.input("q", &["batch", &heads, rows, "2"]);
    let values = builder.input("k", &["batch", &own, "2", columns]);
    let repeated = match tape.below(4) {
        0 => {
            let repeats = builder.ints(&[1, group as i64, 1, 1]);
            builder.op("Tile", &[&values, &repeats], vec![])
        }
        1 => {
            let copies = vec![values.as_str(); group];
            builder.op("Concat", &copies, vec![("axis", 1.into())])
        }
        more => {
            let places =
                (0..keys * group).map(|head| if more == 2 { head / group } else { head % keys });
            let places: Vec<i64> = places.map(|place| place as i64).collect();
            let places = builder.ints(&places);
            builder.op("Gather", &[&values, &places], vec![("axis", 1.into())])
        }
    };
    let product = builder.op("MatMul", &[&queries, &repeated], vec![]);
    builder.model(&[&product])
}
