//! The edits that scale streams by a power of two.
//!
//! The [exponent](super::exponent_laws) of each value is decided node by node, starting at the inputs.
//! A Mul is inserted after a writer that cannot absorb its power, and before a reader that cannot.

use std::collections::{BTreeSet, HashMap as Map};

use crate::affine::Affine;
use crate::affine::linear::{self, linear};
use crate::affine::materialize::{Change, Edit, Failed, NewTensor, draw};
use crate::affine::plan::Plan;
use crate::affine::propagate::rule_table::takes_all;
use crate::affine::rounding::{Rounding, float};
use crate::affine::rule::{Fold, Side};
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::hash::HashMap;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::tensor::{DataType, rounded, underflow};
use crate::recipe::{Numbers, Recipe};
use crate::refusal::{Reason, Refusal};
use crate::residual::codes;
use crate::residual::exponent_laws::{Attribute, EPSILON, Law, USUAL_EPSILON};
use crate::residual::selected_weights;
use crate::residual::streams::Stream;

/// The outcome of scaling streams.
#[derive(Default)]
pub(super) struct ScaledStreams {
    /// The changes.
    pub edits: Vec<Edit>,
    /// For each scaled stream, the names of the nodes that absorb a power, in execution order.
    pub into: Map<usize, Vec<String>>,
    /// For each scaled stream, the names of the values that a Mul multiplies by a power.
    pub multiplied: Map<usize, Vec<String>>,
}

/// Scales streams by `2^-power`. Each stream comes with its index, which takes the place of the
/// index of a site in the edits.
///
/// # Errors
/// [`Failed`] for the streams that cannot be scaled. The caller can try again without these
/// streams.
pub(super) fn scale(
    analysis: &Analysis,
    streams: &[(usize, &Stream)],
    power: u32,
) -> Result<ScaledStreams, Vec<Failed>> {
    let mut goals = HashMap::default();
    for (place, stream) in streams {
        let values = stream.values.iter().map(|at| at.value);
        let varying = values.filter(|&value| !analysis.constants.is_constant(value));
        goals.extend(varying.map(|value| (value, *place)));
    }
    let mut scaling = Exponents {
        analysis,
        power: power as i32,
        goals,
        exponents: HashMap::default(),
        folds: vec![],
        attributes: vec![],
        muls: vec![],
        into: Map::new(),
    };
    for &node in analysis.graph.order() {
        scaling.pass(node)?;
    }
    scaling.finish()
}

/// A new Mul by a power of two.
struct Mul {
    value: ValueId,
    /// The exponent that the Mul removes from the value.
    exponent: i32,
    /// The readers that read the product instead of the value.
    readers: Vec<(NodeId, usize)>,
    /// Whether the product becomes an output of the model instead of the value.
    is_output: bool,
    /// The index of the stream.
    stream: usize,
}

struct Exponents<'s> {
    analysis: &'s Analysis<'s>,
    power: i32,
    /// The stream of each value that must be scaled.
    goals: HashMap<ValueId, usize>,
    /// The exponent of each value, with the stream that causes it.
    exponents: HashMap<ValueId, (i32, usize)>,
    folds: Vec<Fold>,
    attributes: Vec<Edit>,
    muls: Vec<Mul>,
    into: Map<usize, Vec<String>>,
}

