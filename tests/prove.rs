//! Results of folding are proved, and later changes are not.

mod common;
#[path = "prove/false_claims.rs"]
mod false_claims;
#[path = "prove/true_claims.rs"]
mod true_claims;

use std::path::Path;

use common::reference::{self, Env, Value};
use common::{declared, floats, node, text, undeclared};
use ndarray::ArrayD;
use unfold::affine::plan::Stored;
use unfold::onnx::Model;
use unfold::onnx::external::Externals;
use unfold::onnx::proto::{AttributeProto, FunctionProto, NodeProto, TensorProto};
use unfold::onnx::tensor::{self, DataType};
use unfold::prove::{Proof, ProveOptions, prove};
use unfold::recipe::Recipe;
use unfold::run::Dims;

fn digits() -> Vec<(String, Model)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/digits");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let models = files.filter(|path| {
        path.extension()
            .is_some_and(|extension| extension == "onnx")
    });
    models
        .map(|path| {
            (
                path.file_stem().unwrap().display().to_string(),
                Model::open(&path).unwrap(),
            )
        })
        .collect()
}

fn proof(original: &Model, fused: &Model, tensors: &[Stored]) -> Proof {
    proof_with(original, fused, tensors, &ProveOptions::default())
}

/// The verdict on a copy with another note: an identical file is proved without an evaluation.
fn proof_with(
    original: &Model,
    fused: &Model,
    tensors: &[Stored],
    options: &ProveOptions,
) -> Proof {
    let mut fused = fused.clone();
    fused.graph_mut().doc_string = Some("another file".to_owned());
    prove(original, &fused, tensors, options)
}

fn is_proved(proof: &Proof) -> bool {
    matches!(proof, Proof::Proved { .. })
}

