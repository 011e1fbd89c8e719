//! The operators of two graphs, side by side.

use std::collections::{HashMap, HashSet};

use super::blocks::{Lead, blocks};
use super::side::GraphSide;
use crate::affine::plan::Plan;
use crate::ir::NodeId;
use crate::report::{OutlineBlock, OutlineRow, RowChange};

/// The operators before and after in one order, and the blocks that they are in.
pub fn rows(sides: &[GraphSide; 2], plan: &Plan) -> (Vec<OutlineRow>, Vec<OutlineBlock>) {
    let [before, after] = sides;
    let was = pairs(before, after);
    let is: HashMap<NodeId, NodeId> = was.iter().map(|(&new, &old)| (old, new)).collect();
    // A new operator follows the operator that it runs after.
    let mut new: HashMap<Option<NodeId>, Vec<NodeId>> = HashMap::new();
    let mut last = None;
    for &node in &after.nodes {
        match was.get(&node) {
            Some(&old) => last = Some(old),
            None => new.entry(last).or_default().push(node),
        }
    }
    let mut sites: HashMap<&str, Vec<usize>> = HashMap::new();
    for (place, site) in plan.sites.iter().enumerate() {
        site.nodes
            .iter()
            .for_each(|node| sites.entry(node).or_default().push(place));
    }
    let made: HashSet<&str> = plan
        .tensors
        .iter()
        .map(|tensor| tensor.name.as_str())
        .collect();
    let mut rows = vec![];
    let mut leads: Vec<Lead> = vec![];
    for old in std::iter::once(None).chain(before.nodes.iter().copied().map(Some)) {
        if let Some(node) = old {
            let after = is.get(&node).map(|&new| (after, new));
            rows.push(OutlineRow {
                change: after.map_or(RowChange::Gone, |(side, new)| {
                    change([before, side], [node, new], &made)
                }),
                class: before.class(node),
                sites: sites
                    .get(before.graph.name(node))
                    .cloned()
                    .unwrap_or_default(),
                before: Some(before.outlined(node)),
                after: after.map(|(side, new)| side.outlined(new)),
            });
            leads.push(Lead {
                path: before.path(node),
                is_sum: before.is_sum(node),
            });
        }
        for &node in new.get(&old).into_iter().flatten() {
            rows.push(OutlineRow {
                change: RowChange::New,
                class: after.class(node),
                sites: vec![],
                before: None,
                after: Some(after.outlined(node)),
            });
            let path = match after.path(node) {
                path if !path.is_empty() => path,
                _ => leads.last().map_or_else(Vec::new, |lead| lead.path.clone()),
            };
            leads.push(Lead {
                path,
                is_sum: false,
            });
        }
    }
    for row in rows.iter_mut().filter(|row| row.change == RowChange::Same) {
        row.after = None;
    }
    (rows, blocks(&leads))
}

/// For each operator after, its counterpart before: the one of the same name, else the one with the
/// same output.
fn pairs(before: &GraphSide, after: &GraphSide) -> HashMap<NodeId, NodeId> {
    let named = names(before);
    let named_after = names(after);
    let makes = |side: &GraphSide, node: NodeId| side.graph.node(node).output.first().cloned();
    let made: HashMap<String, NodeId> = before
        .nodes
        .iter()
        .filter_map(|&node| Some((makes(before, node)?, node)))
        .collect();
    let mut taken = HashSet::new();
    let mut pairs = HashMap::new();
    let by_name = |node: NodeId| {
        let name = after.graph.name(node);
        named_after
            .get(name)
            .copied()
            .flatten()
            .and(named.get(name).copied().flatten())
    };
    for &node in &after.nodes {
        if let Some(old) = by_name(node).filter(|&old| taken.insert(old)) {
            pairs.insert(node, old);
        }
    }
    for &node in &after.nodes {
        let like = |&&old: &&NodeId| before.graph.domain_op(old) == after.graph.domain_op(node);
        let old = makes(after, node).and_then(|output| made.get(&output).filter(like).copied());
        if let Some(old) = old
            .filter(|_| !pairs.contains_key(&node))
            .filter(|&old| taken.insert(old))
        {
            pairs.insert(node, old);
        }
    }
    pairs
}

/// The operators by their names; nothing where several have one.
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

fn change(sides: [&GraphSide; 2], nodes: [NodeId; 2], made: &HashSet<&str>) -> RowChange {
    let [old, new] = [0, 1].map(|side| sides[side].graph.node(nodes[side]));
    // Its own values: a constant is one, and any other value belongs to the row of its operator.
    let own = |side: usize| -> Vec<Option<&str>> {
        let inputs = sides[side].graph.inputs(nodes[side]).iter();
        let stored = |value| {
            sides[side]
                .is_stored(value)
                .then(|| sides[side].graph.value_name(value))
        };
        inputs.map(|value| value.and_then(stored)).collect()
    };
    let takes = new.input.iter().any(|name| made.contains(name.as_str()));
    match () {
        () if old.op() != new.op()
            || old.attribute != new.attribute
            || own(0) != own(1)
            || takes =>
        {
            RowChange::Changed
        }
        () if old.input != new.input || old.output != new.output => RowChange::Rewired,
        () => RowChange::Same,
    }
}