impl Exponents<'_> {
    /// Decides the exponents of a node's inputs and results.
    fn pass(&mut self, node: NodeId) -> Result<(), Vec<Failed>> {
        let name = self.analysis.graph.name(node);
        let goal = self.goal(node);
        let streams = self.streams(node, goal);
        let Some(stream) = goal.or_else(|| streams.first().copied()) else {
            return Ok(());
        };
        let before = self.folds.len() + self.attributes.len();
        let goal = match goal {
            Some(_) => Some(self.power),
            None => codes::product_of_codes(self.analysis, node).map(|_| 0),
        };
        if let Err(reason) = self.place(node, goal, stream, &streams) {
            let refusal = Refusal::new(reason, name);
            let sites = streams.into_iter().collect();
            return Err(vec![Failed { sites, refusal }]);
        }
        if self.folds.len() + self.attributes.len() > before {
            for stream in streams {
                self.into.entry(stream).or_default().push(name.to_owned());
            }
        }
        Ok(())
    }

    /// The stream to which a result of a node belongs. If no result belongs to a stream, but the
    /// node scales a product of codes, the stream to which this product belongs.
    fn goal(&self, node: NodeId) -> Option<usize> {
        let mut outputs = self.analysis.graph.outputs(node).iter().flatten();
        let own = outputs.find_map(|value| self.goals.get(value).copied());
        own.or_else(|| {
            let product = codes::product_of_codes(self.analysis, node)?;
            self.goals.get(&product).copied()
        })
    }

    /// The streams to which a node belongs, or whose powers are in its inputs.
    fn streams(&self, node: NodeId, goal: Option<usize>) -> BTreeSet<usize> {
        let graph = &self.analysis.graph;
        let read = graph.inputs(node).iter().flatten();
        let read = read.chain(graph.captures(node));
        let exponents = read.filter_map(|value| self.exponents.get(value));
        exponents.map(|&(_, stream)| stream).chain(goal).collect()
    }

    /// The exponents of a node's inputs. `None` for an input that is constant or missing, or whose
    /// elements the node does not read.
    fn carried(&self, node: NodeId) -> Vec<Option<i32>> {
        let graph = &self.analysis.graph;
        let mut carried = vec![];
        for (slot, value) in graph.inputs(node).iter().enumerate() {
            let varying = value.filter(|&value| {
                graph.reads_elements(node, slot) && !self.analysis.constants.is_constant(value)
            });
            carried.push(varying.map(|value| {
                let exponent = self.exponents.get(&value);
                exponent.map_or(0, |&(exponent, _)| exponent)
            }));
        }
        carried
    }

    /// Puts the powers at a node into its constants and attributes, or into Muls around it.
    fn place(
        &mut self,
        node: NodeId,
        goal: Option<i32>,
        stream: usize,
        streams: &BTreeSet<usize>,
    ) -> Result<(), Reason> {
        let graph = &self.analysis.graph;
        let mut captures = graph.captures(node).iter();
        if captures.any(|value| self.exponents.contains_key(value)) {
            return Err(Reason::CapturedBySubgraph);
        }
        let at = self.analysis.at(node);
        let carried = self.carried(node);
        let mut law = self.law(&at, &carried, goal)?;
        self.supply(&at, &carried, &law.wanted, stream);
        for attribute in &law.attributes {
            let value = exponent(&at, attribute)?;
            if attribute.exponent == 0 {
                continue;
            }
            let value = (value * factor(-attribute.exponent)) as f32;
            self.attributes.push(Edit {
                sites: streams.iter().copied().collect(),
                at: graph.name(node).to_owned(),
                change: Change::Float(node, attribute.name, value),
            });
        }
        if let Some(goal) = goal.filter(|&goal| law.made[0] != goal)
            && self.takes(&at, Side::Result)
        {
            self.fold(&at, Side::Result, goal - law.made[0], stream);
            law.made[0] = goal;
        }
        self.record(node, &law.made, stream);
        Ok(())
    }

    /// Gives the inputs of a node the exponents that they need.
    fn supply(&mut self, at: &At, carried: &[Option<i32>], wanted: &[i32], stream: usize) {
        for (slot, &wanted) in wanted.iter().enumerate() {
            match carried[slot] {
                None if wanted != 0 && at.is_constant(slot) => {
                    self.fold(at, Side::Constant(slot), wanted, stream);
                }
                Some(carried) if carried != wanted => {
                    self.compensate(at, slot, carried - wanted, stream)
                }
                _ => {}
            }
        }
    }

    /// Records the exponents of results. A Mul removes the power of an output of the model.
    fn record(&mut self, node: NodeId, made: &[i32], stream: usize) {
        let graph = &self.analysis.graph;
        for (&value, &exponent) in graph.outputs(node).iter().zip(made) {
            let Some(value) = value.filter(|_| exponent != 0) else {
                continue;
            };
            self.exponents.insert(value, (exponent, stream));
            if graph.is_output(value) {
                self.muls.push(Mul {
                    value,
                    exponent,
                    readers: vec![],
                    is_output: true,
                    stream,
                });
            }
        }
    }

    /// Finds a law of the node that the constants of the node can satisfy.
    fn law(&self, at: &At, carried: &[Option<i32>], goal: Option<i32>) -> Result<Law, Reason> {
        if !self.analysis.activations.contains(at.node) {
            for law in [
                Law::from_node(at, carried, goal),
                Law::from_node(at, carried, None),
            ] {
                if self.holds(at, &law)? {
                    return Ok(law);
                }
            }
        }
        Ok(Law::plain(at))
    }

    /// Whether the constants of a node can have the exponents that the law requires.
    fn holds(&self, at: &At, law: &Law) -> Result<bool, Reason> {
        for (slot, &wanted) in law
            .wanted
            .iter()
            .enumerate()
            .filter(|&(slot, &wanted)| wanted != 0 && at.is_constant(slot))
        {
            let value = at.input(slot)?;
            if !self.takes(at, Side::Constant(slot)) || self.is_table_of_others(value) {
                return Ok(false);
            }
            // A constant with a single element, such as an epsilon, must be exact, because no other
            // element compensates for its rounding.
            if self.analysis.constants.len(value) == Some(1)
                && let Some(&number) = at.numbers(slot)?.iter().next()
            {
                exactly(number, wanted, self.analysis.facts.data_type(value))?;
            }
        }
        Ok(true)
    }

    /// Whether a constant has at least two axes, and a reader that does not write to a stream. Then
    /// a Mul costs less than a copy of the constant.
    fn is_table_of_others(&self, value: ValueId) -> bool {
        let graph = &self.analysis.graph;
        let is_table = self.analysis.facts.rank(value).is_some_and(|rank| rank > 1);
        let mut readers = graph.readers(value).iter();
        is_table && !readers.all(|&reader| self.is_writer(reader))
    }

    /// Whether a reader of a constant writes a stream.
    fn is_writer(&self, reader: Reader) -> bool {
        let Reader::Node { node, .. } = reader else {
            return false;
        };
        let made = self.analysis.graph.output(node, 0);
        made.is_some_and(|made| self.goals.contains_key(&made))
    }

    /// Whether a node, or all of its [`carriers`] in its place, can absorb a power of two at
    /// `side`.
    fn takes(&self, at: &At, side: Side) -> bool {
        match carriers(at, side) {
            Some(carriers) => {
                let mut carriers = carriers.iter();
                carriers.len() > 0
                    && carriers.all(|(node, side)| takes_itself(&self.analysis.at(*node), *side))
            }
            None => takes_itself(at, side),
        }
    }

    /// Lets a node absorb a power of two at `side`. An operand is multiplied by `2^exponent`, which
    /// removes its exponent. A result or a constant is multiplied by `2^-exponent`, which gives it
    /// this exponent.
    fn fold(&mut self, at: &At, side: Side, exponent: i32, stream: usize) {
        let exponent = if let Side::Operand(_) = side {
            -exponent
        } else {
            exponent
        };
        let carriers = carriers(at, side).unwrap_or_else(|| vec![(at.node, side)]);
        for (node, side) in carriers {
            // The rank is known, because `takes` has checked it.
            let rank = rank(&self.analysis.at(node), side).unwrap_or_default();
            self.folds.push(Fold {
                node,
                side,
                affine: Affine::scale(Numbers::number(factor(-exponent), rank)),
                site: stream,
            });
        }
    }

    /// Removes an exponent from an input of a node that cannot accept the exponent. The constants
    /// of the node absorb it, or a Mul before the node removes it.
    fn compensate(&mut self, at: &At, slot: usize, exponent: i32, stream: usize) {
        if self.takes(at, Side::Operand(slot)) {
            return self.fold(at, Side::Operand(slot), exponent, stream);
        }
        let Some(value) = at.graph.input(at.node, slot) else {
            return;
        };
        let reader = (at.node, slot);
        match self
            .muls
            .iter_mut()
            .find(|mul| mul.value == value && mul.exponent == exponent)
        {
            Some(mul) => mul.readers.push(reader),
            None => {
                let readers = vec![reader];
                self.muls.push(Mul {
                    value,
                    exponent,
                    readers,
                    is_output: false,
                    stream,
                });
            }
        }
    }

    fn finish(self) -> Result<ScaledStreams, Vec<Failed>> {
        let (graph, facts) = (&self.analysis.graph, &self.analysis.facts);
        let mut edits = draw(
            &Plan {
                folds: self.folds,
                ..Plan::default()
            },
            self.analysis,
        )?;
        edits.extend(self.attributes);
        let mut multiplied: Map<usize, Vec<String>> = Map::new();
        for mul in &self.muls {
            multiplied
                .entry(mul.stream)
                .or_default()
                .push(graph.value_name(mul.value).to_owned());
        }
        edits.extend(self.muls.into_iter().map(|mul| {
            let name = graph.value_name(mul.value);
            let tensor = NewTensor {
                wish: format!("{name}_power"),
                replaces: None,
                data_type: facts.data_type(mul.value),
                recipe: Recipe::filled(factor(mul.exponent), &[]),
                rounding: Rounding::Factor,
            };
            let Mul {
                value,
                readers,
                is_output,
                stream,
                ..
            } = mul;
            Edit {
                sites: vec![stream],
                at: name.to_owned(),
                change: Change::Mul {
                    value,
                    readers,
                    is_output,
                    tensor,
                },
            }
        }));
        Ok(ScaledStreams {
            edits,
            into: self.into,
            multiplied,
        })
    }
}

