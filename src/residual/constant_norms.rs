//! Replaces the divisor `√(var + ε)` of a normalizer by the constant `√ε`, if ε is so large that
//! `var + ε` is rounded to ε.
//!
//! In floats, `(x − mean(x))/√(var(x) + ε)` equals `(x − mean(x))/√ε` for each variance below half
//! a unit in the last place of ε. With such an ε, code that always has normalizers can train
//! networks that behave as if they had none. In real arithmetic, the two formulas differ, so this
//! pass runs only on request.
//!
//! A normalizer that is one operator is written out with the constant `1/√ε`. If a normalizer is
//! already written out in parts, its division by `√(var + ε)` becomes a division by the constant
//! `√ε`. Later passes fold the constant.

use crate::affine::materialize::{Change, Edit, NewTensor};
use crate::affine::plan::{Constancy, ConstantNorm};
use crate::affine::recognize::decomposed_norm::Core;
use crate::affine::recognize::{Replacement, Site, View, online};
use crate::affine::rounding::Rounding;
use crate::hash::HashSet;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::tensor::{DataType, rounded};
use crate::recipe::Recipe;
use crate::refusal::{Reason, Refusal};

/// The smallest ε of a normalizer that may be constant. A usual ε is smaller, and only prevents a division by 0.
const LEAST_EPSILON: f64 = 1.0;

/// A variance that inputs usually have. A normalizer is constant only if its [`variance_limit`] is
/// not below this variance.
const USUAL_VARIANCE: f64 = 1.0;

/// Decides which normalizers with a large ε become constant. Returns the entries of these
/// normalizers in the plan, and the edits. `is_skipped` decides by name or kind whether a site
/// stays.
pub(crate) fn constant(
    view: &View,
    sites: &[Site],
    is_skipped: &dyn Fn(&Site) -> bool,
) -> (Vec<ConstantNorm>, Vec<Edit>) {
    let (mut norms, mut edits) = (vec![], vec![]);
    let mut replaced: HashSet<NodeId> = HashSet::default();
    for site in sites {
        let Some(norm) = Normalization::of(view, site) else {
            continue;
        };
        if norm.epsilon < LEAST_EPSILON || !replaced.insert(norm.node) {
            continue;
        }
        let planned = if is_skipped(site) {
            Err(Reason::Skipped)
        } else {
            norm.as_constant(view)
        };
        let outcome = match planned {
            Ok(changes) => {
                edits.extend(changes);
                Constancy::Constant
            }
            Err(reason) => Constancy::Kept {
                why: Refusal::new(reason, view.graph.name(norm.node)),
            },
        };
        norms.push(norm.listed(view, site, outcome));
    }
    (norms, edits)
}

/// The variance below which `variance + epsilon` is rounded to `epsilon` in a float type.
pub(crate) fn variance_limit(epsilon: f64, data_type: DataType) -> f64 {
    epsilon.log2().floor().exp2() * data_type.rounding()
}

/// A normalization by statistics, and the node at which it becomes constant.
struct Normalization {
    /// The value that is normalized.
    input: ValueId,
    /// The axes of the statistics, counted from the front. If `groups` is given, the axes refer to
    /// the shape `[N, groups, -1]`.
    axes: Vec<usize>,
    groups: Option<usize>,
    centred: bool,
    /// Whether the sum of squares is used instead of their mean.
    sum: bool,
    epsilon: f64,
    /// The type in which ε is added.
    data_type: DataType,
    node: NodeId,
    form: NormForm,
}

/// How a normalization is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NormForm {
    /// As several nodes, of which `node` adds ε. `moved` says whether a Reshape or Flatten of the
    /// normalizer follows `node`.
    Parts { moved: bool },
    /// As a single operator.
    Operator {
        /// The slots of the inputs that scale and shift the result.
        parameters: [usize; 2],
        along: ParameterAxes,
    },
}

/// The axes of the result along which the parameters of an operator vary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ParameterAxes {
    /// The last axes. The parameters broadcast without a change of shape.
    Last,
    /// The second axis of a result of this rank.
    Channels(usize),
    /// The second axis of the shape `[N, groups, -1]`.
    Groups,
}

impl Normalization {
    /// Recognizes the normalization of a site. `None` if ε is unknown.
    fn of(view: &View, site: &Site) -> Option<Self> {
        let by_operator = site.nodes.iter().find_map(|&node| operator(view, node));
        by_operator.or_else(|| parts(view, &online::core(view, site)?))
    }

