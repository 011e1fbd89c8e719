//! A normalizer whose scale the next normalizer cancels is removed, with twins in which it stays.

use unfold::EpsilonError;
use unfold::onnx::{DataType, Model};
use unfold::prove::{Proof, prove};
use unfold::run::{Engine, random};
use unfold::verify::VerifyOptions;
use unfold::{FuseOptions, Fused};

use crate::common::text::model;
use crate::common::{operators, options, retype};
use crate::same;

fn merge(model: &Model) -> Fused {
    unfold::fuse(
        model,
        &FuseOptions {
            merge_norms: true,
            ..options()
        },
    )
    .unwrap()
}

/// A written-out RMS normalization of the value `x`.
fn rms(name: &str, x: &str, epsilon: &str) -> String {
    format!(
        "const {name}_e = {epsilon}
         const {name}_two = 2
         {name}_s = Pow({x}, {name}_two)
         {name}_m = ReduceMean({name}_s) axes=[-1] keepdims=1
         {name}_v = Add({name}_m, {name}_e)
         {name}_r = Sqrt({name}_v)
         {name} = Div({x}, {name}_r)"
    )
}

/// Two normalizers with the lines `between` them, and the lines `more` after them.
fn consecutive_norms(between: &str, more: &str) -> Model {
    let (first, second) = (rms("n", "x", "0.000001"), rms("y", "z", "0.000001"));
    model(&format!(
        "input x batch 3 4
         weight w 4 6
         {first}
         {between}
         {second}
         output y
         {more}"
    ))
}

/// The number of remaining roots, and of normalizers that the plan reports as merged.
fn roots_and_merged(fused: &Fused) -> (usize, usize) {
    let roots = operators(&fused.model)
        .iter()
        .filter(|&&op| op == "Sqrt" || op == "LayerNormalization")
        .count();
    (roots, fused.plan.merged.len())
}

#[test]
fn rms_norm_before_another_norm_is_merged() {
    for between in [
        "z = MatMul(n, w)",
        "h = MatMul(n, w)\n r = Relu(h)\n weight v 6 5\n z = MatMul(r, v)",
        "const g 4 = 2 -1 0.5 3\n h = Mul(n, g)\n z = MatMul(h, w)",
    ] {
        let before = consecutive_norms(between, "");
        let fused = merge(&before);
        assert_eq!(roots_and_merged(&fused), (1, 1), "{between}");
        same(&before, &fused.model, 2e-6);
        let [gone] = &fused.plan.merged[..] else {
            unreachable!()
        };
        let follower = &gone.followers[0];
        assert_eq!(
            (gone.followers.len(), &*follower.value, follower.centred),
            (1, "z", false)
        );
        assert!((follower.epsilon - 1e-6).abs() < 1e-12);
        // The functions differ, so merging happens only if the option asks for it.
        let proof = prove(
            &before,
            &fused.model,
            &fused.plan.tensors,
            &Default::default(),
        );
        assert!(matches!(proof, Proof::Disproved { .. }), "{proof:?}");
        assert_eq!(roots_and_merged(&crate::common::fuse(&before)), (2, 0));
        let skip = |what: &str| FuseOptions {
            merge_norms: true,
            skip: vec![what.into()],
            ..options()
        };
        for what in ["merging", &gone.name] {
            assert_eq!(
                roots_and_merged(&unfold::fuse(&before, &skip(what)).unwrap()),
                (2, 0),
                "{what}"
            );
        }
    }
    // Of three consecutive normalizers, only the last stays.
    let third = rms("u", "q", "0.000001");
    let row = format!("weight v 6 5\n q = MatMul(y, v)\n {third}\n output u");
    let mut before = consecutive_norms("z = MatMul(n, w)", &row);
    before.graph_mut().output.remove(0);
    let fused = merge(&before);
    assert_eq!(roots_and_merged(&fused), (1, 2));
    same(&before, &fused.model, 1e-5);
    // A LayerNormalization cancels the scale too.
    let text = format!(
        "input x batch 3 4\n weight w 4 6\n {}\n z = MatMul(n, w)
         scale g 6\n shift t 6\n y = LayerNormalization(z, g, t)\n output y",
        rms("n", "x", "0.000001")
    );
    let fused = merge(&model(&text));
    assert_eq!(roots_and_merged(&fused), (1, 1));
    assert!(fused.plan.merged[0].followers[0].centred);
    same(&model(&text), &fused.model, 1e-4);
}

