//! Centring: changes a residual stream so that the mean of its channels is 0.
//!
//! `LN(x) = γ·RMS(x − mean(x)) + β`. If the only readers of a stream are LayerNormalizations over
//! exactly its channels, no reader depends on the mean of its values. So no writer has to write the
//! mean. Each constant that is written to the stream is projected once, `W ← W·(I − 11ᵀ/C)`:
//! weights, biases, tables, tokens and positions. Then each LayerNormalization is an RMS
//! normalization, because the mean of the squares is the variance.
//!
//! If the constants of a writer cannot be projected, an operator after it subtracts the mean in
//! each run. If a stream begins with an input of the model, `input_mean` adds the
//! operators that subtract the mean of the input.

use std::collections::BTreeMap;

use crate::affine::linear::linear;
use crate::affine::materialize::{Change, Edit, NewTensor};
use crate::affine::plan::Centring;
use crate::affine::recognize::decomposed_norm::Core;
use crate::affine::recognize::{Replacement, Site, View};
use crate::affine::rounding::Rounding;
use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, Reader, ValueId};
use crate::recipe::Recipe;
use crate::refusal::{Reason, Refusal};

use crate::residual::input_mean;
use crate::residual::layer_norm_to_rms::{has_range, without_mean};
use crate::residual::streams::{Channels, ReadBy, Stream, StreamWriter, WrittenBy};

/// The least number of normalizers that stop subtracting a mean, for each mean that is subtracted
/// at run time instead. A subtraction reads all values twice and writes them once. So it takes as
/// much time as one to three normalizers save.
const WORTH: usize = 4;

/// A constant with other readers is copied for the stream only if it has at most this many
/// elements.
const SMALL: usize = 1 << 14;

/// The outcome of centring a stream.
#[derive(Debug, Clone)]
pub(crate) struct Centred {
    /// The outcome, for the plan.
    pub outcome: Centring,
    /// The edits.
    pub edits: Vec<Edit>,
}

/// Plans to centre a stream. `None` if no normalizer of the stream subtracts a mean.
///
/// # Errors
/// A refusal at a reader that depends on the mean, at a writer whose mean cannot be removed, or if
/// no normalizer would become cheaper.
pub(crate) fn plan(
    (analysis, view): (&Analysis, &View),
    sites: &[Site],
    cores: &[Option<Core>],
    stream: &Stream,
) -> Option<Result<Centred, Refusal>> {
    let readers = stream.readers.iter().filter_map(|reader| match reader.by {
        ReadBy::Normalizer(site) => Some((site, cores[site].as_ref().filter(|core| core.centred)?)),
        _ => None,
    });
    // A normalizer that reads several values of the stream, such as x and a Cast of x, is a reader
    // for each of them, but counts once.
    let readers: Vec<(usize, &Core)> = readers.collect::<BTreeMap<_, _>>().into_iter().collect();
    let &(first, core) = readers.first()?;
    let normalizers: Vec<(usize, Replacement)> = readers
        .iter()
        .filter_map(|&(site, core)| Some((site, without_mean(view, &sites[site], core)?)))
        .collect();
    let writers = Writers {
        analysis,
        sites,
        cores,
        stream,
    };
    if let Err(refusal) = writers.check_unseen() {
        return Some(Err(refusal));
    }
    if !normalizers.is_empty() {
        return Some(writers.plan(normalizers));
    }
    let reason = match analysis.facts.data_type(core.input) {
        Some(it) if !has_range(it) => Reason::ElementType(it.name()),
        _ => Reason::NoGain("no normalizer on it is without a shift".to_owned()),
    };
    Some(Err(Refusal::new(reason, &sites[first].name)))
}

/// The writers of a stream, and everything on which their changes depend.
struct Writers<'w> {
    analysis: &'w Analysis<'w>,
    sites: &'w [Site],
    cores: &'w [Option<Core>],
    stream: &'w Stream,
}

