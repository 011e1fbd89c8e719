//! Builds the [`Outline`] of a model for an HTML page: the graph before and after folding, and the
//! outcome of each site.

mod blocks;
mod rows;
mod side;

use std::collections::BTreeMap;

use crate::affine::plan::{Centring, Outcome, Plan, SitePlan, StreamPlan};
use crate::certificate::Fate;
use crate::error::{Error, Result};
use crate::fuse::Fused;
use crate::ir::regions::Flat;
use crate::onnx::Model;
use crate::recipe::float_name;
use crate::refusal::{Reason, Refusal};
use crate::report::{
    Outline, OutlinePart, OutlineSite, OutlineValue, ReportedRefusal, ReportedTensor, SiteState,
    counted, outline_html,
};
use rows::{Pairing, rows};
use side::GraphSide;

/// Writes the page of `unfold inspect --html` with `name` as its title. It shows the graph before
/// and after folding, and each site with the formulas of its new weights, or the reason why it
/// stays. The page is HTML that loads nothing from elsewhere.
///
/// ```
/// use unfold::onnx::Model;
///
/// let model = Model::open("models/digits/un-dynamo.onnx")?;
/// let fused = unfold::fuse(&model, &Default::default())?;
/// let page = unfold::model_page("un-dynamo.onnx", &model, &fused)?;
/// assert!(page.contains("blocks.0.norm1.un"));
/// # Ok::<(), unfold::error::Error>(())
/// ```
///
/// # Errors
/// If one of the two models is invalid.
pub fn model_page(name: &str, model: &Model, fused: &Fused) -> Result<String> {
    page(model, &outline(name, model, fused)?)
}

/// A node of the first model, and a node of the second one that computes the same value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairedNodes<'p> {
    /// The name of the node of the first model.
    pub first: &'p str,
    /// The name of the node of the second model.
    pub second: &'p str,
    /// Whether both have the same operator and operands.
    pub kept: bool,
}

/// Writes a page about two models with `name` as its title. It shows both graphs side by side, and
/// the two nodes of a pair in one row.
///
/// # Errors
/// If one of the two models is invalid.
pub(crate) fn pair_page(name: &str, models: [&Model; 2], pairs: &[PairedNodes]) -> Result<String> {
    let [before, after] = models.map(GraphSide::new);
    let sides = [before?, after?];
    let (rows, blocks) = rows(&sides, &Plan::default(), &Pairing::by_value(&sides, pairs));
    let outline = Outline {
        command: "diff",
        model: name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        file_bytes: models.map(Model::read_bytes),
        sites: vec![],
        streams: vec![],
        tensors: vec![],
        reasons: BTreeMap::new(),
        values: values(&sides),
        rows,
        blocks,
    };
    page(models[0], &outline)
}

fn page(model: &Model, outline: &Outline) -> Result<String> {
    outline_html(outline).map_err(|error| Error::Defect {
        file: model.file(),
        at: "the page of the model".into(),
        reason: error.to_string(),
    })
}

/// The outline of a model before and after folding, with `name` as its title.
///
/// # Errors
/// If one of the graphs is invalid.
fn outline(name: &str, model: &Model, fused: &Fused) -> Result<Outline> {
    let plan = &fused.plan;
    // A plan prefixes the names of nodes in bodies by their region path, so the outline shows the
    // flattened graphs.
    let models = [fused.lowered.as_ref().unwrap_or(model), &fused.model];
    let flat = models.map(Flat::new);
    let [before, after] = [0, 1].map(|side| match &flat[side] {
        Some(flat) => GraphSide::new(&flat.model),
        None => GraphSide::new(models[side]),
    });
    let sides = [before?, after?];
    let (rows, blocks) = rows(&sides, plan, &Pairing::by_name(&sides));
    let refusals = plan
        .sites
        .iter()
        .flat_map(SitePlan::outcomes)
        .flat_map(Outcome::refusals);
    Ok(Outline {
        command: "inspect",
        model: name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        file_bytes: [model.read_bytes(), fused.model.file_bytes()],
        sites: outlined_sites(plan),
        streams: plan.streams.iter().filter_map(centred).collect(),
        tensors: tensors(plan),
        reasons: refusals
            .map(|(_, Refusal { reason, .. })| (reason.name(), reason.explained()))
            .collect(),
        values: values(&sides),
        rows,
        blocks,
    })
}

