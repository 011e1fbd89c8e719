//! Compares Dynamic Token Normalization with its definition in float64.

mod common;

use common::fuse;
use half::f16;
use ndarray::{Array1, Array2, Array3, Array4, ArrayD, Axis, Ix2, IxDyn, s};
use unfold::onnx::Model;
use unfold::onnx::proto::{
    AttributeProto, AttributeType, Dim, Dimension, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorType, TypeProto, ValueInfoProto,
};
use unfold::onnx::{DataType, tensor};
use unfold::plan::{Outcome, Plan};
use unfold::prove::{Proof, prove};
use unfold::refusal::Reason;
use unfold::run::{Dims, Engine, Tensor};

/// A site: tokens on a grid of `side` x `side`, averaged over blocks of `pool` x `pool` before `P`.
#[derive(Clone)]
struct Dtn {
    side: usize,
    pool: usize,
    channels: usize,
    /// ω of each head, λ = sigmoid(ω).
    omega: Vec<f64>,
    /// `a` of equation (5) for each head.
    attention: Vec<[f64; 3]>,
    gamma: Vec<f64>,
    beta: Vec<f64>,
    form: Form,
}

/// The form of the site in the graph.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// As in Algorithm 1: the statistics of the heads are concatenated, and γ is multiplied before
    /// the division.
    Algorithm,
    /// Everything is computed for each head, and `P` for each item of the batch.
    ByHeads,
    /// The products are Einsums, and the root is a reciprocal root.
    Einsum,
}

impl Dtn {
    fn new(omega: &[f64]) -> Self {
        let (heads, channels) = (omega.len(), 4 * omega.len());
        let wave = |i: usize| (1.7 * i as f64 + 0.4).sin();
        Dtn {
            side: 4,
            pool: 1,
            channels,
            omega: omega.to_vec(),
            attention: (0..heads)
                .map(|h| [-0.3, 0.5 * wave(h), 0.5 * wave(h + 9)])
                .collect(),
            gamma: (0..channels).map(|c| 1.5 * wave(c + 1)).collect(),
            beta: (0..channels).map(|c| wave(3 * c)).collect(),
            form: Form::Algorithm,
        }
    }

    fn uniform(mut self) -> Self {
        self.attention.fill([0.0; 3]);
        self
    }

    fn form(self, form: Form) -> Self {
        Dtn { form, ..self }
    }

    fn heads(&self) -> usize {
        self.omega.len()
    }

    fn tokens(&self) -> usize {
        self.side * self.side
    }

    fn opset(&self) -> i64 {
        if self.form == Form::ByHeads { 16 } else { 18 }
    }

    /// R of equation (6).
    fn positions(&self) -> Array3<f64> {
        let side = self.side / self.pool;
        Array3::from_shape_fn((side * side, side * side, 3), |(i, j, k)| {
            let shift = |f: fn(usize, usize) -> usize| f(j, side) as f64 - f(i, side) as f64;
            let (dx, dy) = (shift(|t, n| t % n), shift(|t, n| t / n));
            [dx * dx + dy * dy, dx, dy][k]
        })
    }

    /// `P` of equation (5).
    fn mixing(&self) -> Array3<f64> {
        let positions = self.positions();
        let (tokens, _, _) = positions.dim();
        let mut mixing = Array3::from_shape_fn((self.heads(), tokens, tokens), |(h, i, j)| {
            let a = self.attention[h];
            (0..3)
                .map(|k| positions[[i, j, k]] * a[k])
                .sum::<f64>()
                .exp()
        });
        for mut row in mixing.lanes_mut(Axis(2)) {
            let sum = row.sum();
            row /= sum;
        }
        mixing
    }

    /// Lines 5 to 13 of Algorithm 1, one token and channel at a time.
    fn normalize(&self, x: &Array3<f64>) -> Array3<f64> {
        let mixing = self.mixing();
        let (size, blocks) = (self.pool, self.side / self.pool);
        let block = |t: usize| (t / self.side / size) * blocks + t % self.side / size;
        let (epsilon, area) = (f64::from(1e-5_f32), (size * size) as f64);
        Array3::from_shape_fn(x.dim(), |(b, t, c)| {
            let head = c / (self.channels / self.heads());
            let lambda = 1.0 / (1.0 + (-self.omega[head]).exp());
            let token = x.slice(s![b, t, ..]);
            let mean = token.mean().unwrap();
            let variance = token.mapv(|v| (v - mean).powi(2)).mean().unwrap();
            let weighted = |f: fn(f64) -> f64| -> f64 {
                let of = |j: usize| f(x[[b, j, c]]) * mixing[[head, block(t), block(j)]] / area;
                (0..self.tokens()).map(of).sum()
            };
            let inter = weighted(|v| v);
            let spread = weighted(|v| v * v) - inter * inter;
            let mean = lambda * mean + (1.0 - lambda) * inter;
            let variance = lambda * variance + (1.0 - lambda) * spread;
            self.gamma[c] * (x[[b, t, c]] - mean) / (variance + epsilon).sqrt() + self.beta[c]
        })
    }

