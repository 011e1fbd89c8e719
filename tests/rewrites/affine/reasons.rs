//! An example for each refusal reason.

use crate::common::portable;

use unfold::Target;
use unfold::onnx::Model;
use unfold::onnx::proto::FunctionProto;
use unfold::onnx::{DataType, tensor};
use unfold::plan::{Centring, Constancy, Outcome};
use unfold::refusal::Reason;
use unfold::{FuseOptions, fuse};

use crate::common::text::model;
use crate::common::{node, undeclared};
use crate::retype;

/// A normalizer of four channels on the last axis, with these readers.
fn behind(readers: &str) -> Model {
    model(&format!(
        "input x batch 3 4
         scale g 4
         shift t 4
         n = Mul(x, g)
         m = Add(n, t)
         {readers}"
    ))
}

/// A normalizer read by a MatMul.
fn matmul() -> Model {
    behind(
        "weight w 4 4
         y = MatMul(m, w)
         output y",
    )
}

/// A BatchNormalization with these parameters.
fn batch_norm(gamma: &str, variance: &str, attributes: &str) -> Model {
    model(&format!(
        "input x batch 2 3
         const g 2 = {gamma}
         shift t 2
         const v 2 = {variance}
         n = BatchNormalization(x, g, t, t, v) {attributes}
         weight w 2 2 1
         y = Conv(n, w)
         output y"
    ))
}

