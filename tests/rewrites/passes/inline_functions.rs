//! Functions of a model are inlined only if something folds as a result.

use crate::common::bodies;
use unfold::onnx::Model;
use unfold::onnx::proto::{FunctionProto, GraphProto, NodeProto, OperatorSetIdProto};
use unfold::plan::SitePlan;
use unfold::prove::{Proof, prove};
use unfold::{FuseOptions, Fused};

use crate::common::{node, options, text, undeclared};
use crate::same;

/// The domain of the functions.
const OWN: &str = "own";

/// A model with functions, each given by its head, such as `name(x, w) -> y`, and its lines;
/// `own.name(…)` calls it. In a function, `key=@name` takes an attribute of the call.
fn with_functions(lines: &str, functions: &[(&str, &str)]) -> Model {
    let mut model = text::model(lines);
    let sets = [("", 17), (OWN, 1)].map(|(domain, version)| OperatorSetIdProto {
        domain: Some(domain.to_owned()),
        version: Some(version),
    });
    model.proto.opset_import = sets.to_vec();
    let function = |&(head, lines): &(&str, &str)| {
        let (head, results) = head.split_once(" -> ").expect(head);
        let (name, given) = head.trim_end_matches(')').split_once('(').expect(head);
        let names = |list: &str| list.split(", ").map(str::to_owned).collect();
        let mut function = FunctionProto {
            name: Some(name.to_owned()),
            domain: Some(OWN.to_owned()),
            input: names(given),
            output: names(results),
            node: text::model(lines).graph().node.clone(),
            opset_import: sets.to_vec(),
            ..Default::default()
        };
        function
            .node
            .iter_mut()
            .for_each(|node| node.input.retain(|name| !name.is_empty()));
        for attribute in function
            .node
            .iter_mut()
            .flat_map(|node| &mut node.attribute)
        {
            let Some(name) = std::str::from_utf8(attribute.s())
                .ok()
                .and_then(|said| said.strip_prefix('@'))
            else {
                continue;
            };
            function.attribute.push(name.to_owned());
            (attribute.ref_attr_name, attribute.s) = (Some(name.to_owned()), None);
        }
        function
    };
    model.proto.functions = functions.iter().map(function).collect();
    model
}

/// The result for a model. Asserts that all functions are inlined and that the result equals that
/// of `lines`, a model without functions.
fn inlined(model: &Model, lines: &str) -> Fused {
    let fused = unfold::fuse(model, &options()).unwrap();
    let text = text::print(&fused.model);
    assert!(fused.model.proto.functions.is_empty(), "{text}");
    same(&text::model(lines), &fused.model, 0.0);
    let proof = prove(
        model,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}\n{text}");
    assert!(
        fused.plan.sites.iter().any(SitePlan::is_folded),
        "{:#?}",
        fused.plan.sites
    );
    let again = unfold::fuse(&fused.model, &options()).unwrap();
    assert!(!again.changed(), "{text}");
    fused
}

fn assert_all_folded(fused: &Fused) {
    let kept = fused.plan.sites.iter().find(|site| !site.is_folded());
    assert!(kept.is_none(), "{kept:#?}");
}

/// Asserts that a model is not changed.
fn assert_unchanged(model: &Model, options: &FuseOptions) {
    let fused = unfold::fuse(model, options).unwrap();
    assert!(!fused.changed(), "{:#?}", fused.plan.sites);
    assert_eq!(fused.model.to_bytes().unwrap(), model.to_bytes().unwrap());
}

const LINEAR: (&str, &str) = ("Linear(v, w, b) -> r", "m = MatMul(v, w)\nr = Add(m, b)");
const DYT: (&str, &str) = (
    "DyT(v, g, b) -> r",
    "t = Tanh(v)\nn = Mul(t, g)\nr = Add(n, b)",
);
/// A function whose name says nothing about what it computes.
const UN: (&str, &str) = (
    "__main___UN_n1(v, s, g, b) -> r",
    "d = Div(v, s)\nm = Mul(d, g)\nr = Add(m, b)",
);
const START: &str = "input x batch 4\nscale g 4\nshift b 4\ndivisor s 4\nweight w 4 3\nshift c 3\n";
const START_OF_TWO: &str = "weight u 3 4\nshift d 4\n";

