//! Affines that are constant along the resized axes move through a Resize in every mode. Affines of
//! channels move through DepthToSpace and SpaceToDepth.
//! channels pass.

use unfold::onnx::Model;
use unfold::refusal::Reason;

use crate::becomes;
use crate::common::text::model;
use crate::kept;

/// An affine, a Resize, and a convolution.
fn resized(affine: &str, resize: &str) -> Model {
    model(&format!(
        "input x batch 2 4 4
         {affine}
         n = Mul(x, g)
         m = Add(n, t)
         {resize}
         weight w 3 2 1 1
         y = Conv(v, w)
         output y"
    ))
}

const CHANNELS: &str = "scale g 2 1 1\n shift t 2 1 1";
const LINEAR: &str = "const f 4 = 1 1 2 2\n v = Resize(m, , f) mode=linear";

#[test]
fn channel_affine_passes_resize_forward() {
    let sizes = "ints first 2 = 0 1\n ints last 2 = 8 8\n all = Shape(m)\n kept = Gather(all, first)
         s = Concat(kept, last) axis=0\n v = Resize(m, , , s) mode=linear coordinate_transformation_mode=asymmetric";
    let nearest = "const f 4 = 1 1 2 1.5\n v = Resize(m, , f) coordinate_transformation_mode=asymmetric nearest_mode=floor";
    for resize in [LINEAR, nearest] {
        becomes(&resized(CHANNELS, resize), &["Resize", "Conv"]);
    }
    becomes(
        &resized(CHANNELS, sizes),
        &["Shape", "Gather", "Concat", "Resize", "Conv"],
    );
}

#[test]
fn channel_affine_passes_resize_backward() {
    let text = "input x batch 3 4 4
         weight w 2 3 1 1
         scale g 2 1 1
         shift t 2 1 1
         c = Conv(x, w)
         const f 4 = 1 1 2 2
         v = Resize(c, , f) mode=linear
         n = Mul(v, g)
         m = Add(n, t)
         y = Relu(m)
         output y";
    becomes(&model(text), &["Conv", "Resize", "Relu"]);
}

#[test]
fn resize_refuses_cropping_and_affines_along_resized_axes() {
    let along = "scale g 4\n shift t 4";
    assert_eq!(kept(&resized(along, LINEAR)).0, Reason::ReducedAxis);
    let crop = format!("{LINEAR} coordinate_transformation_mode=tf_crop_and_resize");
    assert_eq!(
        kept(&resized(CHANNELS, &crop)).0,
        Reason::Attribute("coordinate_transformation_mode".into())
    );
    // This mode adds half a place to each coordinate, also along the channels, which are then
    // rounded up.
    let half = "const f 4 = 1 1 2 2\n v = Resize(m, , f) coordinate_transformation_mode=tf_half_pixel_for_nn";
    let up = format!("{half} nearest_mode=round_prefer_ceil");
    assert_eq!(
        kept(&resized(CHANNELS, &up)).0,
        Reason::Attribute("coordinate_transformation_mode".into())
    );
    let down = format!("{half} nearest_mode=floor");
    becomes(&resized(CHANNELS, &down), &["Resize", "Conv"]);
    // The result has as many places as the input, but other values.
    let near = "const f 4 = 1 1 1.2 1\n v = Resize(m, , f) mode=linear";
    assert_eq!(
        kept(&resized("scale g 4 1\n shift t 4 1", near)).0,
        Reason::ReducedAxis
    );
}

#[test]
fn channel_affine_passes_depth_to_space_and_space_to_depth() {
    let spread = |mode: &str| {
        format!(
            "input x batch 3 2 2
             weight w 8 3 1 1
             scale g 2 1 1
             shift t 2 1 1
             c = Conv(x, w)
             v = DepthToSpace(c) blocksize=2 mode={mode}
             n = Mul(v, g)
             m = Add(n, t)
             y = Relu(m)
             output y"
        )
    };
    becomes(&model(&spread("DCR")), &["Conv", "DepthToSpace", "Relu"]);
    let gathered = "input x batch 2 4 4
         scale g 2 1 1
         shift t 2 1 1
         n = Mul(x, g)
         m = Add(n, t)
         v = SpaceToDepth(m) blocksize=2
         weight w 3 8 1 1
         y = Conv(v, w)
         output y";
    becomes(&model(gathered), &["SpaceToDepth", "Conv"]);
}

#[test]
fn depth_to_space_refuses_scales_that_differ_within_a_block() {
    let text = |numbers: &str| {
        model(&format!(
            "input x batch 8 2 2
             const g 8 1 1 = {numbers}
             m = Mul(x, g)
             v = DepthToSpace(m) blocksize=2
             weight w 3 2 1 1
             y = Conv(v, w)
             output y"
        ))
    };
    becomes(&text("2 -1 2 -1 2 -1 2 -1"), &["DepthToSpace", "Conv"]);
    assert_eq!(kept(&text("2 2 2 2 -1 -1 -1 -1")).0, Reason::WrongAxis);
}
