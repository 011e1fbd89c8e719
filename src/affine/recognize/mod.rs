//! Finding normalizers, whatever exporter wrote them.
//!
//! A kind is one file with a [`Normalizer`], and one line in [`KINDS`]. The kind ends at
//! recognition: a site is an affine before, a core, and an affine after.

pub mod affine_chain;
mod attention_scale;
pub(crate) mod batch_invariant;
mod batch_norm;
mod bias;
mod bias_norm;
mod bounded;
mod bounds;
mod dynamic_erf;
mod dynamic_sigmoid;
mod dynamic_softsign;
mod dynamic_tanh;
mod dynamic_token;
mod formula;
mod fusible;
mod gated_residual;
mod group_norm;
pub mod hard_swish;
mod instance_norm;
pub(crate) mod layer_norm;
mod layer_scale;
mod linear_branches;
mod mabn;
pub mod online;
pub mod opaque;
mod parameters;
mod per_channel;
mod pointwise;
mod power_norm;
mod ramp;
mod region;
mod rep_bn;
mod residual_scale;
mod rms_norm;
mod scalar;
mod scale_norm;
mod shift;
mod soft_capping;
mod standardisation;
pub mod statistics;
mod switchable_norm;
mod unified_norm;
mod widening;
mod wrapped;

use serde::Serialize;

use crate::affine::Affine;
use crate::affine::recognize::affine_chain::Chain;
use crate::analysis::Analysis;
use crate::analysis::constants::Constants;
use crate::analysis::node_view::At;
use crate::hash::HashMap;
use crate::ir::builder::NewConstant;
use crate::ir::node_set::NodeSet;
use crate::ir::regions::way;
use crate::ir::scope::scope;
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::{Facts, same_shape};
use opaque::Opaque;

/// When the statistics of a normalizer are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Fixed after training: at inference it is `s·x + t`.
    Offline,
    /// No statistics at all: a bounded function between two affines.
    Pointwise,
    /// Computed from the input.
    Online,
    /// No normalizer, but a constant for each channel all the same.
    Scale,
    /// Operators that are linear in one value, beside each other or in a row.
    Linear,
}

impl Family {
    /// The formula of such a site at inference.
    pub fn form(self) -> &'static str {
        match self {
            Family::Offline | Family::Scale => "s·x + t",
            Family::Pointwise => "γ·f(αx + s) + β",
            Family::Online => "γ·normalized(x) + β",
            Family::Linear => "L₁(x) + L₂(x), L₂(L₁(x))",
        }
    }
}

/// The kind of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Kind {
    /// Short name, as papers write it.
    pub name: &'static str,
    /// Its family.
    pub family: Family,
    /// Whether its last affine is on what a normalization by statistics, or a bounded function, makes: numbers about
    /// as large as 1.
    #[serde(skip)]
    pub is_bounded: bool,
    /// Whether computed constants identify the kind, so that storing them would make it another
    /// one: a BN would be any affine.
    #[serde(skip)]
    pub is_told_by_constants: bool,
}

impl Kind {
    /// One that is as most of its family are.
    pub const fn new(name: &'static str, family: Family) -> Self {
        let is_bounded = matches!(family, Family::Online | Family::Pointwise);
        Self {
            name,
            family,
            is_bounded,
            is_told_by_constants: matches!(family, Family::Offline),
        }
    }
}

/// The kinds, the most specific first: the first that matches a node wins.
pub const KINDS: &[&dyn Normalizer] = &[
    &dynamic_token::DynamicToken,
    &switchable_norm::SwitchableNorm,
    &dynamic_tanh::DynamicTanh,
    &dynamic_sigmoid::DynamicSigmoid,
    &dynamic_softsign::DynamicSoftsign,
    &dynamic_erf::DynamicErf,
    &soft_capping::SoftCapping,
    &hard_swish::HardSwish,
    &gated_residual::GatedResidual,
    &ramp::Ramp,
    &power_norm::PowerNorm,
    &group_norm::GroupNorm,
    &layer_norm::LayerNorm,
    &rms_norm::RmsNorm,
    &instance_norm::InstanceNorm,
    &scale_norm::ScaleNorm,
    &linear_branches::Branches,
    &linear_branches::Factors,
    &linear_branches::RepeatedPart,
    &bias_norm::BiasNorm,
    &rep_bn::RepBn,
    &mabn::Mabn,
    &unified_norm::UnifiedNorm,
    &batch_norm::BatchNorm,
    &bounded::AnyBounded,
    &attention_scale::AttentionScale,
    &standardisation::Standardisation,
    &layer_scale::LayerScale,
    &residual_scale::ResidualScale,
    &per_channel::PerChannel,
    &scalar::Scalar,
    &bias::Bias,
    &shift::Shift,
    &linear_branches::SubtractedMean,
];