    /// The model of `DTN(x) W`, as an exporter would write it.
    fn model(&self) -> Model {
        let mut g = Builder {
            opset: self.opset(),
            ..Default::default()
        };
        let (heads, tokens, channels) = (self.heads(), self.tokens() as i64, self.channels as i64);
        let each = channels / heads as i64;
        g.floats("R", self.positions().into_dyn());
        let a = Array2::from_shape_fn((3, heads), |(k, h)| self.attention[h][k]);
        g.floats("a", a.into_dyn());
        g.floats(
            "omega",
            ArrayD::from_shape_vec(IxDyn(&[heads, 1, 1]), self.omega.clone()).unwrap(),
        );
        g.floats("one", ArrayD::from_elem(IxDyn(&[]), 1.0));
        g.floats("two", ArrayD::from_elem(IxDyn(&[]), 2.0));
        g.floats("epsilon", ArrayD::from_elem(IxDyn(&[]), 1e-5));
        g.floats("gamma", Array1::from(self.gamma.clone()).into_dyn());
        g.floats("beta", Array1::from(self.beta.clone()).into_dyn());
        g.floats("W", weight(self.channels).into_dyn());
        g.ints("by head", &[0, tokens, heads as i64, each]);
        g.ints("whole", &[0, tokens, channels]);
        g.ints("axis 1", &[1]);
        g.ints("axis 2", &[2]);
        g.op("Sigmoid omega -> lambda");
        g.op("Sub one, lambda -> rest");
        match self.form {
            Form::Algorithm => self.algorithm(&mut g),
            Form::ByHeads => self.by_heads(&mut g),
            Form::Einsum => self.einsum(&mut g),
        }
        g.op("MatMul y, W -> out");
        g.model(&[tokens, channels])
    }

    fn intra(&self, g: &mut Builder) {
        g.mean("x", "mean");
        g.op("Sub x, mean -> centred");
        g.op("Pow centred, two -> squares");
        g.mean("squares", "variance");
    }

    fn algorithm(&self, g: &mut Builder) {
        let channels = self.channels as i64;
        g.op("MatMul R, a -> logits");
        g.with("Softmax logits -> weights", "axis", 1);
        g.turn("weights -> P", &[2, 0, 1]);
        self.intra(g);
        g.op("Mul x, x -> square");
        for (value, result) in [("x", "q"), ("square", "r")] {
            let mut value = value.to_owned();
            let name = |what: &str| format!("{result} {what}");
            if self.pool > 1 {
                let side = self.side as i64;
                g.turn(&format!("{value} -> {}", name("turned")), &[0, 2, 1]);
                g.ints(&name("image shape"), &[0, channels, side, side]);
                g.op(&format!(
                    "Reshape {}, {} -> {}",
                    name("turned"),
                    name("image shape"),
                    name("image")
                ));
                g.pool(&name("image"), &name("means"), self.pool as i64);
                g.ints(&name("list shape"), &[0, channels, -1]);
                g.op(&format!(
                    "Reshape {}, {} -> {}",
                    name("means"),
                    name("list shape"),
                    name("list")
                ));
                g.turn(
                    &format!("{} -> {}", name("list"), name("blocks")),
                    &[0, 2, 1],
                );
                value = name("blocks");
            }
            g.ints(
                &name("head shape"),
                &[0, -1, self.heads() as i64, channels / self.heads() as i64],
            );
            g.op(&format!(
                "Reshape {value}, {} -> {}",
                name("head shape"),
                name("heads")
            ));
            g.turn(
                &format!("{} -> {}", name("heads"), name("by head")),
                &[0, 2, 1, 3],
            );
            if self.pool == 1 {
                g.op(&format!("MatMul P, {} -> {result}", name("by head")));
                continue;
            }
            let blocks = (self.side / self.pool) as i64;
            g.op(&format!(
                "MatMul P, {} -> {}",
                name("by head"),
                name("mixed")
            ));
            g.turn(
                &format!("{} -> {}", name("mixed"), name("side by side")),
                &[0, 1, 3, 2],
            );
            g.ints(&name("small shape"), &[0, channels, blocks, blocks]);
            g.op(&format!(
                "Reshape {}, {} -> {}",
                name("side by side"),
                name("small shape"),
                name("small")
            ));
            g.widen(&name("small"), &name("wide"), self.pool as f64);
            g.ints(
                &name("wide shape"),
                &[0, self.heads() as i64, -1, self.tokens() as i64],
            );
            g.op(&format!(
                "Reshape {}, {} -> {}",
                name("wide"),
                name("wide shape"),
                name("apart")
            ));
            g.turn(&format!("{} -> {result}", name("apart")), &[0, 1, 3, 2]);
        }
        g.op("Mul q, q -> q square");
        g.op("Sub r, q square -> spread");
        for (intra, inter, result) in [("mean", "q", "mu"), ("variance", "spread", "sigma")] {
            g.op(&format!("Unsqueeze {intra}, axis 1 -> {result} intra"));
            g.op(&format!(
                "Mul lambda, {result} intra -> {result} intra weighted"
            ));
            g.op(&format!("Mul rest, {inter} -> {result} inter weighted"));
            g.op(&format!(
                "Add {result} intra weighted, {result} inter weighted -> {result} heads"
            ));
            g.turn(&format!("{result} heads -> {result} turned"), &[0, 2, 1, 3]);
            g.op(&format!("Reshape {result} turned, whole -> {result}"));
        }
        g.op("Sub x, mu -> less");
        g.op("Mul gamma, less -> scaled");
        g.op("Add sigma, epsilon -> shifted");
        g.op("Sqrt shifted -> root");
        g.op("Div scaled, root -> normalized");
        g.op("Add normalized, beta -> y");
    }