    /// The edits after which the normalization does not compute the variance.
    fn as_constant(&self, view: &View) -> Result<Vec<Edit>, Reason> {
        let limit = variance_limit(self.epsilon, self.data_type);
        if limit < USUAL_VARIANCE {
            return Err(Reason::SmallEpsilon(format!("{limit:.1e}")));
        }
        let graph = view.graph;
        let output = graph.only_output(self.node).ok_or(Reason::OtherReader)?;
        let (parameters, along) = match self.form {
            NormForm::Parts { moved: true } => return Err(Reason::UnknownShape),
            NormForm::Parts { moved: false } => {
                return Divisor::new(view, self, output).edits(view);
            }
            NormForm::Operator { parameters, along } => (parameters, along),
        };
        let mut maker = Maker::new(graph, self.node);
        self.write_out(view, &mut maker, parameters, along)?;
        let (made, constants) = maker.finish(graph.value_name(output));
        let replacement = Replacement {
            nodes: vec![self.node],
            made,
            constants,
        };
        Ok(vec![Edit::replacing(graph, self.node, replacement)])
    }

    /// Writes an operator out as nodes. The last node computes the result.
    fn write_out(
        &self,
        view: &View,
        maker: &mut Maker,
        parameters: [usize; 2],
        along: ParameterAxes,
    ) -> Result<(), Reason> {
        let own = view.facts.data_type(self.input);
        if own != Some(self.data_type) {
            return Err(Reason::ElementType(
                own.map_or_else(String::new, DataType::name),
            ));
        }
        let whole = view.graph.value_name(self.input);
        let mut value = whole.to_owned();
        if let Some(groups) = self.groups {
            value = maker.reshape(&value, &[0, groups as i64, -1]);
        }
        if self.centred {
            let axes: Vec<i64> = self.axes.iter().map(|&axis| axis as i64).collect();
            let mean = maker.mean(&value, &axes, true);
            value = maker.op("Sub", &[&value, &mean], vec![]);
        }
        let factor = reciprocal_root(self.epsilon, self.data_type);
        let factor = maker.floats(self.data_type, &Recipe::number(factor, 0));
        value = maker.op("Mul", &[&value, &factor], vec![]);
        if along == ParameterAxes::Groups {
            value = self.with_parameters(view, maker, value, parameters, 3);
        }
        if self.groups.is_some() {
            let shape = maker.op("Shape", &[whole], vec![]);
            value = maker.op("Reshape", &[&value, &shape], vec![]);
        }
        match along {
            ParameterAxes::Groups => {}
            ParameterAxes::Last => drop(self.with_parameters(view, maker, value, parameters, 0)),
            ParameterAxes::Channels(rank) => {
                drop(self.with_parameters(view, maker, value, parameters, rank));
            }
        }
        Ok(())
    }

    /// Multiplies a value by the scale and adds the shift, along its last axes (`rank` 0) or along the second of `rank`
    /// axes.
    fn with_parameters(
        &self,
        view: &View,
        maker: &mut Maker,
        mut value: String,
        parameters: [usize; 2],
        rank: usize,
    ) -> String {
        let behind: Vec<i64> = (1..rank.max(1) as i64 - 1).collect();
        for (op, slot) in ["Mul", "Add"].into_iter().zip(parameters) {
            let Some(parameter) = view.graph.input(self.node, slot) else {
                continue;
            };
            let mut parameter = view.graph.value_name(parameter).to_owned();
            if !behind.is_empty() {
                parameter = maker.unsqueeze(&parameter, &behind);
            }
            value = maker.op(op, &[&value, &parameter], vec![]);
        }
        value
    }

    /// The entry of the normalization in the plan.
    fn listed(&self, view: &View, site: &Site, outcome: Constancy) -> ConstantNorm {
        ConstantNorm {
            name: site.name.clone(),
            value: view.graph.value_name(self.input).to_owned(),
            axes: self.axes.clone(),
            groups: self.groups,
            centred: self.centred,
            sum: self.sum,
            epsilon: self.epsilon,
            limit: variance_limit(self.epsilon, self.data_type),
            outcome,
        }
    }
}

/// `1/√ε`, rounded to a type. Weights absorb this factor. After the rounding, it equals the
/// constant that a Mul in the model would have.
fn reciprocal_root(epsilon: f64, data_type: DataType) -> f64 {
    rounded(data_type, 1.0 / epsilon.sqrt())
}

/// A value that is computed only from `var + ε`, such as its root.
struct Divisor {
    value: ValueId,
    /// The number that the value equals if `var + ε` is ε, rounded to the type of the value.
    number: f64,
    data_type: DataType,
}

impl Divisor {
    /// Follows the chain of operators after the sum, and returns the last value that is computed only from the sum.
    fn new(view: &View, norm: &Normalization, sum: ValueId) -> Self {
        let mut divisor = Divisor {
            value: sum,
            number: norm.epsilon,
            data_type: norm.data_type,
        };
        while let Some(next) = divisor.next(view) {
            divisor = next;
        }
        divisor
    }

