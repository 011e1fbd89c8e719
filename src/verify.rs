//! Whether two models compute the same: both run in tract on the same seeded random inputs.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use tract_onnx::prelude::{Datum, DatumType, Tensor, TractResult};

use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::operator::Category;
use crate::onnx::proto::{Dim, GraphProto, NodeProto};
use crate::onnx::tensor::{self, DataType};
use crate::onnx::tract_quirks::misread;
use crate::run::{Dims, Engine, Failure, Input, fix_shapes, random};
use crate::shape::facts::{Facts, extent};

/// Pairs of operators that read the same value, up to which tract loads a model in some seconds.
const COMPARISONS: usize = 1 << 15;

/// A pair takes tract as long to compare as to be looked for among so many outputs.
const OUTPUTS: usize = 32;

/// Comparing two operators that share a constant is this many times as fast.
const CONSTANTS: usize = 64;

/// How two models are compared.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    /// Sizes for symbolic dimensions.
    pub dims: Dims,
    /// The largest relative error that passes; [`default_tolerance`] of the original where it is not given.
    pub tolerance: Option<f64>,
    /// One run for each of these seeds of the inputs.
    pub seeds: Vec<u64>,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            dims: Dims::default(),
            tolerance: None,
            seeds: vec![0],
        }
    }
}

/// The outcome of a comparison.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Both ran. Whether they agree is for [`Comparison::agrees`] to say.
    Compared(Comparison),
    /// The original runs, and the other one does not, or has other outputs.
    Broken {
        /// The flaw.
        reason: String,
    },
    /// The original cannot be run, or not in a way that could be trusted, so that nothing was compared.
    CouldNotVerify {
        /// Why.
        reason: String,
    },
}

impl Verdict {
    /// Whether the models were run and agree.
    pub fn passed(&self) -> bool {
        matches!(self, Self::Compared(comparison) if comparison.agrees())
    }
}

/// How far the outputs of two models are apart.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The largest relative error that passes.
    pub tolerance: f64,
    /// The outputs, in order, each with its worst errors over all seeds.
    pub outputs: Vec<OutputError>,
}

impl Comparison {
    /// Whether every output agrees.
    pub fn agrees(&self) -> bool {
        self.outputs
            .iter()
            .all(|output| output.agrees(self.tolerance))
    }

    /// The output that is furthest off; `None` for a model without outputs.
    pub fn worst(&self) -> Option<&OutputError> {
        let key = |output: &OutputError| (output.mismatched, output.relative);
        self.outputs.iter().reduce(|worst, output| {
            if key(output) > key(worst) {
                output
            } else {
                worst
            }
        })
    }
}

/// How far one output of two models is apart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutputError {
    /// The name of the output.
    pub name: String,
    /// The largest difference between two elements.
    pub absolute: f64,
    /// The largest difference, divided by the largest magnitude in the original's output.
    pub relative: f64,
    /// Elements beyond any tolerance: integers and booleans that differ, and elements that are NaN
    /// or infinite in one result only.
    pub mismatched: usize,
}

impl OutputError {
    fn agrees(&self, tolerance: f64) -> bool {
        self.mismatched == 0 && self.relative <= tolerance
    }
}

