//! The cost model: savings and costs of a fold, and whether the rest can be written.

use std::collections::BTreeMap;

use crate::affine::Affine;
use crate::affine::fold::{Fold, Side};
use crate::affine::item::State;
use crate::affine::linear::linear;
use crate::affine::planner::Planner;
use crate::affine::propagate::forward;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::propagation::Propagation;
use crate::affine::recognize::Part;
use crate::affine::rounding::Rounding;
use crate::hash::{HashMap, HashSet};
use crate::ir::{Reader, ValueId};
use crate::onnx::operator::Category;
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::extent;

/// Why a shift is dear that is another one at each place.
pub(crate) const ADD_BY_PLACE: &str = "its shift would become an Add with a number for each place";

/// Why a shift inside of a normalizer stays there.
pub(crate) const OWN_ADD: &str = "it would become an Add of its own";

impl Planner<'_> {
    /// Merges must leave fewer nodes than there were; or no more, forward along a residual stream, where others follow.
    pub(crate) fn worthwhile(
        &self,
        item: usize,
        propagation: Propagation,
    ) -> Result<Propagation, Refusal> {
        let others_follow = !propagation.wants.is_empty();
        self.saves(item, propagation, others_follow)
    }

    /// Whether it is worth it, where a merge that leaves as many nodes is or is not.
    pub(crate) fn saves(
        &self,
        item: usize,
        propagation: Propagation,
        others_follow: bool,
    ) -> Result<Propagation, Refusal> {
        let mut merged: BTreeMap<usize, Affine> = BTreeMap::new();
        for merge in &propagation.merges {
            let there = &self.items[merge.into];
            let after = merge.with(merged.get(&merge.into).unwrap_or(&there.part.affine));
            // Parameters that are neutral have nothing to give, and room for all.
            let is_refused = matches!(&there.state, State::Refused(refusal) if refusal.reason != Reason::Identity);
            if is_refused
                || !self.holds(&there.part, &after)
                || !self.is_writable(&there.part, &after)
            {
                return Err(forward::stays(&self.overlay, &there.part));
            }
            merged.insert(merge.into, after);
        }
        if let Some((&first, _)) = merged.first_key_value() {
            let before = merged
                .keys()
                .map(|&into| self.items[into].size())
                .sum::<usize>();
            let after = merged
                .iter()
                .map(|(&into, affine)| self.items[into].size_with(affine))
                .sum::<usize>();
            // A normalizer that is one operator is two where it is written anew.
            if after >= self.items[item].size() + before + others_follow as usize {
                return Err(forward::stays(&self.overlay, &self.items[first].part));
            }
        }
        if let Some(refusal) = self.copies(item, &propagation) {
            return Err(refusal);
        }
        let there = &self.items[item];
        // A parameter that goes saves no operator, and would cost one; an Add that does comes again.
        let is_parameter = there.part.nodes.is_empty();
        let is_add = there.size() == 1 && there.part.affine.has_no_scale();
        let is_one = is_add || is_parameter;
        if let Some(fold) = self.adds_by_place(&propagation).first().filter(|_| is_one) {
            return Err(self.no_gain(fold, ADD_BY_PLACE));
        }
        // Behind an operator that has no place for a bias, such as an Einsum, it is one already.
        let input = self.overlay.source(there.part.input);
        let is_before = |fold: &Fold| {
            fold.side == Side::Result && self.overlay.graph.only_output(fold.node) == Some(input)
        };
        if let Some(fold) = propagation
            .folds
            .iter()
            .find(|fold| is_add && is_before(fold) && self.makes_add(fold))
        {
            return Err(self.no_gain(fold, "it would become an Add again"));
        }
        let mut made = propagation.folds.iter().filter(|fold| self.makes_add(fold));
        if let Some(fold) = made.next() {
            // The normalizer stays, and adds its shift for nothing.
            let removes_one = self.has_twin(&there.part) || self.is_centring && !self.widens(fold);
            if is_parameter && !removes_one {
                return Err(self.no_gain(fold, OWN_ADD));
            }
            if is_one && made.next().is_some() {
                return Err(self.no_gain(fold, "it would become several Adds"));
            }
        }
        // Its scale can fold alone, or it has none: an Add for each place saves no operator.
        let leaves_one = there.part.affine.has_no_scale() || there.size() > 1;
        let parts = |fold: &&Fold| leaves_one && self.parts_activation(fold);
        match propagation.folds.iter().find(parts) {
            Some(fold) => Err(Refusal::new(
                Reason::Activation,
                self.overlay.graph.name(fold.node),
            )),
            None => Ok(propagation),
        }
    }

    /// Why what a propagation copies must not be there twice: another factor may have room, or copies add too much.
    pub(crate) fn copies(&self, item: usize, propagation: &Propagation) -> Option<Refusal> {
        let (_, _, bytes) = self.cost(propagation);
        let factor = || {
            let (node, ..) = propagation.factors.first()?;
            Some(Refusal::new(
                Reason::NotConstant,
                self.overlay.graph.name(*node),
            ))
        };
        let too_much = || self.uncopied.get(&self.items[item].site).cloned();
        if bytes > 0 {
            factor().or_else(too_much)
        } else {
            None
        }
    }

    /// Whether a fold puts an Add between a convolution and its activation, which engines run as one operator.
    fn parts_activation(&self, fold: &Fold) -> bool {
        let graph = self.overlay.graph;
        let result = graph
            .only_output(fold.node)
            .filter(|_| graph.is(fold.node, "Conv"));
        let Some((reader, _)) = result.and_then(|result| graph.only_reader(result)) else {
            return false;
        };
        let reader = graph.domain_op(reader);
        let is_fused = matches!(
            reader,
            (
                "",
                "Clip" | "HardSigmoid" | "LeakyRelu" | "Relu" | "Sigmoid" | "Tanh"
            )
        );
        is_fused && self.is_by_place(fold)
    }

    /// Whether the numbers of an affine fit the type of a part's constants.
    pub(crate) fn is_writable(&self, part: &Part, affine: &Affine) -> bool {
        let data_type = self.data_type(part);
        Rounding::Factor.fits(data_type, &affine.scale)
            && Rounding::Sum.fits(data_type, &affine.shift)
    }

    /// Whether it is known how to write a part with an affine: parameters inside a node have the places and the
    /// sizes for it, operators of its own an element type.
    pub(crate) fn holds(&self, part: &Part, affine: &Affine) -> bool {
        let place = |neutral: f64| part.resets.iter().find(|reset| reset.neutral == neutral);
        let fits = |neutral: f64, array: &ndarray::ArrayD<f64>| match place(neutral) {
            None => array.iter().all(|&v| v == neutral),
            Some(reset) => {
                let value = self.overlay.graph.input(reset.node, reset.like);
                let count = value.and_then(|value| self.overlay.constants.len(value));
                let [first, end] = reset.axes;
                let mut axes = array
                    .shape()
                    .iter()
                    .enumerate()
                    .filter(|(_, extent)| **extent != 1);
                let lies_there = axes.all(|(axis, _)| (first..end).contains(&axis));
                array.len() == 1 || lies_there && Some(array.len()) == count
            }
        };
        match part.nodes.is_empty() {
            true => fits(1.0, &affine.scale) && fits(0.0, &affine.shift),
            false => self.data_type(part).is_some(),
        }
    }

    /// Whether what a shift adds to the result of a linear operator varies along more than one axis; or its own bias, for
    /// which it has no place any more once that is scaled.
    pub(crate) fn is_by_place(&self, fold: &Fold) -> bool {
        let at = self.overlay.at(fold.node);
        let Some(linear) = linear(at.graph.domain_op(fold.node)) else {
            return false;
        };
        let image = || {
            let slots = linear.slots(&at).ok()?;
            let Side::Operand(operand) = fold.side else {
                let own = slots.bias.filter(|_| fold.side == Side::Result)?;
                let bias = linear.read_bias(&at, at.constant(own).ok()?).ok()?;
                let scaled = bias.mul(fold.affine.scale.recipe())?;
                return linear.write_bias(&at, &scaled).is_none().then_some(scaled);
            };
            let weight = slots
                .weight
                .map(|slot| at.constant(slot))
                .transpose()
                .ok()?;
            linear
                .image(&at, weight.as_ref(), operand, &fold.affine.shift)
                .ok()
        };
        image().is_some_and(|image| image.shape().iter().filter(|&&extent| extent > 1).count() > 1)
    }

    /// The folds that become an Add of their own with a number for each place.
    pub(crate) fn adds_by_place<'w>(&self, propagation: &'w Propagation) -> Vec<&'w Fold> {
        let adds =
            |fold: &&Fold| self.is_by_place(fold) && self.overlay.bias_add(fold.node).is_none();
        propagation.folds.iter().filter(adds).collect()
    }

    /// That a fold brings nothing.
    pub(crate) fn no_gain(&self, fold: &Fold, why: &str) -> Refusal {
        Refusal::new(
            Reason::NoGain(why.into()),
            self.overlay.graph.name(fold.node),
        )
    }

    /// The cost of one alternative for an affine.
    pub(crate) fn total_cost(&self, propagation: &Propagation) -> (usize, (usize, usize, usize)) {
        (
            self.adds_by_place(propagation).len(),
            self.cost(propagation),
        )
    }

    /// Whether a shift is added behind an operator that neither has a place for a bias nor an Add behind it.
    fn makes_add(&self, fold: &Fold) -> bool {
        let at = self.overlay.at(fold.node);
        let slots = linear(at.graph.domain_op(fold.node)).and_then(|linear| linear.slots(&at).ok());
        let has_place = slots.is_some_and(|slots| slots.bias.is_some());
        !fold.affine.has_no_shift() && !has_place && self.overlay.bias_add(fold.node).is_none()
    }

    /// Whether the value that a normalizer reads is normalized twice in the same way: without parameters both are one
    /// operator.
    fn has_twin(&self, part: &Part) -> bool {
        let graph = self.overlay.graph;
        let Some(node) = part.resets.first().map(|reset| reset.node) else {
            return false;
        };
        let Some(value) = graph
            .input(node, 0)
            .filter(|_| graph.category(node) == Some(Category::Normalizer))
        else {
            return false;
        };
        let is_twin = |reader: &Reader| match *reader {
            Reader::Node {
                node: other,
                input: 0,
            } if other != node => {
                graph.domain_op(other) == graph.domain_op(node)
                    && graph.node(other).attribute == graph.node(node).attribute
            }
            _ => false,
        };
        graph.readers(value).iter().any(is_twin)
    }

    /// Whether an operator makes more elements than it reads, as far as their extents are known.
    fn widens(&self, fold: &Fold) -> bool {
        let Side::Operand(slot) = fold.side else {
            return false;
        };
        let at = self.overlay.at(fold.node);
        let known = |value: Option<ValueId>| {
            let shape = at.facts.shape(value?)?;
            Some(shape.iter().filter_map(extent).product::<usize>())
        };
        let [made, read] = [
            at.graph.only_output(fold.node),
            at.graph.input(fold.node, slot),
        ]
        .map(known);
        made.zip(read).is_some_and(|(made, read)| made > read)
    }

    /// Whether a shift of the result needs an Add, since the operator's own bias cannot absorb it.
    pub(crate) fn adds(&self, fold: &Fold) -> bool {
        let at = self.overlay.at(fold.node);
        let Some(linear) =
            linear(at.graph.domain_op(fold.node)).filter(|_| fold.side == Side::Result)
        else {
            return false;
        };
        let has_place = linear.slots(&at).is_ok_and(|slots| slots.bias.is_some());
        has_place
            && linear.write_bias(&at, fold.affine.shift.recipe()).is_none()
            && self.overlay.bias_add(fold.node).is_none()
    }

    /// Nodes that are made, merges, and bytes of weights that are copied.
    pub(crate) fn cost(&self, propagation: &Propagation) -> (usize, usize, usize) {
        let graph = self.overlay.graph;
        let mut taken: HashMap<ValueId, Vec<&Fold>> = HashMap::default();
        for fold in &propagation.folds {
            let at = self.overlay.at(fold.node);
            let slot = match fold.side {
                Side::Constant(slot) => Some(slot),
                _ => linear(graph.domain_op(fold.node))
                    .and_then(|l| l.slots(&at).ok())
                    .and_then(|slots| slots.weight),
            };
            let Some(weight) = slot.and_then(|slot| graph.input(fold.node, slot)) else {
                continue;
            };
            if graph.readers(weight).len() > 1 || self.is_of_shared(weight) {
                taken.entry(weight).or_default().push(fold);
            }
        }
        // A table of which everybody picks rows is one table still, where they all want the same of it.
        let bytes = |(&weight, folds): (&ValueId, &Vec<&Fold>)| {
            let alike = |fold: &&Fold| fold.side == folds[0].side && fold.affine == folds[0].affine;
            let is_by_all = folds.len() == graph.readers(weight).len()
                && folds.iter().all(alike)
                && !self.is_of_shared(weight);
            let copies = if is_by_all { 0 } else { folds.len() };
            copies * self.overlay.constants.len(weight).unwrap_or(0)
        };
        (
            propagation.makes.len(),
            propagation.merges.len(),
            taken.iter().map(bytes).sum(),
        )
    }

    /// Whether something else reads what a weight is computed from, such as the table of a head that is turned.
    fn is_of_shared(&self, weight: ValueId) -> bool {
        let GraphOverlay {
            graph, constants, ..
        } = &self.overlay;
        let (mut open, mut seen) = (vec![weight], HashSet::default());
        while let Some(value) = open.pop() {
            let made_of = graph
                .producer(value)
                .into_iter()
                .flat_map(|(node, _)| graph.inputs(node))
                .flatten();
            for &source in made_of.filter(|&&source| constants.len(source) >= constants.len(weight))
            {
                if graph.readers(source).len() > 1 {
                    return true;
                }
                open.extend(Some(source).filter(|&source| seen.insert(source)));
            }
        }
        false
    }
}
