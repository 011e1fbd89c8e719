//! Sums, as lists of their terms.

use crate::affine::recognize::View;
use crate::ir::{NodeId, ValueId};

/// A value that a sum adds or subtracts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addend {
    pub value: ValueId,
    pub negative: bool,
}

/// A sum of several nodes, such as a row of Adds.
#[derive(Debug)]
pub(super) struct Sum {
    pub output: ValueId,
    pub terms: Vec<Addend>,
    /// The nodes that add.
    pub nodes: Vec<NodeId>,
}

impl Sum {
    /// The sum that ends in a node. `None` if the node is not a sum, or is part of a larger sum.
    pub(super) fn ending_in(view: &View, root: NodeId) -> Option<Self> {
        let output = view.graph.only_output(root)?;
        operands(view, root)?;
        if summand(view, output).is_some()
            && view
                .only_reader(output)
                .is_some_and(|next| operands(view, next).is_some())
        {
            return None;
        }
        let (mut terms, mut nodes) = (vec![], vec![]);
        let mut open = vec![Addend {
            value: output,
            negative: false,
        }];
        while let Some(term) = open.pop() {
            let node = if term.value == output {
                Some(root)
            } else {
                summand(view, term.value)
            };
            let Some((node, operands)) = node.and_then(|node| Some((node, operands(view, node)?)))
            else {
                terms.push(term);
                continue;
            };
            nodes.push(node);
            open.extend(operands.into_iter().rev().map(|operand| Addend {
                negative: operand.negative != term.negative,
                ..operand
            }));
        }
        Some(Sum {
            output,
            terms,
            nodes,
        })
    }
}

/// The producer of a value, if it is a sum with one reader. A node that ends a longer affine chain
/// belongs to that chain and does not count as a sum.
fn summand(view: &View, value: ValueId) -> Option<NodeId> {
    let node = view.maker(value)?;
    let is_own = view.only_reader(value).is_some()
        && view.chain(node).is_none_or(|chain| chain.nodes.len() == 1);
    (is_own && operands(view, node).is_some()).then_some(node)
}

/// The operands of a node that adds or subtracts. `None` for other nodes.
fn operands(view: &View, node: NodeId) -> Option<Vec<Addend>> {
    let op = view.graph.op(node)?;
    if !matches!(op, "Add" | "Sub" | "Sum" | "Neg") {
        return None;
    }
    view.graph.only_output(node)?;
    view.at(node).only_attributes(&[]).ok()?;
    let mut operands = vec![];
    for (slot, &value) in view.graph.inputs(node).iter().enumerate() {
        operands.push(Addend {
            value: value?,
            negative: op == "Neg" || (op == "Sub" && slot == 1),
        });
    }
    Some(operands)
}