/// One place at which the model normalizes.
#[derive(Debug, Clone)]
pub struct Site {
    /// The kind.
    pub kind: Kind,
    /// The module path, or the name of a node where no path is known.
    pub name: String,
    /// Number of channels.
    pub channels: usize,
    /// The axis of the channels, in the value that the site's operators see.
    pub axis: usize,
    /// Every node that belongs to it.
    pub nodes: Vec<NodeId>,
    /// The affine before the core, if there is a core and the affine is not the identity.
    pub pre: Option<Part>,
    /// The affine behind the core, or all of an offline normalizer.
    pub post: Option<Part>,
    /// Other operators for some of its nodes, which compute the same with less.
    pub replacement: Option<Replacement>,
    /// Why its core stays in its written form, though fewer operators would do.
    pub core: Option<Refusal>,
    /// Why it cannot be folded, where recognition knows already.
    pub refusal: Option<Refusal>,
}

impl Site {
    /// Whether it is a core alone, without scale and shift.
    pub fn is_bare(&self) -> bool {
        self.refusal
            .as_ref()
            .is_some_and(|refusal| refusal.reason == Reason::Identity)
    }
}

/// Nodes that replace others, with outputs of equal names and values.
#[derive(Debug, Clone, Default)]
pub struct Replacement {
    /// The nodes that go.
    pub nodes: Vec<NodeId>,
    /// The nodes that come, in execution order. They read values of the graph, each other's outputs
    /// and `constants`; what the graph still reads has its old name, all other names are wishes.
    pub made: Vec<NodeProto>,
    /// Constants that the new nodes read, by name.
    pub constants: Vec<NewConstant>,
}

impl Replacement {
    /// Whether one of the new nodes makes a value of this name.
    pub fn makes(&self, name: &str) -> bool {
        self.made
            .iter()
            .any(|node| node.output.iter().any(|output| output == name))
    }

    /// The names of the values between which the new nodes lie.
    pub fn ends(&self) -> impl Iterator<Item = &str> {
        let read = self.made.iter().flat_map(|node| &node.input);
        let first = read.filter(|name| !self.makes(name));
        let made = self.made.iter().flat_map(|node| &node.output);
        let last = made.filter(|name| !self.reads(name));
        first.chain(last).map(String::as_str)
    }

    /// Whether one of the new nodes reads a value of this name.
    fn reads(&self, name: &str) -> bool {
        self.made
            .iter()
            .any(|node| node.input.iter().any(|input| input == name))
    }
}

/// An affine of a site, and the nodes that are removed when it folds.
#[derive(Debug, Clone)]
pub struct Part {
    /// `output = affine(input)`.
    pub affine: Affine,
    /// The value it acts on; for parameters inside a node, the node's own output.
    pub input: ValueId,
    /// The value it makes.
    pub output: ValueId,
    /// The nodes that compute it and nothing else.
    pub nodes: Vec<NodeId>,
    /// Parameters inside a node that stays, such as the scale of a LayerNormalization.
    pub resets: Vec<Reset>,
}

impl Part {
    /// The BatchNormalization that is all of it, if it is one, and all that it reads is of one type.
    pub fn batch_norm(&self, graph: &Graph, facts: &Facts) -> Option<NodeId> {
        let &[node] = &self.nodes[..] else {
            return None;
        };
        let inputs = graph.inputs(node).iter().flatten();
        let types: Vec<_> = inputs.map(|&input| facts.data_type(input)).collect();
        let is_one_type = types
            .iter()
            .all(|&data_type| data_type.is_some() && data_type == types[0]);
        (graph.is(node, "BatchNormalization") && is_one_type).then_some(node)
    }
}

/// The extent of the parameters of an affine along their axis.
fn width(affine: &Affine) -> usize {
    affine.scale.len().max(affine.shift.len())
}

