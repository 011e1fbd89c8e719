//! Linear operators with constants, each as a weight and a bias over a window.

use crate::affine::recognize::linear_branches::window::{LARGEST, Taps, Window};
use crate::affine::recognize::{Chain, View};
use crate::analysis::node_view::At;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::AVERAGE_POOL;
use crate::recipe::Recipe;
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::extent;

/// A term that is linear in a value, with constant coefficients.
#[derive(Debug, Clone)]
pub(super) struct Branch {
    pub window: Window,
    /// The weight: `[channels out, channels in / group, kernel...]`.
    pub weight: Recipe,
    /// The bias: `[channels out]`.
    pub bias: Option<Recipe>,
    /// The number of multiplications for each place of the result. A composition of two operators
    /// counts the multiplications of both, as before the merge.
    pub work: usize,
}

/// An operator with a window, or two such operators in a row.
#[derive(Debug, Clone)]
pub(super) struct Windowed {
    /// The last node.
    pub node: NodeId,
    pub nodes: Vec<NodeId>,
    /// The value that the first node reads.
    pub base: ValueId,
    pub branch: Result<Branch, Refusal>,
}

impl Windowed {
    /// Reads the operator with a window that outputs `value`. If the operator right before it can
    /// be composed with it, both are read as one. `None` if `value` is the result of another
    /// operator.
    pub(super) fn making(view: &View, value: ValueId) -> Option<Self> {
        let operator = Self::alone(view, value)?;
        Some(
            operator
                .before(view)
                .and_then(|before| operator.behind(before))
                .unwrap_or(operator),
        )
    }

    /// The linear operator whose result this operator reads, with the Add of its bias if there is
    /// one. `None` if another node also reads the result, or if the two operators are in different
    /// bodies.
    pub(super) fn before(&self, view: &View) -> Option<Self> {
        let first = *self.nodes.first()?;
        view.only_reader(self.base)
            .filter(|&reader| reader == first)?;
        let before = Self::with_bias(view, self.base)?;
        // Nodes of one body may run more often than nodes of another, so they are not merged.
        let mut nodes = before.nodes.iter();
        nodes
            .all(|&node| view.are_in_one_body(node, first))
            .then_some(before)
    }

    /// The linear operator that outputs a value. The Add of a bias after a MatMul is read as a part
    /// of the MatMul.
    pub(super) fn with_bias(view: &View, value: ValueId) -> Option<Self> {
        Self::alone(view, value).or_else(|| {
            let add = view.maker(value)?;
            let operands = view.graph.inputs(add).iter().take(2).flatten().copied();
            let mut own = operands.filter(|&value| view.only_reader(value) == Some(add));
            let product = own.find_map(|value| Self::alone(view, value))?;
            product
                .shifted(view, add)
                .filter(|product| product.is_product(view))
        })
    }

    /// Composes this operator with the one before it. `None` if the composition is not one
    /// operator.
    pub(super) fn behind(&self, before: Self) -> Option<Self> {
        let branch = before.branch.ok()?.then(self.branch.as_ref().ok()?).ok()?;
        let nodes = [&before.nodes[..], &self.nodes].concat();
        Some(Self {
            node: self.node,
            nodes,
            base: before.base,
            branch: Ok(branch),
        })
    }

    /// Merges the constant that a node adds to each channel into the operator. `None` if the node
    /// does anything else.
    pub(super) fn shifted(&self, view: &View, node: NodeId) -> Option<Self> {
        let graph = view.graph;
        let made = graph.only_output(*self.nodes.last()?)?;
        let (op, inputs) = (graph.op(node)?, graph.inputs(node));
        // This function runs for every branch of a Concat, so it must not search all inputs of the
        // Concat.
        let slot = match *inputs {
            [Some(value), Some(_)] if value == made => 1,
            [Some(_), Some(value)] if value == made => 0,
            _ => return None,
        };
        let adds = graph.only_output(node).is_some()
            && inputs[slot].is_some_and(|value| view.constants.is_constant(value))
            && (op == "Add" || op == "Sub" && slot == 1)
            && view.are_in_one_body(node, self.node)
            && view.at(node).only_attributes(&[]).is_ok();
        let shift = shift(view, inputs[slot].filter(|_| adds)?, self)?;
        let shift = if op == "Sub" { shift.neg() } else { shift };
        let branch = self.branch.as_ref().ok()?.clone().plus(&shift)?;
        let nodes = [&self.nodes[..], &[node]].concat();
        Some(Self {
            nodes,
            branch: Ok(branch),
            ..self.clone()
        })
    }

