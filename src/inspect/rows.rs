//! Pairs the operators of two graphs, and lists them side by side.

use std::collections::{HashMap, HashSet};

use super::PairedNodes;
use super::blocks::{Lead, blocks};
use super::side::GraphSide;
use crate::affine::plan::Plan;
use crate::ir::NodeId;
use crate::onnx::proto::NodeProto;
use crate::report::{OutlineBlock, OutlineRow, RowChange};

/// Lists the operators of both graphs, before and after folding, in one order, and groups them into
/// blocks.
pub(super) fn rows(
    sides: &[GraphSide; 2],
    plan: &Plan,
    pairing: &Pairing,
) -> (Vec<OutlineRow>, Vec<OutlineBlock>) {
    let [before, after] = sides;
    let old_by_new = &pairing.old_by_new;
    let new_by_old: HashMap<NodeId, NodeId> =
        old_by_new.iter().map(|(&new, &old)| (old, new)).collect();
    // A new operator is placed after the operator that precedes it in the result.
    let mut new: HashMap<Option<NodeId>, Vec<NodeId>> = HashMap::new();
    let mut last = None;
    for &node in &after.nodes {
        match old_by_new.get(&node) {
            Some(&old) => last = Some(old),
            None => new.entry(last).or_default().push(node),
        }
    }
    let mut rows = Rows::new(sides, plan, pairing);
    for &node in new.get(&None).into_iter().flatten() {
        rows.add_new(node);
    }
    for &old in &before.nodes {
        rows.add_old(old, new_by_old.get(&old).copied());
        for &node in new.get(&Some(old)).into_iter().flatten() {
            rows.add_new(node);
        }
    }
    (rows.rows, blocks(&rows.leads))
}

/// Maps operators after folding to their counterparts before folding.
pub(super) struct Pairing {
    old_by_new: HashMap<NodeId, NodeId>,
    /// The operators before folding that are kept unchanged. `None` if this is decided by comparing
    /// nodes of the same name.
    kept: Option<HashSet<NodeId>>,
}

impl Pairing {
    /// Pairs nodes that have the same name, if no other node of their graph has it. All other nodes
    /// are paired if their operators and the names of their first outputs are equal.
    pub(super) fn by_name(sides: &[GraphSide; 2]) -> Self {
        Self {
            old_by_new: pairs(&sides[0], &sides[1]),
            kept: None,
        }
    }

    /// Pairs operators as in `pairs`. If several pairs contain the same operator after folding,
    /// only the first pair counts.
    pub(super) fn by_value(sides: &[GraphSide; 2], pairs: &[PairedNodes]) -> Self {
        let [before, after] = sides.each_ref().map(names);
        let (mut old_by_new, mut kept) = (HashMap::new(), HashSet::new());
        for pair in pairs {
            let nodes = [before.get(pair.first), after.get(pair.second)];
            if let [Some(&Some(old)), Some(&Some(new))] = nodes
                && !old_by_new.contains_key(&new)
            {
                old_by_new.insert(new, old);
                if pair.kept {
                    kept.insert(old);
                }
            }
        }
        Self {
            old_by_new,
            kept: Some(kept),
        }
    }
}

/// Collects the rows.
struct Rows<'s> {
    before: &'s GraphSide<'s>,
    after: &'s GraphSide<'s>,
    /// The sites of nodes, by the names of the nodes.
    sites: HashMap<&'s str, Vec<usize>>,
    /// The names of new tensors.
    tensors: HashSet<&'s str>,
    kept: Option<&'s HashSet<NodeId>>,
    rows: Vec<OutlineRow>,
    leads: Vec<Lead>,
}

