//! The search of one backward propagation, from a value to its producers.

use std::rc::Rc;

use crate::affine::Affine;
use crate::affine::item::{Item, Merge};
use crate::affine::propagate::backward::readers::agreed;
use crate::affine::propagate::backward::state::{
    BackwardPropagation, Demand, DemandSource, Waiting,
};
use crate::affine::propagate::node_step::{contradicts, passes, rule_of, transparent_input};
use crate::affine::propagate::overlay::Route;
use crate::affine::propagate::precision;
use crate::affine::propagate::propagation::Propagation;
use crate::affine::propagate::zeros::is_zeros;
use crate::affine::rule::{Fold, Rule, Side, Step};
use crate::ir::{NodeId, ValueId};
use crate::refusal::{Reason, Refusal};

/// The largest number of nodes between the part and a node that absorbs its affine.
const DEPTH: usize = 512;

/// A node, and the alternatives for the affines that it needs on its inputs. Each alternative is
/// sufficient.
type Onward = (NodeId, Vec<Vec<(usize, Affine)>>);

impl BackwardPropagation<'_, '_> {
    /// Propagates an affine backward from the input of the item's part.
    pub(super) fn start_at_part(&mut self, affine: &Affine) -> Result<Propagation, Refusal> {
        let Item { part, site, .. } = &self.items.all[self.item];
        let mut propagation = Propagation::for_site(*site);
        let demand = Demand {
            value: part.input,
            source: DemandSource::Part(part),
            affine,
            depth: 0,
        };
        self.value(&mut propagation, &demand)?;
        self.all_waiting(&mut propagation)?;
        Ok(propagation)
    }

    /// Propagates the affines in `way` backward from inputs of a node.
    pub(super) fn start_at_inputs(
        &mut self,
        propagation: &mut Propagation,
        node: NodeId,
        way: &[(usize, Affine)],
    ) -> Result<(), Refusal> {
        self.inputs(propagation, node, way, 0)?;
        self.all_waiting(propagation)
    }

    /// Propagates from the waiting values, in reverse execution order. In this order, all readers
    /// of a value have made their requests before the value is processed.
    fn all_waiting(&mut self, propagation: &mut Propagation) -> Result<(), Refusal> {
        let graph = self.overlay.graph;
        while let Some(last) = self.last_waiting() {
            let waiting = std::mem::take(&mut self.waiting).into_iter();
            let (mut here, others): (Vec<Waiting>, Vec<Waiting>) =
                waiting.partition(|waiting| waiting.value == last);
            self.waiting = others;
            here.sort_by_key(|waiting| waiting.by);
            let mut inputs: Vec<(NodeId, usize)> = here.iter().map(|waiting| waiting.by).collect();
            inputs.dedup();
            let affine = agreed(graph, &here)
                .ok_or_else(|| Refusal::new(Reason::OtherReader, graph.value_name(last)))?;
            let demand = Demand {
                value: last,
                source: DemandSource::Inputs(inputs),
                affine: &affine,
                depth: here[0].depth,
            };
            self.value(propagation, &demand)?;
        }
        Ok(())
    }

    /// The waiting value whose producer runs last.
    fn last_waiting(&self) -> Option<ValueId> {
        let graph = self.overlay.graph;
        let values = self.waiting.iter().map(|waiting| waiting.value);
        values.max_by_key(|&value| graph.producer(value).map(|(node, _)| graph.place(node)))
    }

    /// Lets the producers of a value apply an affine to it, by the first alternative that succeeds.
    fn value(&mut self, propagation: &mut Propagation, demand: &Demand) -> Result<(), Refusal> {
        let Some((node, ways)) = self.ways(propagation, demand)? else {
            return Ok(());
        };
        let before = propagation.mark();
        let (waiting, compensations) = (self.waiting.len(), self.compensations.len());
        let mut last = None;
        for way in &ways {
            match self.inputs(propagation, node, way, demand.depth) {
                Ok(()) => return Ok(()),
                Err(refusal) => last = Some(refusal),
            }
            propagation.back_to(before);
            self.waiting.truncate(waiting);
            self.compensations.truncate(compensations);
        }
        Err(self.refusal_of_all(node, demand, last))
    }

    /// Returns the refusal if every alternative of a node failed. This is the refusal that every
    /// scale meets at the node's input, if one is known, or else the refusal of the last
    /// alternative.
    fn refusal_of_all(&self, node: NodeId, demand: &Demand, last: Option<Refusal>) -> Refusal {
        let ahead = transparent_input(self.overlay, node)
            .and_then(|input| self.overlay.dead_end(input, Route::Backward));
        if let Some(refusal) = ahead {
            return self.end(demand, refusal);
        }
        last.unwrap_or_else(|| {
            let reason = self.overlay.at(node).not_linear();
            Refusal::new(reason, self.overlay.graph.name(node))
        })
    }

    /// Records, if the affine has a scale, that no scale is absorbed at or before the value.
    /// Returns the refusal.
    fn end(&self, demand: &Demand, refusal: Refusal) -> Refusal {
        if !demand.affine.has_no_scale() && !matches!(demand.source, DemandSource::Part(_)) {
            let value = self.overlay.source(demand.value);
            let why = Rc::new(refusal.clone());
            self.overlay.set_dead_end(value, Route::Backward, &why);
        }
        refusal
    }