    fn by_heads(&self, g: &mut Builder) {
        let tokens = self.tokens() as i64;
        g.op("Shape x -> shape");
        g.with("Gather shape, axis 0 -> batch", "axis", 0);
        g.ints("axis 0", &[0]);
        g.ints("rest of R", &[tokens, tokens, 3]);
        g.with("Concat batch, rest of R -> wide R", "axis", 0);
        g.op("Expand R, wide R -> R for each");
        g.op("MatMul R for each, a -> logits");
        g.turn("logits -> by token", &[0, 3, 1, 2]);
        g.with("Softmax by token -> P", "axis", -1);
        self.intra(g);
        g.op("Unsqueeze mean, axis 1 -> m");
        g.op("Unsqueeze variance, axis 1 -> v");
        g.op("Reshape x, by head -> heads");
        g.turn("heads -> xh", &[0, 2, 1, 3]);
        g.op("MatMul P, xh -> q");
        g.op("Pow xh, two -> xh square");
        g.op("MatMul P, xh square -> r");
        g.op("Mul m, lambda -> lm");
        g.op("Sub xh, lm -> less");
        g.op("Mul q, rest -> wq");
        g.op("Sub less, wq -> numerator");
        g.op("Pow q, two -> q square");
        g.op("Mul r, rest -> wr");
        g.op("Mul rest, q square -> wqq");
        g.op("Sub wr, wqq -> spread");
        g.op("Mul v, lambda -> lv");
        g.op("Add epsilon, spread -> above");
        g.op("Add above, lv -> sigma");
        g.op("Sqrt sigma -> root");
        g.op("Div numerator, root -> quotient");
        g.turn("quotient -> turned", &[0, 2, 1, 3]);
        g.op("Reshape turned, whole -> normalized");
        g.op("Mul normalized, gamma -> scaled");
        g.op("Add scaled, beta -> y");
    }

    fn einsum(&self, g: &mut Builder) {
        let heads = self.heads();
        g.floats("P", self.mixing().into_dyn());
        g.ints("lambda shape", &[heads as i64, 1]);
        g.op("Reshape lambda, lambda shape -> l");
        g.op("Reshape rest, lambda shape -> w");
        self.intra(g);
        g.op("Unsqueeze mean, axis 2 -> m");
        g.op("Unsqueeze variance, axis 2 -> v");
        g.op("Reshape x, by head -> xh");
        g.op("Mul xh, xh -> square");
        g.equation("P, xh -> q", "hts,bshc->bthc");
        g.equation("square, P -> r", "bshc,hts->bthc");
        g.op("Mul q, q -> q square");
        g.op("Sub r, q square -> spread");
        g.op("Mul l, m -> lm");
        g.op("Mul w, q -> wq");
        g.op("Add lm, wq -> mu");
        g.op("Mul l, v -> lv");
        g.op("Mul w, spread -> ws");
        g.op("Add lv, ws -> sigma");
        g.op("Add sigma, epsilon -> shifted");
        g.op("Sqrt shifted -> root");
        g.op("Reciprocal root -> inverse");
        g.op("Sub xh, mu -> less");
        g.op("Mul inverse, less -> normalized");
        g.op("Reshape normalized, whole -> flat");
        g.op("Mul flat, gamma -> scaled");
        g.op("Add scaled, beta -> y");
    }
}

fn weight(channels: usize) -> Array2<f64> {
    Array2::from_shape_fn((channels, 5), |(c, i)| {
        (0.9 * c as f64 + 2.3 * i as f64).cos()
    })
}

/// Builds graphs from lines such as `Add a, b -> c`.
#[derive(Default)]
struct Builder {
    opset: i64,
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
}

impl Builder {
    fn op(&mut self, line: &str) {
        let (left, output) = line.split_once(" -> ").unwrap();
        let (op, inputs) = left.split_once(' ').unwrap();
        self.nodes.push(NodeProto {
            op_type: Some(op.into()),
            name: Some(format!("make {output}")),
            input: inputs.split(", ").map(str::to_owned).collect(),
            output: vec![output.into()],
            ..Default::default()
        });
    }

    fn attribute(&mut self, attribute: AttributeProto) {
        self.nodes.last_mut().unwrap().attribute.push(attribute);
    }

    fn with(&mut self, line: &str, name: &str, i: i64) {
        self.op(line);
        let r#type = Some(AttributeType::Int as i32);
        self.attribute(AttributeProto {
            name: Some(name.into()),
            r#type,
            i: Some(i),
            ..Default::default()
        });
    }

    fn list(&mut self, name: &str, ints: &[i64]) {
        let r#type = Some(AttributeType::Ints as i32);
        self.attribute(AttributeProto {
            name: Some(name.into()),
            r#type,
            ints: ints.to_vec(),
            ..Default::default()
        });
    }

    fn text(&mut self, name: &str, text: &str) {
        let (r#type, s) = (
            Some(AttributeType::String as i32),
            Some(text.to_owned().into()),
        );
        self.attribute(AttributeProto {
            name: Some(name.into()),
            r#type,
            s,
            ..Default::default()
        });
    }

    fn turn(&mut self, line: &str, perm: &[i64]) {
        self.op(&format!("Transpose {line}"));
        self.list("perm", perm);
    }

    fn equation(&mut self, line: &str, equation: &str) {
        self.op(&format!("Einsum {line}"));
        self.text("equation", equation);
    }

    fn mean(&mut self, value: &str, result: &str) {
        if self.opset >= 18 {
            self.op(&format!("ReduceMean {value}, axis 2 -> {result}"));
        } else {
            self.op(&format!("ReduceMean {value} -> {result}"));
            self.list("axes", &[-1]);
        }
    }

    fn pool(&mut self, value: &str, result: &str, size: i64) {
        self.op(&format!("AveragePool {value} -> {result}"));
        self.list("kernel_shape", &[size, size]);
        self.list("strides", &[size, size]);
    }

    fn widen(&mut self, value: &str, result: &str, by: f64) {
        self.floats(
            &format!("{result} scales"),
            ndarray::arr1(&[1.0, 1.0, by, by]).into_dyn(),
        );
        self.op(&format!("Resize {value}, , {result} scales -> {result}"));
        self.text("mode", "nearest");
        self.text("coordinate_transformation_mode", "asymmetric");
        self.text("nearest_mode", "floor");
    }

    fn floats(&mut self, name: &str, values: ArrayD<f64>) {
        self.constants
            .push(tensor::make(name, DataType::Float, &values.view()).unwrap());
    }

