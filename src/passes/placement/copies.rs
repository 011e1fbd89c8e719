//! Tiles and Expands that copy places.
//!
//! Along each axis, a Tile or an Expand copies every place equally often. So it commutes with each
//! element-wise operator, and with each linear operator over channels, like a nearest Resize.

use crate::analysis::node_view::At;
use crate::ir::builder::Maker;
use crate::passes::placement::factor::ResizeFactor;
use crate::shape::facts::{Shape, extent, same};

/// The factor of each axis of a Tile or an Expand. `None` for another operator, or if a factor is
/// not known.
pub(super) fn factors(at: &At) -> Option<Vec<ResizeFactor>> {
    at.only_attributes(&[]).ok()?;
    match at.graph.domain_op(at.node) {
        ("", "Tile") => {
            let repeats = at.ints(1).ok()??;
            let fits = Ok(repeats.len()) == at.rank(0);
            let factors = repeats.into_iter().map(factor);
            factors.collect::<Option<_>>().filter(|_| fits)
        }
        ("", "Expand") => expanded(&at.shape(0).ok()?, &at.output_shape(0).ok()?),
        _ => None,
    }
}

fn factor(count: i64) -> Option<ResizeFactor> {
    match usize::try_from(count).ok()? {
        0 => None,
        1 => Some(ResizeFactor::Same),
        times => Some(ResizeFactor::Times(times)),
    }
}

/// The factors of an Expand. `None` if it adds axes, or if a factor is unknown.
fn expanded(before: &Shape, after: &Shape) -> Option<Vec<ResizeFactor>> {
    let mut factors = vec![];
    for (from, to) in before.iter().zip(after) {
        factors.push(match (extent(from), extent(to)) {
            _ if same(from, to) => ResizeFactor::Same,
            (Some(1), Some(times)) if times > 1 => ResizeFactor::Times(times),
            _ => return None,
        });
    }
    (before.len() == after.len()).then_some(factors)
}

/// Writes an Expand on a value of rank `rank` that has `count` places along `axis`. Returns the
/// name of the result. `None` if the shape that the node reads is not constant.
pub(super) fn expand(
    at: &At,
    value: &str,
    (axis, count): (usize, usize),
    rank: usize,
    maker: &mut Maker,
) -> Option<String> {
    let mut target = at.ints(1).ok()??;
    let place = (axis + target.len()).checked_sub(rank);
    // A target extent of 1 keeps the extent of the value, so it is not changed.
    if let Some(extent) = place.and_then(|place| target.get_mut(place))
        && *extent != 1
    {
        *extent = i64::try_from(count).ok()?;
    }
    Some(maker.expand(value, &target))
}