/// A model that is refused for this reason. Each reason must have one.
fn example(reason: &Reason) -> Model {
    match reason {
        Reason::Skipped => matmul(),
        Reason::FutureOpset(version) | Reason::PastOpset(version) => {
            let mut model = matmul();
            model.proto.opset_import[0].version = Some(*version);
            model
        }
        Reason::Redefined(_) => {
            let mut model = matmul();
            model.proto.functions.push(FunctionProto {
                name: Some("Relu".into()),
                domain: Some("ai.onnx".into()),
                ..FunctionProto::default()
            });
            model
        }
        Reason::Hidden(_) => {
            let mut model = behind("condition c\n weight w 4 4\n y = MatMul(m, w)\n output y");
            let part = |lines: &str| crate::common::text::model(lines).proto.graph.unwrap();
            let then = part("weight w 4 4\n p = Identity(w)\n output p");
            let mut other = part("q = Identity(w)\n output q");
            other.initializer.clear();
            let branches = vec![("then_branch", then.into()), ("else_branch", other.into())];
            model
                .graph_mut()
                .node
                .push(node("If", &["c"], &["z"], branches));
            model.graph_mut().output.push(undeclared("z"));
            model
        }
        Reason::GraphOutput | Reason::GraphInput => behind("output m"),
        Reason::CapturedBySubgraph => {
            // The operator has a body, but is not an If, Loop or Scan.
            let mut body = unfold::onnx::proto::GraphProto::default();
            body.node.push(node("Add", &["e", "m"], &["inner"], vec![]));
            body.input.push(undeclared("e"));
            body.output.push(undeclared("inner"));
            let mut model = behind("output y");
            model.graph_mut().input.push(undeclared("list"));
            model.graph_mut().node.push(node(
                "SequenceMap",
                &["list"],
                &["y"],
                vec![("body", body.into())],
            ));
            model
        }
        Reason::OtherReader => model(
            "input x batch 4
             weight w 4 4
             scale g 4
             y = MatMul(x, w)
             n = Mul(y, g)
             r = Relu(n)
             s = Tanh(y)
             output r s",
        ),
        // The new bias of the product differs from row to row.
        Reason::Changed => model(
            "input x 3 4
             scale g 4
             shift t 4
             n = Mul(x, g)
             m = Add(n, t)
             weight w 4 4
             y = MatMul(m, w)
             scale h 3 1
             z = Mul(y, h)
             r = Floor(z)
             output r",
        ),
        Reason::NotLinear(op) => behind(&format!("y = {op}(m)\n output y")),
        Reason::Activation => model(
            "input x batch 4
             const half = 0.5
             const root = 1.4142135
             const one = 1
             scale g 4
             d = Div(x, root)
             e = Erf(d)
             f = Add(e, one)
             u = Mul(x, f)
             h = Mul(u, half)
             n = Mul(h, g)
             y = Tanh(n)
             output y",
        ),
        Reason::UnknownOperator(_) => {
            let mut model = behind("y = Relu(m)\n output y");
            let node = model.graph_mut().node.last_mut().unwrap();
            node.domain = Some("com.example".into());
            model
        }
        Reason::Attribute(name) => {
            let text = "ints s 2 = -1 4
                 f = Reshape(m, s)
                 weight w 4 4
                 y = Gemm(f, w) NAME=1
                 output y";
            behind(&text.replace("NAME", name))
        }
        Reason::ResidualStream => behind("o = Relu(x)\n y = Add(m, o)\n output y"),
        Reason::DifferentScales => behind(
            "ints first 1 = 0
             ints middle 1 = 2
             ints end 1 = 4
             ints last 1 = -1
             one = Slice(m, first, middle, last)
             other = Slice(m, middle, end, last)
             turned = Neg(other)
             halves = Concat(turned, one) axis=-1
             y = Add(m, halves)
             output y",
        ),
        Reason::NotConstant => {
            behind("turned = Transpose(x) perm=[0,2,1]\n y = MatMul(m, turned)\n output y")
        }
        Reason::UnknownShape => behind("indices s n\n y = Reshape(m, s)\n output y"),
        Reason::MixedAxes => behind("ints s 1 = -1\n y = Reshape(m, s)\n output y"),
        Reason::WrongAxis => behind("weight w 4 3\n y = MatMul(w, m)\n output y"),
        Reason::ReducedAxis => behind("y = ReduceMean(m) axes=[-1]\n output y"),
        Reason::Padding => behind("ints p 6 = 0 0 1 0 0 1\n y = Pad(m, p)\n output y"),
        // The shape of the factor is known, but not its elements.
        Reason::Constant(_) => {
            let mut model =
                behind("weight w 4 4\n f = BiasSoftmax(w, w)\n y = MatMul(m, f)\n output y");
            let nodes = &mut model.graph_mut().node;
            let foreign = nodes
                .iter_mut()
                .find(|node| node.op_type() == "BiasSoftmax")
                .unwrap();
            foreign.domain = Some("com.microsoft".into());
            model
        }
        Reason::Quantized => behind("const s = 0.5\n y = QuantizeLinear(m, s)\n output y"),
        Reason::Granularity => {
            let mut model = behind(
                "const step = 0.5
                 w = DequantizeLinear(q, step)
                 y = MatMul(m, w)
                 output y",
            );
            let quantized = unfold::onnx::proto::TensorProto {
                name: Some("q".into()),
                dims: vec![4, 4],
                data_type: Some(DataType::Int8.code()),
                raw_data: Some((0..16).collect()),
                ..Default::default()
            };
            model.graph_mut().initializer.push(quantized);
            model
        }
        Reason::TrainingMode => batch_norm("1 2", "1 4", "training_mode=1"),
        Reason::BadStatistics => batch_norm("1 2", "1 -1", "epsilon=0.5"),
        Reason::NotFinite => batch_norm("1 inf", "1 4", ""),
        Reason::Overflow(_) => {
            let mut model = model(
                "half x batch 2
                 const g 2 = 1024 1
                 n = Mul(x, g)
                 const w 2 1 = 1024 1
                 y = MatMul(n, w)
                 output y",
            );
            retype(&mut model, &["g", "w"], DataType::Float16);
            model
        }
        Reason::Underflow(_) => {
            let mut model = model(
                "half x batch 2
                 const g 2 = 0.001 0.001
                 n = Mul(x, g)
                 const w 2 1 = 0.01 0.03
                 y = MatMul(n, w)
                 output y",
            );
            retype(&mut model, &["g", "w"], DataType::Float16);
            model
        }
        Reason::ZeroSign => model(
            "input x batch 4
             const zeros 4 = 0 0 0 0
             y = Add(x, zeros)
             weight w 4 4
             m = MatMul(y, w)
             z = Reciprocal(m)
             output z",
        ),
        Reason::Narrow(_) => {
            let mut model =
                behind("h = Cast(m) to=10\n weight w 4 4\n y = MatMul(h, w)\n output y");
            retype(&mut model, &["w"], DataType::Float16);
            model
        }
        Reason::SmallEpsilon(_) => model(
            "input x batch 3 4
             const g 4 = 30 31 32 33
             shift t 4
             n = LayerNormalization(x, g, t) epsilon=1000.0
             weight w 4 4
             y = MatMul(n, w)
             output y",
        ),
        // Dynamic Token Normalization of one head, which weights both statistics with ½.
        Reason::ElementType(_) => {
            let mut model = model(
                "half x batch 3 2
                 const P 3 3 = 0.5 0.25 0.25 0.25 0.5 0.25 0.25 0.25 0.5
                 const half = 0.5
                 const epsilon = 0.001
                 m = ReduceMean(x) axes=[-1]
                 c = Sub(x, m)
                 s = Mul(c, c)
                 v = ReduceMean(s) axes=[-1]
                 xx = Mul(x, x)
                 q = MatMul(P, x)
                 r = MatMul(P, xx)
                 qq = Mul(q, q)
                 d = Sub(r, qq)
                 ma = Mul(m, half)
                 mb = Mul(q, half)
                 mu = Add(ma, mb)
                 va = Mul(v, half)
                 vb = Mul(d, half)
                 var = Add(va, vb)
                 e = Add(var, epsilon)
                 root = Sqrt(e)
                 less = Sub(x, mu)
                 y = Div(less, root)
                 output y",
            );
            retype(&mut model, &["P", "half", "epsilon"], DataType::Float16);
            model
        }
        Reason::TooLarge(_) => model(
            "input x 4100 4100
             scale g 4100 1
             n = Mul(x, g)
             ints s 1 = -1
             y = Reshape(n, s)
             output y",
        ),
        Reason::TooFar => model(&format!(
            "input x batch 3 4
             weight w 4 4
             ints along = 1
             v0 = MatMul(x, w)
             {}
             scale g 4
             n = Mul(v600, g)
             output n",
            (0..600)
                .map(|i| format!("v{} = CumSum(v{i}, along)\n", i + 1))
                .collect::<String>(),
        )),
        // Two products with one weight after different normalizers.
        Reason::Growth(_) => model(
            "input x batch 4
             scale g 4
             scale h 4
             weight w 4 4
             n = Mul(x, g)
             m = Mul(x, h)
             y = MatMul(n, w)
             z = MatMul(m, w)
             output y z",
        ),
        Reason::Unaligned => model(
            "input x batch 2 1
             weight v 2 2 1
             weight w 2 2 1
             a = Conv(x, v)
             b = Conv(x, w) strides=[2]
             y = Add(a, b)
             output y",
        ),
        // The first kernel has one number for each channel and each of three places, and the second
        // one has one for each pair of channels.
        Reason::MoreWork(_) => model(
            "input x batch 4 5
             weight v 4 1 3
             weight w 4 4 1
             a = Conv(x, v) group=4 pads=[1,1]
             b = Conv(x, w)
             y = Add(a, b)
             output y",
        ),
        Reason::RepeatedAxis => model(
            "input x batch 2 4
             input k batch 2 2
             ints g 4 = 0 0 1 1
             r = Gather(k, g) axis=1
             y = MatMul(x, r)
             output y",
        ),
        Reason::SeesMean(_) => model(
            "input x batch 4
             weight w 4 4
             const one 4 = 1 1 1 1
             y = MatMul(x, w)
             n = LayerNormalization(y, one)
             o = Softmax(y)
             output n o",
        ),
        Reason::NoGain(_) => model(
            "input x batch 4
             const one 4 = 1 1 1 1
             y = Tanh(x)
             n = LayerNormalization(y, one)
             output n",
        ),
        // 3 times the float32 nearest to 1/3 is rounded to 1.
        Reason::Rounded => model(
            "input x batch 2 5
             weight v 2 2 1
             weight w 2 2 1
             const a 2 1 = 3 3
             const r 2 1 = 0.33333334 0.33333334
             c = Conv(x, v)
             m = Mul(c, a)
             s = Sin(m)
             n = Mul(s, r)
             d = Add(c, n)
             y = Conv(d, w)
             output y",
        ),
        Reason::Identity => model(
            "const one 4 = 1 1 1 1
             input x batch 4
             y = LayerNormalization(x, one)
             output y",
        ),
    }
}