    fn ints(&mut self, name: &str, values: &[i64]) {
        self.constants.push(tensor::make_i64(name, values));
    }

    /// Builds a model from `x` of [b, tokens, channels] to `out`.
    fn model(self, shape: &[i64]) -> Model {
        let dim = |value| Dimension {
            value: Some(value),
            denotation: None,
        };
        let mut dims = vec![dim(Dim::DimParam("b".into()))];
        dims.extend(shape.iter().map(|&extent| dim(Dim::DimValue(extent))));
        let value = |name: &str, shape: Option<TensorShapeProto>| ValueInfoProto {
            name: Some(name.into()),
            r#type: Some(TypeProto {
                tensor_type: Some(TensorType {
                    elem_type: Some(DataType::Float.code()),
                    shape,
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        Model::from_proto(ModelProto {
            ir_version: Some(8),
            opset_import: vec![OperatorSetIdProto {
                domain: None,
                version: Some(self.opset),
            }],
            graph: Some(GraphProto {
                name: Some("dtn".into()),
                node: self.nodes,
                initializer: self.constants,
                input: vec![value("x", Some(TensorShapeProto { dim: dims }))],
                output: vec![value("out", None)],
                ..Default::default()
            }),
            ..Default::default()
        })
    }
}

fn run(model: &Model, x: &Array3<f64>) -> ArrayD<f64> {
    let batch: Dims = format!("b={}", x.dim().0).parse().unwrap();
    let engine = Engine::load(model, &batch).unwrap();
    let outputs = engine.run(&[Tensor::from(x.mapv(|v| v as f32))]).unwrap();
    outputs[0]
        .to_plain_array_view::<f32>()
        .unwrap()
        .mapv(f64::from)
}

/// The largest difference, relative to the largest expected number.
fn error(result: &ArrayD<f64>, expected: &ArrayD<f64>) -> f64 {
    assert_eq!(result.shape(), expected.shape());
    let largest = |values: &ArrayD<f64>| values.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    largest(&(result - expected)) / largest(expected)
}

fn tokens(dtn: &Dtn) -> Array3<f64> {
    let value = |(b, t, c): (usize, usize, usize)| {
        let wave = (1.3 * (c + 1) as f64 * (t + 2) as f64 + b as f64).sin();
        f64::from((2.0 * wave + 0.3 * c as f64 - 0.2 * t as f64) as f32)
    };
    Array3::from_shape_fn((3, dtn.tokens(), dtn.channels), value)
}

fn operators(model: &Model, op: &str) -> usize {
    model
        .graph()
        .node
        .iter()
        .filter(|node| node.op_type() == op)
        .count()
}

fn sites(plan: &Plan) -> usize {
    plan.sites
        .iter()
        .filter(|site| site.kind.name == "DTN")
        .count()
}

/// The number of sites whose core is replaced by fewer operators.
fn replaced(plan: &Plan) -> usize {
    let sites = plan.sites.iter().filter(|site| site.kind.name == "DTN");
    sites.filter(|site| site.core.is_none()).count()
}

/// Fuses the model, compares the result with the definition, and fuses it a second time. Returns
/// the result.
fn fused(dtn: &Dtn) -> Model {
    let original = dtn.model();
    let fused = fuse(&original);
    assert_eq!(sites(&fused.plan), 1);
    assert_eq!(replaced(&fused.plan), 1);
    assert!(fused.plan.sites[0].is_folded(), "{:?}", fused.plan.sites[0]);
    let x = tokens(dtn);
    let normalized = dtn.normalize(&x).into_dyn();
    let count = x.dim().0 * dtn.tokens();
    let rows = normalized
        .into_shape_with_order((count, dtn.channels))
        .unwrap();
    let expected = rows.dot(&weight(dtn.channels)).into_dyn();
    let expected = expected
        .into_shape_with_order(IxDyn(&[x.dim().0, dtn.tokens(), 5]))
        .unwrap();
    for (name, model) in [("original", &original), ("fused", &fused.model)] {
        let error = error(&run(model, &x), &expected);
        assert!(error < 1e-5, "{name}: {error}");
    }
    let again = fuse(&fused.model);
    assert!(again.plan.is_empty());
    assert_eq!(again.model.graph(), fused.model.graph());
    fused.model
}

#[test]
fn every_dtn_form_matches_the_definition() {
    for form in [Form::Algorithm, Form::ByHeads, Form::Einsum] {
        for omega in [
            &[0.3, -1.0, 2.0][..],
            &[0.7],
            &[-20.0, 20.0],
            &[40.0, 0.0, -40.0],
        ] {
            let fused = fused(&Dtn::new(omega).form(form));
            // One product with P and the linear layer; no operators for P and λ, and no affine.
            assert_eq!(operators(&fused, "MatMul"), 2);
            for op in ["Softmax", "Sigmoid", "Expand", "Einsum", "Shape", "Pow"] {
                assert_eq!(operators(&fused, op), 0, "{op}");
            }
        }
    }
}

#[test]
fn pooled_statistics_are_computed_without_pool_or_resize() {
    for omega in [&[0.3, -1.0, 2.0][..], &[0.7], &[-200.0, -200.0]] {
        let dtn = Dtn {
            pool: 2,
            ..Dtn::new(omega)
        };
        let fused = fused(&dtn);
        assert_eq!(
            (
                operators(&fused, "AveragePool"),
                operators(&fused, "Resize")
            ),
            (0, 0)
        );
        assert_eq!(operators(&fused, "MatMul"), 2);
    }
}

#[test]
fn dtn_with_lambda_one_becomes_layer_norm() {
    for form in [Form::Algorithm, Form::ByHeads, Form::Einsum] {
        let dtn = Dtn::new(&[200.0, 200.0]).form(form);
        let fused = fused(&dtn);
        let layer_norm = usize::from(dtn.opset() >= 17);
        assert_eq!(operators(&fused, "LayerNormalization"), layer_norm);
        assert_eq!(operators(&fused, "MatMul"), 1);
        assert_eq!(operators(&fused, "Reshape"), 0);
    }
}

#[test]
fn dtn_with_uniform_attention_becomes_instance_norm() {
    for form in [Form::Algorithm, Form::ByHeads, Form::Einsum] {
        let fused = fused(&Dtn::new(&[-200.0, -200.0]).uniform().form(form));
        assert_eq!(operators(&fused, "MatMul"), 1);
        assert_eq!(operators(&fused, "ReduceMean"), 2);
    }
}

/// Attention becomes a mean only if all tokens have exactly the same weight. No float is exactly
/// 1/9, and nearly equal weights do not count.
#[test]
fn uniform_attention_becomes_a_mean_only_where_it_is_exact() {
    let slope = |dtn: Dtn| Dtn {
        attention: vec![[0.0, 1e-9, 0.0]; dtn.heads()],
        ..dtn
    };
    let alike = |side: usize, form: Form| Dtn {
        side,
        ..Dtn::new(&[-200.0, -200.0]).uniform().form(form)
    };
    let cases = [
        (alike(3, Form::Algorithm), (2, 0)),
        (alike(3, Form::ByHeads), (2, 0)),
        (alike(3, Form::Einsum), (0, 0)),
        (alike(4, Form::Einsum), (2, 0)),
        // In float32 the weights would be equal, but the operators that compute them stay.
        (slope(alike(4, Form::Algorithm)), (2, 1)),
        (slope(alike(3, Form::Algorithm)), (0, 0)),
    ];
    for (dtn, expected) in cases {
        let original = dtn.model();
        let fused = fuse(&original);
        let count = |op: &str| operators(&fused.model, op);
        assert_eq!((count("ReduceMean"), count("Softmax")), expected);
        let proof = prove(
            &original,
            &fused.model,
            &fused.plan.tensors,
            &Default::default(),
        );
        assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    }
}

#[test]
fn dtn_with_lambda_zero_needs_no_token_statistics() {
    let fused = fused(&Dtn::new(&[-200.0, -200.0]));
    assert_eq!(
        (operators(&fused, "MatMul"), operators(&fused, "ReduceMean")),
        (2, 0)
    );
}

#[test]
fn heads_with_different_lambda_are_split() {
    let omegas: [&[f64]; 4] = [
        &[200.0, -200.0, 0.4],
        &[0.4, 0.1, 200.0, 200.0],
        &[-200.0, 200.0],
        &[-200.0, -200.0, 0.3, -0.2, -200.0],
    ];
    for omega in omegas {
        for dtn in [Dtn::new(omega), Dtn::new(omega).uniform()] {
            let fused = fused(&dtn);
            assert!(operators(&fused, "Slice") >= 2);
            assert_eq!(operators(&fused, "Concat") - operators(&fused, "Split"), 1);
        }
    }
}

#[test]
fn zero_and_negative_gamma_are_exact() {
    let mut dtn = Dtn::new(&[0.5, -0.5]);
    dtn.gamma[3] = 0.0;
    dtn.gamma[4] = -2.0;
    fused(&dtn);
}

#[test]
fn attention_rows_that_do_not_sum_to_one_are_kept() {
    let dtn = Dtn::new(&[0.5, -0.5]).form(Form::Einsum);
    let mut model = dtn.model();
    let constants = &mut model.graph_mut().initializer;
    let place = constants
        .iter()
        .position(|tensor| tensor.name() == "P")
        .unwrap();
    let doubled = dtn.mixing().mapv(|p| 1.25 * p).into_dyn();
    constants[place] = tensor::make("P", DataType::Float, &doubled.view()).unwrap();
    let fused = fuse(&model);
    assert_eq!((sites(&fused.plan), replaced(&fused.plan)), (1, 1));
    // The tokens are small, so that the radicand stays positive.
    let x = tokens(&dtn).mapv(|v| f64::from((0.2 * v) as f32));
    let (before, after) = (run(&model, &x), run(&fused.model, &x));
    assert!(before.iter().all(|v| v.is_finite()));
    assert!(error(&after, &before) < 1e-5);
}

#[test]
fn large_means_lose_no_more_precision_than_the_original() {
    for omega in [0.0, -30.0, 6.0] {
        let dtn = Dtn::new(&[omega, omega]);
        let original = dtn.model();
        let fused = fuse(&original);
        for offset in [30.0, 300.0] {
            let x = tokens(&dtn).mapv(|v| f64::from((v + offset) as f32));
            let rows = dtn
                .normalize(&x)
                .into_shape_with_order((x.dim().0 * dtn.tokens(), dtn.channels));
            let expected = rows.unwrap().dot(&weight(dtn.channels)).into_dyn();
            let expected = expected
                .into_shape_with_order(IxDyn(&[x.dim().0, dtn.tokens(), 5]))
                .unwrap();
            let before = error(&run(&original, &x), &expected);
            let after = error(&run(&fused.model, &x), &expected);
            assert!(
                after < 2.0 * before + 1e-5,
                "{omega} {offset}: {before} {after}"
            );
        }
    }
}

/// Changes a graph that would be recognized without the change.
fn with_fault(dtn: &Dtn, spoil: impl Fn(&mut GraphProto)) -> (Model, Plan) {
    let mut model = dtn.model();
    spoil(model.graph_mut());
    let plan = fuse(&model).plan;
    (model, plan)
}

fn producer<'g>(graph: &'g mut GraphProto, output: &str) -> &'g mut NodeProto {
    graph
        .node
        .iter_mut()
        .find(|node| node.output[0] == output)
        .unwrap()
}

#[test]
fn near_dtn_graphs_are_not_recognized() {
    let square = Dtn {
        side: 2,
        ..Dtn::new(&[0.5, -0.5])
    };
    type Spoil = fn(&mut GraphProto);
    let cases: [(&str, Dtn, Spoil); 11] = [
        ("P varies with the input", Dtn::new(&[0.5, -0.5]), |g| {
            let more = NodeProto {
                op_type: Some("ReduceMax".into()),
                name: Some("more".into()),
                input: vec!["x".into()],
                output: vec!["highest".into()],
                ..Default::default()
            };
            let logits = g
                .node
                .iter()
                .position(|node| node.output[0] == "logits")
                .unwrap();
            g.node.insert(logits, more);
            g.node.insert(
                logits + 2,
                NodeProto {
                    op_type: Some("Mul".into()),
                    input: vec!["logits".into(), "highest".into()],
                    output: vec!["hot".into()],
                    ..Default::default()
                },
            );
            producer(g, "weights").input[0] = "hot".into();
        }),
        (
            "λ may be given by the caller",
            Dtn::new(&[0.5, -0.5]),
            |g| {
                let omega = g
                    .initializer
                    .iter()
                    .position(|tensor| tensor.name() == "omega")
                    .unwrap();
                let dims = g.initializer[omega].dims.clone();
                let dim = |value| Dimension {
                    value: Some(Dim::DimValue(value)),
                    denotation: None,
                };
                let shape = Some(TensorShapeProto {
                    dim: dims.into_iter().map(dim).collect(),
                });
                let mut input = g.input[0].clone();
                input.name = Some("omega".into());
                let tensor_type = Some(TensorType {
                    elem_type: Some(DataType::Float.code()),
                    shape,
                });
                input.r#type = Some(TypeProto {
                    tensor_type,
                    ..Default::default()
                });
                g.input.push(input);
            },
        ),
        ("the squares are mixed along the channels", square, |g| {
            // A head has as many channels as there are tokens, so only the axis shows the fault.
            let node = producer(g, "r");
            node.input.swap(0, 1);
        }),
        (
            "the squares are those of another value",
            Dtn::new(&[0.5, -0.5]),
            |g| {
                producer(g, "square").input[1] = "centred".into();
            },
        ),
        (
            "the variance is not of the mean",
            Dtn::new(&[0.5, -0.5]),
            |g| {
                producer(g, "q square").input[0] = "r".into();
            },
        ),
        (
            "the mean of tokens is taken twice",
            Dtn::new(&[0.5, -0.5]),
            |g| {
                producer(g, "mu intra").input[0] = "variance".into();
            },
        ),
        (
            "a sum in the place of a difference",
            Dtn::new(&[0.5, -0.5]),
            |g| {
                producer(g, "spread").op_type = Some("Add".into());
            },
        ),
        ("a cubic root", Dtn::new(&[0.5, -0.5]), |g| {
            let root = producer(g, "root");
            root.op_type = Some("Pow".into());
            root.input.push("third".into());
            let third = tensor::make(
                "third",
                DataType::Float,
                &ArrayD::from_elem(IxDyn(&[]), 1.0 / 3.0).view(),
            );
            g.initializer.push(third.unwrap());
        }),
        (
            "statistics of blocks are interpolated",
            Dtn {
                pool: 2,
                ..Dtn::new(&[0.5, -0.5])
            },
            |g| {
                producer(g, "q wide").attribute[0].s = Some("linear".to_owned().into());
            },
        ),
        (
            "ε grows with the batch",
            Dtn::new(&[0.5, -0.5]).form(Form::ByHeads),
            |g| {
                let mut more = Builder::default();
                more.floats("small", ArrayD::from_elem(IxDyn(&[1, 1]), 1e-5));
                more.floats("unit", ArrayD::from_elem(IxDyn(&[1, 1]), 1.0));
                more.ints("single", &[1]);
                more.with("Concat single, batch -> row", "axis", 0);
                more.with("Concat batch, single -> column", "axis", 0);
                more.op("Expand small, row -> each");
                more.op("Expand unit, column -> all");
                more.op("MatMul each, all -> sum");
                g.initializer.extend(more.constants);
                producer(g, "above").input[0] = "sum".into();
                let behind = g
                    .node
                    .iter()
                    .position(|node| node.output[0] == "batch")
                    .unwrap()
                    + 1;
                g.node.splice(behind..behind, more.nodes);
            },
        ),
        (
            "heads are put together in another order",
            Dtn::new(&[0.5, -0.5, 0.1, 0.9]),
            |g| {
                // There are 4 heads of 4 channels, so the shapes do not show the fault.
                producer(g, "mu turned").attribute[0].ints = vec![0, 2, 3, 1];
            },
        ),
    ];
    for (name, dtn, spoil) in cases {
        let (_, plan) = with_fault(&dtn, spoil);
        assert_eq!(sites(&plan), 0, "{name}");
        assert_eq!(replaced(&plan), 0, "{name}");
    }
}