    /// The result of the only reader of this value, if all other inputs of the reader are constant.
    fn next(&self, view: &View) -> Option<Self> {
        let node = view.only_reader(self.value)?;
        let value = view.graph.only_output(node)?;
        let data_type = view.facts.data_type(value).filter(|own| own.is_float())?;
        let base = view.graph.input(node, 0) == Some(self.value);
        let number = match (view.graph.domain_op(node), base) {
            (("", "Sqrt"), _) => self.number.sqrt(),
            (("", "Reciprocal"), _) => 1.0 / self.number,
            (("", "Cast" | "Identity"), _) => self.number,
            (("", "Pow"), true) => self.number.powf(view.scalar_input(node, 1)?),
            (("", "Div"), false) => view.scalar_input(node, 0)? / self.number,
            _ => return None,
        };
        Some(Divisor {
            value,
            number: rounded(data_type, number),
            data_type,
        })
    }

    /// The edits after which the readers of the value read a constant instead.
    fn edits(&self, view: &View) -> Result<Vec<Edit>, Reason> {
        let rank = view.facts.rank(self.value).ok_or(Reason::UnknownShape)?;
        let recipe = Recipe::filled(self.number, &vec![1; rank]);
        let mut edits = vec![];
        for reader in view.graph.readers(self.value) {
            let Reader::Node { node, input } = *reader else {
                return Err(Reason::OtherReader);
            };
            let tensor = NewTensor {
                wish: format!("{}_constant", view.graph.value_name(self.value)),
                replaces: None,
                data_type: Some(self.data_type),
                recipe: recipe.clone(),
                rounding: Rounding::Factor,
            };
            edits.push(Edit {
                sites: vec![],
                at: view.graph.name(node).to_owned(),
                change: Change::Input(node, input, tensor),
            });
        }
        Ok(edits)
    }
}

/// Recognizes a normalization that is a single operator.
fn operator(view: &View, node: NodeId) -> Option<Normalization> {
    let (graph, at) = (view.graph, view.at(node));
    let input = graph.input(node, 0)?;
    let rank = view.facts.rank(input)?;
    let (op, all) = (graph.domain_op(node).1, |first: usize| {
        (first..rank).collect()
    });
    let is_known = matches!(graph.domain_op(node).0, "" | "com.microsoft");
    let (axes, groups, along): (Vec<usize>, Option<usize>, ParameterAxes) = match op {
        "LayerNormalization" | "RMSNormalization" | "SimplifiedLayerNormalization" => {
            let first = crate::ir::axes::axis(at.attr("axis", -1).ok()?, rank).ok()?;
            (all(first), None, ParameterAxes::Last)
        }
        "InstanceNormalization" => (all(2), None, ParameterAxes::Channels(rank)),
        "GroupNormalization" => {
            let groups = usize::try_from(at.attr("num_groups", 0).ok()?).ok()?;
            let own = if at.opset() < 21 {
                ParameterAxes::Groups
            } else {
                ParameterAxes::Channels(rank)
            };
            (vec![2], Some(groups), own)
        }
        _ => return None,
    };
    let own = view.facts.data_type(input).filter(|own| own.is_float())?;
    // The operators add ε in float32, or in double for double inputs.
    let data_type = if own == DataType::Double {
        own
    } else {
        DataType::Float
    };
    is_known.then_some(Normalization {
        input,
        axes,
        groups,
        centred: !matches!(op, "RMSNormalization" | "SimplifiedLayerNormalization"),
        sum: false,
        epsilon: at.attr_float("epsilon", 1e-5).ok()?,
        data_type,
        node,
        form: NormForm::Operator {
            parameters: [1, 2],
            along,
        },
    })
}

/// Recognizes a normalization that is written out in parts.
fn parts(view: &View, core: &Core) -> Option<Normalization> {
    let node = core.epsilon_added?;
    let is_moved = core.nodes.iter().any(|&other| {
        let is_behind = view.graph.place(other) > view.graph.place(node);
        is_behind && matches!(view.graph.op(other), Some("Reshape" | "Flatten"))
    });
    Some(Normalization {
        input: core.input,
        axes: core.axes.clone(),
        groups: None,
        centred: core.centred,
        sum: core.norm,
        epsilon: core.epsilon?,
        data_type: view.facts.data_type(view.graph.only_output(node)?)?,
        node,
        form: NormForm::Parts { moved: is_moved },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variance_limit_follows_epsilon_and_type() {
        assert_eq!(variance_limit(1e12, DataType::Float), 32768.0);
        assert_eq!(
            (1e12_f32 + 32767.0, 1e12_f32 + 32769.0),
            (1e12, 1_000_000_050_000.0)
        );
        assert_eq!(variance_limit(2048.0, DataType::Float16), 1.0);
    }
}
