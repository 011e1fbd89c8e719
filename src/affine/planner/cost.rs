//! The cost model: the operators that a fold saves or adds, the weights that it copies, and whether
//! a part that stays can be written with its new affine.

use std::collections::BTreeMap;

use crate::affine::Affine;
use crate::affine::item::{Item, State};
use crate::affine::linear::linear;
use crate::affine::planner::Planner;
use crate::affine::propagate::forward;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::propagation::{Propagation, has_bias_slot};
use crate::affine::recognize::Part;
use crate::affine::rounding::Rounding;
use crate::affine::rule::{Fold, Side};
use crate::hash::{HashMap, HashSet};
use crate::ir::{Reader, ValueId};
use crate::onnx::operator::Category;
use crate::recipe::{Numbers, Recipe};
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::extent;

/// The reason against folding a shift that would differ from place to place after the fold.
pub(crate) const ADD_BY_PLACE: &str = "its shift would become an Add with a number for each place";

/// The reason against folding a shift that costs a new Add, if the shift is a parameter of a
/// normalizer.
pub(crate) const OWN_ADD: &str = "it would become an Add of its own";

/// The reason against folding a whole affine whose shift would become an Add of far more elements.
pub(crate) const WIDE_ADD: &str = "its shift would become an Add of far more elements";

/// The shift of a normalizer of one operator stays before products that make this many times as
/// many elements together, because Adds after the products take longer in onnxruntime.
const WIDE_FOR_NORMALIZER: usize = 16;

/// Like [`WIDE_FOR_NORMALIZER`], for an affine of several operators. Without its shift it is one
/// Mul, which folds alone.
const WIDE_FOR_CHAIN: usize = 4;