/// Checks that γ and β fold, and returns the reason why the statistics stay.
fn folds_but_for_its_core(fused: &unfold::Fused) -> Reason {
    let [site] = &fused.plan.sites[..] else {
        panic!("{:#?}", fused.plan.sites)
    };
    assert_eq!(site.kind.name, "DTN");
    assert!(
        matches!(site.post, Some(Outcome::Folded { .. })) && !site.is_folded(),
        "{site:#?}"
    );
    assert_eq!(replaced(&fused.plan), 0);
    assert_eq!(operators(&fused.model, "MatMul"), 4);
    assert!(fuse(&fused.model).plan.is_empty());
    match &site.core {
        Some(Outcome::Kept { forward, .. }) => forward.reason.clone(),
        core => panic!("{core:?}"),
    }
}

#[test]
fn linearly_resized_statistics_stay() {
    let dtn = Dtn {
        pool: 2,
        ..Dtn::new(&[0.5, -0.5])
    };
    let mut model = dtn.model();
    for value in ["q wide", "r wide"] {
        let node = producer(model.graph_mut(), value);
        node.attribute[0].s = Some("linear".to_owned().into());
        node.attribute[1].s = Some("half_pixel".to_owned().into());
    }
    let fused = fuse(&model);
    assert_eq!(
        folds_but_for_its_core(&fused),
        Reason::Attribute("mode".into())
    );
    let x = tokens(&dtn);
    assert!(error(&run(&fused.model, &x), &run(&model, &x)) < 1e-5);
}