    /// Merges a mean over windows with an affine that is its only reader. The affine could not
    /// fold, because a mean has no weight, and no shift passes a mean that counts its padding.
    /// `None` if no such mean is before the affine.
    pub(super) fn before_affine(view: &View, chain: &Chain) -> Option<Self> {
        let mean = Self::making(view, chain.input).filter(|mean| !mean.has_weight(view))?;
        let mut nodes = chain.nodes.iter();
        let is_beside = nodes.all(|&node| view.are_in_one_body(node, mean.node));
        let mut readers = view.graph.readers(chain.input).iter();
        let is_own = is_beside
            && readers.all(
                |reader| matches!(reader, Reader::Node { node, .. } if chain.nodes.contains(node)),
            );
        let branch = mean.branch.as_ref().ok().filter(|_| is_own)?;
        let affine = Branch::affine(chain, &branch.window)?;
        let branch = branch.clone().then(&affine).ok()?;
        Some(Self {
            nodes: [&mean.nodes[..], &chain.nodes].concat(),
            branch: Ok(branch),
            ..mean
        })
    }

    /// Whether the operator is a MatMul, which has no input for a bias.
    pub(super) fn is_product(&self, view: &View) -> bool {
        view.graph.is(self.node, "MatMul")
    }

    /// Reads the node that outputs `value` as an operator with a window. `None` if it is another
    /// operator. A node that cannot be merged has its refusal in `branch`.
    pub(super) fn alone(view: &View, value: ValueId) -> Option<Self> {
        let node = view.maker(value)?;
        view.graph.only_output(node)?;
        let at = view.at(node);
        let read: fn(&At) -> Result<Branch, Reason> = match view.graph.op(node)? {
            "Conv" => conv,
            "AveragePool" => pool,
            "MatMul" if at.is_constant(1) => matmul,
            "Gemm" => gemm,
            _ => return None,
        };
        let base = view
            .graph
            .input(node, 0)
            .filter(|&base| !view.constants.is_constant(base))?;
        let branch = read(&at).map_err(|reason| Refusal::new(reason, view.graph.name(node)));
        Some(Self {
            node,
            nodes: vec![node],
            base,
            branch,
        })
    }

    /// Whether the operator has a weight. Only an AveragePool has none.
    pub(super) fn has_weight(&self, view: &View) -> bool {
        !view.graph.is(self.node, "AveragePool")
    }
}

impl Branch {
    fn new(window: Window, weight: Recipe, bias: Option<Recipe>) -> Self {
        let work = window.work();
        Self {
            window,
            weight,
            bias,
            work,
        }
    }

    /// The operator with a constant added to each channel.
    fn plus(self, shift: &Recipe) -> Option<Self> {
        let bias = self
            .bias
            .as_ref()
            .map_or_else(|| Some(shift.clone()), |bias| bias.add(shift))?;
        Some(Self {
            bias: Some(bias),
            ..self
        })
    }

    /// The identity, as a branch next to an operator with the window `beside`. `None` if that
    /// operator changes the number of channels.
    pub(super) fn identity(beside: &Window) -> Option<Self> {
        let window = each(beside)?;
        let weight = Recipe::filled(1.0, &window.shape());
        Some(Self::new(window, weight, None))
    }

    /// The affine of a chain, as a branch next to an operator with the window `beside`. `None` if
    /// that operator changes the number of channels, or if the affine varies along an axis other
    /// than the channels.
    pub(super) fn affine(chain: &Chain, beside: &Window) -> Option<Self> {
        let window = each(beside)?;
        let rank = chain.affine.rank();
        let axis = window.channel_axis(rank)?;
        let fits =
            chain.affine.is_finite() && (window.axes.is_empty() || rank == window.axes.len() + 2);
        fits.then_some(())?;
        let channels = window.channels[0];
        let weight = per_channel(chain.affine.scale.recipe(), rank, axis, channels)?;
        let weight = weight.reshape(&window.shape())?;
        let bias = if chain.affine.has_no_shift() {
            None
        } else {
            let shift = chain.affine.shift.recipe();
            Some(per_channel(shift, rank, axis, channels)?)
        };
        Some(Self::new(window, weight, bias))
    }