/// A sentence about the normalizers of a residual stream from which folding subtracts the mean.
/// `None` if it does not.
fn centred(stream: &StreamPlan) -> Option<String> {
    let Some(Centring::Centred { normalizers, .. }) = &stream.centring else {
        return None;
    };
    let norms = counted(normalizers.len(), "LayerNorm");
    let name = &stream.name;
    Some(format!(
        "{norms} on the stream {name}: written as RMSNorm, since the stream has no mean any more. \
         Engines run the operators of an RMSNorm, Pow to Div, as one."
    ))
}

/// The sites of a plan with their outcomes.
pub(crate) fn outlined_sites(plan: &Plan) -> Vec<OutlineSite> {
    plan.sites.iter().map(site).collect()
}

/// The new tensors of a plan, each with its formula.
pub(crate) fn tensors(plan: &Plan) -> Vec<ReportedTensor> {
    let mut tensors = vec![];
    for tensor in &plan.tensors {
        let inputs = tensor.recipe.constants().into_iter();
        let sites = tensor.sites.iter().filter_map(|&site| plan.sites.get(site));
        tensors.push(ReportedTensor {
            name: tensor.name.clone(),
            data_type: float_name(tensor.data_type),
            shape: tensor.recipe.shape().to_vec(),
            formula: tensor.recipe.to_string(),
            inputs: inputs.map(|name| name.to_string()).collect(),
            sites: sites.map(|site| site.name.clone()).collect(),
        });
    }
    tensors
}

fn site(site: &SitePlan) -> OutlineSite {
    let SitePlan {
        name,
        kind,
        channels,
        axis,
        nodes,
        pre,
        core,
        post,
        ..
    } = site;
    let whole = pre.is_none() && core.is_none();
    let last = if whole {
        "its affine"
    } else {
        "the affine behind its core"
    };
    let parts = [
        (pre, "the affine before its core"),
        (core, "its core"),
        (post, last),
    ];
    let parts = parts
        .into_iter()
        .filter_map(|(outcome, name)| Some(part(outcome.as_ref()?, name)));
    OutlineSite {
        name: name.clone(),
        kind: kind.name.to_owned(),
        form: kind.family.form().to_owned(),
        channels: *channels,
        axis: *axis,
        state: state(site),
        nodes: nodes.clone(),
        parts: parts.collect(),
    }
}

fn state(site: &SitePlan) -> SiteState {
    match Fate::from_site(site) {
        Fate::Folded => SiteState::Folded,
        Fate::Partly => SiteState::Partly,
        Fate::Kept if is_left(site) => SiteState::Left,
        Fate::Kept => SiteState::Refused,
    }
}

/// Whether a site stays only because there is nothing to fold, or because the caller skips it.
fn is_left(site: &SitePlan) -> bool {
    let mut refusals = site.outcomes().flat_map(Outcome::refusals);
    refusals.all(|(_, refusal)| matches!(refusal.reason, Reason::Identity | Reason::Skipped))
}

fn part(outcome: &Outcome, part: &'static str) -> OutlinePart {
    let (goes, into) = match outcome {
        Outcome::Folded { direction, into } => (Some(direction.name()), into.clone()),
        Outcome::Partly { into, .. } => (Some("shift"), into.clone()),
        Outcome::Scaled { into, .. } => (Some("scale"), into.clone()),
        Outcome::Kept { .. } => (None, vec![]),
    };
    let refusals = outcome.refusals();
    OutlinePart {
        part,
        goes,
        into,
        refusals: refusals
            .map(|(what, refusal)| ReportedRefusal {
                what,
                reason: refusal.reason.name(),
                words: refusal.reason.to_string(),
                at: refusal.at.clone(),
            })
            .collect(),
    }
}