/// The changes that centre the writers of a stream, each with the node that writes.
#[derive(Default)]
struct WriterChanges {
    /// The changes that subtract from constants their mean.
    projected: Vec<(NodeId, Change)>,
    /// Values whose mean is subtracted after the writer.
    taken_off: Vec<(NodeId, Channels)>,
    /// Inputs of the model whose mean is subtracted.
    inputs: Vec<Channels>,
}

impl Writers<'_> {
    /// Refuses a stream with a reader that depends on the mean.
    fn check_unseen(&self) -> Result<(), Refusal> {
        let graph = &self.analysis.graph;
        for reader in &self.stream.readers {
            // Readers of an input of the model still read the input with its mean, so they may
            // depend on the mean.
            if self.is_input(reader.at) {
                continue;
            }
            let who = match reader.by {
                ReadBy::Normalizer(site)
                    if self.cores[site].as_ref().is_some_and(|core| core.centred) =>
                {
                    continue;
                }
                ReadBy::Normalizer(site) => self.sites[site].kind.name,
                ReadBy::Linear(node, _) | ReadBy::Other(node, _) => graph.domain_op(node).1,
                ReadBy::Output => "an output of the model",
                ReadBy::Body(_) => "the body of a subgraph",
            };
            let at = match reader.by {
                ReadBy::Linear(node, _) | ReadBy::Other(node, _) | ReadBy::Body(node) => {
                    graph.name(node)
                }
                ReadBy::Normalizer(site) => &self.sites[site].name,
                ReadBy::Output => graph.value_name(reader.at.value),
            };
            return Err(Refusal::new(Reason::SeesMean(who.to_owned()), at));
        }
        Ok(())
    }

    fn plan(&self, mut normalizers: Vec<(usize, Replacement)>) -> Result<Centred, Refusal> {
        let graph = &self.analysis.graph;
        let WriterChanges {
            mut projected,
            taken_off,
            inputs,
        } = self.changes()?;
        // A constant operand of a sum needs no projection if an operator subtracts the mean of this
        // sum.
        let behind: HashSet<NodeId> = taken_off.iter().map(|&(node, _)| node).collect();
        projected.retain(|(node, _)| !behind.contains(node));
        // A normalizer that writes to the stream stays, because the edit that centres its result
        // already replaces its last node.
        normalizers
            .retain(|(_, replacement)| !replacement.nodes.iter().any(|node| behind.contains(node)));
        let mut subtracted = self.subtracted(&taken_off, &inputs);
        let (places, saved) = (subtracted.len(), normalizers.len());
        if let Some(first) = subtracted.first()
            && saved < WORTH * places
        {
            let reason =
                format!("the mean would be taken off at {places} places, for {saved} normalizers");
            return Err(Refusal::new(Reason::NoGain(reason), first));
        }
        subtracted.sort();
        let names = normalizers
            .iter()
            .map(|&(site, _)| self.sites[site].name.clone());
        let outcome = Centring::Centred {
            normalizers: names.collect(),
            constants: projected.len(),
            subtracted,
        };
        let mut edits = vec![];
        for at in inputs {
            edits.extend(input_mean::subtracted(graph, self.sites, self.stream, at));
            for (_, replacement) in &mut normalizers {
                input_mean::read_without(graph, at, replacement);
            }
        }
        let projected = projected.into_iter();
        edits.extend(projected.map(|(node, change)| self.edit(node, change)));
        let mut done = HashSet::default();
        for (node, at) in taken_off.into_iter().filter(|&(node, _)| done.insert(node)) {
            let replacement = self
                .taken_off(node, at)
                .ok_or_else(|| Refusal::new(Reason::UnknownShape, graph.name(node)))?;
            edits.push(self.edit(node, Change::Replace(replacement)));
        }
        for (_, replacement) in normalizers {
            edits.push(self.edit(replacement.nodes[0], Change::Replace(replacement)));
        }
        Ok(Centred { outcome, edits })
    }

    /// The names of the inputs and the nodes whose mean would be subtracted.
    fn subtracted(&self, taken_off: &[(NodeId, Channels)], inputs: &[Channels]) -> Vec<String> {
        let graph = &self.analysis.graph;
        let mut done = HashSet::default();
        let inputs = inputs.iter().map(|at| graph.value_name(at.value));
        let nodes = taken_off.iter().filter(|&&(node, _)| done.insert(node));
        let nodes = nodes.map(|&(node, _)| graph.name(node));
        inputs.chain(nodes).map(str::to_owned).collect()
    }

    /// Whether the value is an input of the model with which the stream begins.
    fn is_input(&self, at: Channels) -> bool {
        let source = WrittenBy::Input;
        self.analysis.graph.is_input(at.value)
            && self.stream.writers.contains(&StreamWriter { at, source })
    }

    /// The changes that centre the writers.
    ///
    /// # Errors
    /// A refusal if a value of the stream has no producer and is not an input of the model.
    fn changes(&self) -> Result<WriterChanges, Refusal> {
        let graph = &self.analysis.graph;
        let mut changes = WriterChanges::default();
        for writer in &self.stream.writers {
            let node = match writer.source {
                WrittenBy::Input if self.is_input(writer.at) => {
                    changes.inputs.push(writer.at);
                    continue;
                }
                WrittenBy::Input => {
                    return Err(Refusal::new(
                        Reason::GraphInput,
                        graph.value_name(writer.at.value),
                    ));
                }
                WrittenBy::Normalizer(site) if self.is_centred(site, writer.at.axis) => continue,
                WrittenBy::Normalizer(_) => graph.producer(writer.at.value).map(|(node, _)| node),
                source => source.node(),
            };
            let Some(node) = node else { continue };
            match self.projected(writer.at, writer.source) {
                Some(constants) => {
                    let constants = constants.into_iter().map(|change| (node, change));
                    changes.projected.extend(constants);
                }
                None => changes.taken_off.push((node, writer.at)),
            }
        }
        Ok(changes)
    }

    /// An edit of a node that belongs to no site.
    fn edit(&self, node: NodeId, change: Change) -> Edit {
        Edit {
            sites: vec![],
            at: self.analysis.graph.name(node).to_owned(),
            change,
        }
    }

    /// Whether the result of a normalizer has the mean 0 along an axis.
    fn is_centred(&self, site: usize, axis: usize) -> bool {
        let core = self.cores[site].as_ref();
        self.sites[site].is_bare() && core.is_some_and(|core| core.centred && core.axes == [axis])
    }

    /// The changes that subtract the mean from the constants of a writer. `None` if the constants
    /// cannot be projected, or if large constants would have to be copied.
    fn projected(&self, at: Channels, source: WrittenBy) -> Option<Vec<Change>> {
        match source {
            WrittenBy::Linear(node) => self.linear(node, at.axis),
            WrittenBy::Table(node) => Some(vec![self.constant(node, 0, at.axis)?]),
            WrittenBy::Constant(node, slot) => Some(vec![self.constant(node, slot, at.axis)?]),
            WrittenBy::Uniform(node, slot) => {
                let recipe = self.analysis.at(node).constant(slot).ok()?;
                Some(vec![self.change(
                    node,
                    slot,
                    Recipe::filled(0.0, recipe.shape()),
                )?])
            }
            WrittenBy::Normalizer(_) | WrittenBy::Input | WrittenBy::Other(_) => None,
        }
    }

    /// The changes that subtract the mean over the channels from the weight and the bias of a
    /// linear operator, whose result has the channels along `axis`. `None` if the operator has
    /// groups or other constants.
    fn linear(&self, node: NodeId, axis: usize) -> Option<Vec<Change>> {
        let at = self.analysis.at(node);
        // In a grouped operator, each result reads only its own group, so no weight of the same
        // shape gives the result minus its mean over all channels.
        (at.attr("group", 1) == Ok(1)).then_some(())?;
        let rules = linear(self.analysis.graph.domain_op(node))?;
        let slots = rules.slots(&at).ok()?;
        let weight = slots.weight?;
        let contracted = rules.contracted(&at).ok()?;
        let rank = at.rank(weight).ok()?;
        let kept = (0..rank).rev().find(|axis| !contracted.contains(axis))?;
        let mut changes = vec![self.constant(node, weight, kept)?];
        let present = (weight + 1..at.arity())
            .filter(|&slot| self.analysis.graph.input(node, slot).is_some());
        for slot in present {
            (slots.bias == Some(slot)).then_some(())?;
            let bias = at.rank(slot).ok()?;
            // The bias of a Gemm is aligned at the last axis. Other biases have one axis.
            let own = if at.graph.is(node, "Gemm") {
                (axis + bias).checked_sub(2)?
            } else {
                0
            };
            changes.push(self.constant(node, slot, own)?);
        }
        Some(changes)
    }

    /// The change that subtracts from a constant its mean along an axis. `None` if the axis is not
    /// an axis of channels, or if [`Writers::change`] is `None`.
    fn constant(&self, node: NodeId, slot: usize, axis: usize) -> Option<Change> {
        let recipe = self.analysis.at(node).constant(slot).ok()?;
        if recipe.shape().get(axis) != Some(&self.stream.channels) {
            return None;
        }
        let count = Recipe::number(self.stream.channels as f64, recipe.rank());
        let mean = recipe.sum(axis)?.div(&count)?;
        self.change(node, slot, recipe.sub(&mean)?)
    }

    /// The change that replaces a constant input by `recipe`. `None` if the type may be too narrow
    /// for values without their mean, or if a large constant would have to be copied.
    fn change(&self, node: NodeId, slot: usize, recipe: Recipe) -> Option<Change> {
        let value = self.analysis.graph.input(node, slot)?;
        let data_type = self.analysis.facts.data_type(value)?;
        if !has_range(data_type) || (recipe.len() > SMALL && self.is_shared(value)) {
            return None;
        }
        self.analysis.constants.check(value).ok()?;
        let wish = format!("{}_centred", self.analysis.graph.value_name(value));
        let (replaces, data_type) = (Some(value), Some(data_type));
        let tensor = NewTensor {
            wish,
            replaces,
            data_type,
            recipe,
            rounding: Rounding::Sum,
        };
        Some(Change::Input(node, slot, tensor))
    }

    /// Whether a constant, or a value from which it is computed, has readers other than the writers
    /// of the stream.
    fn is_shared(&self, value: ValueId) -> bool {
        let graph = &self.analysis.graph;
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            if let Some((node, _)) = graph.producer(value) {
                open.extend(graph.inputs(node).iter().flatten());
            }
            let readers = graph.readers(value);
            if readers.len() > 1 && !readers.iter().all(|&reader| self.is_writer(reader)) {
                return true;
            }
        }
        false
    }

    /// Whether a reader of a constant is a writer of the stream.
    fn is_writer(&self, reader: Reader) -> bool {
        let Reader::Node { node, .. } = reader else {
            return false;
        };
        let mut writers = self.stream.writers.iter();
        writers.any(|writer| writer.source.node() == Some(node))
    }

    /// Writes a node again, followed by operators that subtract the mean of its result.
    fn taken_off(&self, node: NodeId, at: Channels) -> Option<Replacement> {
        let graph = &self.analysis.graph;
        let written = graph
            .outputs(node)
            .iter()
            .position(|&output| output == Some(at.value));
        // If the writer is a constant operand of the node, the mean is subtracted from the node's
        // first output.
        let slot = written.unwrap_or(0);
        let value = graph.output(node, slot)?;
        let axis = self.stream.values.iter().find(|at| at.value == value)?.axis;
        let mut maker = Maker::new(graph, node);
        let whole = maker.repeat_like(slot);
        let mean = maker.mean(&whole, &[axis as i64], true);
        maker.op("Sub", &[&whole, &mean], vec![]);
        let (made, constants) = maker.finish(graph.value_name(value));
        Some(Replacement {
            nodes: vec![node],
            made,
            constants,
        })
    }
}
