//! Repeated part: some channels that a linear operator reads are equal at all places. An example is
//! the features of a whole point cloud, which are concatenated to the features of each point.
//!
//! Before: `L(concat(a, expand(b)))`, where L is a convolution or a matrix product that reads one
//! place at a time. After: `L₁(a) + L₂(b)`, each with its own columns of the weight. The product
//! with `b` is computed once, and the sum broadcasts it. `b` is split off if the multiplications of
//! its repeated channels cost more than the additional Add, or if the split removes the Concat.

use tract_onnx::tract_hir::internal::TDim;

use crate::affine::recognize::linear_branches::operator::operator;
use crate::affine::recognize::linear_branches::read::{Branch, Windowed};
use crate::affine::recognize::linear_branches::row::with_bias;
use crate::affine::recognize::linear_branches::window::Window;
use crate::affine::recognize::{Family, Kind, Normalizer, Replacement, Site, View};
use crate::ir::axes::axis;
use crate::ir::builder::{self, Maker, NewConstant};
use crate::ir::{NodeId, ValueId};
use crate::onnx::proto::NodeProto;
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::{extent, same};

/// The smallest number of repeated channels for which a split pays. With fewer, the additional Add
/// costs more than the saved multiplications.
const WIDE: usize = 4;

/// Channels that are repeated before a linear operator.
pub(crate) struct RepeatedPart;

impl Normalizer for RepeatedPart {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let layer = Windowed::alone(view, view.graph.only_output(node)?)?;
        let layer = with_bias(view, layer.has_weight(view).then_some(layer)?);
        let apart = Apart::find(view, &layer)?;
        let replacement = apart.replacement(view);
        let refusal = replacement.as_ref().err();
        let refusal = refusal.map(|reason| Refusal::new(reason.clone(), view.graph.name(node)));
        let mut nodes = [&[apart.concat], &layer.nodes[..]].concat();
        nodes.sort_by_key(|&node| view.graph.place(node));
        Some(Site {
            channels: apart
                .parts
                .iter()
                .filter(|part| part.is_repeated)
                .map(|part| part.width)
                .sum(),
            axis: apart.axis,
            refusal,
            replacement: replacement.ok().map(|(made, constants)| Replacement {
                nodes: nodes.clone(),
                made,
                constants,
            }),
            ..Site::new(
                Kind::new("repeated part", Family::Linear),
                view.site_name(node),
                nodes,
            )
        })
    }
}

/// An operand of the Concat before an operator.
struct Beside {
    /// The operand. If it is repeated, this is the value before the repetition.
    value: ValueId,
    is_repeated: bool,
    /// The index of the first channel of the operand, and the number of its channels.
    first: usize,
    width: usize,
}

impl Beside {
    /// Whether the operand is not repeated, or has the extent `whole` along `axis` already before
    /// it is repeated.
    fn has_all(&self, view: &View, axis: usize, whole: &Option<TDim>) -> bool {
        let shape = view.facts.shape(self.value);
        !self.is_repeated || shape.is_some_and(|shape| same(&shape[axis], whole))
    }
}

/// The operands of the Concat before an operator.
struct Apart<'l> {
    layer: &'l Windowed,
    branch: &'l Branch,
    concat: NodeId,
    axis: usize,
    parts: Vec<Beside>,
}

impl<'l> Apart<'l> {
    fn find(view: &View, layer: &'l Windowed) -> Option<Self> {
        let (graph, facts) = (view.graph, view.facts);
        let branch = layer.branch.as_ref().ok()?;
        let looks_once = branch
            .window
            .axes
            .iter()
            .all(|taps| taps.kernel == 1 && taps.stride == 1)
            && branch.window.stays_inside()
            && branch.window.group == 1;
        let concat = view
            .maker(layer.base)
            .filter(|&node| looks_once && graph.is(node, "Concat"))?;
        let is_own = view.only_reader(layer.base) == Some(layer.node)
            && layer
                .nodes
                .iter()
                .all(|&node| view.are_in_one_body(node, concat));
        let rank = facts.rank(layer.base).filter(|_| is_own)?;
        let channels = branch.window.channel_axis(rank)?;
        let along = axis(graph.node(concat).attr_i("axis").ok()??, rank).ok()?;
        if along != channels {
            return None;
        }
        let mut first = 0_usize;
        let mut parts = vec![];
        for &operand in graph.inputs(concat) {
            let value = operand?;
            let width = facts.extent(value, along)?;
            let once = once(view, value, along);
            parts.push(Beside {
                value: once.unwrap_or(value),
                is_repeated: once.is_some(),
                first,
                width,
            });
            first = first.checked_add(width)?;
        }
        let apart = Self {
            layer,
            branch,
            concat,
            axis: along,
            parts,
        };
        (first == branch.window.channels[0])
            .then_some(apart)?
            .where_it_is_less(view)
    }

