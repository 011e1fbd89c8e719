//! Convolutions of the parts of a value become one grouped convolution, with twins in which they
//! stay.

use unfold::Target;
use unfold::onnx::Model;

use super::legalize::for_engine;
use crate::common::text::model;
use crate::operators;

/// A Split, two convolutions of its parts with kernels of three places, and a Concat.
fn parts(lines: &str) -> Model {
    model(&format!(
        "input x N 4 7
         weight w0 3 2 3
         weight w1 3 2 3
         weight p0 3 2 1
         weight p1 3 2 1
         weight g0 4 1 3
         weight g1 4 1 3
         shift b0 3
         shift b1 3
         shift c0 4
         shift c1 4
         {lines}
         y = Relu(z)
         output y"
    ))
}

const SPLIT: &str = "a, b = Split(x) axis=1 num_outputs=2";

fn merged(target: Target, lines: &str) -> Vec<String> {
    let lines = format!("opset 18\n {SPLIT}\n {lines}");
    operators(&for_engine(target, &parts(&lines)))
        .into_iter()
        .map(str::to_owned)
        .collect()
}

#[test]
fn equal_convolutions_of_all_parts_become_one() {
    for lines in [
        "c = Conv(a, w0) pads=[1,1]\n d = Conv(b, w1) pads=[1,1]\n z = Concat(c, d) axis=1",
        "c = Conv(a, w0, b0)\n d = Conv(b, w1, b1)\n z = Concat(c, d) axis=-2",
        "c = Conv(a, g0, c0) group=2 strides=[2]\n d = Conv(b, g1, c1) group=2 strides=[2]
         z = Concat(c, d) axis=1",
    ] {
        assert_eq!(merged(Target::Cpu, lines), ["Conv", "Relu"], "{lines}");
    }
}

#[test]
fn convolutions_of_one_place_become_one_for_onnxruntime() {
    let lines = "c = Conv(a, p0, b0)\n d = Conv(b, p1, b1)\n z = Concat(c, d) axis=1";
    assert_eq!(merged(Target::Onnxruntime, lines), ["Conv", "Relu"]);
    // tract runs a grouped convolution slower than two convolutions.
    for target in [Target::Cpu, Target::Tract, Target::Portable] {
        assert_eq!(merged(target, lines).len(), 5, "{target}");
    }
}

#[test]
fn convolutions_that_differ_or_have_other_readers_stay() {
    for lines in [
        "c = Conv(a, w0)\n d = Conv(b, w1)\n z = Concat(d, c) axis=1",
        "c = Conv(a, w0)\n d = Conv(b, w1)\n z = Concat(c, d) axis=2",
        "c = Conv(a, w0, b0)\n d = Conv(b, w1)\n z = Concat(c, d) axis=1",
        "c = Conv(a, w0) pads=[2,0]\n d = Conv(b, w1) pads=[0,2]\n z = Concat(c, d) axis=1",
        "c = Conv(a, w0)\n d = Conv(b, p1) pads=[0,-2]\n z = Concat(c, d) axis=1",
        "c = Conv(a, w0)\n d = Conv(b, w1)\n z = Concat(c, d) axis=1\n e = Exp(c)\n output e",
        "c = Conv(a, w0)\n d = Conv(b, w1)\n z = Concat(c, d) axis=1\n e = Exp(a)\n output e",
        "c = Conv(a, w0)\n d = Conv(a, w1)\n z = Concat(c, d) axis=1\n e = Exp(b)\n output e",
    ] {
        let operators = merged(Target::Cpu, lines);
        let convolutions = operators.iter().filter(|operator| *operator == "Conv");
        assert_eq!(convolutions.count(), 2, "{lines}");
    }
}
