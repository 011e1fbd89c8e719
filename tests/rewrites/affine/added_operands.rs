//! Operands that an operator adds after its product, if they are not constants.
//!
//! In `x·W + c`, a scale of x folds into W, and a scale of the result into W and c. If c is an
//! input, the default of an input, computed, or the result of an If, the scale cannot fold into c.
//! Each operator that adds an operand is tested in each place where a weight may change, with each
//! kind of operand. computed, or what an If makes, it cannot follow. Each operator that adds
//! something stands in each place where a weight may change, with each kind of operand.

use ndarray::ArrayD;
use unfold::FuseOptions;
use unfold::onnx::Model;
use unfold::onnx::proto::GraphProto;
use unfold::plan::{Plan, SitePlan};

use crate::common::numbers::{Kind, Numbers, Role};
use crate::common::reference::Value;
use crate::common::text::{self, model};
use crate::common::{judge, node, options, undeclared};

/// The numbers of samples, tokens and channels of the input and the result of each operator.
const SHAPE: &str = "2 3 4";

/// The name of an operator, the extents of the operand that it adds, and its lines, from `X` to `Y`
/// with the operand `C`. Names that begin with `$` belong only to this operator.
type Operator = (&'static str, &'static str, &'static str);

const OPERATORS: &[Operator] = &[
    (
        "Gemm",
        "4",
        "ints $m 2 = 6 4
         ints $s 3 = 2 3 4
         weight $w 4 4
         $a = Reshape(X, $m)
         $b = Gemm($a, $w, C)
         Y = Reshape($b, $s)",
    ),
    (
        "Gemm with factors and a bias for each row",
        "6 1",
        "ints $m 2 = 6 4
         ints $s 3 = 2 3 4
         weight $w 4 4
         $a = Reshape(X, $m)
         $b = Gemm($a, $w, C) alpha=0.5 beta=2.0 transB=1
         Y = Reshape($b, $s)",
    ),
    (
        "Gemm with the weight first",
        "4 1",
        "ints $m 2 = 6 4
         ints $s 3 = 2 3 4
         weight $w 4 4
         $a = Reshape(X, $m)
         $b = Gemm($w, $a, C) transB=1
         $t = Transpose($b) perm=[1,0]
         Y = Reshape($t, $s)",
    ),
    (
        "Gemm that adds the value",
        "6 4",
        "ints $m 2 = 6 4
         ints $s 3 = 2 3 4
         weight $w 4 4
         $a = Reshape(X, $m)
         $b = Gemm(C, $w, $a)
         Y = Reshape($b, $s)",
    ),
    (
        "Conv",
        "4",
        "weight $w 4 4 1
         $a = Transpose(X) perm=[0,2,1]
         $b = Conv($a, $w, C)
         Y = Transpose($b) perm=[0,2,1]",
    ),
    (
        "Conv with a border",
        "4",
        "weight $w 4 2 3
         $a = Transpose(X) perm=[0,2,1]
         $b = Conv($a, $w, C) group=2 pads=[1,1]
         Y = Transpose($b) perm=[0,2,1]",
    ),
    (
        "ConvTranspose",
        "4",
        "weight $w 4 4 1
         $a = Transpose(X) perm=[0,2,1]
         $b = ConvTranspose($a, $w, C)
         Y = Transpose($b) perm=[0,2,1]",
    ),
    (
        "DeformConv",
        "4",
        "weight $w 4 4 1 1
         ints $i 1 = 2
         const $o 2 2 1 3 = 0 0 0 0 0 0 0 0 0 0 0 0
         $a = Transpose(X) perm=[0,2,1]
         $u = Unsqueeze($a, $i)
         $b = DeformConv($u, $w, $o, C)
         $q = Squeeze($b, $i)
         Y = Transpose($q) perm=[0,2,1]",
    ),
    (
        "offsets of a DeformConv",
        "2 2 1 3",
        "weight $w 4 4 1 1
         ints $i 1 = 2
         shift $b 4
         $a = Transpose(X) perm=[0,2,1]
         $u = Unsqueeze($a, $i)
         $d = DeformConv($u, $w, C, $b)
         $q = Squeeze($d, $i)
         Y = Transpose($q) perm=[0,2,1]",
    ),
    (
        "biases of an LSTM",
        "1 32",
        "weight $w 1 16 4
         weight $r 1 16 4
         ints $i 1 = 1
         $b = LSTM(X, $w, $r, C) hidden_size=4
         Y = Squeeze($b, $i)",
    ),
    (
        "state that an LSTM begins with",
        "1 3 4",
        "weight $w 1 16 4
         weight $r 1 16 4
         shift $b 1 32
         ints $i 1 = 1
         $y = LSTM(X, $w, $r, $b, , C, C) hidden_size=4
         Y = Squeeze($y, $i)",
    ),
    (
        "biases of a GRU",
        "1 24",
        "weight $w 1 12 4
         weight $r 1 12 4
         ints $i 1 = 1
         $b = GRU(X, $w, $r, C) hidden_size=4 linear_before_reset=1
         Y = Squeeze($b, $i)",
    ),
    (
        "state that a GRU begins with",
        "1 3 4",
        "weight $w 1 12 4
         weight $r 1 12 4
         shift $b 1 24
         ints $i 1 = 1
         $y = GRU(X, $w, $r, $b, , C) hidden_size=4 linear_before_reset=1
         Y = Squeeze($y, $i)",
    ),
    (
        "bias of an Attention",
        "12",
        "weight $w 4 12
         Y = com.microsoft.Attention(X, $w, C) num_heads=2",
    ),
    (
        "past of an Attention",
        "2 2 2 5 2",
        "weight $w 4 12
         shift $b 12
         Y = com.microsoft.Attention(X, $w, $b, , C) num_heads=2",
    ),
    (
        "FusedMatMul",
        "4",
        "weight $w 4 4
         $b = com.microsoft.FusedMatMul(X, $w) alpha=0.5
         Y = Add($b, C)",
    ),
    (
        "bias of a FusedConv",
        "4",
        "weight $w 4 4 1
         $a = Transpose(X) perm=[0,2,1]
         $b = com.microsoft.FusedConv($a, $w, C) activation=Relu
         Y = Transpose($b) perm=[0,2,1]",
    ),
    (
        "sum of a FusedConv",
        "2 4 3",
        "weight $w 4 4 1
         shift $c 4
         $a = Transpose(X) perm=[0,2,1]
         $b = com.microsoft.FusedConv($a, $w, $c, C) activation=Relu
         Y = Transpose($b) perm=[0,2,1]",
    ),
    (
        "FusedGemm",
        "4",
        "ints $m 2 = 6 4
         ints $s 3 = 2 3 4
         weight $w 4 4
         $a = Reshape(X, $m)
         $b = com.microsoft.FusedGemm($a, $w, C) activation=Relu
         Y = Reshape($b, $s)",
    ),
    (
        "skip of a SkipLayerNormalization",
        SHAPE,
        "scale $g 4
         shift $t 4
         Y = com.microsoft.SkipLayerNormalization(X, C, $g, $t) epsilon=0.001",
    ),
    (
        "bias of a SkipLayerNormalization",
        "4",
        "scale $g 4
         shift $t 4
         shift $k 2 3 4
         Y = com.microsoft.SkipLayerNormalization(X, $k, $g, $t, C) epsilon=0.001",
    ),
    (
        "bias of a SkipSimplifiedLayerNormalization",
        "4",
        "scale $g 4
         shift $k 2 3 4
         Y = com.microsoft.SkipSimplifiedLayerNormalization(X, $k, $g, C) epsilon=0.001",
    ),
    ("BiasGelu", "4", "Y = com.microsoft.BiasGelu(X, C)"),
    (
        "QLinearMatMul",
        "4",
        "const $s = 0.25
         bytes $z = 0
         bytes $w 4 4 = 1 -2 3 1 2 0 1 1 -3 1 2 1 0 1 -1 2
         $q = QuantizeLinear(X, $s, $z)
         $p = QLinearMatMul($q, $s, $z, $w, $s, $z, $s, $z)
         $d = DequantizeLinear($p, $s, $z)
         Y = Add($d, C)",
    ),
    (
        "Einsum",
        "4",
        "weight $w 4 4
         $b = Einsum(X, $w) equation=btc,co->bto
         Y = Add($b, C)",
    ),
    (
        "Sum",
        "3 1",
        "weight $w 4 4
         $b = MatMul(X, $w)
         Y = Sum($b, C, X)",
    ),
];

/// The kinds of operands that are not constants, and a constant for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operand {
    Constant,
    Input,
    /// An initializer that is also an input, so that the caller may replace it.
    Overridable,
    Computed,
    OfBranches,
}