impl Planner<'_> {
    /// Returns the propagation if it saves something. The merges of the propagation must leave
    /// fewer nodes than before. If the propagation needs affines on a residual stream, the merges
    /// may leave as many nodes as before, because other normalizers of the stream fold afterwards.
    pub(crate) fn worthwhile(
        &self,
        item: usize,
        propagation: Propagation,
    ) -> Result<Propagation, Refusal> {
        let others_follow = !propagation.wants.is_empty();
        self.saves(item, propagation, others_follow)
    }

    /// Returns the propagation if it saves something. With `others_follow`, its merges may leave as
    /// many nodes as before.
    ///
    /// # Errors
    /// If the propagation gains nothing, or changes something that must not change. The refusal
    /// names the node or the value.
    pub(crate) fn saves(
        &self,
        item: usize,
        propagation: Propagation,
        others_follow: bool,
    ) -> Result<Propagation, Refusal> {
        self.check_merges(item, &propagation, others_follow)?;
        if let Some(refusal) = self.growth(item, &propagation) {
            return Err(refusal);
        }
        self.check_adds(item, &propagation)?;
        // An Add between a convolution and its activation is refused if the affine is only a shift,
        // or if the affine has several operators, so that its scale may fold without its shift.
        let there = &self.items[item];
        let leaves_one = there.part.affine.has_no_scale() || there.size() > 1;
        let mut folds = propagation.folds.iter();
        if leaves_one && let Some(fold) = folds.find(|fold| self.parts_activation(fold)) {
            let name = self.overlay.graph.name(fold.node);
            return Err(Refusal::new(Reason::Activation, name));
        }
        Ok(propagation)
    }

    /// Checks that each item into which the affine merges can hold the merged affine, and that the
    /// merges save a node.
    fn check_merges(
        &self,
        item: usize,
        propagation: &Propagation,
        others_follow: bool,
    ) -> Result<(), Refusal> {
        let mut merged: BTreeMap<usize, Affine> = BTreeMap::new();
        for merge in &propagation.merges {
            let there = &self.items[merge.into];
            let after = merge.with(merged.get(&merge.into).unwrap_or(&there.part.affine));
            if is_refused(there)
                || !self.holds(&there.part, &after)
                || !self.is_writable(&there.part, &after)
            {
                return Err(forward::stays(&self.overlay, &there.part));
            }
            merged.insert(merge.into, after);
        }
        let Some((&first, _)) = merged.first_key_value() else {
            return Ok(());
        };
        let (mut before, mut after) = (self.items[item].size(), 0);
        for (&into, affine) in &merged {
            before += self.items[into].size();
            after += self.items[into].size_with(affine);
        }
        // A normalizer of one operator may need two operators when it is written again, so a merge
        // may save nothing.
        if after >= before + usize::from(others_follow) {
            return Err(forward::stays(&self.overlay, &self.items[first].part));
        }
        Ok(())
    }

    /// Checks that the Adds that hold the shift cost less than the affine itself.
    fn check_adds(&self, item: usize, propagation: &Propagation) -> Result<(), Refusal> {
        let there = &self.items[item];
        // Folding a parameter saves no operator, but an Add for it costs one. Turning an Add into
        // another Add saves no operator either.
        let is_parameter = there.part.nodes.is_empty();
        let is_add = there.size() == 1 && there.part.affine.has_no_scale();
        let is_one = is_add || is_parameter;
        if is_one && let Some(fold) = self.adds_by_place(propagation).first() {
            return Err(self.no_gain(fold, ADD_BY_PLACE));
        }
        let made = propagation.folds.iter().filter(|fold| self.makes_add(fold));
        let made: Vec<&Fold> = made.collect();
        // After an operator without a bias input, such as an Einsum, the part is already the Add
        // that the fold would create.
        if is_add && let Some(fold) = made.iter().find(|fold| self.is_before(fold, &there.part)) {
            return Err(self.no_gain(fold, "it would become an Add again"));
        }
        if is_add && let Some(fold) = made.iter().find(|fold| self.widens(fold)) {
            return Err(self.no_gain(fold, "it would become an Add of more elements"));
        }
        let far_more = match there.size() {
            1 => WIDE_FOR_NORMALIZER,
            _ => WIDE_FOR_CHAIN,
        };
        let Some(fold) = made.first() else {
            return Ok(());
        };
        let times = self
            .sizes(fold)
            .map_or(0, |[read, _]| self.added(&made) / read.max(1));
        if !is_one && times >= far_more {
            return Err(self.no_gain(fold, WIDE_ADD));
        }
        // If the shift is the β of a normalizer, the normalizer stays and adds it at no cost. So a
        // new Add is worthwhile only if the fold makes the normalizer redundant, or removes its
        // mean.
        let removes_one = self.has_twin(&there.part) || self.is_centring && !self.widens(fold);
        if is_parameter && !removes_one {
            return Err(self.no_gain(fold, OWN_ADD));
        }
        if is_one && made.len() > 1 {
            return Err(self.no_gain(fold, "it would become several Adds"));
        }
        Ok(())
    }

    /// Whether a fold is on the result of the node that produces the input of a part.
    fn is_before(&self, fold: &Fold, part: &Part) -> bool {
        let input = self.overlay.source(part.input);
        fold.side == Side::Result && self.overlay.graph.only_output(fold.node) == Some(input)
    }

    /// Returns the refusal of a propagation that makes the model larger but must not. A propagation
    /// into another factor of a product may copy no weight. Any other propagation may copy weights
    /// and add biases for each place, unless those of its site were found to be too large.
    pub(crate) fn growth(&self, item: usize, propagation: &Propagation) -> Option<Refusal> {
        let copies_weights = self.cost(propagation).2 > 0;
        if let Some((node, ..)) = propagation.factors.first() {
            let name = self.overlay.graph.name(*node);
            return copies_weights.then(|| Refusal::new(Reason::NotConstant, name));
        }
        let too_large = self.uncopied.get(&self.items[item].site)?;
        let mut folds = propagation.folds.iter();
        let adds_table = folds.any(|fold| !fold.affine.has_no_shift() && self.is_by_place(fold));
        (copies_weights || adds_table).then(|| too_large.clone())
    }

    /// Whether a fold needs an Add between a convolution and its activation, which engines run as
    /// one operator.
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

    /// Whether new constants of a part can store the elements of an affine in their element type.
    pub(crate) fn is_writable(&self, part: &Part, affine: &Affine) -> bool {
        let data_type = self.data_type(part);
        Rounding::Factor.fits(data_type, &affine.scale)
            && Rounding::Sum.fits(data_type, &affine.shift)
    }

    /// Whether a part can be written with an affine. Parameters of a node need inputs of the right
    /// size. Operators of the part need a known element type.
    pub(crate) fn holds(&self, part: &Part, affine: &Affine) -> bool {
        match part.nodes.is_empty() {
            true => {
                self.holds_parameter(part, 1.0, &affine.scale)
                    && self.holds_parameter(part, 0.0, &affine.shift)
            }
            false => self.data_type(part).is_some(),
        }
    }

    /// Whether a part has a parameter that can hold `numbers`. `neutral` is 1 for its factor and 0
    /// for its summand. Without this parameter, true only if all numbers are neutral.
    fn holds_parameter(&self, part: &Part, neutral: f64, numbers: &Numbers) -> bool {
        let mut resets = part.resets.iter();
        let Some(reset) = resets.find(|reset| reset.neutral == neutral) else {
            return numbers.iter().all(|&v| v == neutral);
        };
        let [first, end] = reset.axes;
        let mut axes = (0..numbers.ndim()).filter(|&axis| numbers.shape()[axis] != 1);
        let lies_there = axes.all(|axis| (first..end).contains(&axis));
        let value = self.overlay.graph.input(reset.node, reset.like);
        let count = value.and_then(|value| self.overlay.constants.len(value));
        numbers.len() == 1 || lies_there && Some(numbers.len()) == count
    }

    /// Whether the summand that a fold adds to the result of a linear operator varies along more
    /// than one axis.
    pub(crate) fn is_by_place(&self, fold: &Fold) -> bool {
        self.summand(fold).is_some_and(|summand| {
            let varying = summand.shape().iter().filter(|&&extent| extent > 1);
            varying.count() > 1
        })
    }

    /// The summand that a fold adds to the result of a linear operator. `None` if it is unknown, or
    /// if the bias input holds it. For a fold on an operand, this is the image of the shift. For a
    /// fold on the result, it is the scaled bias of the operator, if the bias input cannot hold the
    /// scaled bias.
    fn summand(&self, fold: &Fold) -> Option<Recipe> {
        let at = self.overlay.at(fold.node);
        let linear = linear(at.graph.domain_op(fold.node))?;
        let slots = linear.slots(&at).ok()?;
        if let Side::Operand(operand) = fold.side {
            let weight = slots.weight.map(|slot| at.constant(slot));
            let weight = weight.transpose().ok()?;
            return linear
                .image(&at, weight.as_ref(), operand, &fold.affine.shift)
                .ok();
        }
        let own = slots.bias.filter(|_| fold.side == Side::Result)?;
        let bias = linear.read_bias(&at, at.constant(own).ok()?).ok()?;
        let scaled = bias.mul(fold.affine.scale.recipe())?;
        linear.write_bias(&at, &scaled).is_none().then_some(scaled)
    }

    /// The folds that need a new Add whose constant has one scalar for each place.
    pub(crate) fn adds_by_place<'w>(&self, propagation: &'w Propagation) -> Vec<&'w Fold> {
        let mut folds: Vec<&Fold> = propagation.folds.iter().collect();
        folds.retain(|fold| self.is_by_place(fold) && !self.has_add(fold));
        folds
    }

    /// Whether a fold is on an Add of a constant, or on an operator whose result only such an Add
    /// reads.
    fn has_add(&self, fold: &Fold) -> bool {
        let is_add = matches!(self.overlay.graph.domain_op(fold.node), ("", "Add" | "Sub"));
        is_add || self.overlay.bias_add(fold.node).is_some()
    }

    /// The refusal of a fold that gains nothing.
    pub(crate) fn no_gain(&self, fold: &Fold, why: &str) -> Refusal {
        Refusal::new(
            Reason::NoGain(why.into()),
            self.overlay.graph.name(fold.node),
        )
    }

    /// The cost of an alternative. First comes the number of new Adds whose constant has one scalar
    /// for each place ([`Self::adds_by_place`]), then [`Planner::cost`].
    pub(crate) fn total_cost(&self, propagation: &Propagation) -> (usize, (usize, usize, usize)) {
        (
            self.adds_by_place(propagation).len(),
            self.cost(propagation),
        )
    }

    /// Whether a fold needs a new Add: the fold has a shift, and its operator has no bias input and
    /// no Add of a bias after it.
    fn makes_add(&self, fold: &Fold) -> bool {
        !fold.affine.has_no_shift()
            && !has_bias_slot(&self.overlay, fold.node)
            && self.overlay.bias_add(fold.node).is_none()
    }

    /// Whether another node with the operator and the attributes of the part's normalizer reads the
    /// same value. Without their parameters, both normalizers become one operator.
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
        graph.readers(value).iter().any(|reader| match *reader {
            Reader::Node {
                node: other,
                input: 0,
            } => {
                other != node
                    && graph.domain_op(other) == graph.domain_op(node)
                    && graph.node(other).attribute == graph.node(node).attribute
            }
            _ => false,
        })
    }

    /// Whether a fold is on an operand, and its operator produces more elements than it reads at
    /// this operand, as far as the extents are known.
    fn widens(&self, fold: &Fold) -> bool {
        self.sizes(fold).is_some_and(|[read, made]| made > read)
    }

    /// The number of elements that the operators of folds on operands produce together, as far as
    /// the extents are known.
    fn added(&self, folds: &[&Fold]) -> usize {
        let sizes = folds.iter().filter_map(|fold| self.sizes(fold));
        sizes.fold(0, |sum, [_, made]| sum.saturating_add(made))
    }

    /// The numbers of elements that the operator of a fold on an operand reads there and produces,
    /// as far as the extents are known.
    fn sizes(&self, fold: &Fold) -> Option<[usize; 2]> {
        let Side::Operand(slot) = fold.side else {
            return None;
        };
        let graph = self.overlay.graph;
        let read = graph.input(fold.node, slot);
        let made = graph.only_output(fold.node);
        Some([self.known_size(read)?, self.known_size(made)?])
    }

    /// The product of the known extents of a value. `None` if the rank is unknown.
    fn known_size(&self, value: Option<ValueId>) -> Option<usize> {
        let shape = self.overlay.facts.shape(value?)?;
        Some(shape.iter().filter_map(extent).product())
    }

    /// Whether a fold on a result needs a new Add, because the bias of the operator cannot absorb
    /// the shift and no Add follows.
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

    /// Whether a propagation creates no node and copies no weight.
    pub(crate) fn is_free(&self, propagation: &Propagation) -> bool {
        matches!(self.cost(propagation), (0, _, 0))
    }

    /// The cost of a propagation: the number of new nodes, the number of merges, and the number of
    /// elements of weights that are copied.
    pub(crate) fn cost(&self, propagation: &Propagation) -> (usize, usize, usize) {
        let mut shared: HashMap<ValueId, Vec<&Fold>> = HashMap::default();
        for fold in &propagation.folds {
            if let Some(weight) = self.shared_weight(fold) {
                shared.entry(weight).or_default().push(fold);
            }
        }
        let copied = shared
            .iter()
            .map(|(&weight, folds)| self.copied_elements(weight, folds));
        let copied = copied.sum();
        (propagation.makes.len(), propagation.merges.len(), copied)
    }

    /// The constant that a fold changes, if other nodes read it too, or if it is computed from a
    /// tensor with other readers.
    fn shared_weight(&self, fold: &Fold) -> Option<ValueId> {
        let graph = self.overlay.graph;
        let slot = match fold.side {
            Side::Constant(slot) => slot,
            _ => {
                let linear = linear(graph.domain_op(fold.node))?;
                linear.slots(&self.overlay.at(fold.node)).ok()?.weight?
            }
        };
        let weight = graph.input(fold.node, slot)?;
        let is_shared = graph.readers(weight).len() > 1 || self.is_of_shared(weight);
        is_shared.then_some(weight)
    }

    /// The number of elements of a shared weight that these folds copy. A weight is not copied if
    /// all its readers need the same affine, such as a table from which all readers pick rows.
    fn copied_elements(&self, weight: ValueId, folds: &[&Fold]) -> usize {
        let (first, readers) = (folds[0], self.overlay.graph.readers(weight).len());
        let mut others = folds.iter();
        let is_by_all = folds.len() == readers
            && others.all(|fold| fold.side == first.side && fold.affine == first.affine)
            && !self.is_of_shared(weight);
        if is_by_all {
            return 0;
        }
        folds.len() * self.overlay.constants.len(weight).unwrap_or(0)
    }

    /// Whether the weight is computed from a tensor that has other readers. For example, a head may
    /// transpose the table of token embeddings.
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

/// Whether an item must not change. An item that was refused because its parameters are neutral can
/// absorb any affine.
fn is_refused(item: &Item) -> bool {
    matches!(&item.state, State::Refused(refusal) if refusal.reason != Reason::Identity)
}