    /// The operator with the opposite sign.
    pub(super) fn negated(self) -> Self {
        Self {
            weight: self.weight.neg(),
            bias: self.bias.map(|bias| bias.neg()),
            ..self
        }
    }
}

/// The window of the identity on each channel. `None` if the operator has unequal numbers of input
/// and output channels.
fn each(beside: &Window) -> Option<Window> {
    let [inner, outer] = beside.channels;
    (inner == outer).then(|| Window::each(inner, beside.axes.len()))
}

/// Reshapes numbers that vary only along `axis` to a list of one number for each channel. `None` if
/// they vary along another axis.
fn per_channel(numbers: &Recipe, rank: usize, axis: usize, channels: usize) -> Option<Recipe> {
    let aligned = numbers.align(rank)?;
    let alone = aligned
        .shape()
        .iter()
        .enumerate()
        .all(|(other, &extent)| other == axis || extent == 1);
    aligned
        .reshape(&[aligned.len()])
        .filter(|_| alone)?
        .expand(&[channels])
}

/// Reshapes a constant summand after an operator to a list over the operator's output channels.
/// `None` if the constant varies along another axis.
pub(super) fn shift(view: &View, constant: ValueId, operator: &Windowed) -> Option<Recipe> {
    let window = &operator.branch.as_ref().ok()?.window;
    let rank = view.facts.rank(view.graph.only_output(operator.node)?)?;
    let axis = window.channel_axis(rank)?;
    let shape = view.facts.shape(constant)?;
    let extents: Vec<usize> = shape.iter().map(extent).collect::<Option<_>>()?;
    let is_known = !view.constants.is_quantized(constant) && view.constants.check(constant).is_ok();
    let numbers = Recipe::constant(view.graph.value_name(constant), &extents);
    per_channel(&numbers, rank, axis, window.channels[1]).filter(|_| is_known)
}

fn conv(at: &At) -> Result<Branch, Reason> {
    at.only_attributes(&[
        "auto_pad",
        "dilations",
        "group",
        "kernel_shape",
        "pads",
        "strides",
    ])?;
    let weight = at.constant(1)?;
    let group = usize::try_from(at.attr("group", 1)?).unwrap_or_default();
    let &[outer, inner, ref kernel @ ..] = weight.shape() else {
        return Err(Reason::UnknownShape);
    };
    if kernel.is_empty() || group == 0 || outer == 0 || inner == 0 || !outer.is_multiple_of(group) {
        return Err(Reason::UnknownShape);
    }
    let window = Window {
        channels: [inner.saturating_mul(group), outer],
        group,
        axes: axes(at, kernel)?,
    };
    let bias = at
        .graph
        .input(at.node, 2)
        .map(|_| at.constant(2))
        .transpose()?;
    match &bias {
        Some(bias) if bias.shape() != [outer] => Err(Reason::UnknownShape),
        _ => Ok(Branch::new(window, weight, bias)),
    }
}

/// Reads an AveragePool, which is a convolution with equal weights if the padding counts.
fn pool(at: &At) -> Result<Branch, Reason> {
    at.only_attributes(AVERAGE_POOL)?;
    let kernel = at.attr_ints("kernel_shape")?.ok_or(Reason::UnknownShape)?;
    let kernel: Option<Vec<usize>> = kernel
        .iter()
        .map(|&extent| usize::try_from(extent).ok())
        .collect();
    let kernel = kernel.ok_or(Reason::Attribute("kernel_shape".into()))?;
    let (channels, spatial) = (at.extent(0, 1)?, kernel.len());
    let window = Window {
        axes: axes(at, &kernel)?,
        ..Window::each(channels, spatial)
    };
    let has_border = window.axes.iter().any(|axis| axis.before + axis.after > 0);
    if has_border && !at.flag("count_include_pad", false)? {
        return Err(Reason::Attribute("count_include_pad".into()));
    }
    if at.flag("ceil_mode", false)? {
        return Err(Reason::Attribute("ceil_mode".into()));
    }
    let taps = kernel
        .iter()
        .try_fold(1_usize, |taps, &extent| taps.checked_mul(extent));
    let taps = taps
        .filter(|&taps| taps <= LARGEST as usize)
        .ok_or(Reason::UnknownShape)?;
    let parts = Recipe::filled(taps as f64, &window.shape());
    let weight = Recipe::number(1.0, spatial + 2)
        .div(&parts)
        .ok_or(Reason::UnknownShape)?;
    Ok(Branch::new(window, weight, None))
}

