//! Tests that the proof of each pass detects a faulty pass between sound passes.

use std::cell::OnceCell;

use crate::error::Result;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::passes::simplify::{CSE_AGAIN, IDENTITY_ELIMINATION_AGAIN};
use crate::fuse::plan_log::PlanLog;
use crate::fuse::stage::PipelineStage;
use crate::fuse::{FuseOptions, PassResult};
use crate::onnx::Model;
use crate::onnx::proto::NodeProto;
use crate::prove_passes::{PassProof, PassProver};

/// A network that both sound passes change: it has an Identity, and it computes a value twice.
const NETWORK: &str = r#"<ir_version: 8, opset_import: ["" : 17]>
network (float[2,3,4] x, float[2,3,4] y) => (float[2,4,8] out, float[2,3,4] other, float[4,3,4] pair)
<float[4,8] w = {
    1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1,
    1, 3, 5, 7, 2, 4, 6, 8, 2, 7, 1, 8, 2, 8, 1, 8},
 float[4,8] w2 = {
    1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1,
    1, 3, 5, 7, 2, 4, 6, 8, 2, 7, 1, 8, 2, 8, 1, 9},
 float[8] b = {1, -1, 2, -2, 3, -3, 4, -4},
 float[4] g = {2, 3, 5, 7},
 float[4] h = {1, 4, -1, 2},
 int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3},
 int64[2] order = {2, 0}, int64[2] order2 = {0, 2}>
{
    i = Identity(x)
    a = Sub(i, y)
    m = Mul(x, y)
    n = LayerNormalization <axis = -1, epsilon = 0.01> (a, g, h)
    p = MatMul(n, w)
    q = Add(p, b)
    t = Transpose <perm = [0, 2, 1]> (m)
    s = Softmax <axis = -1> (t)
    u = MatMul(s, q)
    r = ReduceMean <axes = [1], keepdims = 1> (p)
    v = Min(u, r)
    e = Slice(v, one, three, one)
    k = Gather <axis = 1> (v, order)
    c = Concat <axis = 1> (e, k)
    out = Tanh(c)
    d = Div(m, y)
    other = LeakyRelu <alpha = 0.5> (d)
    f = Neg(y)
    f2 = Neg(y)
    pair = Concat <axis = 0> (f, f2)
}"#;

/// A pass that plants a fault in the first node of the type `operator`.
struct Fault {
    operator: &'static str,
    plant: fn(&mut NodeProto),
}

/// The faults. Each fault keeps all shapes and types, and changes only values.
static FAULTS: [Fault; 20] = [
    fault("Sub", |node| node.input.reverse()),
    fault("Sub", |node| node.op_type = Some("Add".into())),
    fault("Mul", |node| node.op_type = Some("Add".into())),
    fault("Mul", |node| node.input[1] = "x".into()),
    fault("LayerNormalization", |node| {
        set_float(node, "epsilon", 0.02)
    }),
    fault("LayerNormalization", |node| node.input.swap(1, 2)),
    fault("LayerNormalization", |node| node.input[0] = "y".into()),
    fault("MatMul", |node| node.input[1] = "w2".into()),
    fault("MatMul", |node| node.input[0] = "a".into()),
    fault("Add", |node| node.op_type = Some("Sub".into())),
    fault("Softmax", |node| set_int(node, "axis", 1)),
    fault("Softmax", |node| node.op_type = Some("LogSoftmax".into())),
    fault("ReduceMean", |node| node.op_type = Some("ReduceMax".into())),
    fault("Min", |node| node.input[1] = "u".into()),
    fault("Slice", |node| {
        node.input[1..3].clone_from_slice(&["zero".into(), "two".into()])
    }),
    fault("Gather", |node| node.input[1] = "order2".into()),
    fault("Concat", |node| node.input.reverse()),
    fault("Tanh", |node| node.op_type = Some("Sigmoid".into())),
    fault("Div", |node| node.input.reverse()),
    fault("LeakyRelu", |node| set_float(node, "alpha", 0.25)),
];

const fn fault(operator: &'static str, plant: fn(&mut NodeProto)) -> Fault {
    Fault { operator, plant }
}

fn set_float(node: &mut NodeProto, name: &str, number: f32) {
    let mut attributes = node.attribute.iter_mut();
    attributes.find(|it| it.name() == name).unwrap().f = Some(number);
}

fn set_int(node: &mut NodeProto, name: &str, number: i64) {
    let mut attributes = node.attribute.iter_mut();
    attributes.find(|it| it.name() == name).unwrap().i = Some(number);
}

impl Pass for Fault {
    fn name(&self) -> &'static str {
        "fault"
    }

    fn description(&self) -> &'static str {
        "changes the function of the model"
    }

    fn run(&self, context: &Context, _: &mut PlanLog) -> Result<Effect> {
        let mut graph = context.model().graph().clone();
        let mut nodes = graph.node.iter_mut();
        let node = nodes.find(|node| node.op_type() == self.operator).unwrap();
        (self.plant)(node);
        Ok(Effect::made(context.model().with_graph(graph)))
    }
}

/// Proves each pass of a pipeline that runs the faulty pass between two sound passes.
fn proofs(fault: &'static Fault) -> Vec<PassProof> {
    let passes: [&'static dyn Pass; 3] = [&IDENTITY_ELIMINATION_AGAIN, fault, &CSE_AGAIN];
    let groups: &'static [&'static [&'static dyn Pass]] =
        Box::leak(Box::new([&*Box::leak(Box::new(passes)) as &[_]]));
    let model = Model::from_text(NETWORK).unwrap();
    let prover = PassProver::default();
    let observer = |result: &PassResult| prover.observe(result);
    let options = FuseOptions::default();
    let mut pipeline = options.pipeline(&model, &|_, _, _| {}).unwrap();
    let stages = [PipelineStage::once("faulty", groups)];
    pipeline.stages = &stages;
    pipeline.observer = Some(&observer);
    pipeline.run(&model, &OnceCell::new()).unwrap();
    prover.proofs()
}

#[test]
fn proof_of_each_pass_blames_only_the_planted_fault() {
    for (index, fault) in FAULTS.iter().enumerate() {
        let proofs = proofs(fault);
        let verdicts: Vec<_> = proofs
            .iter()
            .map(|proof| (proof.pass, proof.is_proved(), proof.is_wrong()))
            .collect();
        let expected = [
            ("identity-elimination", true, false),
            ("fault", false, true),
            ("cse", true, false),
        ];
        assert_eq!(verdicts, expected, "fault {index}: {}", fault.operator);
    }
}