    /// The producer of a value, and the alternatives for the inputs of the producer. `None` if the
    /// affine is absorbed or waits.
    ///
    /// This is a separate function to keep the frames of the recursion small, because the recursion
    /// has one frame on the stack for each node of a path.
    #[inline(never)]
    fn ways(
        &mut self,
        propagation: &mut Propagation,
        demand: &Demand,
    ) -> Result<Option<Onward>, Refusal> {
        let affine = demand.affine;
        if affine.is_identity() {
            return Ok(None);
        }
        let name = self.overlay.graph.value_name(demand.value);
        if !affine.is_finite() {
            return Err(Refusal::new(Reason::NotFinite, name));
        }
        self.visit(demand.depth)
            .map_err(|reason| Refusal::new(reason, name))?;
        let value = self.overlay.source(demand.value);
        if affine.has_no_shift() && is_zeros(self.overlay, value) {
            return Ok(None);
        }
        propagation.wanted.push(value);
        let constants = self.overlay.constants;
        if constants.is_constant(value) && !constants.is_dequantized(value) {
            self.fold_into_constant(propagation, demand)?;
            return Ok(None);
        }
        if self.waits_for_others(value, demand)? {
            return Ok(None);
        }
        if let Some(&other) = self.items.by_output.get(&value) {
            let merge = self.merge(other, affine);
            let merge = merge.map_err(|reason| Refusal::new(reason, name))?;
            propagation.merges.push(merge);
            return Ok(None);
        }
        if !affine.has_no_scale()
            && let Some(refusal) = self.overlay.dead_end(value, Route::Backward)
        {
            return Err(refusal);
        }
        self.past_producer(propagation, value, demand).map(Some)
    }

    /// Lets a constant absorb the affine.
    fn fold_into_constant(
        &self,
        propagation: &mut Propagation,
        demand: &Demand,
    ) -> Result<(), Refusal> {
        let DemandSource::Input(node, slot) = demand.source else {
            let name = self.overlay.graph.value_name(demand.value);
            return Err(Refusal::new(Reason::GraphInput, name));
        };
        let fold = Fold {
            node,
            side: Side::Constant(slot),
            affine: demand.affine.clone(),
            site: propagation.site,
        };
        propagation.take(self.overlay, fold)
    }

    /// Applies the rule of the producer of a value. Returns the producer and the alternatives for
    /// its inputs.
    fn past_producer(
        &self,
        propagation: &mut Propagation,
        value: ValueId,
        demand: &Demand,
    ) -> Result<Onward, Refusal> {
        let graph = self.overlay.graph;
        let Some((node, slot)) = graph.producer(value) else {
            let refusal = Refusal::new(Reason::GraphInput, graph.value_name(demand.value));
            return Err(self.end(demand, refusal));
        };
        let name = graph.name(node);
        let rule = rule_of(self.overlay, node)
            .map_err(|reason| self.end(demand, Refusal::new(reason, name)))?;
        let step = self
            .checked_step(node, rule, slot, demand.affine)
            .map_err(|reason| Refusal::new(reason, name))?;
        let step = passes(self.overlay, node, step)?;
        let item = &self.items.all[self.item];
        precision::backward(self.overlay, item, node, demand.affine, &step)
            .map_err(|reason| Refusal::new(reason, name))?;
        for fold in step.folds {
            propagation.note(self.overlay, node, fold, step.by_place)?;
        }
        let mut ways = step.ways;
        if self.mode.waits_for_readers {
            ways.sort_by_key(|way| self.has_shared_input(node, way));
        }
        Ok((node, ways))
    }

    fn checked_step(
        &self,
        node: NodeId,
        rule: &dyn Rule,
        slot: usize,
        affine: &Affine,
    ) -> Result<Step, Reason> {
        if contradicts(affine, self.overlay.at(node).output_shape(slot)) {
            return Err(Reason::UnknownShape);
        }
        self.step(node, rule, slot, affine)
    }

    /// Counts one more visited node, at the distance `depth` from the part. Fails if the budget is
    /// used up or the distance exceeds [`DEPTH`].
    fn visit(&mut self, depth: usize) -> Result<(), Reason> {
        self.budget = self.budget.checked_sub(1).ok_or(Reason::TooFar)?;
        if depth > DEPTH {
            Err(Reason::TooFar)
        } else {
            Ok(())
        }
    }

    /// Merges the affine into the part `into`, which outputs the value. The part whose affine
    /// propagates cannot absorb the affine itself.
    fn merge(&self, into: usize, affine: &Affine) -> Result<Merge, Reason> {
        if into == self.item {
            return Err(Reason::ResidualStream);
        }
        if !self.items.merge {
            return Err(Reason::NotLinear("a normalizer that stays".into()));
        }
        if !affine.broadcasts_with(&self.items.all[into].part.affine) {
            return Err(Reason::UnknownShape);
        }
        Ok(Merge {
            into,
            affine: affine.clone(),
            before: false,
        })
    }

    /// Lets the producers of a node's inputs apply the affines of one alternative.
    pub(super) fn inputs(
        &mut self,
        propagation: &mut Propagation,
        node: NodeId,
        way: &[(usize, Affine)],
        depth: usize,
    ) -> Result<(), Refusal> {
        let graph = self.overlay.graph;
        for (slot, affine) in way {
            let Some(value) = graph.input(node, *slot) else {
                return Err(Refusal::new(Reason::NotConstant, graph.name(node)));
            };
            let demand = Demand {
                value,
                source: DemandSource::Input(node, *slot),
                affine,
                depth: depth + 1,
            };
            self.value(propagation, &demand)?;
        }
        Ok(())
    }
}
