//! Folds only the scale or only the shift of an affine.

use crate::affine::Affine;
use crate::affine::item::{Item, State, Tried};
use crate::affine::plan::Direction;
use crate::affine::planner::Planner;
use crate::affine::planner::cost::{OWN_ADD, WIDE_ADD};
use crate::affine::propagate::propagation::Propagation;
use crate::affine::propagate::{backward, modulation, stream_basis};
use crate::affine::recognize::Part;
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;
use crate::refusal::{Reason, Refusal};

/// The largest magnitude of a shift that may be added to a residual stream. A larger shift would
/// cost the values of the stream digits.
const LARGEST_SHIFT: f64 = 16.0;

impl Planner<'_> {
    /// Folds only the shift of an item whose scale stays, for example at a residual stream. The
    /// shift folds forward, backward as `s·x + t = s·(x + t/s)`, or into the layer that modulates
    /// the value.
    pub(super) fn fold_shift(&mut self, item: usize) -> bool {
        let there = &self.items[item];
        let affine = &there.part.affine;
        if !self.holds(&there.part, affine) || affine.has_no_shift() || affine.has_no_scale() {
            return false;
        }
        if !self.is_smaller_without_shift(item) {
            return false;
        }
        let found = self
            .shift_ahead(item)
            .or_else(|| self.shift_back(item))
            .or_else(|| self.modulation(item));
        let Some(propagation) = found else {
            return false;
        };
        let Some(Tried { forward: scale, .. }) = there.tried.clone() else {
            return false;
        };
        self.leave_scale(item, propagation, scale)
    }

    /// Whether a part without its shift has fewer operators or parameters.
    ///
    /// A BatchNormalization stays one operator if it loses its shift. It still counts as smaller if
    /// its scale can then fold. An example is a BatchNormalization before a product over tokens,
    /// which absorbs the shift of a channel and passes the scale.
    fn is_smaller_without_shift(&self, item: usize) -> bool {
        let there = &self.items[item];
        let Part { affine, resets, .. } = &there.part;
        there.size() > 1
            || resets.iter().any(|reset| reset.neutral == 0.0)
            || self.is_only_normalizers(item)
                && self.can_fold_scale(item, &Affine::scale(affine.scale.clone()))
    }

    fn is_only_normalizers(&self, item: usize) -> bool {
        let graph = self.overlay.graph;
        let mut nodes = self.items[item].part.nodes.iter();
        nodes.all(|&node| graph.category(node) == Some(Category::Normalizer))
    }

    fn can_fold_scale(&self, item: usize, scale: &Affine) -> bool {
        self.passes_scale(item, scale) || self.returning(item, scale, false).is_some()
    }

    /// Whether a scale can fold forward.
    fn passes_scale(&self, item: usize, scale: &Affine) -> bool {
        stream_basis::forward(&self.overlay, &self.items(true), item, scale)
            .is_ok_and(|propagation| self.worthwhile(item, propagation).is_ok())
    }

    /// Finds a forward propagation of only the shift. `None` if it would create a node.
    fn shift_ahead(&self, item: usize) -> Option<Propagation> {
        let part = &self.items[item].part;
        let shift = Affine::shift(part.affine.shift.clone());
        let found = stream_basis::beside(&self.overlay, &self.items(false), item, &shift).ok()?;
        // A parameter whose shift would vary along several axes does not fold: the fold saves no
        // operator, and engines recognize only a bias of one axis.
        let is_dear =
            part.nodes.is_empty() && found.folds.iter().any(|fold| self.is_by_place(fold));
        (found.makes.is_empty() && !is_dear).then_some(found)
    }

    /// Finds a backward propagation of only the shift, as `t/s`. `None` if it would create an Add.
    fn shift_back(&self, item: usize) -> Option<Propagation> {
        let part = &self.items[item].part;
        let affine = &part.affine;
        let before = Affine::shift(&affine.shift / &affine.scale);
        let found = backward::backward(&self.overlay, &self.items(false), item, &before).ok()?;
        // If `s < 1`, the shift `t/s` is larger than `t`, and is added to a larger value. float16
        // may not hold the sum.
        let has_room = self.data_type(part) != Some(DataType::Float16) || !affine.shrinks();
        let makes_add = !found.makes.is_empty() || found.folds.iter().any(|fold| self.adds(fold));
        (has_room && !makes_add).then_some(found)
    }

    /// If an item cannot fold whole, folds its shift backward along a residual stream, provided
    /// that its scale can then fold forward. The other normalizers of the stream absorb the shift
    /// into their own shifts, so that one shift is saved. The scale folds in a later sweep.
    pub(super) fn fold_stream_shift(&mut self, item: usize) -> bool {
        self.fold_shift_back(item, None)
    }

    /// Like [`Planner::fold_stream_shift`]. If `added` is given, an item that can fold whole also
    /// folds in this way. `added` is the refusal of the forward fold, whose shift would need an Add
    /// with one scalar for each place.
    pub(super) fn fold_shift_back(&mut self, item: usize, added: Option<&Refusal>) -> bool {
        let there = &self.items[item];
        let affine = &there.part.affine;
        let is_whole = matches!(there.state, State::Open) && !there.part.nodes.is_empty();
        if !is_whole || !self.is_wide(&there.part) || affine.has_no_shift() || affine.has_no_scale()
        {
            return false;
        }
        let before = &affine.shift / &affine.scale;
        // The values of the stream then contain the shift, so a large shift would cost them digits.
        let is_small = before.iter().all(|shift| shift.abs() <= LARGEST_SHIFT);
        let Some(left) = self.shifts.checked_sub(1).filter(|_| is_small) else {
            return false;
        };
        // If the scale stays, the plan gives this reason why the scale could not fold together with
        // the shift.
        let tried = there.tried.as_ref().map(|tried| &tried.forward);
        let Some(refusal) = tried.or(added).cloned() else {
            return false;
        };
        if !self.passes_scale(item, &Affine::scale(affine.scale.clone())) {
            return false;
        }
        let found = self.stream_shift(item, &Affine::shift(before));
        self.shifts = left;
        match found {
            Some(propagation) => self.leave_scale(item, propagation, refusal),
            None => false,
        }
    }

    /// Whether the value to which a part applies its affine is float32 or wider.
    fn is_wide(&self, part: &Part) -> bool {
        matches!(
            self.data_type(part),
            Some(DataType::Float | DataType::Double)
        )
    }

    /// The backward propagation of a shift along a stream. `None` if it costs anything, for example
    /// if a normalizer that absorbs the shift has no shift yet.
    fn stream_shift(&self, item: usize, before: &Affine) -> Option<Propagation> {
        let found = backward::returning(&self.overlay, &self.items(true), item, before).ok()?;
        let found = self.saves(item, found, false).ok()?;
        let mut absorbing = found.merges.iter().map(|merge| &self.items[merge.into]);
        let have_shifts = absorbing.all(|item| !item.part.affine.has_no_shift());
        let adds = found.folds.iter().any(|fold| self.adds(fold));
        (have_shifts && !adds && self.is_free(&found)).then_some(found)
    }

    /// Folds the shift of an item and leaves its scale open.
    fn leave_scale(&mut self, item: usize, propagation: Propagation, scale: Refusal) -> bool {
        let into = self.carry(propagation);
        let there = &mut self.items[item];
        there.part.affine = Affine::scale(there.part.affine.scale.clone());
        there.is_rewritten = true;
        there.state = State::Partly { into, scale };
        true
    }

    /// Folds only the scale of an item whose shift stays, for example before zero padding of
    /// unknown extents. If the scale folds forward, `s·x + t = s·(x + t/s)`, so the shift becomes
    /// `t/s`. If it folds backward, the shift stays unchanged.
    pub(super) fn fold_scale(&mut self, item: usize) -> bool {
        let there = &self.items[item];
        let affine = &there.part.affine;
        let Some(Tried { forward, backward }) = there.tried.clone() else {
            return false;
        };
        // If the affine is the γ and β of a normalizer, its scale may fold without its shift only
        // if the whole affine was refused because the shift would need an Add.
        let is_parameter = there.part.nodes.is_empty();
        let can_fold_alone = if is_parameter {
            gains_nothing(&forward, OWN_ADD)
        } else {
            there.size() > 1 || gains_nothing(&forward, WIDE_ADD)
        };
        if !can_fold_alone || affine.has_no_shift() || affine.has_no_scale() {
            return false;
        }
        let (propagation, left, shift) = if let Some((propagation, left)) = self.scale_ahead(item) {
            (propagation, left, forward)
        } else if !is_parameter && let Some(propagation) = self.scale_back(item) {
            (propagation, Affine::shift(affine.shift.clone()), backward)
        } else {
            return false;
        };
        let into = self.carry(propagation);
        let there = &mut self.items[item];
        there.part.affine = left;
        there.is_rewritten = true;
        there.state = State::Scaled { into, shift };
        true
    }

    /// Finds a forward propagation of only the scale. Also returns the shift `t/s` that stays.
    /// `None` if the propagation would create a node or a tensor that is too large, or
    /// if the shift that stays cannot be written.
    fn scale_ahead(&self, item: usize) -> Option<(Propagation, Affine)> {
        let part = &self.items[item].part;
        let affine = &part.affine;
        let scale = Affine::scale(affine.scale.clone());
        let found = stream_basis::beside(&self.overlay, &self.items(false), item, &scale);
        let found = self.without_growth(item, found.ok()?)?;
        let left = Affine::shift(&affine.shift / &affine.scale);
        // If `s < 1`, the shift `t/s` that stays is larger than `t`, and is added to a larger
        // value. float16 may not hold the sum.
        let has_room = self.data_type(part) != Some(DataType::Float16) || !affine.shrinks();
        let is_held = !part.nodes.is_empty() || self.holds(part, &left);
        let fits = has_room && is_held && left.is_finite() && self.is_writable(part, &left);
        fits.then_some((found, left))
    }

    /// Finds a backward propagation of only the scale. `None` if it would create a node or a
    /// tensor that is too large.
    fn scale_back(&self, item: usize) -> Option<Propagation> {
        let scale = Affine::scale(self.items[item].part.affine.scale.clone());
        backward::backward(&self.overlay, &self.items(false), item, &scale)
            .ok()
            .and_then(|found| self.without_growth(item, found))
            .or_else(|| self.returning(item, &scale, false))
    }

    /// Returns the propagation if it creates no node and adds no tensor that is too large.
    fn without_growth(&self, item: usize, propagation: Propagation) -> Option<Propagation> {
        let is_free = propagation.makes.is_empty() && self.growth(item, &propagation).is_none();
        is_free.then_some(propagation)
    }

    /// Folds an item that can fold in neither direction. The factor that multiplies its value
    /// absorbs the scale, and the summand after the product absorbs the shift.
    pub(super) fn fold_factor(&mut self, item: usize) -> bool {
        let found = self
            .scale_in_factor(item, false)
            .or_else(|| self.scale_in_factor(item, true));
        let Some(propagation) = found else {
            return false;
        };
        self.commit(item, Direction::Forward, propagation);
        true
    }

    /// Finds a propagation of the scale into the other factor. With `merge`, the normalizer that
    /// computes the other factor may absorb it, as the γ of the queries' RMSNorm.
    fn scale_in_factor(&self, item: usize, merge: bool) -> Option<Propagation> {
        let Item { part, site, .. } = &self.items[item];
        let affine = &part.affine;
        if affine.has_no_scale() {
            return None;
        }
        let mut propagation = match affine.has_no_shift() {
            true => Propagation::for_site(*site),
            false => self.modulation(item)?,
        };
        let sides = (&self.overlay, &self.items(merge));
        modulation::scale(sides, item, &mut propagation, part.output, &affine.scale)?;
        if !propagation.makes.is_empty() {
            return None;
        }
        self.worthwhile(item, propagation).ok()
    }

    /// The propagation of an item's shift into the layer that modulates its value. `None` if no
    /// layer modulates the value, or if the layer cannot absorb the shift.
    pub(super) fn modulation(&self, item: usize) -> Option<Propagation> {
        let Item { part, site, .. } = &self.items[item];
        modulation::shift(&self.overlay, *site, part.output, &part.affine.shift)
    }

    /// Finds a backward propagation of a scale along a residual stream. `None` if it would create a
    /// node or copy a weight, or if too many attempts have failed.
    pub(super) fn returning(
        &self,
        item: usize,
        scale: &Affine,
        merge: bool,
    ) -> Option<Propagation> {
        let left = self.returns.get().checked_sub(1)?;
        if !scale.has_no_shift() {
            return None;
        }
        let found = backward::returning(&self.overlay, &self.items(merge), item, scale)
            .and_then(|propagation| self.saves(item, propagation, false))
            .ok()
            .filter(|propagation| self.is_free(propagation));
        // Only failed attempts count against the bound.
        if found.is_none() {
            self.returns.set(left);
        }
        found
    }
}

/// Whether a fold was refused because it gains nothing, for this reason.
fn gains_nothing(refusal: &Refusal, reason: &str) -> bool {
    matches!(&refusal.reason, Reason::NoGain(why) if why == reason)
}