#[test]
fn what_folding_makes_of_the_trained_models_is_proved() {
    for (name, model) in digits() {
        let fused = unfold::fuse(&model, &Default::default()).unwrap();
        match proof(&model, &fused.model, &fused.plan.tensors) {
            Proof::Proved {
                points: 1,
                bound,
                tensors,
            } => {
                assert!(bound > 0.0 && bound < 1e-6, "{name}: {bound}");
                assert_eq!(tensors, fused.plan.tensors.len(), "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// How long the part is follows from a number that is given, and what a maximum makes of it from that.
#[test]
fn extents_that_only_a_point_has_are_those_of_what_is_made_there() {
    let before = text::model(
        "input x batch 4 9
         indices end 1
         ints zero 1 = 0
         ints two 1 = 2
         p = Slice(x, zero, end, two)
         m = MaxPool(p) kernel_shape=[1]
         scale g 4 1
         shift t 4 1
         weight w 5 4
         n = Mul(m, g)
         h = Add(n, t)
         y = MatMul(w, h)
         output y",
    );
    let fused = unfold::fuse(&before, &Default::default()).unwrap();
    assert!(fused.changed());
    let proof = proof(&before, &fused.model, &fused.plan.tensors);
    assert!(is_proved(&proof), "{proof:?}");
}

#[test]
fn a_border_is_mirrored_at_a_size_that_has_as_much() {
    let scaled = |nodes: &str| {
        text::model(&format!(
            "input x batch 4
             const g 4 = 2 3 -1 5
             ints pads 4 = 2 0 1 0
             {nodes}
             output y"
        ))
    };
    let before = scaled("n = Mul(x, g)\n y = Pad(n, pads) mode=reflect");
    let behind = scaled("n = Pad(x, pads) mode=reflect\n y = Mul(n, g)");
    let twice = scaled("n = Pad(x, pads) mode=reflect\n m = Mul(n, g)\n y = Mul(m, g)");
    assert!(is_proved(&proof(&before, &behind, &[])));
    assert!(matches!(
        proof(&before, &twice, &[]),
        Proof::Disproved { .. }
    ));
}

#[test]
fn another_length_is_tried_where_the_usual_one_does_not_fit() {
    let strided = text::model(
        "input x N 3 T
         weight w 3 3 16
         c = Conv(x, w) strides=[16]
         e = ConvTranspose(c, w) strides=[16]
         y = Add(e, x)
         output y",
    );
    let proof = proof(&strided, &strided, &[]);
    assert!(is_proved(&proof), "{proof:?}");
}

/// As an encoder of speech has it, which makes nothing of fewer samples.
#[test]
fn a_length_of_some_hundred_samples_is_tried() {
    let speech = text::model(
        "input x N 1 T
         weight v 4 1 10
         weight w 4 4 300
         c = Conv(x, v) strides=[5]
         y = Conv(c, w) strides=[2]
         output y",
    );
    let proof = proof(&speech, &speech, &[]);
    assert!(is_proved(&proof), "{proof:?}");
}

/// Where a convolution has no results, neither they nor the factor of its channels are known.
#[test]
fn a_size_is_tried_at_which_what_recipes_read_is_constant() {
    let before = text::model(
        "input x N 1 T
         weight v 4 1 300
         weight w 4 3
         ints one 1 = 1
         c = Conv(x, v)
         s = Shape(c)
         e = Gather(s, one)
         f = Cast(e) to=1
         t = Transpose(c) perm=[0,2,1]
         m = Mul(t, f)
         y = MatMul(m, w)
         output y",
    );
    let fused = unfold::fuse(&before, &Default::default()).unwrap();
    assert!(!fused.plan.tensors.is_empty());
    let proof = proof(&before, &fused.model, &fused.plan.tensors);
    assert!(is_proved(&proof), "{proof:?}");
}

#[test]
fn a_larger_size_is_tried_where_it_takes_no_long_time() {
    let fits = |batch: usize, width: usize| {
        let model = text::model(&format!(
            "input x batch {width}
             ints s 2 = {batch} {width}
             r = Reshape(x, s)
             y = Relu(r)
             output y"
        ));
        proof(&model, &model, &[])
    };
    assert!(is_proved(&fits(3, 1 << 18)) && is_proved(&fits(1, 1 << 21)));
    let found = fits(3, 1 << 19);
    assert!(matches!(found, Proof::Undecided { .. }), "{found:?}");
}

#[test]
fn a_mask_that_one_graph_has_as_numbers_alone_disproves_nothing() {
    let masked = |mask: &str| {
        text::model(&format!(
            "input x batch 4 9
             indices end 1
             ints zero 1 = 0
             ints two 1 = 2
             const m 4 1 = 1 0 2 0
             const none 1 = 0
             p = Slice(x, zero, end, two)
             s = Shape(p)
             {mask}
             y = Where(c, p, none)
             output y"
        ))
    };
    let behind = masked("e = Expand(m, s)\n c = Cast(e) to=9");
    let before = masked("e = Cast(m) to=9\n c = Expand(e, s)");
    assert!(matches!(
        proof(&behind, &before, &[]),
        Proof::Undecided { .. }
    ));
    assert!(is_proved(&proof(&behind, &behind, &[])));
}

#[test]
fn more_points_leave_less_doubt_whatever_the_seed() {
    let (_, model) = digits()
        .into_iter()
        .find(|(name, _)| name == "bn-legacy")
        .unwrap();
    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    let mut dims = Dims::default();
    dims.set("batch", 3);
    let bound = |points: usize, seed: u64| {
        let options = ProveOptions {
            dims: dims.clone(),
            points,
            seed,
        };
        match prove(&model, &fused.model, &fused.plan.tensors, &options) {
            Proof::Proved {
                points: found,
                bound,
                ..
            } if found == points => bound,
            other => panic!("{other:?}"),
        }
    };
    let one = bound(1, 1);
    assert_eq!(bound(1, 2), one);
    assert!((bound(3, 3) / one.powi(3) - 1.0).abs() < 1e-9);
}

/// A folded model, and what of it is broken.
struct Broken {
    original: Model,
    fused: Model,
    tensors: Vec<Stored>,
}

impl Broken {
    fn new(name: &str) -> Self {
        let (_, original) = digits().into_iter().find(|(own, _)| own == name).unwrap();
        let fused = unfold::fuse(&original, &common::portable()).unwrap();
        Self {
            original,
            fused: fused.model,
            tensors: fused.plan.tensors,
        }
    }

    fn tensor(&mut self, name: &str) -> &mut TensorProto {
        self.fused
            .graph_mut()
            .initializer
            .iter_mut()
            .find(|tensor| tensor.name() == name)
            .unwrap()
    }

    /// Stores other numbers, and says that they are meant to be those.
    fn store(&mut self, place: usize, recipe: Recipe, change: impl Fn(ArrayD<f64>) -> ArrayD<f64>) {
        let name = self.tensors[place].name.clone();
        let tensor = self.tensor(&name);
        let numbers = change(tensor::read_f64(tensor, &Externals::none()).unwrap());
        *tensor = tensor::make(&name, tensor::data_type(tensor).unwrap(), &numbers.view()).unwrap();
        self.tensors[place].recipe = recipe;
    }

    /// Lets the readers of a new tensor read one of the original instead.
    fn read_instead(&mut self, new: &str, old: &str) {
        let tensor = common::initializer(&self.original, old).clone();
        let graph = self.fused.graph_mut();
        if !graph.initializer.iter().any(|tensor| tensor.name() == old) {
            graph.initializer.push(tensor);
        }
        for input in graph
            .node
            .iter_mut()
            .flat_map(|node| &mut node.input)
            .filter(|input| *input == new)
        {
            *input = old.to_owned();
        }
    }

    /// Whether it is found, and at one of the sites of the tensor.
    fn is_found(&self, place: usize) {
        match proof(&self.original, &self.fused, &self.tensors) {
            Proof::Disproved {
                site: Some(site), ..
            } => {
                let Stored { name, sites, .. } = &self.tensors[place];
                assert!(sites.contains(&site), "{name}: {site} is none of {sites:?}");
            }
            other => panic!("{}: {other:?}", self.tensors[place].name),
        }
    }
}

#[test]
fn one_unit_in_the_last_place_is_found_at_its_tensor() {
    let count = Broken::new("un-dynamo").tensors.len();
    for place in 0..count {
        let mut broken = Broken::new("un-dynamo");
        let name = broken.tensors[place].name.clone();
        let tensor = broken.tensor(&name);
        let mut bytes = tensor::raw(tensor, &Externals::none()).unwrap().to_vec();
        let count = bytes.len() / 4;
        bytes[4 * (place % count)] ^= 1;
        tensor::replace(tensor, bytes.into()).unwrap();
        match proof(&broken.original, &broken.fused, &broken.tensors) {
            Proof::Disproved { at, site, reason } => {
                assert_eq!(
                    (at, site),
                    (name, broken.tensors[place].sites.first().copied())
                );
                assert!(reason.starts_with("1 of its "), "{reason}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// The channels of a weight, or of a bias, one further on.
#[test]
fn a_wrong_channel_is_found_at_its_site() {
    for place in 0..Broken::new("un-dynamo").tensors.len() {
        let mut broken = Broken::new("un-dynamo");
        let recipe = broken.tensors[place].recipe.clone();
        let count = recipe.shape()[0];
        let places: Vec<usize> = (0..count).map(|at| (at + 1) % count).collect();
        let turned = recipe.pick(0, places.iter().copied().map(Some)).unwrap();
        broken.store(place, turned, |numbers| {
            numbers.select(ndarray::Axis(0), &places)
        });
        broken.is_found(place);
    }
}

#[test]
fn a_permuted_axis_is_found_at_its_site() {
    let whole = Broken::new("un-dynamo");
    let square = |stored: &Stored| matches!(stored.recipe.shape(), [a, b] if a == b);
    let places: Vec<usize> = (0..whole.tensors.len())
        .filter(|&at| square(&whole.tensors[at]))
        .collect();
    for place in places {
        let mut broken = Broken::new("un-dynamo");
        let recipe = broken.tensors[place].recipe.turned().unwrap();
        broken.store(place, recipe, |numbers| numbers.reversed_axes());
        broken.is_found(place);
    }
}

/// The readers of a new tensor read the one that it replaced: a weight without its scale, or a bias
/// without the shift.
#[test]
fn a_forgotten_scale_and_a_dropped_shift_are_found_at_their_site() {
    let mut found = 0;
    for name in ["un-dynamo", "bn-legacy", "dyt-dynamo", "ln-dynamo"] {
        for place in 0..Broken::new(name).tensors.len() {
            let mut broken = Broken::new(name);
            let Stored { name, recipe, .. } = broken.tensors[place].clone();
            let constants = recipe.constants().into_iter().map(|name| name.to_string());
            let before =
                constants.filter(|constant| name.starts_with(&format!("{constant}_folded")));
            let Some(before) = before.max_by_key(String::len) else {
                continue;
            };
            let is_stored = |tensor: &TensorProto| tensor.name() == before;
            if broken.original.graph().initializer.iter().any(is_stored) {
                broken.read_instead(&name, &before);
                broken.is_found(place);
                found += 1;
            }
        }
    }
    assert!(found > 30, "{found}");
}

#[test]
fn a_tensor_of_nobody_is_found() {
    let mut broken = Broken::new("un-dynamo");
    let forgotten = broken.tensors.remove(3);
    match proof(&broken.original, &broken.fused, &broken.tensors) {
        Proof::Disproved { at, reason, .. } => {
            assert_eq!(at, forgotten.name);
            assert!(
                reason.contains("neither new nor one of the original's"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn weights_that_are_not_there_decide_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut original = Model::open("models/digits/un-dynamo.onnx").unwrap();
    original.external = true;
    let [before, after] = ["before.onnx", "after.onnx"].map(|name| folder.path().join(name));
    original.save(&before).unwrap();
    let fused = unfold::fuse(&Model::open(&before).unwrap(), &Default::default()).unwrap();
    fused.model.save(&after).unwrap();
    let found = || {
        proof(
            &Model::open(&before).unwrap(),
            &Model::open(&after).unwrap(),
            &fused.plan.tensors,
        )
    };
    assert!(is_proved(&found()));
    for file in [before.clone(), after.clone()] {
        let (data, aside) = (
            file.with_extension("onnx.data"),
            folder.path().join("aside"),
        );
        std::fs::rename(&data, &aside).unwrap();
        assert!(matches!(found(), Proof::Undecided { .. }), "{:?}", found());
        std::fs::rename(aside, data).unwrap();
    }
}

#[test]
fn a_recipe_that_drops_what_counts_is_found_though_its_tensor_is_what_it_says() {
    for what in ["rounds to a type", "drops numbers"] {
        let mut broken = Broken::new("un-dynamo");
        let told = &mut broken.tensors[0];
        told.recipe = match what {
            "rounds to a type" => told.recipe.rounded(DataType::BFloat16),
            _ => told.recipe.flushed(1e10),
        };
        let (name, data_type, recipe) = (told.name.clone(), told.data_type, told.recipe.clone());
        let known = unfold::analysis::Analysis::new(&broken.original).unwrap();
        let read = |name: &str| known.constants.read(known.graph.value(name).unwrap());
        let numbers = unfold::recipe::evaluate(&recipe, &read).unwrap();
        let made = tensor::make(&name, data_type, &numbers.view()).unwrap();
        let stored = broken.fused.graph_mut().initializer.iter_mut();
        *stored
            .into_iter()
            .find(|tensor| tensor.name() == name)
            .unwrap() = made;
        match proof(&broken.original, &broken.fused, &broken.tensors) {
            Proof::Disproved { at, reason, .. } => {
                assert!(at == name && reason.contains(what), "{reason}")
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_graph_that_was_only_rewritten_is_proved_and_another_one_is_not() {
    let before = text::model(
        "input x batch 4\nweight w 4 3\nscale s 3\ny = MatMul(x, w)\nz = Mul(y, s)\nt = Tanh(z)\nq = Softmax(t)\noutput q",
    );
    let same = text::model(
        "input x batch 4\nweight w 4 3\nscale s 3\nv = Mul(w, s)\nz = MatMul(x, v)\nt = Tanh(z)\nq = Softmax(t)\noutput q",
    );
    let shifted = text::model(
        "input x batch 4\nweight w 4 3\nscale s 3\nconst c 1 = 5\nv = Mul(s, w)\nz = MatMul(x, v)\nt = Tanh(z)\nu = Add(t, c)\nq = Softmax(u)\noutput q",
    );
    let other = text::model(
        "input x batch 4\nweight w 4 3\nscale s 3\ny = MatMul(x, w)\nt = Tanh(y)\nz = Mul(t, s)\nq = Softmax(z)\noutput q",
    );
    assert!(is_proved(&proof(&before, &same, &[])));
    // The constant is not in the original; with it, the shift is one that a Softmax ignores.
    assert!(!is_proved(&proof(&before, &shifted, &[])));
    let mut before_too = before.clone();
    before_too
        .graph_mut()
        .initializer
        .push(common::initializer(&shifted, "c").clone());
    assert!(is_proved(&proof(&before_too, &shifted, &[])));
    match proof(&before, &other, &[]) {
        Proof::Disproved { at, site: None, .. } => assert_eq!(at, "t"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_output_of_another_name_or_type_is_another_function() {
    let model = text::model("input x batch 4\ny = Tanh(x)\nz = Exp(x)\noutput y z");
    let with = |change: &dyn Fn(&mut Model)| {
        let mut changed = model.clone();
        change(&mut changed);
        match proof(&model, &changed, &[]) {
            Proof::Disproved { at, .. } => at,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(with(&|model| model.graph_mut().output.swap(0, 1)), "z");
    assert_eq!(
        with(
            &|model| model.graph_mut().output[1] = declared("z", DataType::Double, &["batch", "4"])
        ),
        "z"
    );
    assert_eq!(
        with(
            &|model| model.graph_mut().input[0] = declared("x", DataType::Float16, &["batch", "4"])
        ),
        "x"
    );
}

#[test]
fn sizes_that_do_not_fit_decide_nothing() {
    let model = text::model("input x batch 4\nweight w 3 4\ny = Add(x, w)\noutput y");
    let at = |batch: &str| {
        let options = ProveOptions {
            dims: batch.parse().unwrap(),
            ..Default::default()
        };
        proof_with(&model, &model, &[], &options)
    };
    assert!(matches!(at("batch=2"), Proof::Undecided { .. }));
    assert!(is_proved(&at("batch=3")));
    // Where nobody says, others are tried.
    assert!(is_proved(&proof(&model, &model, &[])));
}

#[test]
fn places_that_only_a_run_knows_are_some_places() {
    let model = text::model(
        "input x 2 4 3
         indices ids 5
         const s 3 = 2 3 5
         weight w 3 2
         n = Mul(x, s)
         i = ArgMax(ids) axis=0 keepdims=1
         r = Gather(n, i) axis=1
         y = MatMul(r, w)
         output y",
    );
    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    assert!(fused.plan.sites[0].is_folded());
    assert!(is_proved(&proof(&model, &fused.model, &fused.plan.tensors)));
    let mut lost = fused.model.clone();
    lost.graph_mut()
        .node
        .iter_mut()
        .for_each(|node| node.attribute.retain(|a| a.name() != "axis"));
    assert!(!is_proved(&proof(&model, &lost, &fused.plan.tensors)));
}

#[test]
fn a_divisor_that_is_always_zero_decides_nothing() {
    let model = text::model("input x batch 4\nconst zero 1 = 0\ny = Div(x, zero)\noutput y");
    match proof(&model, &model, &[]) {
        Proof::Undecided { reason } => assert!(reason.contains("divides by 0"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

/// A long chain takes no more stack than a short one, and a value that nothing could hold is not made.
#[test]
fn long_and_large_models_end() {
    let mut lines = vec!["input x batch 2".to_owned(), "const c 1 = 3".to_owned()];
    let name = |place: usize| {
        if place == 0 {
            "x".to_owned()
        } else {
            format!("v{place}")
        }
    };
    lines.extend((0..20_000).map(|place| format!("{} = Mul({}, c)", name(place + 1), name(place))));
    lines.push(format!("output {}", name(20_000)));
    let long = text::model(&lines.join("\n"));
    assert!(is_proved(&proof(&long, &long, &[])));
    let large = text::model(
        "input x batch 2\nints s 3 = 100000 100000 100000\nc = ConstantOfShape(s)\ny = Add(x, c)\noutput y",
    );
    match proof(&large, &large, &[]) {
        Proof::Undecided { reason } => assert!(reason.contains("takes more"), "{reason}"),
        other => panic!("{other:?}"),
    }
    let mut broken = Broken::new("un-dynamo");
    broken.tensors[0].recipe = Recipe::filled(1.0, &[1 << 20, 1 << 20]);
    match proof(&broken.original, &broken.fused, &broken.tensors) {
        Proof::Undecided { reason } => assert!(reason.contains("takes more"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

/// The operators of onnxruntime among those below.
const OF_RUNTIME: &[&str] = &[
    "FusedMatMul",
    "GroupNorm",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
];

/// The original computes a value from stored numbers; the other model stores the result. So the two
/// are equal if the prover computes the expected value.
fn computes(model: &Model, expected: &[Value]) -> Proof {
    let mut original = model.clone();
    // Only the prover knows that a number less itself is 0, and so the operands.
    let graph = original.graph_mut();
    graph.input.extend([
        declared("any", DataType::Float, &[]),
        declared("whole", DataType::Int64, &[]),
    ]);
    let mut stored = Model::from_proto(original.proto.clone());
    let graph = original.graph_mut();
    let constants: Vec<(String, bool)> = graph
        .initializer
        .iter()
        .map(|t| (t.name().to_owned(), t.data_type() == DataType::Float.code()))
        .collect();
    let mut nodes = vec![
        node("Sub", &["any", "any"], &["zero?"], vec![]),
        node("Sub", &["whole", "whole"], &["no?"], vec![]),
    ];
    for (name, is_float) in constants {
        nodes.push(node(
            "Add",
            &[&name[..], if is_float { "zero?" } else { "no?" }],
            &[&format!("{name}?")],
            vec![],
        ));
        for input in graph
            .node
            .iter_mut()
            .flat_map(|node| &mut node.input)
            .filter(|input| **input == name)
        {
            *input = format!("{name}?");
        }
    }
    for node in graph
        .node
        .iter_mut()
        .filter(|node| OF_RUNTIME.contains(&node.op_type()))
    {
        node.domain = Some("com.microsoft".into());
    }
    nodes.append(&mut graph.node);
    graph.node = nodes;
    stored.graph_mut().node.clear();
    for (place, value) in expected.iter().enumerate() {
        let name = format!("expected {place}");
        let tensor = match value {
            Value::Floats(numbers) => {
                assert!(
                    numbers
                        .iter()
                        .all(|n| (n * 64.0).fract() == 0.0 && n.abs() < 1e5),
                    "{numbers}"
                );
                floats(&name, numbers)
            }
            Value::Ints(numbers) => {
                let list: Vec<i64> = numbers.iter().copied().collect();
                let dims = numbers
                    .shape()
                    .iter()
                    .map(|&extent| extent as i64)
                    .collect();
                TensorProto {
                    dims,
                    ..tensor::make_i64(&name, &list)
                }
            }
        };
        let mut output = model.graph().output[place].name().to_owned();
        if let Value::Ints(_) = value {
            // Truth values are numbers here, and other integers are wide ones.
            let wide = format!("{output} wide");
            let cast = node("Cast", &[&output], &[&wide], vec![("to", 7_i64.into())]);
            original.graph_mut().node.push(cast);
            for model in [&mut original, &mut stored] {
                model.graph_mut().output[place] = undeclared(&wide);
            }
            output = wide;
        }
        original.graph_mut().initializer.push(tensor.clone());
        stored.graph_mut().initializer.push(tensor);
        stored
            .graph_mut()
            .node
            .push(node("Identity", &[&name], &[&output], vec![]));
    }
    proof(&original, &stored, &[])
}

/// The numbers of a text, and one that differs in its last number.
fn differs(value: &Value) -> Value {
    match value.clone() {
        Value::Floats(mut numbers) => {
            *numbers.iter_mut().last().unwrap() += 1.0;
            Value::Floats(numbers)
        }
        Value::Ints(mut numbers) => {
            *numbers.iter_mut().last().unwrap() += 1;
            Value::Ints(numbers)
        }
    }
}

fn checked(lines: &str, expected: impl FnOnce(&Model) -> Vec<Value>) {
    let mut model = text::model(lines);
    if model.graph().output.is_empty() {
        let last = model.graph().node.last().unwrap().output.clone();
        model
            .graph_mut()
            .output
            .extend(last.iter().map(|name| undeclared(name)));
    }
    let expected = expected(&model);
    let proof = computes(&model, &expected);
    assert!(is_proved(&proof), "{lines}\n{expected:?}\n{proof:?}");
    let wrong: Vec<Value> = expected.iter().map(differs).collect();
    assert!(
        matches!(computes(&model, &wrong), Proof::Disproved { .. }),
        "{lines}"
    );
}

const NUMBERS: &str = "const a 2 3 = 1 -2 3 4 0 -6\nconst b 3 = 2 4 -8\nconst c 3 2 = 1 2 3 -4 5 6\n\
                       const image 1 4 3 3 = 1 2 3 4 5 6 7 8 9 -1 -2 -3 0 1 0 2 2 2 3 1 4 1 5 9 2 6 5 3 5 8 9 7 9 3 2 3\n\
                       const kernel 2 2 2 2 = 1 -1 2 3 0 1 1 0 2 2 -3 1 1 1 0 -1\nconst bias 2 = 10 -20\n\
                       const squares 2 2 = 4 9 0.25 1\nconst spread 2 4 = 1 -1 1 -1 3 -3 -3 3\n\
                       const two 2 = 2 -4\nconst one 2 = 1 3\nconst four 4 = 1 2 4 -1\nconst shift 4 = 5 0 -1 2\n";

/// Operators as the interpreter of the tests computes them, which shares no code with the prover.
#[test]
fn operators_compute_what_the_specification_says() {
    let cases = [
        "y = Add(a, b)",
        "y = Sub(b, a)",
        "y = Mul(a, b)",
        "y = Div(a, b)",
        "y = Neg(a)",
        "y = Reciprocal(b)",
        "y = Sqrt(squares)",
        "const e 1 = 2\ny = Pow(a, e)",
        "const e 1 = -2\ny = Pow(b, e)",
        "const e 1 = 0.5\ny = Pow(squares, e)",
        "y = MatMul(a, c)",
        "y = MatMul(b, c)",
        "y = MatMul(a, b)",
        "const l 2 1 2 3 = 1 2 3 4 5 6 7 8 9 1 2 3\nconst r 3 3 2 = 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9\ny = MatMul(l, r)",
        "y = Gemm(a, c, two) alpha=0.5 beta=2.0",
        "y = Gemm(c, a) transA=1 transB=1",
        "y = Conv(image, kernel, bias) group=2 pads=[1,0,0,2] strides=[1,2]",
        "y = Conv(image, kernel) group=2 dilations=[2,1] pads=[1,1,1,1]",
        "y = Conv(image, kernel) group=2 auto_pad=SAME_LOWER",
        "y = Conv(image, kernel) group=2 auto_pad=SAME_UPPER strides=[2,2]",
        "const k 4 1 3 3 = 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9\ny = Conv(image, k) group=4",
        "const k 4 1 2 2 = 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7\ny = ConvTranspose(image, k, bias) group=2 strides=[2,1] pads=[1,0,0,1]",
        "const k 4 3 2 2 = 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7\ny = ConvTranspose(image, k)",
        "y = AveragePool(image) kernel_shape=[2,2]",
        "y = AveragePool(image) kernel_shape=[2,1] pads=[1,0,0,0]",
        "y = AveragePool(image) kernel_shape=[2,2] pads=[1,1,0,0] count_include_pad=1 strides=[2,2]",
        "const x 1 1 2 2 = 1 2 3 4\ny = GlobalAveragePool(x)",
        "ints axes 1 = 1\nopset 18\ny = ReduceSum(a, axes) keepdims=0",
        "y = ReduceMean(spread) axes=[1]",
        "y = ReduceMean(spread) axes=[-1,0] keepdims=0",
        "const x 1 2 = 3 4\ny = ReduceL2(x) axes=[1]",
        "const x 1 2 2 = 1 2 3 4\nconst m 2 = 1 0\nconst v 2 = 4 0.25\ny = BatchNormalization(x, one, two, m, v) epsilon=0.0",
        "y = LayerNormalization(spread, four, shift) epsilon=0.0",
        "y = LayerNormalization(spread, four) epsilon=0.0 axis=-1",
        "const x 1 2 4 = 1 -1 1 -1 3 -3 -3 3\ny = InstanceNormalization(x, one, two) epsilon=0.0",
        "opset 18\nconst x 1 4 2 = 1 -1 1 -1 3 -3 -3 3\ny = GroupNormalization(x, one, two) epsilon=0.0 num_groups=2",
        "opset 21\nconst x 1 4 2 = 1 -1 1 -1 3 -3 -3 3\ny = GroupNormalization(x, four, shift) epsilon=0.0 num_groups=2",
        "const x 1 2 1 4 = 1 -1 3 -3 1 -1 -3 3\ny = GroupNorm(x, four, shift) epsilon=0.0 groups=2 channels_last=1 activation=0",
        "y = SkipLayerNormalization(spread, spread, four, shift) epsilon=0.0",
        "y = SkipSimplifiedLayerNormalization(spread, spread, four) epsilon=0.0",
        "y = SimplifiedLayerNormalization(spread, four) epsilon=0.0",
        "y = Transpose(image) perm=[2,0,3,1]",
        "y = Transpose(a)",
        "ints s 3 = 2 0 -1\nconst x 4 3 2 = 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6\ny = Reshape(x, s)",
        "y = Flatten(image) axis=2",
        "const x 1 3 1 = 1 2 3\nints s 1 = 2\ny = Squeeze(x, s)",
        "ints s 2 = 0 -1\ny = Unsqueeze(a, s)",
        "ints s 2 = 2 0\nints e 2 = -9 3\nints x 2 = 1 0\nints d 2 = -2 1\ny = Slice(a, s, e, x, d)",
        "ints s 1 = -2\nints e 1 = 100\nints x 1 = -1\ny = Slice(a, s, e, x)",
        "ints s 2 = 1 2\nu, v = Split(a, s) axis=1",
        "u, v = Split(c) axis=1",
        "y = Concat(a, a) axis=1",
        "y = Concat(a, a) axis=-2",
        "ints i 2 2 = 0 -1 1 0\ny = Gather(a, i) axis=1",
        "ints i 2 2 = 1 2 0 0\ny = GatherND(a, i)",
        "ints i 2 1 = 1 2\ny = GatherND(a, i) batch_dims=1",
        "ints s 3 = 2 1 3\ny = Expand(a, s)",
        "ints s 2 = 2 3\ny = Tile(a, s)",
        "ints s 4 = 1 0 2 -1\nconst v = 7\ny = Pad(a, s, v)",
        "ints s 4 = 1 2 0 1\ny = Pad(a, s) mode=reflect",
        "ints s 4 = 3 2 0 4\ny = Pad(a, s) mode=edge",
        "opset 19\nints s 4 = 3 2 0 4\ny = Pad(a, s) mode=wrap",
        "y = Shape(image) start=1 end=-1",
        "y = Size(image)",
        "ints i 2 = 3 -4\ny = Cast(i) to=1",
    ];
    for case in cases {
        // The version comes first.
        let (versions, rest): (Vec<&str>, Vec<&str>) =
            case.lines().partition(|line| line.starts_with("opset"));
        let lines = [&versions.join("\n"), NUMBERS, &rest.join("\n")]
            .map(str::to_owned)
            .join("\n");
        checked(&lines, |model| reference::run(model, &Env::new()).unwrap());
    }
}

/// Operators that the interpreter of the tests does not have, with results by hand.
#[test]
fn operators_compute_what_was_computed_by_hand() {
    let cases = [
        ("y = Sum(a, b, b)", "const y 2 3 = 5 6 -13 8 8 -22"),
        ("y = Mean(a, b)", "const y 2 3 = 1.5 1 -2.5 3 2 -7"),
        (
            "const e 1 = 3\ny = Pow(a, e)",
            "const y 2 3 = 1 -8 27 64 0 -216",
        ),
        (
            "y = FusedMatMul(a, a) transB=1 alpha=0.5",
            "const y 2 2 = 7 -7 -7 26",
        ),
        ("y = Einsum(a, b) equation=ij,j->i", "const y 2 = -30 56"),
        (
            "y = Einsum(a, c) equation=ij,jk->ki",
            "const y 2 2 = 10 -26 28 -28",
        ),
        (
            "const x 2 1 2 = 1 2 3 4\ny = Einsum(x, x) equation=bhd,bhd->bh",
            "const y 2 1 = 5 25",
        ),
        (
            "y = Einsum(a, c) equation=...j,jk->...k",
            "const y 2 2 = 10 28 -26 -28",
        ),
        (
            "y = Einsum(a, b, two) equation=ij,j,i->ij",
            "const y 2 3 = 4 -16 -48 -32 0 -192",
        ),
        (
            "y = Einsum(two, a, c) equation=i,ij,jk->k",
            "const y 2 = 124 168",
        ),
        (
            "const x 1 1 2 = 1 2\nconst k 1 1 2 = 1 3\ny = ConvTranspose(x, k) output_shape=[2]",
            "const y 1 1 2 = 5 6",
        ),
        (
            "const x 1 1 2 = 1 2\nconst k 1 1 2 = 1 3\ny = ConvTranspose(x, k) auto_pad=SAME_UPPER",
            "const y 1 1 2 = 1 5",
        ),
        (
            "y = Einsum(a) equation=ij->ji",
            "const y 3 2 = 1 4 -2 0 3 -6",
        ),
        ("y = Einsum(a, b) equation=ij,k->", "const y = 0"),
        (
            "const x 2 2 2 = 1 2 3 4 5 6 7 8\ny = Einsum(x) equation=bnn->bn",
            "const y 2 2 = 1 4 5 8",
        ),
        (
            "const x 2 2 = 1 2 3 4\ny = Einsum(x, two) equation=ii,i->",
            "const y = -14",
        ),
        (
            "const x 1 2 = 5 7\ny = Einsum(two, x) equation=i,ij->j",
            "const y 2 = -10 -14",
        ),
        ("y = ReduceSumSquare(a) axes=[1]", "const y 2 1 = 14 52"),
        (
            "const x 1 4 1 1 = 1 2 3 4\ny = DepthToSpace(x) blocksize=2",
            "const y 1 1 2 2 = 1 2 3 4",
        ),
        (
            "const x 1 4 1 2 = 1 2 3 4 5 6 7 8\ny = DepthToSpace(x) blocksize=2 mode=CRD",
            "const y 1 1 2 4 = 1 3 2 4 5 7 6 8",
        ),
        (
            "const x 1 1 2 2 = 1 2 3 4\ny = SpaceToDepth(x) blocksize=2",
            "const y 1 4 1 1 = 1 2 3 4",
        ),
        (
            "ints x 1 = 1\ny = CumSum(a, x)",
            "const y 2 3 = 1 -1 2 4 4 -2",
        ),
        (
            "ints x 1 = 0\ny = CumSum(a, x) exclusive=1 reverse=1",
            "const y 2 3 = 4 0 -6 0 0 0",
        ),
        ("y = Trilu(a)", "const y 2 3 = 1 -2 3 0 0 -6"),
        (
            "ints k = -1\ny = Trilu(a, k) upper=0",
            "const y 2 3 = 0 0 0 4 0 0",
        ),
        (
            "ints i 2 1 = 2 -2\ny = GatherElements(a, i) axis=1",
            "const y 2 1 = 3 0",
        ),
        (
            "ints i 2 = 0 -1\nints d = 3\nconst v 2 = 5 7\ny = OneHot(i, d, v)",
            "const y 2 3 = 7 5 5 5 5 7",
        ),
        ("ints i 2 = 1 0\ny = Where(i, one, two)", "const y 2 = 1 -4"),
        (
            "ints s 2 = 4 3\ny = Resize(a, , , s) coordinate_transformation_mode=asymmetric nearest_mode=floor",
            "const y 4 3 = 1 -2 3 1 -2 3 4 0 -6 4 0 -6",
        ),
        (
            "const s 2 = 1 2\ny = Resize(a, , s) coordinate_transformation_mode=asymmetric nearest_mode=floor",
            "const y 2 6 = 1 1 -2 -2 3 3 4 4 0 0 -6 -6",
        ),
        (
            "ints i 2 2 = 0 3 2 0\ny = NonZero(i)",
            "ints y 2 2 = 0 1 1 0",
        ),
        (
            "ints s = 5\nints e = -2\nints d = -3\ny = Range(s, e, d)",
            "ints y 3 = 5 2 -1",
        ),
        (
            "ints s 2 = 2 1\ny = ConstantOfShape(s)",
            "const y 2 1 = 0 0",
        ),
        (
            "ints i 3 = 1 2 3\nints j = 2\ny = Less(i, j)",
            "ints y 3 = 1 0 0",
        ),
        (
            "ints i 3 = 7 2 9\nints j = 4\ny = Mod(i, j)",
            "ints y 3 = 3 2 1",
        ),
        (
            "ints i 3 = 7 2 9\nints j = 4\ny = Div(i, j)",
            "ints y 3 = 1 0 2",
        ),
        (
            "ints i 3 = 7 2 9\nints j = 4\ny = Min(i, j)",
            "ints y 3 = 4 2 4",
        ),
        (
            "ints i 2 1 1 1 = 2 5\nints j 1 1 3 1 = 1 3 9\nints k 1 = 4\nm = Max(i, j)\ny = Max(m, k)",
            "ints y 2 1 3 1 = 4 4 9 5 5 9",
        ),
        (
            "ints i 2 2 = 7 2 9 1\nints x 1 = 0\ny = ReduceSum(i, x) keepdims=0",
            "ints y 2 = 16 3",
        ),
        ("ints i 3 = 7 0 -9\ny = Sign(i)", "ints y 3 = 1 0 -1"),
        (
            "const x 1 1 3 = 1 3 9\ny = AveragePool(x) kernel_shape=[2] strides=[2] ceil_mode=1",
            "const y 1 1 2 = 2 9",
        ),
    ];
    for (case, result) in cases {
        checked(&[NUMBERS, case].join(""), |_| {
            let expected = text::model(result);
            vec![reference::constant(&expected.graph().initializer[0]).unwrap()]
        });
    }
}

/// A body that reads a value of the graph around it, under this name.
fn body(captured: &str) -> unfold::onnx::proto::GraphProto {
    let inner = node("Exp", &[captured], &["inner"], vec![]);
    unfold::onnx::proto::GraphProto {
        node: vec![inner],
        output: vec![undeclared("inner")],
        ..Default::default()
    }
}

#[test]
fn a_body_is_a_function_of_what_it_captures() {
    let with = |text: &str, captured: &str| {
        let mut model = text::model(text);
        let branches = vec![
            ("then_branch", body(captured).into()),
            ("else_branch", body(captured).into()),
        ];
        model
            .graph_mut()
            .node
            .push(node("If", &["yes"], &["y"], branches));
        model.graph_mut().output.push(undeclared("y"));
        model
    };
    let start = "input x batch 4\ncondition yes\nweight w 4 3\nscale s 3\n";
    let before = with(&format!("{start}v = MatMul(x, w)\nz = Mul(v, s)"), "z");
    let folded = with(&format!("{start}u = Mul(w, s)\nt = MatMul(x, u)"), "t");
    let forgotten = with(&format!("{start}t = MatMul(x, w)"), "t");
    assert!(is_proved(&proof(&before, &folded, &[])));
    match proof(&before, &forgotten, &[]) {
        Proof::Disproved { at, .. } => assert_eq!(at, "t"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_if_whose_branches_make_the_same_integers_makes_those() {
    let reshaped = |read: [&str; 2]| {
        let mut model = text::model(
            "input x 2 4\ncondition yes\nweight w 4 3\nweight v 3 3\nints other 2 = 2 3\nz = MatMul(x, w)",
        );
        let branch = |of: &str| unfold::onnx::proto::GraphProto {
            node: vec![node("Shape", &[of], &["inner"], vec![])],
            output: vec![undeclared("inner")],
            ..Default::default()
        };
        let bodies = vec![
            ("then_branch", branch(read[0]).into()),
            ("else_branch", branch(read[1]).into()),
        ];
        model
            .graph_mut()
            .node
            .push(node("If", &["yes"], &["extents"], bodies));
        model
            .graph_mut()
            .node
            .push(node("Reshape", &["z", "extents"], &["same"], vec![]));
        model
            .graph_mut()
            .node
            .push(node("MatMul", &["same", "v"], &["y"], vec![]));
        model.graph_mut().output.push(undeclared("y"));
        model
    };
    let plain = text::model(
        "input x 2 4\ncondition yes\nweight w 4 3\nweight v 3 3\nints other 2 = 2 3\nz = MatMul(x, w)\ny = MatMul(z, v)\noutput y",
    );
    assert!(is_proved(&proof(&reshaped(["z", "z"]), &plain, &[])));
    assert!(!is_proved(&proof(&reshaped(["z", "x"]), &plain, &[])));
}

#[test]
fn an_if_makes_the_same_integers_beside_floats_that_differ() {
    let with = |extents: [&str; 2], end: &str| {
        let mut model = text::model(&format!(
            "input x 2 6\ncondition yes\nints wide 2 = 3 4\nints high 2 = 4 3\nints zero 1 = 0\nints three 1 = 3\nints rest 1 = -1\n{end}\noutput y"
        ));
        let branch = |op: &str, extents: &str| unfold::onnx::proto::GraphProto {
            node: vec![
                node(op, &["x"], &["inner"], vec![]),
                node("Gather", &[extents, "zero"], &["rows"], vec![]),
            ],
            output: ["inner", "rows"].map(undeclared).to_vec(),
            ..Default::default()
        };
        let bodies = [
            ("then_branch", "Neg", extents[0]),
            ("else_branch", "Abs", extents[1]),
        ];
        let bodies = bodies
            .map(|(name, op, extents)| (name, branch(op, extents).into()))
            .to_vec();
        model
            .graph_mut()
            .node
            .insert(0, node("If", &["yes"], &["z", "rows"], bodies));
        model
    };
    let made = "e = Concat(rows, rest) axis=0\ny = Reshape(z, e)";
    let known = "e = Concat(three, rest) axis=0\ny = Reshape(z, e)";
    let is_known =
        |extents: [&str; 2]| is_proved(&proof(&with(extents, made), &with(extents, known), &[]));
    assert!(is_known(["wide", "wide"]));
    assert!(!is_known(["high", "high"]));
    assert!(!is_known(["wide", "high"]));
}

#[test]
fn what_a_body_makes_of_what_nobody_knows_is_undecided() {
    let with = |factor: &str, weight: &str| {
        let mut model = text::model(
            "input x 2 4\ncondition yes\nconst s = 2\nconst one = 1\nconst v 4 3 = 1 2 3 4 5 6 7 8 9 10 11 12\nconst w 4 3 = 2 4 6 8 10 12 14 16 18 20 22 24\nints e 2 = 2 4\nu = custom.Unknown(x)",
        );
        let branch = || unfold::onnx::proto::GraphProto {
            node: vec![
                node("Mul", &["u", factor], &["scaled"], vec![]),
                node("Reshape", &["scaled", "e"], &["shaped"], vec![]),
                node("MatMul", &["shaped", weight], &["inner"], vec![]),
            ],
            output: vec![undeclared("inner")],
            ..Default::default()
        };
        let bodies = vec![
            ("then_branch", branch().into()),
            ("else_branch", branch().into()),
        ];
        model
            .graph_mut()
            .node
            .push(node("If", &["yes"], &["y"], bodies));
        model.graph_mut().output.push(undeclared("y"));
        model
    };
    let found = proof(&with("s", "v"), &with("one", "w"), &[]);
    assert!(matches!(found, Proof::Undecided { .. }), "{found:?}");
}

/// A model, with a tensor that a recipe gives, for the sake of a site.
fn with_new(
    mut model: Model,
    original: &Model,
    name: &str,
    recipe: Recipe,
) -> (Model, Vec<Stored>) {
    let known = unfold::analysis::Analysis::new(original).unwrap();
    let read = |name: &str| known.constants.read(known.graph.value(name).unwrap());
    let numbers = unfold::recipe::evaluate(&recipe, &read).unwrap();
    model.graph_mut().initializer.push(floats(name, &numbers));
    (
        model,
        vec![Stored {
            name: name.into(),
            data_type: DataType::Float,
            recipe,
            replaces: None,
            sites: vec![3],
        }],
    )
}

/// A graph to be a body.
fn part(lines: &str) -> unfold::onnx::proto::GraphProto {
    text::model(lines).proto.graph.unwrap()
}

/// Models whose last node has these bodies: the scale between two weights stands in the body, is in the second weight,
/// or is there at another channel.
fn scaled_in_bodies(with: &dyn Fn(&str) -> Model) -> [(Model, Vec<Stored>); 3] {
    let original = with("a = MatMul(h, w)\nb = Mul(a, s)\nt = MatMul(b, v)");
    let folded = with("a = MatMul(h, w)\nt = MatMul(a, v_folded)");
    let scale = Recipe::constant("s", &[3]);
    let recipe = |scale: &Recipe| {
        Recipe::constant("v", &[3, 4])
            .mul(&scale.reshape(&[3, 1]).unwrap())
            .unwrap()
    };
    let other = scale.pick(0, [Some(1), Some(0), Some(2)]).unwrap();
    let moved = with_new(folded.clone(), &original, "v_folded", recipe(&scale));
    let lost = with_new(folded, &original, "v_folded", recipe(&other));
    [(original, vec![]), moved, lost]
}

const AROUND: &str =
    "condition yes\nweight w 4 3\nconst s 3 = 0.3 -0.7 1.9\nweight v 3 4\nweight o 4 4\n";

#[test]
fn a_scale_that_moves_within_a_body_is_proved_and_one_of_another_channel_is_not() {
    let branches = |then: &str| {
        let mut model = text::model(&format!("input h batch 4\n{AROUND}"));
        let bodies = vec![
            ("then_branch", part(&format!("{then}\noutput t")).into()),
            ("else_branch", part("e = MatMul(h, o)\noutput e").into()),
        ];
        model
            .graph_mut()
            .node
            .push(node("If", &["yes"], &["y"], bodies));
        model
    };
    let looped = |body: &str| {
        let mut model = text::model(&format!("input x 2 4\nindices m\n{AROUND}"));
        let formals = "indices i\ncondition c\ninput h 2 4\n";
        let lines = format!("{formals}{body}\nd = Identity(c)\nq = Softmax(t)\noutput d q t");
        let bodies = vec![("body", part(&lines).into())];
        model
            .graph_mut()
            .node
            .push(node("Loop", &["m", "yes", "x"], &["last", "all"], bodies));
        model
            .graph_mut()
            .node
            .push(node("MatMul", &["last", "o"], &["y"], vec![]));
        model
    };
    let scanned = |body: &str| {
        let mut model = text::model(&format!("input x 5 2 4\ninput z 2 4\n{AROUND}"));
        // An inner branch: its captures are values of the body.
        let inner = vec![
            ("then_branch", part("a = Add(t, g)\noutput a").into()),
            ("else_branch", part("a = Sub(t, g)\noutput a").into()),
        ];
        let mut outer = part(&format!("input g 2 4\ninput h 2 4\n{body}"));
        outer.node.push(node("If", &["yes"], &["f"], inner));
        outer.output = ["f", "t"].map(undeclared).to_vec();
        let attributes = vec![("body", outer.into()), ("num_scan_inputs", 1.into())];
        model
            .graph_mut()
            .node
            .push(node("Scan", &["z", "x"], &["y", "all"], attributes));
        model
    };
    for with in [&branches as &dyn Fn(&str) -> Model, &looped, &scanned] {
        let with = |body: &str| {
            let mut model = with(body);
            model.graph_mut().output.push(undeclared("y"));
            model
        };
        let [(original, _), (moved, recipes), (lost, wrong)] = scaled_in_bodies(&with);
        let proved = proof(&original, &moved, &recipes);
        assert!(is_proved(&proved), "{proved:?}");
        match proof(&original, &lost, &wrong) {
            Proof::Disproved { at, site, .. } => {
                assert!(at == "y" || at == "last", "{at} {site:?}")
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_broken_branch_is_found_at_its_site_and_one_that_nobody_can_evaluate_decides_nothing() {
    let with = |then: &str, input: &str| {
        let mut model = text::model(&format!("{input}\n{AROUND}"));
        let bodies = vec![
            ("then_branch", part(&format!("{then}\noutput t")).into()),
            ("else_branch", part("e = MatMul(h, o)\noutput e").into()),
        ];
        model
            .graph_mut()
            .node
            .push(node("If", &["yes"], &["y"], bodies));
        model
            .graph_mut()
            .output
            .push(declared("y", DataType::Float, &["batch", "4"]));
        model
    };
    let known = |then: &str| with(then, "input h batch 4");
    let [(original, _), _, (lost, wrong)] = scaled_in_bodies(&known);
    match proof(&original, &lost, &wrong) {
        Proof::Disproved { at, site, .. } => assert_eq!((at.as_str(), site), ("y", Some(3))),
        other => panic!("{other:?}"),
    }
    // Whichever is written first.
    let then = "a = MatMul(h, w)\nt = MatMul(a, v)";
    let exchanged = |turn: bool| {
        let mut model = known(then);
        let attributes = &mut model.graph_mut().node[0].attribute;
        attributes.swap(0, 1);
        if turn {
            (attributes[0].name, attributes[1].name) =
                (attributes[1].name.clone(), attributes[0].name.clone());
        }
        model
    };
    assert!(is_proved(&proof(&known(then), &exchanged(false), &[])));
    assert!(matches!(
        proof(&known(then), &exchanged(true), &[]),
        Proof::Disproved { .. }
    ));
    // Not even the extents of an unknown operator are known: a scale may have moved through it.
    let mystery = |then: &str| {
        let mut model = known(&format!("m = Mystery(h)\n{}", then.replace("(h,", "(m,")));
        let graph = model.graph_mut().node[0].attribute[0].g.as_mut().unwrap();
        graph.node[0].domain = Some("com.example".into());
        model
    };
    let [(original, _), (moved, recipes), _] = scaled_in_bodies(&mystery);
    assert!(matches!(
        proof(&original, &moved, &recipes),
        Proof::Undecided { .. }
    ));
    assert!(is_proved(&proof(&original, &original, &[])));
}

#[test]
fn a_new_tensor_of_a_body_is_held_to_its_recipe() {
    let with = |initializer: Option<TensorProto>, then: &str| {
        let mut model = text::model(&format!("input h batch 4\n{AROUND}"));
        let mut body = part(&format!("{then}\noutput t"));
        body.initializer.extend(initializer);
        let bodies = vec![
            ("then_branch", body.into()),
            ("else_branch", part("e = MatMul(h, o)\noutput e").into()),
        ];
        model
            .graph_mut()
            .node
            .push(node("If", &["yes"], &["y"], bodies));
        model.graph_mut().output.push(undeclared("y"));
        model
    };
    let original = with(None, "a = MatMul(h, w)\nb = Mul(a, s)\nt = MatMul(b, v)");
    let scale = Recipe::constant("s", &[3]).reshape(&[3, 1]).unwrap();
    let recipe = Recipe::constant("v", &[3, 4]).mul(&scale).unwrap();
    let (outside, recipes) = with_new(original.clone(), &original, "v_folded", recipe);
    let tensor = common::initializer(&outside, "v_folded").clone();
    let then = "a = MatMul(h, w)\nt = MatMul(a, v_folded)";
    assert!(is_proved(&proof(
        &original,
        &with(Some(tensor.clone()), then),
        &recipes
    )));
    let mut bytes = tensor::raw(&tensor, &Externals::none()).unwrap().to_vec();
    bytes[8] ^= 1;
    let mut other = tensor;
    tensor::replace(&mut other, bytes.into()).unwrap();
    match proof(&original, &with(Some(other), then), &recipes) {
        Proof::Disproved {
            at, site: Some(3), ..
        } => assert_eq!(at, "v_folded"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_positive_number_moves_through_what_keeps_it_and_no_other_does() {
    let lines = |scale: &str, rest: &str| {
        text::model(&format!(
            "input x 2 4\nweight w 4 3\nconst v 3 2 = 1 2 3 -1 2 5\nconst s {scale}\na = MatMul(x, w)\n{rest}\noutput y"
        ))
    };
    let operators = [
        "r = Relu(b)",
        "r = LeakyRelu(b) alpha=0.3",
        "r = Abs(b)",
        "const zero = 0\nr = Max(b, zero)",
        "m = ReduceMax(b) axes=[1]\nr = Sub(b, m)",
        "q = Relu(b)\nr = Abs(q)",
    ];
    // Behind the operator it is in the weight behind, or before it in the weight before.
    let judged = |scale: &str, extents: &[usize], operator: &str, forward: bool| {
        let own = operator.replace("(b", "(a");
        let (before, after) = match forward {
            true => (
                format!("b = Mul(a, s)\n{operator}\ny = MatMul(r, v)"),
                format!("{own}\ny = MatMul(r, n)"),
            ),
            false => (
                format!("{own}\nc = Mul(r, s)\ny = MatMul(c, v)"),
                format!("{own}\ny = MatMul(r, v)"),
            ),
        };
        let original = lines(scale, &before);
        let number = Recipe::constant("s", extents);
        let recipe = match forward {
            true => Recipe::constant("v", &[3, 2]).mul(&number.reshape(&[extents[0], 1]).unwrap()),
            false => Recipe::constant("w", &[4, 3]).mul(&number.reshape(&[1, extents[0]]).unwrap()),
        };
        let mut fused = lines(scale, &after);
        if !forward {
            fused.graph_mut().node[0].input[1] = "n".into();
        }
        let (fused, tensors) = with_new(fused, &original, "n", recipe.unwrap());
        proof(&original, &fused, &tensors)
    };
    for (operator, forward) in operators
        .iter()
        .flat_map(|operator| [(operator, true), (operator, false)])
    {
        let proof = judged("1 = 0.3", &[1], operator, forward);
        assert!(is_proved(&proof), "{operator} {forward}: {proof:?}");
        for (scale, extents) in [("1 = -0.3", &[1]), ("3 = 0.3 -0.7 1.9", &[3])] {
            let proof = judged(scale, extents, operator, forward);
            assert!(
                matches!(proof, Proof::Disproved { .. }),
                "{operator} {scale} {forward}: {proof:?}"
            );
        }
    }
}

#[test]
fn a_value_and_its_multiple_are_one_to_what_a_positive_number_moves_through() {
    for (scale, holds) in [("1 = 0.3", true), ("1 = -0.3", false)] {
        let lines = |rest: &str| {
            text::model(&format!(
                "input x 2 4\nweight w 4 3\nconst v 3 2 = 1 2 3 -1 2 5\nconst s {scale}\na = MatMul(x, w)\np = Relu(a)\n{rest}\noutput p\noutput y"
            ))
        };
        let original = lines("b = Mul(a, s)\nq = Relu(b)\ny = MatMul(q, v)");
        let number = Recipe::constant("s", &[1]).reshape(&[1, 1]).unwrap();
        let recipe = Recipe::constant("v", &[3, 2]).mul(&number).unwrap();
        let (fused, tensors) = with_new(lines("y = MatMul(p, n)"), &original, "n", recipe);
        let proof = proof(&original, &fused, &tensors);
        assert_eq!(is_proved(&proof), holds, "{scale}: {proof:?}");
    }
}

#[test]
fn what_is_no_model_is_undecided_and_so_is_what_takes_more_than_its_size() {
    let places = |kind: &str| {
        text::model(&format!(
            "input x 2 4 3\n{kind} i 2\nconst s 3 = 2 3 5\nweight w 3 2\nn = Mul(x, s)\nr = Gather(n, i) axis=1\ny = MatMul(r, w)\noutput y"
        ))
    };
    let folded = |kind: &str| {
        let fused = unfold::fuse(&places(kind), &Default::default()).unwrap();
        proof(&places(kind), &fused.model, &fused.plan.tensors)
    };
    assert!(is_proved(&folded("indices")));
    assert!(matches!(folded("half"), Proof::Undecided { .. }));
    for lines in [
        "input x 1\nints e 3 = 64 1024 1024\na = Expand(x, e)\ny = Relu(a)\noutput y",
        "input x 123456789 987654\ny = Relu(x)\noutput y",
    ] {
        match proof(&text::model(lines), &text::model(lines), &[]) {
            Proof::Undecided { reason } => assert!(reason.contains("takes more"), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    for lines in [
        "input x 1 2 4 4\nweight w 3 2 3 3\ny = Conv(x, w) kernel_shape=[1,3]\noutput y",
        "input x 2 3\nconst s 2 = 3 2\ny = Reshape(x, s)\noutput y",
    ] {
        let proof = proof(&text::model(lines), &text::model(lines), &[]);
        assert!(
            matches!(proof, Proof::Undecided { .. }),
            "{lines}: {proof:?}"
        );
    }
}

#[test]
fn a_slice_backward_from_before_the_first_place_is_what_it_is_and_no_other() {
    let sliced = |bounds: &str| {
        text::model(&format!(
            "input x 2 4\nscale g 4\nweight w 4 3\nints axis 1 = 0\n{bounds}\na = Slice(x, s, e, axis, p)\nn = Mul(a, g)\ny = MatMul(n, w)\noutput y"
        ))
    };
    // The specification takes the first place here, and its reference none.
    let unclear = sliced("ints s 1 = -3\nints e 1 = -9\nints p 1 = -1");
    assert!(is_proved(&proof(&unclear, &unclear, &[])));
    for end in [0, 1] {
        let one_way = sliced(&format!("ints s 1 = 0\nints e 1 = {end}\nints p 1 = 1"));
        assert!(!is_proved(&proof(&unclear, &one_way, &[])), "{end}");
    }
}

#[test]
fn a_call_is_the_body_of_its_function() {
    let start = "opset 17\ninput x batch 4\nweight w 4 3\nscale s 3\n";
    let mut called = text::model(&format!(
        "{start}v = MatMul(x, w)\ny = Twice(v, s)\noutput y"
    ));
    called.graph_mut().node[1].domain = Some("own".into());
    let resolved = AttributeProto {
        ref_attr_name: Some("alpha".into()),
        ..common::attribute("alpha", common::Attr::Float(0.0))
    };
    let mut leaky = node("LeakyRelu", &["b"], &["c"], vec![]);
    leaky.attribute.push(resolved);
    called.proto.functions.push(FunctionProto {
        name: Some("Twice".into()),
        domain: Some("own".into()),
        input: vec!["a".into(), "k".into()],
        output: vec!["c".into()],
        attribute: vec!["alpha".into()],
        node: vec![node("Mul", &["a", "k"], &["b"], vec![]), leaky],
        ..Default::default()
    });
    called.graph_mut().node[1]
        .attribute
        .push(common::attribute("alpha", common::Attr::Float(0.25)));
    let written = |alpha: &str| {
        text::model(&format!(
            "{start}u = Mul(s, w)\nt = MatMul(x, u)\ny = LeakyRelu(t) alpha={alpha}\noutput y"
        ))
    };
    assert!(is_proved(&proof(&called, &written("0.25"), &[])));
    assert!(matches!(
        proof(&called, &written("0.5"), &[]),
        Proof::Disproved { .. }
    ));
}

/// Whether the second of two models is found to be another function than the first, or left open.
/// The tokens of two experts, which a layer takes and gives the extents of another value.
fn of_experts(extents: &str) -> Model {
    text::model(&format!(
        "input x batch 6
         input router batch
         const half = 0.5
         const s 6 = 2 -1 0.5 1 4 -2
         weight w 6 8
         ints zero 1 = 0
         ints heads 2 = 2 4
         n = Mul(x, s)
         is = Greater(router, half)
         places = NonZero(is)
         mine = Squeeze(places, zero)
         not = Not(is)
         others = NonZero(not)
         rest = Squeeze(others, zero)
         picked = Gather(n, mine)
         m = MatMul(picked, w)
         count = Shape({extents})
         target = Concat(count, heads) axis=0
         y = Reshape(m, target)
         output y"
    ))
}

#[test]
fn how_many_places_a_run_finds_is_a_size_of_its_own() {
    let model = of_experts("mine");
    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    let of = |op: &str| {
        fused
            .model
            .graph()
            .node
            .iter()
            .filter(|node| node.op_type() == op)
            .count()
    };
    // The scale is in the layer, and the extents of the result are those that it has.
    assert_eq!([of("Mul"), of("Shape"), of("Concat")], [0, 0, 0]);
    let proof = |one: &Model, other: &Model| proof(one, other, &fused.plan.tensors);
    assert!(is_proved(&proof(&model, &fused.model)));
    // The number of other places is another one.
    assert!(!is_proved(&proof(&of_experts("rest"), &fused.model)));
    assert!(!is_proved(&proof(&model, &of_experts("rest"))));
}

fn is_told_apart(one: &Model, other: &Model) -> bool {
    assert!(is_proved(&proof(one, one, &[])));
    !is_proved(&proof(one, other, &[]))
}

#[test]
fn what_a_model_is_given_belongs_to_it() {
    let plain = text::model("input x batch 4\ninput k 4\nscale k 4\ny = Mul(x, k)\noutput y");
    let mut changed = plain.clone();
    let tensor = changed
        .graph_mut()
        .initializer
        .iter_mut()
        .find(|tensor| tensor.name() == "k")
        .unwrap();
    let mut raw = tensor.raw_data.clone().unwrap().to_vec();
    raw[0] ^= 1;
    tensor.raw_data = Some(raw.into());
    assert!(is_told_apart(&plain, &changed));
    let fixed = text::model("input x 2 4\ninput k 4\nscale k 4\ny = Mul(x, k)\noutput y");
    assert!(is_told_apart(&plain, &fixed));
    let hardmax = |opset: i64| {
        text::model(&format!(
            "opset {opset}\ninput x 2 3 4\ny = Hardmax(x)\noutput y"
        ))
    };
    assert!(is_told_apart(&hardmax(12), &hardmax(13)));
}

#[test]
fn integers_of_another_type_make_other_numbers() {
    let quantized = |data_type: DataType| {
        let mut model = text::model(
            "input x 2 4\nconst s = 0.5\nints z = 0\nq = QuantizeLinear(x, s, z)\ny = DequantizeLinear(q, s, z)\noutput y",
        );
        let zero = model
            .graph_mut()
            .initializer
            .iter_mut()
            .find(|tensor| tensor.name() == "z")
            .unwrap();
        *zero = TensorProto {
            name: Some("z".into()),
            data_type: Some(data_type.code()),
            raw_data: Some(vec![0].into()),
            ..Default::default()
        };
        model
    };
    assert!(is_told_apart(
        &quantized(DataType::Int8),
        &quantized(DataType::Uint8)
    ));
}

#[test]
fn random_numbers_are_those_of_their_own_node() {
    let one = "a = RandomNormal() shape=[4]\n";
    let two = text::model(&format!(
        "input x 2 4\n{one}{}d = Sub(a, b)\ny = Add(x, d)\noutput y",
        one.replace('a', "b")
            .replace("Rbndom", "Random")
            .replace("Normbl", "Normal")
            .replace("shbpe", "shape")
    ));
    let mut unnamed = two.clone();
    unnamed
        .graph_mut()
        .node
        .iter_mut()
        .for_each(|node| node.name = None);
    let none = text::model("input x 2 4\ny = Identity(x)\noutput y");
    for two in [two, unnamed] {
        assert!(!is_proved(&proof(&two, &none, &[])));
    }
}

#[test]
fn a_condition_that_nobody_knows_takes_both_sides() {
    let chosen = |one: &str, other: &str| {
        text::model(&format!(
            "input x 2 4\nscale g 4\nscale h 4\nconst z = 0\ns = ReduceSum(x) keepdims=0\nc = Greater(s, z)\na = Mul(x, g)\nb = Mul(x, h)\ny = Where(c, {one}, {other})\noutput y"
        ))
    };
    assert!(is_told_apart(&chosen("a", "b"), &chosen("x", "b")));
    assert!(is_told_apart(&chosen("a", "b"), &chosen("a", "x")));
    let doubled = text::model(
        "input x 2 4\nscale g 4\nscale h 4\nconst z = 0\nconst k = 2\ns = ReduceSum(x) keepdims=0\nc = Greater(s, z)\na = Mul(x, g)\nb = Mul(x, h)\nw = Where(c, a, b)\nn = Mul(w, k)\nweight v 4 3\ny = MatMul(n, v)\noutput y",
    );
    let fused = unfold::fuse(&doubled, &Default::default()).unwrap();
    assert!(fused.changed() && is_proved(&proof(&doubled, &fused.model, &fused.plan.tensors)));
}

#[test]
fn many_positive_scales_in_a_row_pass_activations() {
    let rows: String = (0..70)
        .map(|i| {
            format!(
                "const k{i} = 1.{i:02}7\nh{i} = Mul(r{i}, k{i})\nr{} = Relu(h{i})\n",
                i + 1
            )
        })
        .collect();
    for count in [5, 70] {
        let taken: Vec<&str> = rows.lines().take(3 * count).collect();
        let model = text::model(&format!(
            "input x 2 4\nweight v 4 4\nr0 = MatMul(x, v)\n{}\nweight w 4 3\ny = MatMul(r{count}, w)\noutput y",
            taken.join("\n")
        ));
        let fused = unfold::fuse(&model, &Default::default()).unwrap();
        assert!(fused.changed());
        let proof = proof(&model, &fused.model, &fused.plan.tensors);
        assert!(is_proved(&proof), "{count}: {proof:?}");
    }
}

#[test]
fn an_einsum_may_leave_out_what_it_makes() {
    let with = |equation: &str| {
        text::model(&format!(
            "input x 2 3 4\nweight w 4 5\ny = Einsum(x, w) equation={equation}\noutput y"
        ))
    };
    assert!(is_proved(&proof(
        &with("abc,cd"),
        &with("abc,cd->abd"),
        &[]
    )));
    assert!(is_proved(&proof(
        &with("...z,za"),
        &with("...z,za->...a"),
        &[]
    )));
    assert!(!is_proved(&proof(
        &with("zbc,ca"),
        &with("zbc,ca->zba"),
        &[]
    )));
}

#[test]
fn a_size_that_only_the_other_graph_needs_decides_nothing() {
    let moved = |target: &str| {
        text::model(&format!(
            "input x b 4
             ints to 3 = {target} 2 2
             y = Reshape(x, to)
             output y"
        ))
    };
    let original = moved("-1");
    assert!(is_proved(&proof(&original, &moved("-1"), &[])));
    // At a batch of 16 both do the same.
    let found = proof(&original, &moved("16"), &[]);
    assert!(
        matches!(&found, Proof::Undecided { reason } if reason.contains("where the original fits")),
        "{found:?}"
    );
}

#[test]
fn masks_of_integers_are_seen() {
    let masked = |by: &str| {
        text::model(&format!(
            "opset 18
             input x b 8
             indices mask b 8
             const zero = 0
             const least = -1000
             f = Cast(mask) to=1
             none = Equal(f, zero)
             w = Where(none, least, x)
             y = Softmax({by}) axis=-1
             output y"
        ))
    };
    assert!(is_proved(&proof(&masked("w"), &masked("w"), &[])));
    assert!(is_told_apart(&masked("w"), &masked("x")));
}

/// Invalid tokens, such as those that a loss ignores, and tokens of a large vocabulary.
#[test]
fn integers_that_are_no_tokens_are_seen() {
    let with = |lines: &str| {
        text::model(&format!(
            "opset 18
             input x b 32
             indices i b 32
             ints none = 0
             ints most = 511
             {lines}
             output y"
        ))
    };
    let plain = with("f = Cast(i) to=1\ny = Add(x, f)");
    assert!(is_proved(&proof(&plain, &plain, &[])));
    for other in ["Max(i, none)", "Min(i, most)"] {
        assert!(is_told_apart(
            &plain,
            &with(&format!("j = {other}\nf = Cast(j) to=1\ny = Add(x, f)"))
        ));
    }
}

/// In-place writes to places that follow from extents: linear in the updates, however many there
/// are.
#[test]
fn extents_have_no_degree() {
    let mut text = "input x 2 8 4\nz = Shape(x)\nints one = 1\nints first 1 = 1\nints start = 0\nn = Gather(z, one)\np = Range(start, n, one)\nm0 = Neg(x)\n".to_owned();
    for step in 0..12 {
        text += &format!(
            "ints i{step} 1 = {}\nc{step} = Mod(p, n)\nj{step} = Gather(c{step}, i{step})\nu{step} = Gather(x, j{step}) axis=1\nt{step} = Transpose(m{step}) perm=[1,0,2]\nv{step} = Transpose(u{step}) perm=[1,0,2]\nk{step} = Unsqueeze(j{step}, first)\ns{step} = ScatterND(t{step}, k{step}, v{step})\nm{} = Transpose(s{step}) perm=[1,0,2]\n",
            step % 8,
            step + 1
        );
    }
    let writes = text::model(&format!("{text}output m12"));
    let Proof::Proved { points, bound, .. } = proof(&writes, &writes, &[]) else {
        panic!("no proof")
    };
    assert!(points == 1 && bound < 1e-7, "{points} {bound}");
}

/// Equal numbers say little of polynomials of a high degree: more of them say more, and beyond the field nothing does.
#[test]
fn where_a_point_leaves_doubt_there_are_more() {
    let squared = |times: usize| {
        let squares: String = (0..times)
            .map(|i| format!("m{} = Mul(m{i}, m{i})\n", i + 1))
            .collect();
        text::model(&format!("input m0 2 3\n{squares}output m{times}"))
    };
    let proved = |times| match proof(&squared(times), &squared(times), &[]) {
        Proof::Proved { points, bound, .. } => Some((points, bound < 1e-4)),
        _ => None,
    };
    assert_eq!(
        [4, 20, 26, 33].map(proved),
        [Some((1, true)), Some((2, true)), Some((3, true)), None]
    );
}

/// Numbers that are given cut off a part of a value, which must not be nothing at each point.
#[test]
fn what_has_no_element_at_a_point_is_compared_at_another() {
    let windowed = |function: &str| {
        text::model(&format!(
            "input x batch 6
             indices start 1
             ints six 1 = 6
             ints one 1 = 1
             s = Slice(x, start, six, one)
             y = {function}(s)
             output y"
        ))
    };
    let (one, other) = (windowed("Tanh"), windowed("Sigmoid"));
    for seed in 0..20 {
        let options = ProveOptions {
            seed,
            ..Default::default()
        };
        assert!(is_proved(&prove(&one, &one, &[], &options)));
        assert!(
            matches!(prove(&one, &other, &[], &options), Proof::Disproved { .. }),
            "{seed}"
        );
    }
    // Nothing is ever left.
    let empty = |function: &str| {
        text::model(&format!(
            "input x batch 6
             indices i 2
             ints one 1 = 1
             ints zero 1 = 0
             ints most 1 = 1000
             m = Min(i, zero)
             p = Max(m, most)
             e = Gather(p, zero)
             s = Slice(x, e, most, one)
             y = {function}(s)
             output y"
        ))
    };
    let is_undecided = |one: &Model, other: &Model| {
        let proof = prove(one, other, &[], &Default::default());
        assert!(
            matches!(&proof, Proof::Undecided { reason } if reason.contains("no element")),
            "{proof:?}"
        );
    };
    is_undecided(&empty("Tanh"), &empty("Sigmoid"));
    // A symbol for how many are left tells nothing of them.
    let declared = |function: &str| {
        let mut model = empty(function);
        model.graph_mut().output = vec![declared("y", DataType::Float, &["batch", "left"])];
        model
    };
    is_undecided(&declared("Tanh"), &declared("Sigmoid"));
    // A difference beside it is found.
    let beside = |function: &str| {
        let mut model = empty("Tanh");
        model
            .graph_mut()
            .node
            .push(node(function, &["x"], &["z"], vec![]));
        model.graph_mut().output.push(undeclared("z"));
        model
    };
    let proof = prove(
        &beside("Tanh"),
        &beside("Sigmoid"),
        &[],
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Disproved { .. }), "{proof:?}");
}

#[test]
fn a_clip_of_integers_is_computed_whether_all_of_it_is_known_or_not() {
    let clipped = |top: &str| {
        text::model(&format!(
            "input x batch 1
             ints zero = 0
             ints one = 1
             ints low = 1
             ints top = {top}
             sh = Shape(x) start=0 end=1
             n = Squeeze(sh)
             i = Range(zero, n, one)
             c = Clip(i, low, top)
             f = Cast(c) to=1
             y = Mul(x, f)
             output y"
        ))
    };
    let by_hand = text::model(
        "input x batch 1
         ints zero = 0
         ints one = 1
         ints top = 3
         sh = Shape(x) start=0 end=1
         n = Squeeze(sh)
         i = Range(zero, n, one)
         a = Max(i, one)
         c = Min(a, top)
         f = Cast(c) to=1
         y = Mul(x, f)
         output y",
    );
    assert!(is_proved(&prove(
        &clipped("3"),
        &by_hand,
        &[],
        &Default::default()
    )));
    assert!(matches!(
        prove(&clipped("0"), &by_hand, &[], &Default::default()),
        Proof::Disproved { .. }
    ));
}

/// As dynamo writes the end of a Slice; and what follows is a number in both graphs, or in none.
#[test]
fn the_largest_integer_is_itself_in_its_own_type() {
    let mask = "ints none 1 = 0\n ints one 1 = 1\n ints end 1 = 9223372036854775807\n const zero = 0\n const low = -100
                const table 3 3 = 0 1 0 1 0 0 0 1 1
                f = Cast(end) to=7\n t = Slice(table, none, f, one)\n e = Equal(t, zero)\n m = Where(e, zero, low)";
    let original = text::model(&format!("input x 3 3\n {mask}\n y = Add(x, m)\n output y"));
    let fused = unfold::fuse(&original, &Default::default()).unwrap();
    assert_eq!(fused.model.graph().node.len(), 1);
    assert!(is_proved(&proof(
        &original,
        &fused.model,
        &fused.plan.tensors
    )));
}

#[test]
fn both_sides_of_what_a_few_truth_values_choose_are_seen() {
    let chosen = |declared: &str, truth: &str, a: &str, b: &str| {
        text::model(&format!(
            "input x 2 3\n weight v 3\n{declared}\n {truth}\n p = {a}(x, v)\n q = {b}(x, v)\n y = Where(c, p, q)\n output y"
        ))
    };
    let asked = ("condition c", "n = Not(c)");
    // Two that decide together: all four ways are seen.
    let both = ("condition d\n condition e", "c = And(d, e)");
    for (declared, truth) in [asked, both] {
        let original = chosen(declared, truth, "Add", "Mul");
        for (a, b) in [("Sub", "Mul"), ("Add", "Sub")] {
            for seed in 0..4 {
                let options = ProveOptions {
                    seed,
                    ..Default::default()
                };
                let proof = prove(&original, &chosen(declared, truth, a, b), &[], &options);
                assert!(
                    matches!(proof, Proof::Disproved { .. }),
                    "{truth} {a} {b}: {proof:?}"
                );
                let proof = proof_with(&original, &original, &[], &options);
                assert!(
                    matches!(proof, Proof::Proved { points: 2 | 4, .. }),
                    "{proof:?}"
                );
            }
        }
    }
}

#[test]
fn an_open_extent_may_have_to_be_what_a_constant_has() {
    let scaled = |steps: &str| {
        text::model(&format!(
            "input x batch columns
             input y batch other
             const g 5 = 1 2 3 4 5
             {steps}
             o = Add(a, c)
             p = Relu(y)
             output o p"
        ))
    };
    let (one, other) = (
        scaled("a = Mul(x, g)\n c = Relu(x)"),
        scaled("c = Relu(x)\n a = Mul(g, x)"),
    );
    let proof = prove(&one, &other, &[], &Default::default());
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
}

#[test]
fn integers_are_known_behind_floats_and_where_there_are_none() {
    let signs = text::model(
        "input x 3 2\ns = Shape(x)\nt = Sign(s)\nf = Cast(t) to=1\ny = Cast(f) to=7\noutput y",
    );
    let stored = |numbers: &str| {
        text::model(&format!(
            "input x 3 2\n{numbers}\ny = Identity(n)\noutput y"
        ))
    };
    assert!(is_proved(&proof(&stored("ints n 2 = 1 1"), &signs, &[])));
    assert!(!is_proved(&proof(&stored("ints n 2 = 1 2"), &signs, &[])));
    let cut = text::model(
        "input x 1 4\nindices n 2\nints one 1 = 1\nints two 1 = 2\nm = ReduceMin(n) keepdims=1\nc = Slice(m, one, two)\ny = Expand(x, c)\noutput y",
    );
    let whole = text::model("input x 1 4\nindices n 2\ny = Identity(x)\noutput y");
    assert!(is_proved(&proof(&cut, &whole, &[])));
}

#[test]
fn what_no_result_of_a_body_needs_says_nothing() {
    // A model that does not fit at a size that is tried, unless the misfit is absent.
    let with = |functions: [&str; 2], is_there: bool| {
        let mut model =
            text::model("input x batch 2\ninput z 2 columns\ncondition c\nweight w 3 3");
        let branch = |of: &str| {
            let unread = is_there.then(|| node("MatMul", &["z", "w"], &["dead"], vec![]));
            unfold::onnx::proto::GraphProto {
                node: unread
                    .into_iter()
                    .chain([node(of, &["x"], &["inner"], vec![])])
                    .collect(),
                output: vec![undeclared("inner")],
                ..Default::default()
            }
        };
        let [then, otherwise] = functions.map(branch);
        let bodies = vec![
            ("then_branch", then.into()),
            ("else_branch", otherwise.into()),
        ];
        model
            .graph_mut()
            .node
            .push(node("If", &["c"], &["y"], bodies));
        model.graph_mut().output.push(undeclared("y"));
        model
    };
    let model = with(["Relu", "Tanh"], true);
    assert!(is_proved(&proof(
        &model,
        &with(["Relu", "Tanh"], false),
        &[]
    )));
    assert!(is_told_apart(&model, &with(["Tanh", "Relu"], false)));
}

#[test]
fn a_training_normalization_is_none_of_fixed_statistics() {
    let mut before = text::model(
        "input x batch 3\nscale g 3\nshift b 3\nshift m 3\ndivisor v 3\ny = BatchNormalization(x, g, b, m, v)\noutput y",
    );
    before.proto.opset_import[0].version = Some(13);
    let mut trains = before.clone();
    trains.graph_mut().node[0]
        .output
        .extend(["mean", "var"].map(String::from));
    assert!(is_told_apart(&before, &trains));
}

#[test]
fn integers_begin_anew_at_the_ends_of_their_type() {
    let bytes = |name: &str, values: &[u8]| TensorProto {
        name: Some(name.into()),
        dims: vec![values.len() as i64],
        data_type: Some(DataType::Uint8.code()),
        raw_data: Some(values.to_vec().into()),
        ..Default::default()
    };
    let with = |op: &str, initializers: Vec<TensorProto>| {
        let mut model = text::model(&format!(
            "input x 3\nw = {op}\nf = Cast(w) to=1\ny = Add(x, f)\noutput y"
        ));
        model.graph_mut().initializer = initializers;
        model
    };
    let sum = with(
        "Add(a, b)",
        vec![bytes("a", &[200, 1, 255]), bytes("b", &[100, 2, 1])],
    );
    assert!(is_proved(&proof(
        &sum,
        &with("Identity(s)", vec![bytes("s", &[44, 3, 0])]),
        &[]
    )));
    assert!(is_told_apart(
        &sum,
        &with("Identity(s)", vec![bytes("s", &[255, 3, 255])])
    ));
    let difference = with(
        "Sub(a, b)",
        vec![bytes("a", &[1, 5, 0]), bytes("b", &[2, 2, 1])],
    );
    assert!(is_proved(&proof(
        &difference,
        &with("Identity(s)", vec![bytes("s", &[255, 3, 255])]),
        &[]
    )));
}

#[test]
fn outputs_are_of_the_same_type() {
    let to = |code: i64| text::model(&format!("input x batch 3\ny = Cast(x) to={code}\noutput y"));
    assert!(is_told_apart(&to(1), &to(10)));
    assert!(is_told_apart(&to(11), &to(1)));
}

#[test]
fn a_truth_value_that_need_not_be_given_may_be_either() {
    let chosen = |then: &str, otherwise: &str| {
        let mut model = text::model(&format!(
            "input x batch 3\ncondition c\na = Relu(x)\nb = Neg(x)\ny = Where(c, {then}, {otherwise})\noutput y"
        ));
        let holds = TensorProto {
            name: Some("c".into()),
            data_type: Some(DataType::Bool.code()),
            raw_data: Some(vec![1].into()),
            ..Default::default()
        };
        model.graph_mut().initializer.push(holds);
        model
    };
    assert!(is_told_apart(&chosen("a", "b"), &chosen("a", "x")));
    assert!(is_told_apart(&chosen("a", "b"), &chosen("x", "b")));
}

#[test]
fn a_negative_index_beside_others_is_no_large_one() {
    let picked = |first: i64| {
        text::model(&format!(
            "input x 5 3\nints first 1 = {first}\nu = NonZero(x)\nints row 1 = 0\nr = Gather(u, row) axis=0\nints flat 1 = -1\ni = Reshape(r, flat)\nk = Concat(first, i) axis=0\ny = Gather(x, k) axis=0\noutput y"
        ))
    };
    for other in 0..4 {
        assert!(
            !is_proved(&proof(&picked(-1), &picked(other), &[])),
            "{other}"
        );
    }
    assert!(is_told_apart(&picked(1), &picked(2)));
}

/// Calls of functions whose bodies differ.
#[test]
fn functions_are_told_by_those_that_they_call() {
    let doubled = |by: i64| {
        let mut model = text::model("input x batch 3\nscale g 3\ny = Mul(x, g)\noutput y");
        let function = |name: &str, nodes| FunctionProto {
            name: Some(name.into()),
            domain: Some("own".into()),
            input: vec!["a".into()],
            output: vec!["b".into()],
            opset_import: model.proto.opset_import.clone(),
            node: nodes,
            ..Default::default()
        };
        let call = |name: &str, from: &str, to: &str| {
            let mut call = node(name, &[from], &[to], vec![]);
            call.domain = Some("own".into());
            call
        };
        let unknown = node("TopK", &["a"], &["b"], vec![("axis", by.into())]);
        // A node with bodies is not evaluated.
        let branch = |of: NodeProto| unfold::onnx::proto::GraphProto {
            output: vec![undeclared(&of.output[0])],
            node: vec![of],
            ..Default::default()
        };
        let condition = node("IsNaN", &["a"], &["c"], vec![]);
        let bodies = vec![
            ("then_branch", branch(call("Inner", "a", "t")).into()),
            (
                "else_branch",
                branch(node("Relu", &["a"], &["e"], vec![])).into(),
            ),
        ];
        let choice = node("If", &["c"], &["b"], bodies);
        model.proto.functions = vec![
            function("Outer", vec![condition, choice]),
            function("Inner", vec![unknown]),
        ];
        let set = unfold::onnx::proto::OperatorSetIdProto {
            domain: Some("own".into()),
            version: Some(1),
        };
        model.proto.opset_import.push(set);
        model.graph_mut().node.insert(0, call("Outer", "x", "h"));
        model.graph_mut().node[1].input[0] = "h".into();
        model
    };
    assert!(!is_proved(&proof(&doubled(0), &doubled(1), &[])));
}

#[test]
fn a_function_in_the_place_of_an_operator_decides_nothing() {
    let mut model = text::model("input x batch 3\ny = Relu(x)\noutput y");
    let own = FunctionProto {
        name: Some("Relu".into()),
        input: vec!["a".into()],
        output: vec!["b".into()],
        opset_import: model.proto.opset_import.clone(),
        node: vec![node("Neg", &["a"], &["b"], vec![])],
        ..Default::default()
    };
    model.proto.functions.push(own);
    match proof(&model, &model, &[]) {
        Proof::Undecided { reason } => assert!(reason.contains("`Relu` is redefined"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn random_numbers_in_two_bodies_are_not_the_same() {
    let chosen = |name: &str| {
        let drawn = |name: &str| {
            let mut drawn = node(
                "RandomNormal",
                &[] as &[&str],
                &["r"],
                vec![("shape", vec![3_i64].into())],
            );
            drawn.name = Some(name.into());
            unfold::onnx::proto::GraphProto {
                node: vec![drawn],
                output: vec![undeclared("r")],
                ..Default::default()
            }
        };
        let mut model = text::model("input x 2 3\ncondition c");
        for (output, name) in [("s", "one"), ("t", name)] {
            let bodies = vec![
                ("then_branch", drawn(name).into()),
                ("else_branch", drawn(name).into()),
            ];
            model
                .graph_mut()
                .node
                .push(node("If", &["c"], &[output], bodies));
        }
        model
            .graph_mut()
            .node
            .push(node("Sub", &["s", "t"], &["d"], vec![]));
        model
            .graph_mut()
            .node
            .push(node("Add", &["x", "d"], &["y"], vec![]));
        model.graph_mut().output.push(undeclared("y"));
        model
    };
    let none = text::model("input x 2 3\ncondition c\ny = Identity(x)\noutput y");
    assert!(!is_proved(&proof(&chosen("one"), &none, &[])));
    assert!(!is_proved(&proof(&chosen("two"), &none, &[])));
}

#[test]
fn integers_of_bodies_are_those_of_their_type() {
    let quantized = |zero: TensorProto| {
        let mut model = text::model("input x 2 3\ncondition c");
        let then = unfold::onnx::proto::GraphProto {
            node: vec![
                node("QuantizeLinear", &["x", "s", "z"], &["q"], vec![]),
                node("Cast", &["q"], &["f"], vec![("to", 1_i64.into())]),
            ],
            output: vec![undeclared("f")],
            ..Default::default()
        };
        let otherwise = unfold::onnx::proto::GraphProto {
            node: vec![node("Relu", &["x"], &["r"], vec![])],
            output: vec![undeclared("r")],
            ..Default::default()
        };
        let bodies = vec![
            ("then_branch", then.into()),
            ("else_branch", otherwise.into()),
        ];
        let graph = model.graph_mut();
        graph.initializer = vec![floats("s", &ArrayD::from_elem(vec![], 0.5)), zero];
        graph.node.push(node("If", &["c"], &["y"], bodies));
        graph.output.push(undeclared("y"));
        model
    };
    let zero = |data_type: DataType| TensorProto {
        name: Some("z".into()),
        data_type: Some(data_type.code()),
        raw_data: Some(vec![0].into()),
        ..Default::default()
    };
    assert!(is_told_apart(
        &quantized(zero(DataType::Uint8)),
        &quantized(zero(DataType::Int8))
    ));
}

/// A Slice from place 100 on is empty for a short length.
#[test]
fn an_output_that_is_empty_at_one_size_says_nothing() {
    let last = |of: &str| {
        text::model(&format!(
            "input x batch length\nints from 1 = 100\nints to 1 = 1000000\nints axis 1 = 1\nr = {of}(x)\ny = Slice(r, from, to, axis)\noutput y"
        ))
    };
    assert!(is_told_apart(&last("Relu"), &last("Neg")));
}