/// An input of a node that gets its neutral value when the affine it holds is folded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reset {
    /// The node.
    pub node: NodeId,
    /// Which of its inputs.
    pub slot: usize,
    /// 1 for a factor, 0 for a summand.
    pub neutral: f64,
    /// Whether the operator does without it.
    pub optional: bool,
    /// The input of the node that has its shape, also where it is not there.
    pub like: usize,
    /// The axes of the value that it lies along: from the first to before the second.
    pub axes: [usize; 2],
}

/// The recognizer of a kind.
pub trait Normalizer: Sync {
    /// The site that ends in, or is, this node; `None` where it is not of this kind.
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site>;

    /// Names of classes, modules and functions of this kind, in lower case. The words of a node's
    /// scope begin with one of these; names of functions contain one.
    fn names(&self) -> &'static [&'static str] {
        &[]
    }

    /// Such names that are too short to be looked for inside others.
    fn short_names(&self) -> &'static [&'static str] {
        &[]
    }

    /// Operators of custom domains that stand for one.
    fn opaque(&self) -> &'static [Opaque] {
        &[]
    }
}

/// A part of the names of most kinds.
const NORM: &str = "norm";

/// Whether a function of this name, as letters and digits in lower case, is a normalizer.
///
/// ```
/// use unfold::affine::recognize::is_named;
/// assert!(is_named("layernorm") && is_named("myun1d") && is_named("un"));
/// assert!(!is_named("run") && !is_named("linear"));
/// ```
pub fn is_named(name: &str) -> bool {
    name.contains(NORM) || KINDS.iter().any(|&kind| names_kind(name, kind))
}

/// Whether a function of this name is a normalizer of a kind.
fn names_kind(name: &str, kind: &dyn Normalizer) -> bool {
    kind.short_names().contains(&name) || kind.names().iter().any(|part| name.contains(part))
}

/// The view of the graph for recognition.
pub struct View<'a> {
    /// The graph.
    pub graph: &'a Graph<'a>,
    /// Shapes and small values.
    pub facts: &'a Facts,
    /// The constants.
    pub constants: &'a Constants<'a>,
    /// All that is known of the model.
    pub analysis: &'a Analysis<'a>,
    chains: Vec<Chain>,
    /// Which chain ends in a node.
    ending: Vec<Option<u32>>,
    /// The first chain that begins at a value.
    beginning: Vec<Option<u32>>,
}

impl<'a> View<'a> {
    /// Prepares a graph for recognition.
    pub fn new(analysis: &'a Analysis<'a>) -> Self {
        let chains = affine_chain::find(analysis);
        let Analysis {
            graph,
            facts,
            constants,
            ..
        } = analysis;
        let mut ending = vec![None; graph.order().len()];
        let mut beginning = vec![None; graph.value_count()];
        for (place, chain) in (0..).zip(&chains) {
            if let Some(&last) = chain.nodes.last() {
                ending[last] = Some(place);
            }
            beginning[chain.input.index()].get_or_insert(place);
        }
        View {
            graph,
            facts,
            constants,
            analysis,
            chains,
            ending,
            beginning,
        }
    }