fn matmul(at: &At) -> Result<Branch, Reason> {
    at.only_attributes(&[])?;
    let weight = at.constant(1)?;
    let &[inner, outer] = weight.shape() else {
        return Err(Reason::UnknownShape);
    };
    let weight = weight.turned().ok_or(Reason::UnknownShape)?;
    Ok(Branch::new(
        Window {
            channels: [inner, outer],
            group: 1,
            axes: vec![],
        },
        weight,
        None,
    ))
}

/// Reads `alpha·x·W + beta·c`.
fn gemm(at: &At) -> Result<Branch, Reason> {
    at.only_attributes(&["alpha", "beta", "transA", "transB"])?;
    if at.flag("transA", false)? {
        return Err(Reason::Attribute("transA".into()));
    }
    let stored = at.constant(1)?;
    let weight = if at.flag("transB", false)? {
        Some(stored)
    } else {
        stored.turned()
    };
    let weight = weight
        .filter(|weight| weight.rank() == 2)
        .ok_or(Reason::UnknownShape)?;
    let (inner, outer) = (weight.shape()[1], weight.shape()[0]);
    let bias = match at.graph.input(at.node, 2) {
        None => None,
        Some(_) => {
            let bias = per_channel(&at.constant(2)?, 2, 1, outer).ok_or(Reason::WrongAxis)?;
            Some(scaled_by(at, "beta", &bias)?)
        }
    };
    let window = Window {
        channels: [inner, outer],
        group: 1,
        axes: vec![],
    };
    Ok(Branch::new(window, scaled_by(at, "alpha", &weight)?, bias))
}

/// Multiplies a recipe by the attribute `name`, which is 1 by default.
fn scaled_by(at: &At, name: &str, recipe: &Recipe) -> Result<Recipe, Reason> {
    let factor = Recipe::number(at.attr_float(name, 1.0)?, recipe.rank());
    recipe.mul(&factor).ok_or(Reason::UnknownShape)
}

/// The window of a kernel along each spatial axis. Refused if the padding depends on the extents of
/// the input.
fn axes(at: &At, kernel: &[usize]) -> Result<Vec<Taps>, Reason> {
    let spatial = kernel.len();
    let strides = list(at, "strides", 1, spatial)?;
    let dilations = list(at, "dilations", 1, spatial)?;
    let pads = list(at, "pads", 0, 2 * spatial)?;
    if let Some(declared) = at.attr_ints("kernel_shape")? {
        let declared = declared.iter().map(|&extent| extent as usize);
        if !declared.eq(kernel.iter().copied()) {
            return Err(Reason::Attribute("kernel_shape".into()));
        }
    }
    let auto = at.attr_text("auto_pad", "NOTSET")?;
    let mut axes = vec![];
    for (axis, &extent) in kernel.iter().enumerate() {
        let (extent, stride, dilation) = (extent as i64, strides[axis], dilations[axis]);
        if !(1..LARGEST).contains(&extent) {
            return Err(Reason::UnknownShape);
        }
        let all = (extent - 1) * dilation;
        let (before, after) = match auto {
            "NOTSET" => (pads[axis], pads[axis + spatial]),
            "VALID" => (0, 0),
            // With a stride other than 1, the padding depends on the extent of the input.
            "SAME_UPPER" if stride == 1 => (all / 2, all - all / 2),
            "SAME_LOWER" if stride == 1 => (all - all / 2, all / 2),
            _ => return Err(Reason::Attribute("auto_pad".into())),
        };
        axes.push(Taps {
            kernel: extent,
            stride,
            dilation,
            before,
            after,
        });
    }
    Ok(axes)
}

/// A list attribute of length `count`, each element of which is at least `absent`. By default, all
/// elements are `absent`.
fn list(at: &At, name: &str, absent: i64, count: usize) -> Result<Vec<i64>, Reason> {
    let list = at.attr_ints(name)?.unwrap_or_else(|| vec![absent; count]);
    let mut numbers = list.iter();
    let fits = list.len() == count && numbers.all(|number| (absent..LARGEST).contains(number));
    if fits {
        Ok(list)
    } else {
        Err(Reason::Attribute(name.into()))
    }
}