/// Two blocks times 2.1 are also 4 tokens, but the third token is then in the first block.
#[test]
fn unevenly_resized_statistics_stay() {
    let dtn = Dtn {
        pool: 2,
        ..Dtn::new(&[0.5, -0.5])
    };
    let mut model = dtn.model();
    let scales = ndarray::arr1(&[1.0, 1.0, 2.1, 2.1]).into_dyn();
    for tensor in &mut model.graph_mut().initializer {
        if tensor.name().ends_with("wide scales") {
            *tensor = tensor::make(tensor.name(), DataType::Float, &scales.view()).unwrap();
        }
    }
    let fused = fuse(&model);
    assert_eq!(
        folds_but_for_its_core(&fused),
        Reason::Attribute("mode".into())
    );
    let x = tokens(&dtn);
    assert!(error(&run(&fused.model, &x), &run(&model, &x)) < 1e-5);
}

#[test]
fn float16_dtn_core_stays() {
    let dtn = Dtn::new(&[0.5, -0.5]);
    let mut model = dtn.model();
    let graph = model.graph_mut();
    let externals = unfold::onnx::Externals::none();
    for constant in graph
        .initializer
        .iter_mut()
        .filter(|t| t.data_type() == DataType::Float.code())
    {
        let values = tensor::read_f64(constant, &externals).unwrap();
        *constant = tensor::make(constant.name(), DataType::Float16, &values.view()).unwrap();
    }
    for value in graph.input.iter_mut().chain(&mut graph.output) {
        let tensor = value
            .r#type
            .as_mut()
            .and_then(|of| of.tensor_type.as_mut())
            .unwrap();
        tensor.elem_type = Some(DataType::Float16.code());
    }
    let fused = fuse(&model);
    assert_eq!(
        folds_but_for_its_core(&fused),
        Reason::ElementType("float16".into())
    );
    let x = tokens(&dtn);
    let [before, after] = [&model, &fused.model].map(|model| {
        let engine = Engine::load(model, &"b=3".parse().unwrap()).unwrap();
        let outputs = engine
            .run(&[Tensor::from(x.mapv(|v| f16::from_f64(0.5 * v)))])
            .unwrap();
        outputs[0]
            .to_plain_array_view::<f16>()
            .unwrap()
            .mapv(f64::from)
    });
    // A few successive roundings to eleven bits.
    assert!(
        error(&after, &before) < 8.0 / 2048.0,
        "{}",
        error(&after, &before)
    );
}

