//! Reshapes and Transposes that merge channels with the batch and split them again, as in
//! MobileViT, which reassembles an image from the patches of its tokens.
//! of its tokens back to an image.

use unfold::onnx::Model;
use unfold::refusal::Reason;

use crate::becomes;
use crate::common::text::model;
use crate::kept;

/// Tokens of six patches of two by two pixels, with a scale and a shift of their channels, and the
/// image of the patches.
fn image(lines: &str) -> Model {
    model(&format!(
        "input x batch 4 6 3
         scale g 3
         shift t 3
         s = Mul(x, g)
         n = Add(s, t)
         c = Transpose(n) perm=[0,3,2,1]
         ints apart 4 = -1 3 2 2
         p = Reshape(c, apart)
         q = Transpose(p) perm=[0,2,1,3]
         {lines}
         y = Relu(z)
         output y"
    ))
}

#[test]
fn affine_passes_reshapes_that_merge_channels_with_the_batch() {
    let lines = "ints whole 4 = -1 3 4 6
         i = Reshape(q, whole)
         weight w 5 3 1 1
         z = Conv(i, w)";
    becomes(
        &image(lines),
        &[
            "Transpose",
            "Reshape",
            "Transpose",
            "Reshape",
            "Conv",
            "Relu",
        ],
    );
}

#[test]
fn affine_passes_reshapes_that_merge_the_batch_to_the_last_axis() {
    let lines = "ints whole 4 = -1 3 4 6
         i = Reshape(q, whole)
         l = Transpose(i) perm=[0,2,3,1]
         weight w 3 5
         z = MatMul(l, w)";
    becomes(
        &image(lines),
        &[
            "Transpose",
            "Reshape",
            "Transpose",
            "Reshape",
            "Transpose",
            "MatMul",
            "Add",
            "Relu",
        ],
    );
}

/// The image in another shape, and a pointwise convolution over its second axis.
fn arranged(whole: &str) -> Model {
    let extents: Vec<&str> = whole.split(' ').collect();
    let kernel = vec!["1"; extents.len() - 2].join(" ");
    let (rank, channels) = (extents.len(), extents[1]);
    image(&format!(
        "ints whole {rank} = {whole}
         i = Reshape(q, whole)
         weight w 5 {channels} {kernel}
         z = Conv(i, w)"
    ))
}

#[test]
fn affine_passes_reshapes_that_flatten_the_spatial_axes() {
    becomes(
        &arranged("-1 3 24"),
        &[
            "Transpose",
            "Reshape",
            "Transpose",
            "Reshape",
            "Conv",
            "Relu",
        ],
    );
}

#[test]
fn reshape_that_leaves_channels_merged_is_refused() {
    for whole in ["-1 6 4 3", "-1 4 3 6", "-1 6 12"] {
        assert_eq!(kept(&arranged(whole)).0, Reason::MixedAxes, "{whole}");
    }
}

#[test]
fn other_readers_of_merged_axes_refuse_the_affine() {
    let lines = "ints whole 4 = -1 3 4 6
         i = Reshape(q, whole)
         weight w 5 3 1 1
         z = Conv(i, w)
         o = Relu(p)
         output o";
    assert_eq!(kept(&image(lines)).0, Reason::MixedAxes);
    // Only movements forward an affine along an axis that is merged with the batch.
    let lines = "r = Sigmoid(q)
         ints whole 4 = -1 3 4 6
         i = Reshape(r, whole)
         weight w 5 3 1 1
         z = Conv(i, w)";
    assert_eq!(kept(&image(lines)).0, Reason::MixedAxes);
}