const VARYING: [Operand; 4] = [
    Operand::Input,
    Operand::Overridable,
    Operand::Computed,
    Operand::OfBranches,
];

impl Operand {
    /// The lines that define an operand with this name.
    fn lines(self, name: &str, extents: &str) -> String {
        match self {
            Operand::Constant => format!("shift {name} {extents}"),
            Operand::Input => format!("input {name} {extents}"),
            Operand::Overridable => format!("shift {name} {extents}\n input {name} {extents}"),
            Operand::Computed => format!("input {name}_in {extents}\n {name} = Tanh({name}_in)"),
            Operand::OfBranches => {
                format!(
                    "condition {name}_if\n shift {name}_then {extents}\n shift {name}_else {extents}"
                )
            }
        }
    }
}

/// The lines of an operator from one value to another. `place` makes its names unique.
fn operator_lines(
    &(_, extents, lines): &Operator,
    place: &str,
    [from, to]: [&str; 2],
    operand: Operand,
) -> String {
    let name = format!("{place}_added");
    let words = |line: &str| {
        let line = line.replace('$', &format!("{place}_"));
        let line = line
            .replace("(X", &format!("({from}"))
            .replace(" X)", &format!(" {from})"));
        let line = line.replace("Y =", &format!("{to} ="));
        line.replace(", C", &format!(", {name}"))
            .replace("(C", &format!("({name}"))
    };
    let lines: Vec<String> = lines.lines().map(words).collect();
    format!("{}\n{}", operand.lines(&name, extents), lines.join("\n"))
}