    /// Treats repeated operands with fewer than [`WIDE`] channels like operands that are not
    /// repeated, unless the split removes the Concat. `None` if no repeated operand is left, or if
    /// there is an axis along which every operand is repeated.
    fn where_it_is_less(mut self, view: &View) -> Option<Self> {
        if self.parts.iter().filter(|part| !part.is_repeated).count() > 1 {
            self.parts
                .iter_mut()
                .for_each(|part| part.is_repeated &= part.width >= WIDE);
        }
        let whole = view.facts.shape(self.layer.base)?;
        let mut others = (0..whole.len()).filter(|&axis| axis != self.axis);
        let is_whole = others.all(|axis| {
            let mut parts = self.parts.iter();
            parts.any(|part| part.has_all(view, axis, &whole[axis]))
        });
        (is_whole && self.parts.iter().any(|part| part.is_repeated)).then_some(self)
    }

    /// The operator restricted to the channels of the operands `parts`, without its bias.
    fn columns(&self, parts: &[&Beside]) -> Option<Branch> {
        let places = parts
            .iter()
            .flat_map(|part| part.first..part.first + part.width)
            .map(Some);
        let weight = self.branch.weight.pick(1, places)?;
        let channels = [weight.shape()[1], self.branch.window.channels[1]];
        let window = Window {
            channels,
            ..self.branch.window.clone()
        };
        Some(Branch {
            work: window.work(),
            window,
            weight,
            bias: None,
        })
    }

    fn replacement(&self, view: &View) -> Result<(Vec<NodeProto>, Vec<NewConstant>), Reason> {
        let graph = view.graph;
        let output = self
            .layer
            .nodes
            .last()
            .and_then(|&node| graph.only_output(node));
        let output = output.ok_or(Reason::UnknownShape)?;
        let mut maker = Maker::new(graph, self.layer.node);
        let (repeated, others): (Vec<&Beside>, Vec<&Beside>) =
            self.parts.iter().partition(|part| part.is_repeated);
        let mut bias = self.branch.bias.clone();
        let mut sum: Option<String> = None;
        for part in repeated {
            // The operator on the first repeated operand adds the bias, because its result has few
            // elements.
            let branch = Branch {
                bias: bias.take(),
                ..self.columns(&[part]).ok_or(Reason::UnknownShape)?
            };
            let value = graph.value_name(part.value);
            let made = operator(view, self.layer, value, &branch, &mut maker)?;
            sum = Some(sum.map_or(made.clone(), |sum| maker.op("Add", &[&sum, &made], vec![])));
        }
        if !others.is_empty() {
            let branch = self.columns(&others).ok_or(Reason::UnknownShape)?;
            let names = others.iter().map(|part| graph.value_name(part.value));
            let names: Vec<&str> = names.collect();
            let value = match names[..] {
                [alone] => alone.to_owned(),
                _ => maker.op(
                    "Concat",
                    &names,
                    vec![builder::int("axis", self.axis as i64)],
                ),
            };
            let made = operator(view, self.layer, &value, &branch, &mut maker)?;
            let sum = sum.ok_or(Reason::UnknownShape)?;
            maker.op("Add", &[&made, &sum], vec![]);
        }
        Ok(maker.finish(graph.value_name(output)))
    }
}

/// The value that `value` repeats along axes other than the channels. `None` if its producer does
/// anything else.
fn once(view: &View, value: ValueId, channels: usize) -> Option<ValueId> {
    let (graph, facts) = (view.graph, view.facts);
    let node = view
        .maker(value)
        .filter(|&node| ["Expand", "Tile"].iter().any(|op| graph.is(node, op)))?;
    let repeated = graph
        .input(node, 0)
        .filter(|&repeated| !view.constants.is_constant(repeated))?;
    let (before, behind) = (facts.shape(repeated)?, facts.shape(value)?);
    (before.len() == behind.len()).then_some(())?;
    let mut repeats = false;
    for axis in 0..before.len() {
        if same(&before[axis], &behind[axis]) {
            continue;
        }
        if axis == channels || extent(&before[axis]) != Some(1) {
            return None;
        }
        repeats = true;
    }
    repeats.then_some(repeated)
}
