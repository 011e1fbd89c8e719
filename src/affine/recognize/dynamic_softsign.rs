//! DySS: `γ·z/(1+|z|) + β` with `z = αx`. The function is one Softsign, or an Abs, an Add and a
//! Div.

use crate::affine::recognize::opaque::Opaque;
use crate::affine::recognize::pointwise::{self, Bounded};
use crate::affine::recognize::{Normalizer, Replacement, Site, View};
use crate::ir::{NodeId, builder};
use crate::onnx::tensor::DataType;

/// Dynamic Softsign.
pub(super) struct DynamicSoftsign;

impl Normalizer for DynamicSoftsign {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let core = Bounded::operator(view, node, "Softsign").or_else(|| written_out(view, node))?;
        pointwise::site(view, self, "DySS", core)
    }

    fn names(&self) -> &'static [&'static str] {
        &["dyss", "dynamicsoftsign"]
    }

    fn opaque(&self) -> &'static [Opaque] {
        const {
            &[pointwise::opaque(&["dyss", "dynamicsoftsign"], |node| {
                pointwise::written(node, "Softsign")
            })]
        }
    }
}

/// Finds `z / (1 + |z|)` written as Abs, Add and Div, and replaces the three nodes by a Softsign.
/// `None` if the node does not end in this form.
fn written_out(view: &View, div: NodeId) -> Option<Bounded> {
    let graph = view.graph;
    if !graph.is(div, "Div") {
        return None;
    }
    let (z, below, output) = (
        graph.input(div, 0)?,
        graph.input(div, 1)?,
        graph.only_output(div)?,
    );
    let add = view.maker(below).filter(|&node| graph.is(node, "Add"))?;
    let (left, right) = (graph.input(add, 0)?, graph.input(add, 1)?);
    let magnitude = if view.scalar(right) == Some(1.0) {
        left
    } else if view.scalar(left) == Some(1.0) {
        right
    } else {
        return None;
    };
    let abs = view
        .maker(magnitude)
        .filter(|&node| graph.is(node, "Abs") && graph.input(node, 0) == Some(z))?;
    // Other readers of |z| or 1+|z| would keep the nodes, and broadcasting would change the shape.
    let own = view.only_reader(magnitude) == Some(add) && view.only_reader(below) == Some(div);
    // Engines have no Softsign for float64.
    let is_known = view.facts.data_type(z) != Some(DataType::Double);
    if !own || !is_known || view.facts.shape(z)? != view.facts.shape(output)? {
        return None;
    }
    let name = format!("{}_softsign", graph.name(div));
    let (from, to) = (graph.value_name(z), graph.value_name(output));
    let softsign = builder::node(graph.node(div), "Softsign", &name, &[from], to);
    let nodes = vec![abs, add, div];
    let replacement = Replacement {
        nodes: nodes.clone(),
        made: vec![softsign],
        constants: vec![],
    };
    Some(Bounded {
        input: z,
        output,
        nodes,
        replacement: Some(replacement),
    })
}