/// A model of these lines, in which an If computes each `Operand::OfBranches`.
fn model_of_lines(lines: &str) -> Model {
    let mut model = model(lines);
    let names: Vec<String> = model
        .graph()
        .input
        .iter()
        .map(|input| input.name().to_owned())
        .collect();
    for name in names.iter().filter_map(|name| name.strip_suffix("_if")) {
        let branch = |side: &str| {
            let made = format!("{name}_{side}_made");
            GraphProto {
                name: Some(side.to_owned()),
                node: vec![node(
                    "Identity",
                    &[format!("{name}_{side}")],
                    std::slice::from_ref(&made),
                    vec![],
                )],
                output: vec![undeclared(&made)],
                ..GraphProto::default()
            }
        };
        let sides = vec![
            ("then_branch", branch("then").into()),
            ("else_branch", branch("else").into()),
        ];
        model
            .graph_mut()
            .node
            .insert(0, node("If", &[format!("{name}_if")], &[name], sides));
    }
    model
}

/// Asserts that two models compute the same results, with the defaults of their inputs and with
/// other values.
fn same(before: &Model, after: &Model, what: &str) {
    for (open, truth) in [(1, true), (2, false)] {
        let mut inputs = judge::inputs(before, open, truth, Kind::Exact);
        for replaced in [false, true] {
            if replaced {
                let defaults = before.graph().initializer.iter().filter(|tensor| {
                    before
                        .graph()
                        .input
                        .iter()
                        .any(|input| input.name() == tensor.name())
                });
                inputs.extend(defaults.map(|tensor| {
                    let extents: Vec<usize> =
                        tensor.dims.iter().map(|&extent| extent as usize).collect();
                    let numbers: ArrayD<f64> =
                        Numbers::from_recipe("other").array(&extents, Role::Shift, Kind::Exact);
                    (tensor.name().to_owned(), Value::Floats(numbers))
                }));
            }
            let outcome = judge::agree(before, after, &inputs, 1e-5);
            let was_run =
                outcome.unwrap_or_else(|why| panic!("{what}: {why}\n{}", text::print(after)));
            assert!(was_run, "{what}: it cannot be run\n{}", text::print(before));
        }
    }
}

/// Folds a model with these options, and asserts that the result computes the same. Returns the
/// plan.
fn fuse_and_compare(lines: &str, options: &FuseOptions, what: &str) -> Plan {
    let before = model_of_lines(lines);
    let fused = unfold::fuse(&before, options).unwrap();
    same(&before, &fused.model, what);
    fused.plan
}