/// Runs `original` and `fused` on the same random inputs, and measures how far the outputs are apart.
///
/// ```no_run
/// use unfold::onnx::Model;
/// use unfold::verify::{Verdict, VerifyOptions, compare};
///
/// let (original, fused) = (Model::open("model.onnx")?, Model::open("fused.onnx")?);
/// match compare(&original, &fused, &VerifyOptions::default()) {
///     Verdict::Compared(comparison) if comparison.agrees() => println!("they agree"),
///     Verdict::Compared(comparison) => println!("they differ: {:?}", comparison.worst()),
///     Verdict::Broken { reason } => println!("the fused model is broken: {reason}"),
///     Verdict::CouldNotVerify { reason } => println!("not verified: {reason}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn compare(original: &Model, fused: &Model, options: &VerifyOptions) -> Verdict {
    let cannot = untrusted(original.graph(), original)
        .or_else(|| [original, fused].into_iter().find_map(compares_too_many))
        .or_else(|| unbounded(original, &options.dims));
    let reference = match cannot {
        Some(reason) => return Verdict::CouldNotVerify { reason },
        None => run(original, options),
    };
    let (names, reference) = match reference {
        Ok(reference) => reference,
        Err(failure) => {
            return Verdict::CouldNotVerify {
                reason: failure.to_string(),
            };
        }
    };
    if let Some(name) = unseen(original, &names, &reference) {
        let reason = format!(
            "its output `{name}` has no elements at these sizes: others may be given by --dim"
        );
        return Verdict::CouldNotVerify { reason };
    }
    let (fused_names, outputs) = match run(fused, options) {
        Ok(outputs) => outputs,
        Err(failure) => {
            return Verdict::Broken {
                reason: failure.to_string(),
            };
        }
    };
    if names != fused_names {
        let (names, fused_names) = (names.join(", "), fused_names.join(", "));
        return Verdict::Broken {
            reason: format!("its outputs are {fused_names}, and should be {names}"),
        };
    }
    match measure(&names, &reference, &outputs) {
        Ok(outputs) => {
            let tolerance = options
                .tolerance
                .unwrap_or_else(|| default_tolerance(original));
            let comparison = Comparison { tolerance, outputs };
            if comparison.agrees() && is_mute(&reference) {
                let reason = "no output has a finite number but 0: whatever is folded would agree"
                    .to_owned();
                return Verdict::CouldNotVerify { reason };
            }
            Verdict::Compared(comparison)
        }
        Err(reason) => Verdict::Broken { reason },
    }
}

/// Whether the outputs do not depend on the inputs: all are floats, and each is 0, as behind a Relu
/// that never opens, or NaN, or infinite.
fn is_mute(runs: &[Vec<Tensor>]) -> bool {
    let says = |tensor: &Tensor| {
        let floats = tensor.cast_to::<f64>().ok();
        let floats = floats
            .as_ref()
            .and_then(|floats| floats.to_plain_array_view::<f64>().ok());
        !tensor.datum_type().is_float()
            || floats.is_none_or(|floats| {
                floats
                    .iter()
                    .any(|number| number.is_finite() && *number != 0.0)
            })
    };
    let mut outputs = runs
        .iter()
        .flatten()
        .filter(|tensor| tensor.len() > 0)
        .peekable();
    outputs.peek().is_some() && !outputs.any(says)
}

/// The names of the outputs, and their values for each seed.
fn run(model: &Model, options: &VerifyOptions) -> Result<(Vec<String>, Vec<Vec<Tensor>>), Failure> {
    let engine = Engine::load(model, &options.dims)?;
    let outputs: Result<_, _> = options
        .seeds
        .iter()
        .map(|&seed| engine.run(&random(engine.inputs(), seed)).map(in_numbers))
        .collect();
    let outputs = outputs?;
    Ok((engine.outputs().to_vec(), outputs))
}

/// tract's extents as integers.
fn in_numbers(outputs: Vec<Tensor>) -> Vec<Tensor> {
    let in_numbers = |tensor: Tensor| match tensor.datum_type() {
        DatumType::TDim => tensor
            .cast_to::<i64>()
            .map_or_else(|_| tensor.clone(), |cast| cast.into_owned()),
        _ => tensor,
    };
    outputs.into_iter().map(in_numbers).collect()
}

/// Whether a Slice leaves no element.
fn cuts_all(graph: &Graph, facts: &Facts, node: NodeId) -> bool {
    let is_empty = |value: Option<ValueId>| {
        let shape = value.and_then(|value| facts.shape(value));
        shape.is_some_and(|shape| shape.iter().any(|dim| extent(dim) == Some(0)))
    };
    graph.is(node, "Slice") && is_empty(graph.output(node, 0)) && !is_empty(graph.input(node, 0))
}

