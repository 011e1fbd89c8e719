//! Writes a LayerNormalization of a value whose mean is 0 as an RMS normalization.
//!
//! Before: `γ·(x − mean(x))/√(var(x) + ε)`, as one operator or written out. After:
//! `γ·x/√(mean(x²) + ε)`, in the written-out form that tract and onnxruntime fuse into one
//! operator. onnxruntime fuses this form only if a scale follows it, even if the scale is 1.

use crate::affine::recognize::decomposed_norm::Core;
use crate::affine::recognize::{Replacement, Site, View};
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;

/// The replacement of a LayerNormalization over one axis. `None` if it has a shift, which would
/// need an additional operator, or if any part of it is unknown.
pub(super) fn without_mean(view: &View, site: &Site, core: &Core) -> Option<Replacement> {
    let &[axis] = &core.axes[..] else { return None };
    let is_plain = core.centred && !core.norm && core.factor.is_none() && core.inside.is_none();
    let epsilon = core.epsilon.filter(|_| is_plain)?;
    let data_type = view
        .facts
        .data_type(core.input)
        .filter(|&it| has_range(it))?;
    // If Casts between the statistics and the quotient change the type, the normalizer stays.
    (view.facts.data_type(core.output) == Some(data_type)).then_some(())?;
    let scale = scale(view, site, core)?;
    let last = view.graph.producer(core.output)?.0;
    let graph = view.graph;
    // A Mul by 1 and an Add of 0 may be there only so that an engine recognizes a
    // LayerNormalization. Such a Mul and Add are also replaced.
    let neutral = if matches!(scale, Scale::None) {
        neutral_behind(view, core.output)
    } else {
        vec![]
    };
    let output = neutral
        .last()
        .and_then(|&node| graph.only_output(node))
        .unwrap_or(core.output);
    let mut maker = Maker::new(graph, last);
    // A normalizer that is one operator computes in float32 for all types, so its replacement must
    // do so too.
    let is_wide = data_type == DataType::BFloat16 && core.nodes.len() == 1;
    let inside = if is_wide { DataType::Float } else { data_type };
    let is_last = axis + 1 == core.rank;
    let along = if is_last { -1 } else { axis as i64 };
    let normal = written_out(
        &mut maker,
        graph.value_name(core.input),
        [data_type, inside],
        along,
        epsilon,
    );
    match scale {
        Scale::Inside(scale) => drop(maker.op("Mul", &[&normal, graph.value_name(scale)], vec![])),
        Scale::None if is_last => {
            let ones = maker.floats(
                data_type,
                &Recipe::filled(1.0, &[view.facts.extent(core.input, axis)?]),
            );
            maker.op("Mul", &[&normal, &ones], vec![]);
        }
        Scale::None | Scale::Behind => {}
    }
    let (made, constants) = maker.finish(graph.value_name(output));
    Some(Replacement {
        nodes: [&[last], &neutral[..]].concat(),
        made,
        constants,
    })
}

/// The operators after a value that change nothing. Each of these operators is the only reader of
/// the result of the previous one.
fn neutral_behind(view: &View, mut value: ValueId) -> Vec<NodeId> {
    let mut nodes = vec![];
    while let Some((node, slot)) = view.graph.only_reader(value) {
        let neutral = match view.graph.op(node) {
            Some("Mul") => 1.0,
            Some("Add") => 0.0,
            _ => break,
        };
        let at = view.analysis.at(node);
        let changes_nothing = at
            .numbers(1 - slot)
            .is_ok_and(|numbers| numbers.are_all(neutral))
            && at.shape(slot) == at.output_shape(0);
        let Some(output) = view.graph.only_output(node).filter(|_| changes_nothing) else {
            break;
        };
        nodes.push(node);
        value = output;
    }
    nodes
}

/// Writes nodes that compute `x/√(mean(x²) + ε)` of a value `x` along an axis, in the type
/// `inside`. If the value has another type `own`, Casts surround these nodes. Returns the name of
/// the result.
pub(super) fn written_out(
    maker: &mut Maker,
    value: &str,
    [own, inside]: [DataType; 2],
    axis: i64,
    epsilon: f64,
) -> String {
    let input = if own == inside {
        value.to_owned()
    } else {
        maker.cast(value, inside)
    };
    let two = maker.floats(inside, &Recipe::number(2.0, 0));
    let square = maker.op("Pow", &[&input, &two], vec![]);
    let mean = maker.mean(&square, &[axis], true);
    let epsilon = maker.floats(inside, &Recipe::number(epsilon, 0));
    let moment = maker.op("Add", &[&mean, &epsilon], vec![]);
    let root = maker.op("Sqrt", &[&moment], vec![]);
    let normal = maker.op("Div", &[&input, &root], vec![]);
    if own == inside {
        normal
    } else {
        maker.cast(&normal, own)
    }
}

/// Whether a type has room for values without their mean, which may be twice as large. float16 ends
/// at 65,504.
pub(super) fn has_range(data_type: DataType) -> bool {
    data_type.is_float() && data_type != DataType::Float16
}

/// The node that applies the scale of a normalized value.
enum Scale {
    /// There is no scale.
    None,
    /// The scale is this value, which is an input of the operator.
    Inside(ValueId),
    /// The scale is applied by the nodes after the core.
    Behind,
}

/// Finds the node that applies the scale of a normalized value. `None` if the value is also shifted.
fn scale(view: &View, site: &Site, core: &Core) -> Option<Scale> {
    if let Some(part) = &site.post
        && !part.affine.has_no_shift()
    {
        return None;
    }
    if core.nodes.len() > 1 {
        return Some(if site.post.is_some() {
            Scale::Behind
        } else {
            Scale::None
        });
    }
    let (graph, node) = (view.graph, core.nodes[0]);
    let shift = graph.input(node, 2);
    shift
        .is_none_or(|shift| is_zero(view, shift))
        .then_some(())?;
    Some(Scale::Inside(graph.input(node, 1)?))
}

/// Whether a value is a constant of zeros.
fn is_zero(view: &View, value: ValueId) -> bool {
    let constants = view.constants;
    constants.is_constant(value)
        && constants
            .read(value)
            .is_ok_and(|numbers| numbers.iter().all(|&number| number == 0.0))
}