/// The name of a place of an operator, and the lines of a model with the operator in this place.
type Place = (&'static str, fn(&Operator, Operand) -> String);

/// Puts the operator after a normalizer of a stream, to which it writes.
fn beside_a_stream(operator: &Operator, operand: Operand) -> String {
    let block = operator_lines(operator, "p", ["n0", "f"], operand);
    stream("n0 = LayerNormalization(x0, ones)", &block)
}

/// Puts the operator on a stream that it reads and writes.
fn on_a_stream(operator: &Operator, operand: Operand) -> String {
    stream("", &operator_lines(operator, "p", ["x0", "f"], operand))
}

/// A stream with a block that computes `f`, and a head.
fn stream(normalizer: &str, block: &str) -> String {
    format!(
        "opset 19
         input i 2 3 4
         weight stem 4 4
         const ones 4 = 1 1 1 1
         weight w 4 4
         weight head 4 4
         x0 = MatMul(i, stem)
         {normalizer}
         {block}
         x1 = Add(x0, f)
         n1 = LayerNormalization(x1, ones)
         h = MatMul(n1, w)
         x2 = Add(x1, h)
         n2 = LayerNormalization(x2, ones)
         o = MatMul(n2, head)
         output o"
    )
}

/// Puts the operator before a stream.
fn before_a_stream(operator: &Operator, operand: Operand) -> String {
    let block = operator_lines(operator, "p", ["i", "x"], operand);
    format!(
        "opset 19
         input i 2 3 4
         const ones 4 = 1 1 1 1
         weight w 4 4
         weight head 4 4
         {block}
         n1 = LayerNormalization(x, ones)
         h = MatMul(n1, w)
         x2 = Add(x, h)
         n2 = LayerNormalization(x2, ones)
         o = MatMul(n2, head)
         output o"
    )
}

const STREAMS: &[Place] = &[
    ("beside", beside_a_stream),
    ("on", on_a_stream),
    ("before", before_a_stream),
];

/// Puts lines around those of an operator: `before` computes `a` from `x`, and `behind` computes
/// `o` from `b`.
fn between(operator: &Operator, operand: Operand, [before, behind]: [&str; 2]) -> String {
    let block = operator_lines(operator, "p", ["a", "b"], operand);
    format!(
        "opset 19
         input i 2 3 4
         scale g 4
         shift t 4
         const ones 4 = 1 1 1 1
         x = Tanh(i)
         {before}
         {block}
         {behind}
         output o"
    )
}

const AFFINE: [&str; 2] = [
    "m = Mul(x, g)\n a = Add(m, t)",
    "m = Mul(b, g)\n n = Add(m, t)\n o = Tanh(n)",
];

fn behind_an_affine(operator: &Operator, operand: Operand) -> String {
    between(operator, operand, [AFFINE[0], "o = Tanh(b)"])
}

fn behind_a_normalizer(operator: &Operator, operand: Operand) -> String {
    between(
        operator,
        operand,
        ["a = LayerNormalization(x, g, t)", "o = Tanh(b)"],
    )
}

fn before_an_affine(operator: &Operator, operand: Operand) -> String {
    between(operator, operand, ["a = Identity(x)", AFFINE[1]])
}

/// Adds the results of two operators that read the same input.
fn in_a_sum(operator: &Operator, operand: Operand) -> String {
    let other = operator_lines(operator, "q", ["a", "c"], operand);
    let behind = format!("{other}\n s = Add(b, c)\n o = Tanh(s)");
    between(operator, operand, ["a = Identity(x)", &behind])
}

/// Puts the operator between two normalizers. The second one removes a factor of each token.
fn between_normalizers(operator: &Operator, operand: Operand) -> String {
    let normal = |from: &str, to: &str| {
        format!(
            "{to}0 = Mul({from}, {from})
             {to}1 = ReduceMean({to}0, last)
             {to}2 = Add({to}1, eps)
             {to}3 = Sqrt({to}2)
             {to} = Div({from}, {to}3)"
        )
    };
    let before = format!("ints last 1 = -1\n const eps = 1e-9\n {}", normal("x", "a"));
    between(operator, operand, [&before, &normal("b", "o")])
}

/// Folds each operator with each operand in each of these places.
fn for_each_operand(
    places: &[Place],
    options: &FuseOptions,
    mut seen: impl FnMut(&str, Operand, &Plan),
) {
    for operator in OPERATORS {
        for (place, lines) in places {
            for operand in VARYING.into_iter().chain([Operand::Constant]) {
                let what = format!("{} {place}, {operand:?}", operator.0);
                let plan = fuse_and_compare(&lines(operator, operand), options, &what);
                seen(operator.0, operand, &plan);
            }
        }
    }
}

#[test]
fn scaling_a_stream_scales_every_added_operand() {
    let mut scaled = 0;
    for_each_operand(
        STREAMS,
        &FuseOptions {
            scale_stream: Some(4),
            ..options()
        },
        |name, operand, plan| {
            let is_scaled = plan.streams.iter().all(|stream| stream.is_scaled());
            assert!(
                is_scaled || name != "Gemm",
                "{name}, {operand:?}: {:#?}",
                plan.streams
            );
            scaled += usize::from(is_scaled);
        },
    );
    assert!(scaled > OPERATORS.len());
}

#[test]
fn centring_a_stream_centres_every_added_operand() {
    for_each_operand(
        STREAMS,
        &FuseOptions {
            centre: true,
            ..options()
        },
        |_, _, _| {},
    );
}

#[test]
fn forward_fold_keeps_added_operands_unscaled() {
    let places: &[Place] = &[
        ("affine", behind_an_affine),
        ("normalizer", behind_a_normalizer),
    ];
    for_each_operand(places, &options(), |_, _, _| {});
}

#[test]
fn backward_fold_needs_a_constant_added_operand() {
    for_each_operand(
        &[("affine", before_an_affine)],
        &options(),
        |name, operand, plan| {
            let stays = name == "Gemm" && operand != Operand::Constant;
            assert!(
                !stays
                    || plan
                        .sites
                        .iter()
                        .flat_map(SitePlan::outcomes)
                        .all(|outcome| !outcome.goes()),
                "{operand:?}: {:#?}",
                plan.sites
            );
        },
    );
}

#[test]
fn merging_branches_or_norms_keeps_added_operands() {
    for_each_operand(&[("sum", in_a_sum)], &options(), |_, _, _| {});
    for_each_operand(
        &[("norms", between_normalizers)],
        &FuseOptions {
            merge_norms: true,
            ..options()
        },
        |_, _, _| {},
    );
}

/// Tests a Gemm with the bias `c` that writes a stream of RMS normalizations.
fn scaled_gemm(bias: &str, gemm: &str) {
    let lines = format!(
        "opset 13
         input x 4 8
         {bias}
         weight W0 8 8
         weight W1 8 8
         weight V 8 8
         const eps = 0.00001
         r = MatMul(x, W0)
         as = Mul(r, r)
         am = ReduceMean(as) axes=[-1]
         ae = Add(am, eps)
         aq = Sqrt(ae)
         an = Div(r, aq)
         d = {gemm}
         t = Add(r, d)
         bs = Mul(t, t)
         bm = ReduceMean(bs) axes=[-1]
         be = Add(bm, eps)
         bq = Sqrt(be)
         bn = Div(t, bq)
         y = MatMul(bn, V)
         output y"
    );
    let options = FuseOptions {
        scale_stream: Some(4),
        ..options()
    };
    let plan = fuse_and_compare(&lines, &options, bias);
    assert!(
        plan.streams.iter().all(|stream| stream.is_scaled()),
        "{:#?}",
        plan.streams
    );
}

/// `scale-gemm-input`.
#[test]
fn scaling_a_stream_passes_a_gemm_with_an_input_as_bias() {
    scaled_gemm("input c 8", "Gemm(an, W1, c) transB=1");
}

/// `scale-gemm-init`.
#[test]
fn scaling_a_stream_passes_a_gemm_with_an_overridable_bias() {
    scaled_gemm("shift c 8\n input c 8", "Gemm(an, W1, c)");
}

/// `scale-gemm-computed`.
#[test]
fn scaling_a_stream_passes_a_gemm_with_a_computed_bias() {
    scaled_gemm("input c0 8\n c = Tanh(c0)", "Gemm(an, W1, c) transB=1");
}