#[test]
fn function_with_a_linear_layer_is_inlined_and_absorbs_an_affine() {
    let model = with_functions(
        &format!("{START}n = own.DyT(x, g, b)\ny = own.Linear(n, w, c)\noutput y"),
        &[LINEAR, DYT],
    );
    let written = format!(
        "{START}t = Tanh(x)\nn = Mul(t, g)\nh = Add(n, b)\nm = MatMul(h, w)\ny = Add(m, c)\noutput y"
    );
    let fused = inlined(&model, &written);
    assert_all_folded(&fused);
    assert_eq!(crate::operators(&fused.model), ["Tanh", "MatMul", "Add"]);
    // The names start with the call that was inlined.
    let names: Vec<&str> = fused
        .model
        .graph()
        .node
        .iter()
        .map(NodeProto::name)
        .collect();
    assert_eq!(
        names,
        [
            "DyT_n/DyT/Tanh_t",
            "Linear_y/Linear/MatMul_m",
            "Linear_y/Linear/Add_r"
        ]
    );
}

#[test]
fn functions_of_any_name_are_inlined_and_fold() {
    let lines = "n = own.__main___UN_n1(x, s, g, b)\ny = own.Linear(n, w, c)\noutput y";
    let model = with_functions(&format!("{START}{lines}"), &[UN, LINEAR]);
    let written =
        "e = Div(x, s)\nm = Mul(e, g)\nn = Add(m, b)\nl = MatMul(n, w)\ny = Add(l, c)\noutput y";
    assert_all_folded(&inlined(&model, &format!("{START}{written}")));
}