impl<'s> Rows<'s> {
    fn new([before, after]: &'s [GraphSide<'s>; 2], plan: &'s Plan, pairing: &'s Pairing) -> Self {
        let mut sites: HashMap<&str, Vec<usize>> = HashMap::new();
        for (place, site) in plan.sites.iter().enumerate() {
            for node in &site.nodes {
                sites.entry(node).or_default().push(place);
            }
        }
        let tensors = plan.tensors.iter().map(|tensor| tensor.name.as_str());
        Rows {
            before,
            after,
            sites,
            tensors: tensors.collect(),
            kept: pairing.kept.as_ref(),
            rows: vec![],
            leads: vec![],
        }
    }

    /// Adds a row for an operator before folding, with its counterpart after folding.
    fn add_old(&mut self, old: NodeId, new: Option<NodeId>) {
        let Rows { before, after, .. } = self;
        let change = match (new, self.kept) {
            (Some(_), Some(kept)) if !kept.contains(&old) => RowChange::Changed,
            (Some(new), Some(_)) => renaming(before.graph.node(old), after.graph.node(new)),
            (Some(new), None) => change([before, after], [old, new], &self.tensors),
            (None, _) => RowChange::Gone,
        };
        let shown = new.filter(|_| change != RowChange::Same);
        let sites = self.sites.get(before.graph.name(old));
        self.rows.push(OutlineRow {
            change,
            class: before.class(old),
            sites: sites.cloned().unwrap_or_default(),
            before: Some(before.outlined(old)),
            after: shown.map(|new| after.outlined(new)),
        });
        self.leads.push(Lead {
            path: before.path(old),
            is_sum: before.is_sum(old),
        });
    }

    /// Adds a row for an operator after folding without a counterpart. If its path is unknown, the
    /// row gets the path of the previous row.
    fn add_new(&mut self, node: NodeId) {
        self.rows.push(OutlineRow {
            change: RowChange::New,
            class: self.after.class(node),
            sites: vec![],
            before: None,
            after: Some(self.after.outlined(node)),
        });
        let mut path = self.after.path(node);
        if path.is_empty() {
            path = self
                .leads
                .last()
                .map_or_else(Vec::new, |lead| lead.path.clone());
        }
        self.leads.push(Lead {
            path,
            is_sum: false,
        });
    }
}

/// Maps each node after folding to its counterpart before folding: the node with the same unique
/// name, or else the node with the same operator and the same first output.
fn pairs(before: &GraphSide, after: &GraphSide) -> HashMap<NodeId, NodeId> {
    let (named, named_after) = (names(before), names(after));
    let made: HashMap<&str, NodeId> = before
        .nodes
        .iter()
        .filter_map(|&node| Some((first_output(before, node)?, node)))
        .collect();
    let mut taken = HashSet::new();
    let mut pairs = HashMap::new();
    for &node in &after.nodes {
        let name = after.graph.name(node);
        let is_only = named_after.get(name).is_some_and(Option::is_some);
        let old = named.get(name).copied().flatten().filter(|_| is_only);
        if let Some(old) = old.filter(|&old| taken.insert(old)) {
            pairs.insert(node, old);
        }
    }
    for &node in &after.nodes {
        if pairs.contains_key(&node) {
            continue;
        }
        let old = first_output(after, node).and_then(|output| made.get(output).copied());
        let old = old.filter(|&old| before.graph.domain_op(old) == after.graph.domain_op(node));
        if let Some(old) = old.filter(|&old| taken.insert(old)) {
            pairs.insert(node, old);
        }
    }
    pairs
}

fn first_output<'s>(side: &'s GraphSide, node: NodeId) -> Option<&'s str> {
    side.graph.node(node).output.first().map(String::as_str)
}

/// The operators by their names; `None` for a name that several operators have.
fn names<'s>(side: &'s GraphSide) -> HashMap<&'s str, Option<NodeId>> {
    let mut names = HashMap::new();
    for &node in &side.nodes {
        names
            .entry(side.graph.name(node))
            .and_modify(|one| *one = None)
            .or_insert(Some(node));
    }
    names
}

/// The change of an operator that has a counterpart. `tensors` holds the names of the new tensors.
fn change(sides: [&GraphSide; 2], nodes: [NodeId; 2], tensors: &HashSet<&str>) -> RowChange {
    let [old, new] = [0, 1].map(|side| sides[side].graph.node(nodes[side]));
    let [old_constants, new_constants] = [0, 1].map(|side| constants(sides[side], nodes[side]));
    let reads_new = new.input.iter().any(|name| tensors.contains(name.as_str()));
    if old.op() != new.op()
        || old.attribute != new.attribute
        || old_constants != new_constants
        || reads_new
    {
        RowChange::Changed
    } else {
        renaming(old, new)
    }
}

/// The change of a kept operator: `Rewired` if its inputs or outputs have other names, and `Same`
/// otherwise.
fn renaming(old: &NodeProto, new: &NodeProto) -> RowChange {
    if old.input != new.input || old.output != new.output {
        RowChange::Rewired
    } else {
        RowChange::Same
    }
}

/// The names of the constants that a node reads. An input that is not a constant is `None`, because
/// the row of its producer shows its changes.
fn constants<'s>(side: &'s GraphSide, node: NodeId) -> Vec<Option<&'s str>> {
    let inputs = side.graph.inputs(node).iter();
    inputs
        .map(|input| input.filter(|&value| side.is_stored(value)))
        .map(|stored| stored.map(|value| side.graph.value_name(value)))
        .collect()
}
