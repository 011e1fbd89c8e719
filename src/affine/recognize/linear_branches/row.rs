//! Factors: two linear operators in a row, with nothing in between.
//!
//! Before: `L₂(L₁(x) + b₁) + b₂`, where each `Lᵢ` is a convolution or a product with a constant
//! matrix. After: one operator, whose weight is the product of both along the channels in between,
//! tap by tap. This is exact if, along each axis, one of the two operators reads only one place,
//! and if no zeros of padding in `L₂` take the place of `b₁`. The operators are merged if the one
//! operator takes fewer multiplications than the two.

use crate::affine::recognize::linear_branches::operator::operator;
use crate::affine::recognize::linear_branches::read::{Branch, Windowed};
use crate::affine::recognize::linear_branches::window::in_groups;
use crate::affine::recognize::{Family, Kind, Normalizer, Replacement, Site, View};
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::recipe::Recipe;
use crate::refusal::{Reason, Refusal};

/// Two linear operators in a row.
pub(crate) struct Factors;

impl Normalizer for Factors {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let second = Windowed::making(view, view.graph.only_output(node)?)?;
        if second.nodes.len() == 1 {
            return shift_in_between(view, &second);
        }
        let branch = second.branch.as_ref().ok()?;
        if !second.has_weight(view) || branch.window.work() >= branch.work {
            return None;
        }
        let row = with_bias(view, second);
        let replacement = replacement(view, &row);
        let refusal = replacement.as_ref().err();
        let refusal = refusal.map(|reason| Refusal::new(reason.clone(), view.graph.name(node)));
        Some(Site {
            replacement: replacement.ok(),
            refusal,
            ..site(view, &row)?
        })
    }
}

/// The refused site of two operators that only padding prevents from merging: the zeros around the
/// input of the second operator lack the shift in between. `None` if they do not merge for another
/// reason.
fn shift_in_between(view: &View, second: &Windowed) -> Option<Site> {
    let first = second
        .before(view)
        .filter(|first| first.has_weight(view) && second.has_weight(view))?;
    let (one, next) = (first.branch.as_ref().ok()?, second.branch.as_ref().ok()?);
    let is_less = one.window.then(&next.window)?.work() < one.work.saturating_add(next.work);
    let reason = one
        .then(next)
        .err()
        .filter(|reason| is_less && *reason == Reason::Padding)?;
    let refusal = Some(Refusal::new(reason, view.graph.name(second.node)));
    // The site does not include the constant in between, which may still fold.
    let row = Windowed {
        nodes: vec![first.node, second.node],
        ..second.clone()
    };
    Some(Site {
        refusal,
        ..site(view, &row)?
    })
}

/// Merges the Add of a bias after a MatMul into the row. Any other row is returned unchanged.
pub(super) fn with_bias(view: &View, row: Windowed) -> Windowed {
    let output = view
        .graph
        .only_output(row.node)
        .filter(|_| row.is_product(view));
    let next = output.and_then(|output| view.only_reader(output));
    next.and_then(|next| row.shifted(view, next)).unwrap_or(row)
}

fn site(view: &View, row: &Windowed) -> Option<Site> {
    let window = &row.branch.as_ref().ok()?.window;
    let rank = view.facts.rank(output(view, row)?);
    Some(Site {
        channels: window.channels[1],
        axis: window.channel_axis(rank.unwrap_or(0)).unwrap_or(0),
        ..Site::new(
            Kind::new("factors", Family::Linear),
            view.site_name(row.node),
            row.nodes.clone(),
        )
    })
}

fn output(view: &View, row: &Windowed) -> Option<ValueId> {
    view.graph.only_output(*row.nodes.last()?)
}

fn replacement(view: &View, row: &Windowed) -> Result<Replacement, Reason> {
    let branch = row
        .branch
        .as_ref()
        .map_err(|refusal| refusal.reason.clone())?;
    let output = output(view, row).ok_or(Reason::UnknownShape)?;
    let mut maker = Maker::new(view.graph, row.node);
    operator(
        view,
        row,
        view.graph.value_name(row.base),
        branch,
        &mut maker,
    )?;
    let (mut made, constants) = maker.finish(view.graph.value_name(output));
    made[0].name = Some(view.graph.name(row.node).to_owned());
    Ok(Replacement {
        nodes: row.nodes.clone(),
        made,
        constants,
    })
}

impl Branch {
    /// The composition of this operator and `next`.
    ///
    /// # Errors
    /// The reason why the composition is not one operator.
    pub(super) fn then(&self, next: &Branch) -> Result<Self, Reason> {
        let window = self.window.then(&next.window).ok_or(Reason::Unaligned)?;
        if self.bias.is_some() && !next.window.stays_inside() {
            return Err(Reason::Padding);
        }
        let weight = self
            .weight_then(next, window.group)
            .ok_or(Reason::UnknownShape)?;
        let weight = weight
            .reshape(&window.shape())
            .ok_or(Reason::UnknownShape)?;
        let bias = match &self.bias {
            None => next.bias.clone(),
            Some(bias) => Some(next.shifted_by(bias).ok_or(Reason::UnknownShape)?),
        };
        Ok(Self {
            window,
            weight,
            bias,
            work: self.work.saturating_add(next.work),
        })
    }

    /// The product of both weights for each pair of taps. Along each axis, one of the two weights
    /// has only one tap.
    fn weight_then(&self, next: &Branch, group: usize) -> Option<Recipe> {
        let [inner, between] = self.window.channels;
        let outer = next.window.channels[1];
        let first = in_groups(&self.weight, self.window.group, group)?;
        let second = in_groups(&next.weight, next.window.group, group)?;
        let taps = [&first, &second].map(|weight| &weight.shape()[2..]);
        let [of_first, of_second] = taps.map(|taps| taps.iter().product::<usize>());
        let columns = first.reshape(&[group, between / group, inner / group * of_first])?;
        let rows = second.reshape(&[group, outer / group, between / group, of_second])?;
        let rows = rows.transpose(&[0, 1, 3, 2])?;
        let product = rows
            .reshape(&[group, outer / group * of_second, between / group])?
            .product(&columns)?;
        let spatial = taps[0].len();
        let apart = product.reshape(&[&[outer], taps[1], &[inner / group], taps[0]].concat())?;
        let pairs = (0..spatial).flat_map(|axis| [1 + axis, 2 + spatial + axis]);
        apart.transpose(
            &[0, 1 + spatial]
                .into_iter()
                .chain(pairs)
                .collect::<Vec<_>>(),
        )
    }

    /// The bias that results if a constant is added to each input channel.
    fn shifted_by(&self, shift: &Recipe) -> Option<Recipe> {
        let ([between, outer], group) = (self.window.channels, self.window.group);
        let taps = self.weight.len() / (outer * (between / group)).max(1);
        let weight = self
            .weight
            .reshape(&[group, outer / group, between / group, taps])?;
        let matrix = weight
            .sum(3)?
            .reshape(&[group, outer / group, between / group])?;
        let image = matrix
            .product(&shift.reshape(&[group, between / group, 1])?)?
            .reshape(&[outer])?;
        self.bias
            .as_ref()
            .map_or(Some(image.clone()), |bias| bias.add(&image))
    }
}