#[test]
fn inner_dtn_values_with_other_readers_are_exact() {
    for form in [Form::Algorithm, Form::ByHeads, Form::Einsum] {
        let dtn = Dtn::new(&[0.5, -0.5]).form(form);
        for plain in [dtn.model(), without_affine(&dtn)] {
            let first = plain
                .graph()
                .node
                .iter()
                .position(|node| node.output[0] == "mean")
                .unwrap();
            let inside: Vec<String> = plain.graph().node[first..]
                .iter()
                .map(|node| node.output[0].clone())
                .collect();
            for value in inside.iter().filter(|&value| value != "out") {
                let mut model = plain.clone();
                let output = ValueInfoProto {
                    name: Some(value.clone()),
                    ..model.graph().output[0].clone()
                };
                model.graph_mut().output.push(output);
                let fused = fuse(&model);
                assert!(
                    fused.model.graph().node.len() <= model.graph().node.len(),
                    "{value}"
                );
                let again = fuse(&fused.model);
                assert!(
                    !again.changed(),
                    "{value} folds twice: {:#?}",
                    again.plan.sites
                );
                let x = tokens(&dtn);
                let [before, after] = [&model, &fused.model].map(|model| {
                    let engine = Engine::load(model, &"b=3".parse().unwrap()).unwrap();
                    let outputs = engine.run(&[Tensor::from(x.mapv(|v| v as f32))]).unwrap();
                    let floats =
                        |o: &Tensor| o.to_plain_array_view::<f32>().unwrap().mapv(f64::from);
                    outputs.iter().map(floats).collect::<Vec<_>>()
                });
                for (before, after) in before.iter().zip(&after) {
                    assert!(error(after, before) < 1e-5, "{value}");
                }
            }
        }
    }
}

#[test]
fn affine_on_a_residual_stream_stays_after_dtn() {
    for form in [Form::Algorithm, Form::ByHeads, Form::Einsum] {
        let dtn = Dtn::new(&[0.5, -0.5]).form(form);
        let mut model = dtn.model();
        // On a residual stream, no operator absorbs γ and β.
        let last = model.graph().node.len() - 1;
        model.graph_mut().node[last].op_type = Some("Add".into());
        model.graph_mut().node[last].input = vec!["y".into(), "x".into()];
        let fused = fuse(&model);
        assert_eq!((sites(&fused.plan), replaced(&fused.plan)), (1, 1));
        let x = tokens(&dtn);
        assert!(error(&run(&fused.model, &x), &(dtn.normalize(&x) + &x).into_dyn()) < 1e-5);
        assert!(fused.model.graph().node.len() < model.graph().node.len());
        let again = fuse(&fused.model);
        assert!(again.plan.is_empty());
    }
}