/// The values before folding, and the values after it that are new or changed.
fn values(sides: &[GraphSide; 2]) -> [BTreeMap<String, OutlineValue>; 2] {
    let before = sides[0].values();
    let mut after = sides[1].values();
    after.retain(|name, value| before.get(name) != Some(value));
    [before, after]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::FuseOptions;
    use crate::onnx::proto::{
        AttributeProto, AttributeType, GraphProto, NodeProto, ValueInfoProto,
    };
    use crate::onnx::tensor::read_f64;
    use crate::passes::legalize::Target;
    use crate::report::{Distribution, OutlineItem, RowChange};

    /// The outline of a model in `models/digits`, with the model and the result.
    fn outline_of_digits(name: &str) -> (Outline, Model, Fused) {
        let model = Model::open(format!("models/digits/{name}.onnx")).unwrap();
        let options = FuseOptions {
            target: Target::Portable,
            ..FuseOptions::default()
        };
        let fused = crate::fuse(&model, &options).unwrap();
        (outline(name, &model, &fused).unwrap(), model, fused)
    }

    /// The names of the operators of a model.
    fn names(model: &Model) -> BTreeSet<&str> {
        let operators = model
            .graph()
            .node
            .iter()
            .filter(|node| node.op_type() != "Constant");
        operators.map(|node| node.name()).collect()
    }

    #[test]
    fn each_operator_has_one_row_in_one_block() {
        for name in ["un-dynamo", "un-legacy", "dtn-dynamo", "ln-legacy"] {
            let (outline, model, fused) = outline_of_digits(name);
            let before = outline
                .rows
                .iter()
                .filter_map(|row| Some(row.before.as_ref()?.name.as_str()));
            assert_eq!(before.clone().count(), names(&model).len());
            assert_eq!(before.collect::<BTreeSet<_>>(), names(&model));
            let after = outline.rows.iter().filter_map(|row| match row.change {
                RowChange::Same => row.before.as_ref(),
                _ => row.after.as_ref(),
            });
            let after: Vec<&str> = after.map(|node| node.name.as_str()).collect();
            assert_eq!(after.len(), names(&fused.model).len());
            assert_eq!(
                after.into_iter().collect::<BTreeSet<_>>(),
                names(&fused.model)
            );
            let items = outline.blocks.iter().flat_map(|block| &block.items);
            let mut rows: Vec<usize> = items
                .filter_map(|item| match item {
                    OutlineItem::Row(row) => Some(*row),
                    OutlineItem::Block(_) => None,
                })
                .collect();
            rows.sort_unstable();
            assert_eq!(rows, (0..outline.rows.len()).collect::<Vec<_>>());
        }
    }

    /// The distribution of an initializer.
    fn distribution_of(model: &Model, name: &str) -> Option<Distribution> {
        let mut tensors = model.graph().initializer.iter();
        let tensor = tensors.find(|tensor| tensor.name() == name).unwrap();
        let elements = read_f64(tensor, model.externals()).unwrap();
        Distribution::new(&elements.into_raw_vec_and_offset().0)
    }

    #[test]
    fn folded_site_is_removed_and_its_target_has_a_new_weight() {
        let (outline, model, fused) = outline_of_digits("un-dynamo");
        let place = outline
            .sites
            .iter()
            .position(|site| site.name == "blocks.0.norm2.un")
            .unwrap();
        let site = &outline.sites[place];
        assert_eq!(
            (site.kind.as_str(), site.channels, site.state),
            ("UN", 40, SiteState::Folded)
        );
        let [part] = &site.parts[..] else {
            panic!("{site:?}")
        };
        assert_eq!((part.goes, part.refusals.len()), (Some("forward"), 0));
        let own = outline.rows.iter().filter(|row| row.sites.contains(&place));
        let own: Vec<_> = own
            .map(|row| (row.before.as_ref().unwrap().operator.as_str(), row.change))
            .collect();
        assert_eq!(
            own,
            ["Div", "Mul", "Add"].map(|operator| (operator, RowChange::Gone))
        );
        let mut rows = outline.rows.iter();
        let into = rows.find(|row| {
            let node = row.before.as_ref();
            node.is_some_and(|node| part.into.contains(&node.name))
        });
        let into = into.unwrap();
        assert_eq!(into.change, RowChange::Changed);
        let weight = &into.after.as_ref().unwrap().inputs[1];
        let tensor = outline
            .tensors
            .iter()
            .find(|tensor| tensor.name == *weight)
            .unwrap();
        assert_eq!(
            tensor.formula,
            "mul(val_122, reshape(mul(div(1, sqrt_1), view_10), [40, 1]))"
        );
        assert_eq!(
            outline.values[0]["val_122"],
            OutlineValue {
                of: "float[40, 80]".into(),
                stored: true,
                elements: distribution_of(&model, "val_122"),
            }
        );
        assert_eq!(
            outline.values[1][weight],
            OutlineValue {
                of: "float[40, 80]".into(),
                stored: true,
                elements: distribution_of(&fused.model, weight),
            }
        );
        assert!(outline.blocks.iter().any(|block| block.name == "blocks.0"));
    }

    #[test]
    fn part_that_stays_has_explained_refusals() {
        let (outline, ..) = outline_of_digits("dyt-dynamo");
        let site = outline
            .sites
            .iter()
            .find(|site| site.name == "blocks.0.norm2")
            .unwrap();
        let part = site
            .parts
            .iter()
            .find(|part| part.part == "the affine before its core")
            .unwrap();
        let refusals: Vec<_> = part
            .refusals
            .iter()
            .map(|why| (why.what, why.reason, why.words.as_str(), why.at.as_str()))
            .collect();
        let reader = "something else reads the producer's result";
        assert_eq!(
            refusals,
            [
                (
                    "forward",
                    "not-linear",
                    "Tanh is no linear operator",
                    "node_tanh_1"
                ),
                ("backward", "other-reader", reader, "node_add_4"),
            ]
        );
        assert_eq!(
            outline.reasons.keys().copied().collect::<Vec<_>>(),
            ["not-linear", "other-reader"]
        );
        assert!(outline.reasons["not-linear"].starts_with("The operator does not map a scaled"));
        assert!(!outline.reasons["not-linear"].contains("### "));
    }

    fn node(op: &str, input: &str, output: &str) -> NodeProto {
        NodeProto {
            op_type: Some(op.to_owned()),
            input: vec![input.to_owned()],
            output: vec![output.to_owned()],
            ..Default::default()
        }
    }

    fn value(name: &str) -> ValueInfoProto {
        ValueInfoProto {
            name: Some(name.to_owned()),
            ..Default::default()
        }
    }

    /// The attribute `name` of an If: a branch that applies an operator to `x`.
    fn branch(name: &str, op: &str) -> AttributeProto {
        AttributeProto {
            name: Some(name.to_owned()),
            g: Some(Box::new(GraphProto {
                node: vec![node(op, "x", op)],
                output: vec![value(op)],
                ..Default::default()
            })),
            r#type: Some(AttributeType::Graph as i32),
            ..Default::default()
        }
    }

    #[test]
    fn bodies_become_blocks() {
        let mut control = node("If", "c", "y");
        control.attribute = vec![branch("then_branch", "Relu"), branch("else_branch", "Tanh")];
        let mut model = Model::open("models/digits/un-dynamo.onnx").unwrap();
        *model.graph_mut() = GraphProto {
            node: vec![control],
            input: vec![value("c"), value("x")],
            output: vec![value("y")],
            ..Default::default()
        };
        let outline = outline(
            "if",
            &model,
            &crate::fuse(&model, &Default::default()).unwrap(),
        )
        .unwrap();
        let operators = outline
            .rows
            .iter()
            .map(|row| row.before.as_ref().unwrap().operator.as_str());
        assert_eq!(
            operators.collect::<BTreeSet<_>>(),
            BTreeSet::from(["If", "Relu", "Tanh"])
        );
        assert!(
            outline
                .rows
                .iter()
                .all(|row| row.before.as_ref().unwrap().attributes.is_empty())
        );
        let names = outline
            .blocks
            .iter()
            .map(|block| block.name.as_str())
            .collect::<BTreeSet<_>>();
        assert!(
            names.contains("y") && names.contains("then_branch"),
            "{names:?}"
        );
    }
}
