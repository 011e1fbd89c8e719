//! Rules for operators that an affine crosses. These operators compute nothing across channels.
//!
//! A new operator needs one file with a [`Rule`] and one line in [`RULES`].

#[cfg(all(test, feature = "cli"))]
#[path = "../../../../docs/examples/extending/affine/propagate/rules/compress.rs"]
pub(crate) mod compress;
mod concat;
mod expand;
mod gather;
mod gather_nd;
mod grid_sample;
mod identity_cast;
mod maximum;
pub(crate) mod pad;
mod pool;
mod positive;
mod rearrange;
mod reduce;
mod reshape;
mod resize;
mod rotary;
mod scatter;
mod skip_layer_norm;
pub(crate) mod slice;
mod split;
mod transpose;
mod where_op;
pub(crate) mod window;

use crate::affine::rule::Rule;

/// The rules of this folder.
pub(crate) const RULES: &[&dyn Rule] = &[
    &identity_cast::PassThrough,
    &transpose::Transpose,
    &reshape::Reshape,
    &skip_layer_norm::Skip,
    &slice::Slice,
    &split::Split,
    &gather::Gather,
    &gather_nd::GatherND,
    &concat::Concat,
    &expand::Expand,
    &pad::Pad,
    &reduce::Reduce,
    &pool::Pool,
    &positive::Positive,
    &maximum::Maximum,
    &where_op::Choice,
    &rearrange::Rearrange,
    &resize::Resize,
    &grid_sample::Sample,
    &rotary::Rotary,
    &scatter::Scatter,
];