/// The model without γ and β.
fn without_affine(dtn: &Dtn) -> Model {
    let mut model = dtn.model();
    let graph = model.graph_mut();
    let end = if dtn.form == Form::Einsum {
        "flat"
    } else {
        "normalized"
    };
    producer(graph, "out").input[0] = end.into();
    if dtn.form == Form::Algorithm {
        producer(graph, "normalized").input[0] = "less".into();
    }
    graph
        .node
        .retain(|node| !["scaled", "y"].contains(&node.output[0].as_str()));
    model
}

#[test]
fn dtn_without_affine_is_replaced_by_fewer_nodes() {
    for form in [Form::Algorithm, Form::ByHeads, Form::Einsum] {
        let dtn = Dtn::new(&[0.5, -0.5]).form(form);
        let model = without_affine(&dtn);
        let fused = fuse(&model);
        assert_eq!((sites(&fused.plan), replaced(&fused.plan)), (1, 1));
        let x = tokens(&dtn);
        assert!(error(&run(&fused.model, &x), &run(&model, &x)) < 1e-5);
        assert!(fused.model.graph().node.len() < model.graph().node.len());
    }
}

/// Changes the end of a model. If `turned`, the linear layer reads the value after a Transpose.
/// `beside` is the operator of another reader of the value.
fn with_end(mut model: Model, channels: usize, turned: bool, beside: Option<&str>) -> Model {
    let graph = model.graph_mut();
    let last = graph.node.pop().unwrap();
    let value = last.input[0].clone();
    if turned {
        let mut g = Builder::default();
        g.turn(&format!("{value} -> behind"), &[0, 2, 1]);
        g.floats("V", weight(channels).reversed_axes().into_dyn());
        g.op("MatMul V, behind -> out");
        graph.node.extend(g.nodes);
        graph.initializer.extend(g.constants);
    } else {
        graph.node.push(last);
    }
    if let Some(op) = beside {
        let mut g = Builder::default();
        let operands = if op == "Add" {
            format!("{value}, x")
        } else {
            value
        };
        g.op(&format!("{op} {operands} -> more"));
        graph.node.extend(g.nodes);
        let more = ValueInfoProto {
            name: Some("more".into()),
            ..graph.output[0].clone()
        };
        graph.output.push(more);
    }
    model
}

#[test]
fn fusing_dtn_twice_changes_nothing() {
    let forms = [Form::Algorithm, Form::ByHeads, Form::Einsum].map(|form| (form, 1));
    for (form, pool) in [&forms[..], &[(Form::Algorithm, 2)]].concat() {
        for omega in [
            &[0.5, -0.5][..],
            &[200.0, -200.0, 0.4],
            &[200.0, 200.0],
            &[-200.0, -200.0],
        ] {
            for uniform in [false, true] {
                let dtn = Dtn {
                    pool,
                    ..Dtn::new(omega).form(form)
                };
                let dtn = if uniform { dtn.uniform() } else { dtn };
                for model in [dtn.model(), without_affine(&dtn)] {
                    for turned in [false, true] {
                        for beside in [None, Some("Tanh"), Some("Add")] {
                            let model = with_end(model.clone(), dtn.channels, turned, beside);
                            assert_idempotent(&model, &tokens(&dtn));
                        }
                    }
                }
            }
        }
    }
}

/// Asserts that the second fuse changes nothing, and that the first one changes no number.
fn assert_idempotent(model: &Model, x: &Array3<f64>) {
    let nodes = || {
        model
            .graph()
            .node
            .iter()
            .map(|node| (node.op_type(), &node.input, &node.output))
    };
    let what = || format!("{:#?}", nodes().collect::<Vec<_>>());
    let fused = fuse(model);
    assert_eq!(
        (sites(&fused.plan), replaced(&fused.plan)),
        (1, 1),
        "{}",
        what()
    );
    let again = fuse(&fused.model);
    assert!(again.plan.is_empty(), "{:#?}\n{}", again.plan.sites, what());
    assert_eq!(again.model.graph(), fused.model.graph(), "{}", what());
    assert!(
        error(&run(&fused.model, x), &run(model, x)) < 1e-5,
        "{}",
        what()
    );
}

#[test]
fn dtn_digits_predictions_are_unchanged() {
    let images: Array4<f32> = ndarray_npy::read_npy("models/digits/test-images.npy").unwrap();
    for exporter in ["dynamo", "legacy"] {
        let model = Model::open(format!("models/digits/dtn-{exporter}.onnx")).unwrap();
        let fused = fuse(&model);
        assert_eq!((sites(&fused.plan), replaced(&fused.plan)), (7, 7));
        assert!(fused.plan.sites.iter().all(|site| site.is_folded()));
        let [before, after] = [&model, &fused.model].map(|model| {
            let batch = format!("batch={}", images.dim().0).parse().unwrap();
            let outputs = Engine::load(model, &batch)
                .unwrap()
                .run(&[Tensor::from(images.clone())])
                .unwrap();
            outputs[0]
                .to_plain_array_view::<f32>()
                .unwrap()
                .mapv(f64::from)
        });
        assert!(error(&after, &before) < 1e-5);
        let told = |logits: &ArrayD<f64>| -> Vec<usize> {
            let rows = logits.view().into_dimensionality::<Ix2>().unwrap();
            let highest = |row: ndarray::ArrayView1<f64>| {
                (0..row.len())
                    .max_by(|&a, &b| row[a].total_cmp(&row[b]))
                    .unwrap()
            };
            rows.rows().into_iter().map(highest).collect()
        };
        assert_eq!(told(&before), told(&after));
        assert!(fuse(&fused.model).plan.is_empty());
    }
}