#[test]
fn readers_of_the_token_scale_prevent_merging() {
    let stays = |before: &Model| {
        let fused = merge(before);
        let folded = crate::common::fuse(before);
        assert_eq!(
            (fused.plan.merged.len(), &fused.model.proto.graph),
            (0, &folded.model.proto.graph)
        );
    };
    for (between, more) in [
        ("shift b 6\n h = MatMul(n, w)\n z = Add(h, b)", ""),
        ("z = MatMul(n, w)", "output n"),
        ("z = MatMul(n, w)", "output z"),
        ("z = MatMul(n, w)", "q = Softmax(z)\n output q"),
        ("h = MatMul(n, w)\n z = Sigmoid(h)", ""),
        ("h = MatMul(n, w)\n z = Mul(h, h)", "output h"),
        ("z = Transpose(n) perm=[0,2,1]", ""),
        ("input m batch 5 3\n z = MatMul(m, n)", ""),
        ("h = MatMul(n, w)\n i = MatMul(x, w)\n z = Add(h, i)", ""),
    ] {
        stays(&consecutive_norms(between, more));
    }
    // The first normalizer subtracts a mean, which an RMS normalization after it does not cancel.
    stays(&model(&format!(
        "input x batch 3 4\n weight w 4 6\n scale g 4\n shift t 4
         n = LayerNormalization(x, g, t)\n z = MatMul(n, w)\n {}\n output y",
        rms("y", "z", "0.000001")
    )));
    let mut half = consecutive_norms("z = MatMul(n, w)", "");
    retype(
        &mut half,
        &["w", "n_e", "n_two", "y_e", "y_two"],
        DataType::Float16,
    );
    let float16 = DataType::Float16.code();
    for value in half
        .proto
        .graph
        .iter_mut()
        .flat_map(|graph| graph.input.iter_mut().chain(&mut graph.output))
    {
        let declared = value.r#type.as_mut().and_then(|of| of.tensor_type.as_mut());
        declared
            .into_iter()
            .for_each(|tensor| tensor.elem_type = Some(float16));
    }
    stays(&half);
}

#[test]
fn epsilon_error_bounds_the_measured_difference() {
    // These large ε make the difference measurable.
    let (first, second) = (rms("n", "x", "0.5"), rms("y", "z", "0.125"));
    let before = model(&format!(
        "input x 2 3 4\n const w 4 2 = 1 0 0.5 0.25 0 1 -1 0.5\n {first}\n z = MatMul(n, w)\n {second}\n output y"
    ));
    let fused = merge(&before);
    let options = VerifyOptions {
        seeds: vec![3],
        ..VerifyOptions::default()
    };
    let EpsilonError { bound } =
        EpsilonError::measure(&before, &fused.model, &fused.plan.merged, &options).unwrap();
    let made = |model: &Model| {
        let engine = Engine::load(model, &options.dims).unwrap();
        let inputs = random(engine.inputs(), 3);
        let value = |tensor: &unfold::run::Tensor| {
            tensor
                .try_as_plain_ram()
                .unwrap()
                .as_slice::<f32>()
                .unwrap()
                .to_vec()
        };
        let outputs = engine.run(&inputs).unwrap();
        (value(&inputs[0]), value(&outputs[0]))
    };
    let ((x, was), (_, is)) = (made(&before), made(&fused.model));
    let parts = was
        .iter()
        .zip(&is)
        .map(|(was, is)| f64::from((is / was - 1.0).abs()));
    let (largest, mut by_hand) = (parts.fold(0.0, f64::max), 0.0_f64);
    for token in x.chunks(4) {
        let z = [
            token[0] + 0.5 * token[1] - token[3],
            0.25 * token[1] + token[2] + 0.5 * token[3],
        ];
        let squares = |numbers: &[f32]| {
            numbers.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / numbers.len() as f64
        };
        let (u, rho) = (squares(&z), squares(token) + 0.5);
        by_hand = by_hand.max(0.0625 * (1.0 / u - rho / u).abs());
    }
    assert!((bound / by_hand - 1.0).abs() < 1e-4, "{bound} {by_hand}");
    assert!(largest > 1e-3 && largest <= bound, "{largest} {bound}");
}