/// An output that was empty in every run, though it need not be: nothing of it was compared.
fn unseen<'n>(model: &Model, names: &'n [String], runs: &[Vec<Tensor>]) -> Option<&'n str> {
    let is_empty = |place: usize| runs.iter().all(|outputs| outputs[place].len() == 0);
    let has_to_be = |name: &str| {
        let declared = model
            .graph()
            .output
            .iter()
            .find(|output| output.name() == name);
        let tensor = declared
            .and_then(|output| output.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref());
        tensor.is_some_and(|shape| {
            shape
                .dim
                .iter()
                .any(|dim| dim.value == Some(Dim::DimValue(0)))
        })
    };
    let empty = (0..names.len())
        .filter(|&place| is_empty(place))
        .map(|place| names[place].as_str());
    empty.into_iter().find(|name| !has_to_be(name))
}

/// The relative error that rounding may cause, by the coarsest float type among the weights.
///
/// Folding changes the order in which numbers are multiplied and added, so that every layer rounds a little
/// differently. Over tens of layers this adds up to some tens of units in the last place of the largest
/// output: 1e-4 leaves room for a thousand in single precision. A wrong axis, shift or sign is off by a
/// part of 1, not of 10,000.
pub fn default_tolerance(model: &Model) -> f64 {
    let tensors = model
        .graph()
        .initializer
        .iter()
        .filter_map(|tensor| tensor::data_type(tensor).ok());
    let by_type = |element| match element {
        DataType::BFloat16 => Some(1e-1),
        DataType::Float16 => Some(2e-2),
        DataType::Float => Some(1e-4),
        DataType::Double => Some(1e-9),
        _ => None,
    };
    tensors.filter_map(by_type).reduce(f64::max).unwrap_or(1e-4)
}

/// Why tract is no judge of a model that it runs.
fn untrusted(graph: &GraphProto, model: &Model) -> Option<String> {
    graph.node.iter().find_map(|node| {
        let reason = match node.op() {
            ("", "BatchNormalization") if mixed_types(node, graph) => {
                Some("tract needs its five inputs to be of one type")
            }
            _ if node.category().is_some_and(Category::is_random) => Some("its output is random"),
            ("", "Dropout") if dropping(node, graph, model) => {
                Some("it may be dropping elements at random")
            }
            _ => misread(node, model.own_opset()),
        };
        reason
            .map(|reason| format!("{} `{}`: {reason}", node.op_type(), node.label()))
            .or_else(|| bodies(node).find_map(|body| untrusted(body, model)))
    })
}

/// Why tract is not asked to run a model: it would look for an end that is far off or not there, or for memory.
fn unbounded(model: &Model, dims: &Dims) -> Option<String> {
    let mut concrete = model.clone();
    fix_shapes(concrete.graph_mut(), &Input::from_model(model, dims).ok()?);
    let graph = Graph::new(&concrete).ok()?;
    let facts = Facts::infer(&graph);
    if let Some(&node) = graph
        .order()
        .iter()
        .find(|&&node| facts.misfits(&graph, node))
    {
        let node = graph.name(node);
        return Some(format!(
            "what `{node}` reads does not fit at these sizes: others may be given by --dim"
        ));
    }
    match facts.out_of_bounds() {
        Some(place) => Some(format!(
            "`{place}` has attributes out of bounds, or a value too large to be held"
        )),
        None if graph
            .order()
            .iter()
            .any(|&node| cuts_all(&graph, &facts, node)) =>
        {
            Some("a Slice leaves nothing of its value, of which tract leaves something".into())
        }
        None if facts.can_be_run(&graph) => None,
        None => Some(
            "a run takes more multiplications than a model of its size is known to take".into(),
        ),
    }
}

/// Why tract would take long to load a model: it compares all readers of a value with each other, each time that one of its
/// passes changes something, and looks for both of each pair among the outputs.
fn compares_too_many(model: &Model) -> Option<String> {
    let graph = model.graph();
    let mut readers: HashMap<&str, usize> = HashMap::new();
    let read = graph
        .node
        .iter()
        .flat_map(|node| &node.input)
        .filter(|name| !name.is_empty());
    read.for_each(|name| *readers.entry(name).or_default() += 1);
    // Each part of a Split reads the whole, and each part of a Concat is looked for in the others.
    for node in &graph.node {
        let parts = if node.op_type() == "Concat" {
            node.input.len()
        } else {
            node.output.len()
        };
        if let ("Concat" | "Split", Some(name)) = (node.op_type(), node.input.first()) {
            *readers.entry(name).or_default() += parts;
        }
    }
    let stored: HashSet<&str> = graph
        .initializer
        .iter()
        .map(|tensor| tensor.name())
        .collect();
    let mut all = 0_usize;
    for (name, &count) in &readers {
        let pairs = count.saturating_mul(count) / 2;
        all = all.saturating_add(if stored.contains(name) {
            pairs / CONSTANTS
        } else {
            pairs
        });
    }
    let comparisons = all.saturating_mul(1 + graph.output.len() / OUTPUTS);
    let (name, count) = readers
        .into_iter()
        .max_by_key(|&(name, count)| (count, name))?;
    (comparisons > COMPARISONS).then(|| {
        format!(
            "tract would compare all operators that read a value with each other, and {count} read `{name}`"
        )
    })
}