/// The reason with the detail of the example.
fn with_detail(reason: Reason) -> Reason {
    match reason {
        Reason::FutureOpset(_) => Reason::FutureOpset(99),
        Reason::PastOpset(_) => Reason::PastOpset(6),
        Reason::Redefined(_) => Reason::Redefined("Relu".into()),
        Reason::Hidden(_) => Reason::Hidden("w".into()),
        Reason::NotLinear(_) => Reason::NotLinear("Relu".into()),
        Reason::UnknownOperator(_) => Reason::UnknownOperator("com.example.Relu".into()),
        Reason::Attribute(_) => Reason::Attribute("fancy".into()),
        Reason::Constant(_) => {
            Reason::Constant("BiasSoftmax is not known to be computed as it is meant".into())
        }
        Reason::Overflow(_) => Reason::Overflow("1.0e6 in float16".into()),
        Reason::Underflow(_) => {
            Reason::Underflow("3.0e-5 in float16, which is off by 0.10 %".into())
        }
        Reason::Narrow(_) => Reason::Narrow("float16".into()),
        Reason::ElementType(_) => Reason::ElementType("float16".into()),
        // 1,000 is between the powers of two 512 and 1,024, so the unit is 512 · 2^-24.
        Reason::SmallEpsilon(_) => Reason::SmallEpsilon("3.1e-5".into()),
        Reason::TooLarge(_) => Reason::TooLarge(4100 * 4100),
        // The model has a weight of 16 numbers, and two vectors of 4.
        Reason::Growth(_) => Reason::Growth("64 bytes, 66.7 % of the weights".into()),
        Reason::MoreWork(_) => Reason::MoreWork("48 products at each place, not 32".into()),
        Reason::SeesMean(_) => Reason::SeesMean("Softmax".into()),
        Reason::NoGain(_) => {
            Reason::NoGain("the mean would be taken off at 1 places, for 1 normalizers".into())
        }
        plain => plain,
    }
}