/// The function is inlined although as many sites fold without it, because fewer operators are
/// left.
#[test]
fn function_is_inlined_where_linear_layers_merge() {
    let lines =
        "weight u 3 4\nl = MatMul(x, w)\nm = MatMul(l, u)\ny = own.Linear(m, w, c)\noutput y";
    let model = with_functions(&format!("{START}{lines}"), &[LINEAR]);
    let fused = unfold::fuse(&model, &options()).unwrap();
    assert_eq!(crate::operators(&fused.model), ["MatMul", "Add"]);
    let proof = prove(
        &model,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    assert!(!unfold::fuse(&fused.model, &options()).unwrap().changed());
}

/// The branches of an If call a normalizer that is recognized by its name, and functions with other
/// names.
#[test]
fn calls_in_bodies_are_inlined() {
    let around = "input x batch 4\ncondition c\nweight g 4\nshift b 4\nweight w 4 3\nweight v 4 3\nshift s 3\n";
    let branching = |then: &str, other: &str| {
        let mut model = text::model(&format!("{around}t = Relu(x)"));
        let branch = |lines: &str| text::model(lines).proto.graph.unwrap().into();
        let branches = vec![
            ("then_branch", branch(then)),
            ("else_branch", branch(other)),
        ];
        model
            .graph_mut()
            .node
            .push(node("If", &["c"], &["y"], branches));
        model.graph_mut().output.push(undeclared("y"));
        model
    };
    let own = |then: &str, other: &str, functions: &[(&str, &str)]| {
        let mut model = branching(then, other);
        let with = with_functions("input x 1\noutput x", functions);
        model
            .proto
            .opset_import
            .clone_from(&with.proto.opset_import);
        model.proto.functions = with.proto.functions;
        model
    };
    let plain = branching(
        "h = Tanh(t)\np = Mul(h, g)\nn = Add(p, b)\ny1 = MatMul(n, w)\noutput y1",
        "e = Mul(t, g)\nq = MatMul(e, v)\ny2 = Add(q, s)\noutput y2",
    );
    let body = "n = own.DyT(t, g, b)\ny1 = MatMul(n, w)\noutput y1";
    for called in [
        own(
            body,
            "e = Mul(t, g)\ny2 = own.Linear(e, v, s)\noutput y2",
            &[DYT, LINEAR],
        ),
        // One branch calls a function that calls `DyT`, and the other branch calls `Linear`.
        own(
            "y1 = own.Block(t, g, b, w)\noutput y1",
            "e = Mul(t, g)\ny2 = own.Linear(e, v, s)\noutput y2",
            &[
                (
                    "Block(v, g, b, w) -> r",
                    "n = own.DyT(v, g, b)\nr = MatMul(n, w)",
                ),
                DYT,
                LINEAR,
            ],
        ),
    ] {
        let fused = unfold::fuse(&called, &options()).unwrap();
        assert_all_folded(&fused);
        assert_eq!(fused.plan.sites.len(), 2);
        assert!(fused.model.proto.functions.is_empty());
        let inside = |model: &Model| -> Vec<Vec<String>> {
            let last = model.graph().node.last().unwrap();
            let operators = |body: &GraphProto| {
                body.node
                    .iter()
                    .map(|node| node.op_type().to_owned())
                    .collect()
            };
            bodies(last).map(operators).collect()
        };
        assert_eq!(
            inside(&fused.model),
            [vec!["Tanh", "MatMul", "Add"], vec!["MatMul", "Add"]]
        );
        same(&plain, &fused.model, 1e-14);
        let proof = prove(
            &called,
            &fused.model,
            &fused.plan.tensors,
            &Default::default(),
        );
        assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
        assert!(!unfold::fuse(&fused.model, &options()).unwrap().changed());
    }
}

#[test]
fn nested_functions_are_inlined_for_each_call() {
    let block = (
        "Block(v, s, g, b, w, c) -> r",
        "n = own.__main___UN_n1(v, s, g, b)\nl = own.Linear(n, w, c)\nr = Relu(l)",
    );
    let net = (
        "Net(v, s, g, b, w, c, u, d) -> r",
        "h = own.Block(v, s, g, b, w, c)\nk = own.Linear(h, u, d)\nr = own.Block(k, s, g, b, w, c)",
    );
    let lines = format!("{START}{START_OF_TWO}y = own.Net(x, s, g, b, w, c, u, d)\noutput y");
    let model = with_functions(&lines, &[net, block, UN, LINEAR]);
    let block = |from: &str, to: &str| {
        format!(
            "{to}e = Div({from}, s)\n{to}m = Mul({to}e, g)\n{to}n = Add({to}m, b)\n{to}l = MatMul({to}n, w)\n\
             {to}a = Add({to}l, c)\n{to} = Relu({to}a)\n"
        )
    };
    let written = format!(
        "{START}{START_OF_TWO}{}k = MatMul(h, u)\nj = Add(k, d)\n{}output y",
        block("x", "h"),
        block("j", "y")
    );
    assert_all_folded(&inlined(&model, &written));
}

#[test]
fn inlined_calls_use_their_own_attributes() {
    let block = (
        "Block(v, g, w) -> r",
        "m = Mul(v, g)\na = LeakyRelu(m) alpha=@slope\nr = MatMul(a, w)",
    );
    let lines = "input x batch 4\nscale g 4\nweight w 4 4\nweight u 4 3\nscale s 4\n";
    let called = "h = own.Block(x, g, w) slope=0.5\ny = own.Block(h, s, u) slope=0.25\noutput y";
    let model = with_functions(&format!("{lines}{called}"), &[block]);
    let block = |from: &str, scale: &str, slope: &str, weight: &str, to: &str| {
        format!(
            "{to}m = Mul({from}, {scale})\n{to}a = LeakyRelu({to}m) alpha={slope}\n{to} = MatMul({to}a, {weight})\n"
        )
    };
    let written = [
        block("x", "g", "0.5", "w", "h"),
        block("h", "s", "0.25", "u", "y"),
    ]
    .concat();
    let fused = inlined(&model, &format!("{lines}{written}output y"));
    // The second scale folds back into the first weight, or forward into the second.
    assert!(
        crate::operators(&fused.model)
            .iter()
            .filter(|op| **op == "Mul")
            .count()
            < 2
    );
}

/// The formula of a new weight names a constant inside a function by the path of calls to it.
#[test]
fn constants_in_functions_are_named_by_their_call_path() {
    let scaled = (
        "Scaled(v) -> r",
        "k = Constant() value_float=0.5\nr = Mul(v, k)",
    );
    let block = (
        "Block(v, w) -> r",
        "h = own.Scaled(v)\nm = MatMul(h, w)\nr = own.Scaled(m)",
    );
    let lines = "input x batch 4\nweight w 4 3\n";
    let model = with_functions(
        &format!("{lines}y = own.Block(x, w)\noutput y"),
        &[scaled, block],
    );
    let written = "const k = 0.5\nh = Mul(x, k)\nm = MatMul(h, w)\ny = Mul(m, k)\noutput y";
    let fused = inlined(&model, &format!("{lines}{written}"));
    let constants: Vec<&str> = fused
        .plan
        .tensors
        .iter()
        .flat_map(|tensor| tensor.recipe.constants())
        .map(|name| &**name)
        .collect();
    assert!(constants.contains(&"Block_y/Scaled_h/k"), "{constants:?}");
}

#[test]
fn functions_stay_calls_where_nothing_folds() {
    let untold = ("Untold(v) -> r", "a = own.Unknown(v)\nr = Relu(a)");
    let lines = "input x batch 4\nscale g 4\nweight w 4 3\nshift c 3\n";
    for called in [
        "h = own.Untold(x)\ny = own.Linear(h, w, c)\noutput y",
        "n = Mul(x, g)\nh = own.Untold(n)\ny = own.Linear(h, w, c)\noutput n y",
    ] {
        assert_unchanged(
            &with_functions(&format!("{lines}{called}"), &[untold, LINEAR]),
            &options(),
        );
    }
}

/// The body of a function that is not inlined is not checked.
#[test]
fn function_that_reads_an_undefined_value_stays() {
    let wrong = ("Wrong(v) -> r", "r = Add(v, nothing)");
    let lines = "input x batch 4\nscale g 4\nn = Mul(x, g)\ny = own.Wrong(n)\noutput y";
    assert_unchanged(&with_functions(lines, &[wrong]), &options());
}

#[test]
fn skipped_function_stays_a_call() {
    let lines =
        format!("{START}n = own.__main___UN_n1(x, s, g, b)\ny = own.Linear(n, w, c)\noutput y");
    let model = with_functions(&lines, &[UN, LINEAR]);
    assert_unchanged(
        &model,
        &FuseOptions {
            skip: vec!["__main___*".into()],
            ..options()
        },
    );
    let skips = FuseOptions {
        skip: vec!["Linear".into(), "Other".into()],
        ..options()
    };
    assert_unchanged(&model, &skips);
    assert_eq!(
        skips.idle_skips(&model, &unfold::plan(&model, &skips).unwrap()),
        ["Other"]
    );
    // The skipped function also stays a call inside another function that is inlined.
    let block = (
        "Block(v, w, u, c) -> r",
        "m = MatMul(v, w)\nr = own.Linear(m, u, c)",
    );
    let lines = "input x batch 4\nscale g 4\nweight w 4 4\nweight u 4 3\nshift c 3\n";
    let model = with_functions(
        &format!("{lines}n = Mul(x, g)\ny = own.Block(n, w, u, c)\noutput y"),
        &[block, LINEAR],
    );
    let fused = unfold::fuse(
        &model,
        &FuseOptions {
            skip: vec!["Linear".into()],
            ..options()
        },
    )
    .unwrap();
    assert_eq!(crate::operators(&fused.model), ["MatMul", "Linear"]);
    let kept: Vec<&str> = fused
        .model
        .proto
        .functions
        .iter()
        .map(FunctionProto::name)
        .collect();
    assert_eq!(kept, ["Linear"]);
    let proof = prove(
        &model,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
}

#[test]
fn functions_that_expand_exponentially_stay_calls() {
    let names: Vec<String> = (0..=15)
        .map(|level| format!("Part{level}(v) -> r"))
        .collect();
    let ten = |level: usize| -> String {
        let step = |place: usize| {
            let from = if place == 0 {
                "v".to_owned()
            } else {
                format!("t{place}")
            };
            let to = if place == 9 {
                "r".to_owned()
            } else {
                format!("t{}", place + 1)
            };
            match level {
                15 => format!("{to} = Relu({from})\n"),
                _ => format!("{to} = own.Part{}({from})\n", level + 1),
            }
        };
        (0..10).map(step).collect()
    };
    let bodies: Vec<String> = (0..=15).map(ten).collect();
    let functions: Vec<(&str, &str)> = names
        .iter()
        .zip(&bodies)
        .map(|(name, body)| (name.as_str(), body.as_str()))
        .collect();
    let lines = "input x batch 4\nscale g 4\nweight w 4 3\nn = Mul(x, g)\nh = own.Part0(n)\ny = MatMul(h, w)\noutput n y";
    assert_unchanged(&with_functions(lines, &functions), &options());
}