    /// The node as a rule sees it.
    pub fn at(&self, node: NodeId) -> At<'a> {
        self.analysis.at(node)
    }

    /// The affine chain that begins at a value.
    pub fn chain_from(&self, value: ValueId) -> Option<&Chain> {
        Some(&self.chains[self.beginning[value.index()]? as usize])
    }

    /// The name of a site: the module path of one of its nodes, or the node's name.
    pub fn site_name(&self, node: NodeId) -> String {
        let path = scope(self.graph, node).path;
        if path.is_empty() {
            self.graph.name(node).to_owned()
        } else {
            path
        }
    }

    /// The only reader of a value, if it is a node.
    pub fn only_reader(&self, value: ValueId) -> Option<NodeId> {
        Some(self.graph.only_reader(value)?.0)
    }

    /// Whether nothing but these nodes reads the elements of a value.
    pub fn is_read_by_no_other(&self, value: ValueId, nodes: &[NodeId]) -> bool {
        self.graph
            .readers(value)
            .iter()
            .all(|reader| match *reader {
                Reader::Node { node, input } => {
                    nodes.contains(&node) || !self.graph.reads_elements(node, input)
                }
                _ => false,
            })
    }

    /// Whether two values have one shape, which is known.
    pub fn have_same_shape(&self, one: ValueId, other: ValueId) -> bool {
        let shapes = self.facts.shape(one).zip(self.facts.shape(other));
        shapes.is_some_and(|(one, other)| same_shape(&one, &other))
    }

    /// Whether a node moves elements, repeats them, or changes their type, and no more.
    pub fn widens(&self, node: NodeId) -> bool {
        match self.graph.op(node) {
            // Between floats, which rounds.
            Some("Cast") => {
                self.may_be_float(self.graph.input(node, 0))
                    && self.may_be_float(self.graph.only_output(node))
            }
            op => op == Some("Expand") || self.graph.is_movement(node),
        }
    }

    /// Whether a value has floats, or an unknown type.
    fn may_be_float(&self, value: Option<ValueId>) -> bool {
        value
            .and_then(|value| self.facts.data_type(value))
            .is_none_or(DataType::is_float)
    }

    /// Whether two nodes are in one body: those of another may run more often.
    pub fn are_in_one_body(&self, one: NodeId, other: NodeId) -> bool {
        way(self.graph.node(one)) == way(self.graph.node(other))
    }

    /// The node that makes a value.
    pub fn maker(&self, value: ValueId) -> Option<NodeId> {
        Some(self.graph.producer(value)?.0)
    }

    /// Whether the first two inputs of a node vary.
    pub fn both_vary(&self, node: NodeId) -> bool {
        [0, 1].iter().all(|&slot| {
            let input = self.graph.input(node, slot);
            input.is_some_and(|input| !self.constants.is_constant(input))
        })
    }

    /// The node that makes a value, if it is one of these operators of ONNX.
    pub fn made_by(&self, value: ValueId, ops: &[&str]) -> Option<NodeId> {
        let node = self.maker(value)?;
        ops.iter().any(|op| self.graph.is(node, op)).then_some(node)
    }

    /// The number that a node reads at a slot, if it is a constant of one element.
    pub fn scalar_input(&self, node: NodeId, slot: usize) -> Option<f64> {
        self.scalar(self.graph.input(node, slot)?)
    }

    /// The number in a constant of one element.
    pub fn scalar(&self, value: ValueId) -> Option<f64> {
        self.constants.scalar(value)
    }

    /// The affine chain that ends in a node.
    pub fn chain(&self, node: NodeId) -> Option<&Chain> {
        Some(&self.chains[self.ending[node]? as usize])
    }
}

/// Finds every site, in execution order. No node belongs to two.
pub fn find(view: &View) -> Vec<Site> {
    let graph = view.graph;
    // A node of constants alone is a constant.
    let order = graph.order().iter().copied();
    let varying: Vec<NodeId> = order.filter(|&node| varies(view, node)).collect();
    let mut taken = NodeSet::none_of(graph.order().len());
    // Boxed, since their number is unknown: a growing list of sites would be moved again and again.
    let mut sites: Vec<Box<Site>> = vec![];
    for kind in KINDS {
        for &node in &varying {
            if taken.contains(node) {
                continue;
            }
            let Some(site) = kind.recognise(view, node) else {
                continue;
            };
            if site.nodes.iter().any(|&node| taken.contains(node)) {
                continue;
            }
            taken.extend(site.nodes.iter().copied());
            sites.push(Box::new(site));
        }
    }
    sites.sort_by_cached_key(|site| site.nodes.iter().map(|&node| graph.place(node)).min());
    let mut sites: Vec<Site> = sites.into_iter().map(|site| *site).collect();
    sites
        .iter_mut()
        .for_each(|site| wrapped::widen(view, site, &mut taken));
    unique_names(&mut sites);
    sites
}

/// Whether an output of a node is no constant.
fn varies(view: &View, node: NodeId) -> bool {
    let mut outputs = view.graph.outputs(node).iter().flatten();
    outputs.any(|&output| !view.constants.is_constant(output))
}

/// Numbers sites of one module.
fn unique_names(sites: &mut [Site]) {
    let mut seen = HashMap::<String, usize>::default();
    for site in sites {
        let count = seen.entry(site.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            site.name = format!("{}#{count}", site.name);
        }
    }
}