#[test]
fn every_refusal_reason_is_given_for_its_example() {
    for expected in Reason::all().map(with_detail) {
        let model = example(&expected);
        let skip = if expected == Reason::Skipped {
            vec!["*".into()]
        } else {
            vec![]
        };
        // After the other fold, the reason would be another one, or none.
        let stop_after = (expected == Reason::Changed).then(|| "fold-affines".to_owned());
        // The portable target does not replace one operator by several.
        let target = match expected {
            Reason::RepeatedAxis => Target::Cpu,
            _ => Target::Portable,
        };
        let options = FuseOptions {
            skip,
            centre: true,
            constant_norms: true,
            target,
            stop_after,
            ..portable()
        };
        let plan = fuse(&model, &options).unwrap().plan;
        let outcomes = plan.sites.iter().flat_map(|site| site.outcomes());
        let given: Vec<Reason> = outcomes
            .flat_map(|outcome| match outcome {
                Outcome::Kept { forward, backward } => [Some(forward), backward.as_ref()],
                Outcome::Partly { scale, .. } => [Some(scale), None],
                Outcome::Scaled { shift, .. } => [Some(shift), None],
                // The affine that caused the change has folded.
                Outcome::Folded { .. } if matches!(expected, Reason::Changed | Reason::Rounded) => {
                    [None, None]
                }
                outcome => panic!("{expected:?}: {outcome:?}"),
            })
            .flatten()
            .chain(
                plan.streams
                    .iter()
                    .filter_map(|stream| match &stream.centring {
                        Some(Centring::Kept { why }) => Some(why),
                        _ => None,
                    }),
            )
            .chain(plan.constant.iter().filter_map(|norm| match &norm.outcome {
                Constancy::Kept { why } => Some(why),
                Constancy::Constant => None,
            }))
            .chain(plan.placed.iter().filter_map(|placed| placed.why.as_ref()))
            .map(|refusal| refusal.reason.clone())
            .collect();
        assert!(
            given.contains(&expected),
            "{expected:?} is not among {given:?}"
        );
    }
}

#[test]
fn product_that_fits_float16_is_no_overflow() {
    // 1024 times 60 fits, and so does its half precision.
    let mut model = model(
        "half x batch 2
         const g 2 = 1024 1
         n = Mul(x, g)
         const w 2 1 = 60 1
         y = MatMul(n, w)
         output y",
    );
    retype(&mut model, &["g", "w"], DataType::Float16);
    let folded = crate::folded(&model);
    let weight = crate::initializer(&folded, "w_folded");
    assert_eq!(tensor::data_type(weight).unwrap(), DataType::Float16);
}