/// The nodes and sides that absorb a power instead of a node, because the constants of the node are
/// quantized or its weight is selected. `None` if the node absorbs the power itself.
fn carriers(at: &At, side: Side) -> Option<Vec<(NodeId, Side)>> {
    codes::carriers(at, side)
        .or_else(|| selected_weights::carrier(at, side).map(|carrier| vec![carrier]))
}

/// Whether the node itself can absorb a power of two at `side`.
fn takes_itself(at: &At, side: Side) -> bool {
    let Ok(rank) = rank(at, side) else {
        return false;
    };
    // The factor 2 stands for any power.
    let scale = Affine::scale(Numbers::number(2.0, rank));
    let is_layer = linear(at.graph.domain_op(at.node)).is_some_and(|linear| linear.is_layer());
    let has_place = matches!(side, Side::Constant(_)) || is_layer && takes_all(at, side, &scale);
    has_place && linear::check(at, side, &scale).is_ok()
}

/// The rank of the array that a power multiplies.
fn rank(at: &At, side: Side) -> Result<usize, Reason> {
    match side {
        Side::Result | Side::Rows { .. } => at.output_rank(0),
        Side::Operand(slot) | Side::Constant(slot) => at.rank(slot),
    }
}

/// `2^exponent`.
fn factor(exponent: i32) -> f64 {
    f64::from(exponent).exp2()
}

/// The value of an attribute. An error if the type cannot hold the value after it is scaled by the
/// exponent of the attribute.
fn exponent(at: &At, attribute: &Attribute) -> Result<f64, Reason> {
    let absent = if attribute.name == EPSILON {
        USUAL_EPSILON
    } else {
        0.0
    };
    let value = at.attr_float(attribute.name, absent)?;
    exactly(value, attribute.exponent, attribute.data_type).map(|()| value)
}

/// Refuses a number that its type cannot hold after the number is multiplied by `2^-exponent`.
fn exactly(number: f64, exponent: i32, data_type: Option<DataType>) -> Result<(), Reason> {
    let (scaled, data_type) = (number * factor(-exponent), float(data_type)?);
    if rounded(data_type, scaled).is_infinite() {
        return Err(Reason::Overflow(product(number, exponent, data_type)));
    }
    if underflow(data_type, scaled) != 0.0 {
        return Err(Reason::Underflow(product(number, exponent, data_type)));
    }
    Ok(())
}

/// Describes a product that a type cannot represent, for a refusal.
fn product(number: f64, exponent: i32, data_type: DataType) -> String {
    format!("{number:.1e} times 2^{} in {data_type}", -exponent)
}