/// Whether the inputs of a node have several known types.
fn mixed_types(node: &NodeProto, graph: &GraphProto) -> bool {
    let declared = |name: &str| {
        let values = graph
            .input
            .iter()
            .chain(&graph.value_info)
            .chain(&graph.output);
        let value = values.into_iter().find(|value| value.name() == name)?;
        Some(value.r#type.as_ref()?.tensor_type.as_ref()?.elem_type())
    };
    let stored = |name: &str| {
        Some(
            graph
                .initializer
                .iter()
                .find(|tensor| tensor.name() == name)?
                .data_type(),
        )
    };
    let mut types = node
        .input
        .iter()
        .filter_map(|name| stored(name).or_else(|| declared(name)));
    types
        .next()
        .is_some_and(|first| types.any(|other| other != first))
}

/// Whether a Dropout may be in training: it is not where its third input is missing or a constant false.
fn dropping(node: &NodeProto, graph: &GraphProto, model: &Model) -> bool {
    let Some(mode) = node.input.get(2).filter(|mode| !mode.is_empty()) else {
        return false;
    };
    let initializer = graph
        .initializer
        .iter()
        .find(|tensor| tensor.name() == mode);
    let maker = graph
        .node
        .iter()
        .find(|node| node.op() == ("", "Constant") && node.output.first() == Some(mode));
    let constant = initializer.or_else(|| maker?.attr_t("value").ok().flatten());
    let bytes = constant.and_then(|tensor| tensor::raw(tensor, model.externals()).ok());
    bytes.is_none_or(|bytes| bytes.iter().any(|&byte| byte != 0))
}

fn measure(
    names: &[String],
    reference: &[Vec<Tensor>],
    outputs: &[Vec<Tensor>],
) -> Result<Vec<OutputError>, String> {
    let mut worst: Vec<OutputError> = names
        .iter()
        .map(|name| OutputError {
            name: name.clone(),
            absolute: 0.0,
            relative: 0.0,
            mismatched: 0,
        })
        .collect();
    for (reference, outputs) in reference.iter().zip(outputs) {
        for ((a, b), worst) in reference.iter().zip(outputs).zip(&mut worst) {
            let name = &worst.name;
            if (a.datum_type(), a.shape()) != (b.datum_type(), b.shape()) {
                let (a, b) = ((a.datum_type(), a.shape()), (b.datum_type(), b.shape()));
                return Err(format!(
                    "its output `{name}` is {:?} {:?}, and should be {:?} {:?}",
                    b.0, b.1, a.0, a.1
                ));
            }
            let (absolute, relative, mismatched) = apart(a, b)
                .map_err(|error| format!("its output `{name}` cannot be compared: {error}"))?;
            worst.absolute = worst.absolute.max(absolute);
            worst.relative = worst.relative.max(relative);
            worst.mismatched += mismatched;
        }
    }
    Ok(worst)
}

/// The largest absolute and relative difference, and how many elements no tolerance excuses.
fn apart(a: &Tensor, b: &Tensor) -> TractResult<(f64, f64, usize)> {
    if !a.datum_type().is_float() {
        return Ok((0.0, 0.0, unequal(a, b)?));
    }
    let (a, b) = (a.cast_to::<f64>()?, b.cast_to::<f64>()?);
    let (a, b) = (
        a.try_as_plain_ram()?.as_slice::<f64>()?,
        b.try_as_plain_ram()?.as_slice::<f64>()?,
    );
    let (mut absolute, mut magnitude, mut mismatched) = (0.0_f64, 0.0_f64, 0);
    for (&a, &b) in a.iter().zip(b) {
        if a.is_finite() && b.is_finite() {
            absolute = absolute.max((a - b).abs());
            magnitude = magnitude.max(a.abs());
        } else if a != b && !(a.is_nan() && b.is_nan()) {
            mismatched += 1;
        }
    }
    let relative = if absolute == 0.0 {
        0.0
    } else {
        absolute / magnitude
    };
    Ok((absolute, relative, mismatched))
}

fn unequal(a: &Tensor, b: &Tensor) -> TractResult<usize> {
    fn count<T: Datum + PartialEq>(a: &Tensor, b: &Tensor) -> TractResult<usize> {
        let (a, b) = (
            a.try_as_plain_ram()?.as_slice::<T>()?,
            b.try_as_plain_ram()?.as_slice::<T>()?,
        );
        Ok(a.iter().zip(b).filter(|(a, b)| a != b).count())
    }
    match a.datum_type() {
        DatumType::Bool => count::<bool>(a, b),
        DatumType::U64 => count::<u64>(a, b),
        DatumType::String => count::<String>(a, b),
        _ => count::<i64>(&*a.cast_to::<i64>()?, &*b.cast_to::<i64>()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::TensorProto;
    use crate::run::testing::{affine, floats, model, node, value, with_int};

    fn verdict(original: &Model, fused: &Model) -> Verdict {
        compare(original, fused, &VerifyOptions::default())
    }

    fn comparison(original: &Model, fused: &Model) -> Comparison {
        match verdict(original, fused) {
            Verdict::Compared(comparison) => comparison,
            other => panic!("{other:?}"),
        }
    }

    fn reason(original: &Model, fused: &Model) -> String {
        match verdict(original, fused) {
            Verdict::CouldNotVerify { reason } => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn equal_models_agree_exactly() {
        let model = affine([1.0, 2.0, 3.0], [0.5, 0.0, -1.0]);
        let comparison = comparison(&model, &model);
        assert!(comparison.agrees());
        assert_eq!(comparison.tolerance, 1e-4);
        let expected = OutputError {
            name: "y".into(),
            absolute: 0.0,
            relative: 0.0,
            mismatched: 0,
        };
        assert_eq!(comparison.worst(), Some(&expected));
    }

    #[test]
    fn a_shift_is_measured_against_the_largest_output() {
        // x is never larger than 10 in magnitude, so that the outputs lie within 10 of 1000.
        let comparison = comparison(
            &affine([1.0; 3], [1000.0; 3]),
            &affine([1.0; 3], [1000.0, 1000.5, 1000.0]),
        );
        let worst = comparison.worst().unwrap();
        assert!((worst.absolute - 0.5).abs() < 1e-3, "{worst:?}");
        assert!((worst.relative - 0.0005).abs() < 1e-5, "{worst:?}");
        assert!(!comparison.agrees());
        let options = VerifyOptions {
            tolerance: Some(1e-3),
            ..VerifyOptions::default()
        };
        assert!(
            compare(
                &affine([1.0; 3], [1000.0; 3]),
                &affine([1.0; 3], [1000.5; 3]),
                &options
            )
            .passed()
        );
    }

    #[test]
    fn nan_in_both_agrees_and_in_one_does_not() {
        let (nan, finite) = (
            affine([f64::NAN, 1.0, 1.0], [0.0; 3]),
            affine([1.0; 3], [0.0; 3]),
        );
        assert!(verdict(&nan, &nan).passed());
        assert_eq!(comparison(&nan, &finite).worst().unwrap().mismatched, 2);
        let ends = |end: f64| affine([1.0; 3], [end, 0.0, 0.0]);
        let (up, down) = (ends(f64::INFINITY), ends(f64::NEG_INFINITY));
        assert!(verdict(&up, &up).passed());
        assert!(!verdict(&up, &down).passed());
    }

    #[test]
    fn integers_must_be_equal() {
        let ranked = |sign: f64| {
            let sign = floats("sign", &ndarray::arr1(&[sign]).into_dyn().view());
            let nodes = vec![
                node("Mul x, sign -> z"),
                with_int(node("ArgMax z -> y"), "axis", 1),
            ];
            model(
                vec![value("x", DataType::Float, &["n", "100"])],
                vec![sign],
                nodes,
                &["y"],
            )
        };
        assert!(verdict(&ranked(1.0), &ranked(2.0)).passed());
        assert_eq!(
            comparison(&ranked(1.0), &ranked(-1.0))
                .worst()
                .unwrap()
                .mismatched,
            2
        );
    }

    #[test]
    fn a_model_that_cannot_be_run_is_not_verified() {
        let good = affine([1.0; 3], [0.0; 3]);
        let bad = model(
            vec![value("x", DataType::Float, &["n", "3"])],
            vec![],
            vec![node("Nope x -> y")],
            &["y"],
        );
        assert_eq!(
            reason(&bad, &good),
            "tract cannot load Nope `the Nope`: tract does not have this operator"
        );
        assert!(matches!(verdict(&good, &bad), Verdict::Broken { .. }));
    }

    #[test]
    fn what_no_run_has_elements_of_is_not_verified() {
        let narrow = floats("w", &ndarray::Array3::ones((1, 1, 300)).into_dyn().view());
        let convolved = |length: &str| {
            let inputs = vec![value("x", DataType::Float, &["n", "1", length])];
            model(
                inputs,
                vec![narrow.clone()],
                vec![node("Conv x, w -> y")],
                &["y"],
            )
        };
        // Eight samples, where nobody says more.
        assert!(reason(&convolved("t"), &convolved("t")).contains("`y` has no elements"));
        assert!(verdict(&convolved("400"), &convolved("400")).passed());
    }

    #[test]
    fn other_outputs_are_a_failure() {
        let good = affine([1.0; 3], [0.0; 3]);
        let mut renamed = good.clone();
        renamed.graph_mut().node[1].output[0] = "other".into();
        renamed.graph_mut().output[0].name = Some("other".into());
        let Verdict::Broken { reason } = verdict(&good, &renamed) else {
            panic!()
        };
        assert_eq!(reason, "its outputs are other, and should be y");

        let mut summed = good.clone();
        summed.graph_mut().node[1] = with_int(node("ReduceSum scaled -> y"), "keepdims", 1);
        assert!(
            matches!(verdict(&good, &summed), Verdict::Broken { reason } if reason.contains("should be"))
        );
    }

    #[test]
    fn tract_does_not_judge_batches_that_are_in_training() {
        let norm = |mode| {
            let vector = |name| floats(name, &ndarray::arr1(&[1.0, 2.0, 3.0]).into_dyn().view());
            let node = with_int(
                node("BatchNormalization x, g, b, m, v -> y"),
                "training_mode",
                mode,
            );
            let inputs = vec![value("x", DataType::Float, &["n", "3"])];
            model(
                inputs,
                ["g", "b", "m", "v"].map(vector).into(),
                vec![node],
                &["y"],
            )
        };
        assert!(verdict(&norm(0), &norm(0)).passed());
        assert!(reason(&norm(1), &norm(0)).contains("in training mode"));
        let mut listed = norm(0);
        listed.proto.opset_import[0].version = Some(13);
        listed.graph_mut().node[0].attribute.clear();
        assert!(verdict(&listed, &listed).passed());
        listed.graph_mut().node[0]
            .output
            .extend(["m2".into(), "v2".into()]);
        assert!(reason(&listed, &norm(0)).contains("in training mode"));

        let mut mixed = norm(0);
        let half = mixed.graph().initializer.iter().map(|tensor| {
            let values = tensor::read_f64(tensor, mixed.externals()).unwrap();
            tensor::make(tensor.name(), DataType::Float16, &values.view()).unwrap()
        });
        mixed.graph_mut().initializer = half.collect();
        assert!(reason(&mixed, &norm(0)).contains("of one type"));
    }

    #[test]
    fn a_run_without_end_is_not_begun() {
        let square = floats("w", &ndarray::Array2::ones((64, 64)).into_dyn().view());
        let tall = |rows: &str| {
            let inputs = vec![value("x", DataType::Float, &[rows, "64"])];
            model(
                inputs,
                vec![square.clone()],
                vec![node("MatMul x, w -> y")],
                &["y"],
            )
        };
        assert!(verdict(&tall("64"), &tall("64")).passed());
        // As many numbers as may be held, and 64 multiplications for each.
        assert!(reason(&tall("4194304"), &tall("4194304")).contains("multiplications"));
    }

    #[test]
    fn outputs_that_say_nothing_are_not_compared() {
        let of = |op: &str| {
            let nodes = vec![node("Abs x -> a"), node("Neg a -> n"), node(op)];
            model(
                vec![value("x", DataType::Float, &["n", "3"])],
                vec![],
                nodes,
                &["y"],
            )
        };
        // A Relu of a negative number is 0, and its logarithm is no number.
        for silent in ["Relu n -> y", "Log n -> y"] {
            assert!(
                reason(&of(silent), &of(silent)).contains("a finite number but 0"),
                "{silent}"
            );
            // A different model differs all the same.
            assert!(
                matches!(
                    verdict(&of(silent), &of("Exp n -> y")),
                    Verdict::Compared(_)
                ),
                "{silent}"
            );
        }
        assert!(verdict(&of("Exp n -> y"), &of("Exp n -> y")).passed());
    }

    #[test]
    fn what_does_not_fit_at_the_sizes_of_a_run_is_not_run() {
        let four = floats("v", &ndarray::arr1(&[1.0, 2.0, 3.0, 4.0]).into_dyn().view());
        let nodes = vec![node("Mul x, v -> m"), node("Shape m -> y")];
        let shape = model(
            vec![value("x", DataType::Float, &["n", "k"])],
            vec![four],
            nodes,
            &["y"],
        );
        assert!(reason(&shape, &shape).contains("does not fit at these sizes"));
        let options = VerifyOptions {
            dims: "k=4".parse().unwrap(),
            ..VerifyOptions::default()
        };
        assert!(compare(&shape, &shape, &options).passed());
    }

    #[test]
    fn extents_are_the_integers_that_they_are_however_tract_counts_them() {
        let extents = [2, 3].map(i64::to_le_bytes).concat();
        let stored = TensorProto {
            name: Some("y".into()),
            data_type: Some(DataType::Int64.code()),
            dims: vec![2],
            raw_data: Some(extents.into()),
            ..Default::default()
        };
        let inputs = || vec![value("x", DataType::Float, &["2", "3"])];
        let read = model(
            inputs(),
            vec![],
            vec![node("Shape x -> s"), node("Identity s -> y")],
            &["y"],
        );
        let known = model(inputs(), vec![stored], vec![], &["y"]);
        assert!(verdict(&read, &known).passed());
    }

    #[test]
    fn random_models_are_not_judged() {
        let inputs = || vec![value("x", DataType::Float, &["n", "3"])];
        let random = model(
            inputs(),
            vec![],
            vec![node("RandomNormalLike x -> y")],
            &["y"],
        );
        assert!(reason(&random, &random).contains("random"));
        let on = TensorProto {
            name: Some("on".into()),
            data_type: Some(DataType::Bool.code()),
            raw_data: Some(vec![1].into()),
            ..Default::default()
        };
        let dropout = |mode: &str| {
            model(
                inputs(),
                vec![on.clone()],
                vec![node(&format!("Dropout x, , {mode} -> y"))],
                &["y"],
            )
        };
        assert!(reason(&dropout("on"), &dropout("on")).contains("Dropout"));
    }

    #[test]
    fn the_coarsest_type_sets_the_tolerance() {
        let with = |types: &[DataType]| {
            let one = ndarray::arr1(&[1.0]).into_dyn();
            let tensors = types
                .iter()
                .map(|&element| tensor::make("w", element, &one.view()).unwrap())
                .collect();
            default_tolerance(&model(vec![], tensors, vec![], &[]))
        };
        assert_eq!(with(&[DataType::Double]), 1e-9);
        assert_eq!(with(&[DataType::Double, DataType::Float]), 1e-4);
        assert_eq!(with(&[DataType::Float, DataType::Float16]), 2e-2);
    }
}
