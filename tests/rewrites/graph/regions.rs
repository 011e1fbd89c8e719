//! Tests that sites in bodies of If, Loop and Scan fold like others.

use crate::common::bodies;
use crate::common::portable;
use unfold::Target;
use unfold::onnx::proto::{GraphProto, StringStringEntryProto};
use unfold::onnx::tensor::read_f64;
use unfold::onnx::{DataType, Model};
use unfold::plan::SitePlan;
use unfold::prove::{Proof, prove};
use unfold::refusal::Reason;
use unfold::verify::{Verdict, compare};
use unfold::{FuseOptions, Fused};

use crate::common::text::model;
use crate::common::{declared, node, undeclared};
use crate::{folded, fused, operators, reasons_of};

/// Parses a graph that becomes a body.
fn part(lines: &str) -> GraphProto {
    model(lines).proto.graph.unwrap()
}

/// A model that ends with an If with these branches. The results of the If are those of the model.
fn branching(around: &str, then: &str, other: &str, results: &[&str]) -> Model {
    let mut model = model(around);
    let branches = vec![
        ("then_branch", part(then).into()),
        ("else_branch", part(other).into()),
    ];
    model
        .graph_mut()
        .node
        .push(node("If", &["c"], results, branches));
    model
        .graph_mut()
        .output
        .extend(results.iter().copied().map(undeclared));
    model
}

/// A model that ends with a Loop of three iterations over one state.
fn looping(around: &str, state: &str, body: &str) -> Model {
    let mut model = model(&format!("{around}\n ints rounds = 3"));
    let body = part(&format!(
        "indices i\n condition go\n input h {state}\n {body}\n on = Identity(go)\n output on next made"
    ));
    model.graph_mut().node.push(node(
        "Loop",
        &["rounds", "", "x"],
        &["last", "all"],
        vec![("body", body.into())],
    ));
    model
        .graph_mut()
        .output
        .extend(["last", "all"].map(undeclared));
    model
}

/// The operators of the bodies of a model's last node.
fn body_operators(model: &Model) -> Vec<Vec<&str>> {
    let last = model.graph().node.last().unwrap();
    bodies(last)
        .map(|body| body.node.iter().map(|node| node.op_type()).collect())
        .collect()
}

fn names(model: &Model) -> Vec<&str> {
    model
        .graph()
        .initializer
        .iter()
        .map(|tensor| tensor.name())
        .collect()
}

fn is_proved(model: &Model) {
    let fused = crate::fuse(model);
    let proof = prove(
        model,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
}

fn site<'f>(fused: &'f Fused, name: &str) -> &'f SitePlan {
    let found = fused.plan.sites.iter().find(|site| site.name == name);
    found.unwrap_or_else(|| panic!("no site {name}: {:#?}", fused.plan.sites))
}

/// Declarations of values in bodies stay with them.
#[test]
fn strip_shapes_removes_value_info_of_unknown_extents_once() {
    let around =
        "input x N 4\n condition c\n weight w 4 3\n weight v 4 3\n t = Tanh(x)\n u = Abs(t)";
    let mut before = branching(
        around,
        "y = MatMul(u, w)\n output y",
        "y = MatMul(u, v)\n output y",
        &["r"],
    );
    let told = |name| declared(name, DataType::Float, &["N", "4"]);
    before.graph_mut().value_info = vec![told("t"), told("u")];
    let branch = &mut before.graph_mut().node.last_mut().unwrap().attribute[0];
    branch
        .g
        .as_mut()
        .unwrap()
        .value_info
        .push(declared("y", DataType::Float, &["N", "3"]));
    let options = FuseOptions {
        target: Target::Onnxruntime,
        ..crate::options()
    };
    let first = unfold::fuse(&before, &options).unwrap();
    assert_eq!(first.plan.tidy.untold, 2);
    let again = unfold::fuse(&first.model, &options).unwrap();
    assert_eq!(again.plan.tidy.untold, 0);
    assert_eq!(again.model.proto, first.model.proto);
}

/// The TorchScript exporter writes a new condition for each loop.
#[test]
fn equal_initial_conditions_of_loops_are_merged() {
    let round = part(
        "indices i\n condition go\n input s batch 4\n r = Relu(s)\n on = Identity(go)\n output on r",
    );
    let mut model = model(
        "input x batch 4
         indices n
         ints one = 1
         ints same = 1
         go = Cast(one) to=9
         on = Cast(same) to=9",
    );
    for (begun, before, after) in [("go", "x", "h"), ("on", "h", "y")] {
        let body = vec![("body", round.clone().into())];
        model
            .graph_mut()
            .node
            .push(node("Loop", &["n", begun, before], &[after], body));
    }
    model.graph_mut().output.push(undeclared("y"));
    assert_eq!(
        operators(&crate::fuse(&model).model),
        ["Cast", "Loop", "Loop"]
    );
    is_proved(&model);
}

/// The nesting depth of a loop does not identify its iterations, so the branch can replace the If.
#[test]
fn loop_in_the_taken_branch_moves_out_of_the_if() {
    let round = part(
        "indices i\n condition go\n input s batch 4\n r = Relu(s)\n on = Identity(go)\n output on r",
    );
    let mut then = part("ints rounds = 2\n output l");
    let state = node(
        "Loop",
        &["rounds", "", "x"],
        &["l"],
        vec![("body", round.into())],
    );
    then.node.push(state);
    let mut model = model(
        "input x batch 4
         ints one = 1
         yes = Cast(one) to=9
         scale k 4
         weight w 4 3",
    );
    let branches = vec![
        ("then_branch", then.into()),
        ("else_branch", part("e = Neg(x)\n output e").into()),
    ];
    model
        .graph_mut()
        .node
        .push(node("If", &["yes"], &["z"], branches));
    model
        .graph_mut()
        .node
        .push(node("Mul", &["z", "k"], &["p"], vec![]));
    model
        .graph_mut()
        .node
        .push(node("MatMul", &["p", "w"], &["y"], vec![]));
    model.graph_mut().output.push(undeclared("y"));
    assert_eq!(operators(&crate::fuse(&model).model), ["Loop", "MatMul"]);
    is_proved(&model);
}

const AROUND: &str = "input x batch 4\n condition c\n weight w 4 3\n weight v 4 3\n";

#[test]
fn branches_with_equal_folds_share_the_new_weight() {
    let branch =
        "scale s 4\n shift t 4\n a = Mul(x, s)\n b = Add(a, t)\n y = MatMul(b, w)\n output y";
    let model = branching(
        AROUND,
        branch,
        &branch
            .replace("MatMul(b, w)", "MatMul(b, w)\n z = Neg(y)")
            .replace("output y", "output z"),
        &["r"],
    );
    let after = folded(&model);
    assert_eq!(
        body_operators(&after),
        [vec!["MatMul", "Add"], vec!["MatMul", "Add", "Neg"]]
    );
    // Each body has its own `s` and `t`, with the same numbers.
    assert_eq!(
        names(&after)
            .iter()
            .filter(|name| name.contains("w_folded"))
            .count(),
        1,
        "{:?}",
        names(&after)
    );
    assert!(!names(&after).contains(&"w"));
    is_proved(&model);
}

#[test]
fn branches_with_different_folds_copy_the_weight_as_growth() {
    let branch =
        |scale: &str| format!("const s 4 = {scale}\n a = Mul(x, s)\n y = MatMul(a, w)\n output y");
    let model = branching(AROUND, &branch("2 1 1 4"), &branch("1 3 1 1"), &["r"]);
    let after = folded(&model);
    assert_eq!(body_operators(&after), [["MatMul"], ["MatMul"]]);
    // Each weight has one reader, and lies in its body. onnxruntime optimizes a Conv in a body only then.
    assert_eq!(names(&after), ["v"]);
    let stored = bodies(after.graph().node.last().unwrap()).map(|body| body.initializer.len());
    assert_eq!(stored.collect::<Vec<_>>(), [1, 1]);
    let fused = unfold::fuse(&model, &portable()).unwrap();
    // Whichever site folds, the other one still reads the original weight.
    let kept = fused
        .plan
        .sites
        .iter()
        .filter(|site| matches!(reasons_of(site).0, Reason::Growth(_)));
    assert_eq!(kept.count(), 2, "{:#?}", fused.plan.sites);
    is_proved(&model);
}

#[test]
fn constants_computed_in_a_body_fold() {
    for op in ["Softmax", "Sigmoid", "Sqrt"] {
        let branch = format!(
            "scale u 4\n k = Abs(u)\n s = {op}(k)\n a = Mul(x, s)\n y = MatMul(a, w)\n output y"
        );
        let model = branching(AROUND, &branch, &branch.replace('w', "v"), &["r"]);
        let fused = crate::fuse(&model);
        assert_eq!(body_operators(&fused.model), [["MatMul"], ["MatMul"]]);
        is_proved(&model);
    }
}

#[test]
fn positive_scalar_passes_relu_in_a_loop_body() {
    let body = "const k = 2
        weight w 4 4
        weight v 4 4
        a = MatMul(h, w)
        r = Relu(a)
        m = Mul(r, k)
        next = MatMul(m, v)
        made = Abs(next)";
    let model = looping("input x 3 4", "3 4", body);
    let after = crate::fuse(&model).model;
    assert_eq!(
        body_operators(&after),
        [["MatMul", "Relu", "MatMul", "Abs", "Identity"]]
    );
    is_proved(&model);
}

#[test]
fn weight_shared_by_a_body_and_the_graph_is_copied() {
    let branch = "scale s 4\n a = Mul(x, s)\n y = MatMul(a, w)\n output y";
    let around = format!("{AROUND} k = Relu(x)\n o = MatMul(k, w)\n output o");
    let after = folded(&branching(
        &around,
        branch,
        "y = MatMul(x, v)\n output y",
        &["r"],
    ));
    assert!(names(&after).contains(&"w"));
    assert_eq!(body_operators(&after), [["MatMul"], ["MatMul"]]);
}

#[test]
fn site_read_by_both_branches_folds_into_both_or_stays() {
    let around = format!("{AROUND} scale g 4\n shift b 4\n n = Mul(x, g)\n m = Add(n, b)");
    let model = branching(
        &around,
        "y = MatMul(m, w)\n output y",
        "y = MatMul(m, v)\n output y",
        &["r"],
    );
    let after = folded(&model);
    assert_eq!(operators(&after), ["If"]);
    assert_eq!(
        body_operators(&after),
        [["MatMul", "Add"], ["MatMul", "Add"]]
    );
    is_proved(&model);
    // If one reader cannot absorb the affine, it stays for all readers.
    let stays = fused(&branching(
        &around,
        "y = MatMul(m, w)\n output y",
        "k = Tanh(m)\n y = MatMul(k, v)\n output y",
        &["r"],
    ));
    assert_eq!(
        reasons_of(site(&stays, "Mul_n")).0,
        Reason::NotLinear("Tanh".into())
    );
}

#[test]
fn body_output_folded_outside_becomes_an_identity() {
    // Both affines fold into the outer weight, and the bodies capture its results.
    let around = format!("{AROUND} u = MatMul(x, w)\n k = MatMul(x, v)");
    let result = |value: &str| format!("scale s 3\n y = Mul({value}, s)\n output y");
    let after = folded(&branching(&around, &result("u"), &result("k"), &["r"]));
    assert_eq!(body_operators(&after), [["Identity"], ["Identity"]]);
    assert_eq!(operators(&after), ["MatMul", "MatMul", "If"]);
    // A branch without nodes returns a captured value, and this does not change.
    let after = folded(&branching(&around, "output u", &result("k"), &["r"]));
    assert_eq!(body_operators(&after), [vec![], vec!["Identity"]]);
    let result = bodies(after.graph().node.last().unwrap())
        .next()
        .unwrap()
        .output[0]
        .name();
    assert_eq!(result, "u");
}

#[test]
fn nested_bodies_fold() {
    let inner = "scale s 4\n a = Mul(x, s)\n y = MatMul(a, w)\n output y";
    let mut outer = part("shift t 3\n");
    let branches = vec![
        ("then_branch", part(inner).into()),
        ("else_branch", part("y = MatMul(x, v)\n output y").into()),
    ];
    outer.node.push(node("If", &["c"], &["i"], branches));
    outer.node.extend(part("j = Relu(i)\n k = Add(j, t)").node);
    outer.output.push(undeclared("k"));
    let mut model = model(AROUND);
    let branches = vec![
        ("then_branch", outer.into()),
        ("else_branch", part("y = MatMul(x, v)\n output y").into()),
    ];
    model
        .graph_mut()
        .node
        .push(node("If", &["c"], &["r"], branches));
    model.graph_mut().output.push(undeclared("r"));
    let fused = fused(&model);
    assert!(site(&fused, "r.then_branch/i.then_branch/Mul_a").is_folded());
    is_proved(&model);
}

#[test]
fn value_that_shadows_an_outer_name_is_kept_apart() {
    // In the inner body, `x` is another value, so no node there can read the outer `x`.
    let shadowing = "scale s 4\n a = Mul(x, s)\n x = Relu(a)\n y = MatMul(x, w)\n output y";
    let model = branching(
        &AROUND
            .replace("input x", "input xx")
            .replacen("condition", "x = Neg(xx)\n condition", 1),
        shadowing,
        "y = MatMul(x, v)\n output y",
        &["r"],
    );
    assert!(unfold::fuse(&model, &portable()).is_ok());
}

#[test]
fn affines_in_a_loop_fold_and_its_states_are_not_scaled() {
    let around = "input x 2 4\n weight w 4 4\n scale s 4\n shift t 4\n scale g 4";
    let body =
        "k = Relu(h)\n a = Mul(k, s)\n b = Add(a, t)\n next = MatMul(b, w)\n made = Tanh(next)";
    for state in ["2 4", "rows 4", "? ?"] {
        let model = looping(around, state, body);
        let after = folded(&model);
        assert_eq!(
            body_operators(&after),
            [["Relu", "MatMul", "Add", "Tanh", "Identity"]],
            "{state}"
        );
        is_proved(&model);
    }
    // The next iteration would begin with another state.
    let carried = fused(&looping(
        around,
        "2 4",
        "k = Tanh(h)\n next = Mul(k, g)\n made = Tanh(next)",
    ));
    assert!(
        carried.plan.sites.iter().all(|site| !site.is_folded()),
        "{:#?}",
        carried.plan.sites
    );
    let begun = fused(&looping(
        around,
        "2 4",
        "k = Mul(h, g)\n next = Tanh(k)\n made = Relu(next)",
    ));
    assert_eq!(
        reasons_of(&begun.plan.sites[0]).1,
        Some(Reason::NotLinear("Loop".into()))
    );
}

#[test]
fn loop_state_that_grows_has_an_unknown_extent() {
    // The state grows by one row in each iteration, like a cache. A scale of two rows fits only the
    // first iteration.
    let around = "input x 2 4\n weight w 2 2\n weight row 1 4\n scale g 2 1";
    let body = |next: &str| {
        format!(
            "k = Relu(h)\n e = Slice(k, zero, two, zero)\n a = Mul(e, g)\n d = MatMul(w, a)\n made = ReduceSum(d)\n next = {next}"
        )
    };
    let ends = "ints zero 1 = 0\n ints two 1 = 2";
    for state in ["2 4", "rows 4", "? ?"] {
        let grows = looping(
            &format!("{around}\n {ends}"),
            state,
            &body("Concat(h, row) axis=0"),
        );
        let stays = looping(&format!("{around}\n {ends}"), state, &body("Neg(h)"));
        // If the state keeps its two rows, a Slice of two rows is an identity.
        assert!(
            body_operators(&folded(&stays))[0].starts_with(&["Relu", "MatMul"]),
            "{state}"
        );
        // The extents are unknown, and the result is equal in all iterations.
        fused(&grows);
    }
}

#[test]
fn affines_in_a_scan_fold() {
    let mut model = model("input z 2 4\n input x 3 2 4\n weight w 4 4\n scale s 4\n shift t 4");
    let body = part(
        "input g 2 4\n input h 2 4
         k = Relu(h)\n a = Mul(k, s)\n b = Add(a, t)\n d = MatMul(b, w)\n next = Sub(d, g)\n made = Tanh(d)
         output next made",
    );
    let attributes = vec![("body", body.into()), ("num_scan_inputs", 1.into())];
    model
        .graph_mut()
        .node
        .push(node("Scan", &["z", "x"], &["last", "all"], attributes));
    model
        .graph_mut()
        .output
        .extend(["last", "all"].map(undeclared));
    let after = folded(&model);
    assert_eq!(
        body_operators(&after),
        [["Relu", "MatMul", "Add", "Sub", "Tanh"]]
    );
    is_proved(&model);
}

/// A Scan without states along these axes, and an affine and a layer after it.
fn scanning(axes: &[(&'static str, i64)]) -> Model {
    let mut model = model("input x 3 2 4\n weight w 4 4\n weight v 4 5\n scale s 4\n shift t 4");
    let body = part("input h 2 4\n d = MatMul(h, w)\n made = Relu(d)\n output made");
    let mut scanned = vec![("body", body.into()), ("num_scan_inputs", 1.into())];
    scanned.extend(axes.iter().map(|&(name, axis)| (name, vec![axis].into())));
    model
        .graph_mut()
        .node
        .push(node("Scan", &["x"], &["all"], scanned));
    for (op, inputs, output) in [
        ("Mul", ["all", "s"], "a"),
        ("Add", ["a", "t"], "b"),
        ("MatMul", ["b", "v"], "y"),
    ] {
        model
            .graph_mut()
            .node
            .push(node(op, &inputs, &[output], vec![]));
    }
    model.graph_mut().output.push(undeclared("y"));
    model
}

/// tract would unroll the steps forever, so it does not run the Scan. The Scan has as many results
/// as steps.
#[test]
fn affine_after_a_scan_without_states_folds() {
    let plain = scanning(&[]);
    let after = folded(&plain);
    assert_eq!(operators(&after), ["Scan", "MatMul", "Add"]);
    let verdict = compare(&plain, &after, &Default::default());
    let Verdict::CouldNotVerify { reason } = verdict else {
        panic!("{verdict:?}")
    };
    assert!(reason.contains("no state"), "{reason}");
    is_proved(&plain);
    is_proved(&scanning(&[
        ("scan_input_axes", -3),
        ("scan_output_axes", -2),
    ]));
}

#[test]
fn branch_with_an_input_is_left_unchanged() {
    let branch = "scale s 4\n a = Mul(x, s)\n y = MatMul(a, w)\n output y";
    let mut model = branching(AROUND, branch, branch, &["r"]);
    // A branch of an If must not have inputs.
    model.graph_mut().node[0].attribute[0]
        .g
        .as_mut()
        .unwrap()
        .input
        .push(undeclared("given"));
    let before = model.graph().node[0].clone();
    let untouched = unfold::fuse(&model, &portable()).unwrap();
    assert_eq!(untouched.model.proto, model.proto);
    // The nodes around the If still fold, and so do other bodies.
    let more = branching(
        &AROUND.replace("input x", "input x batch 4\n input z"),
        &branch.replace('x', "z"),
        branch,
        &["q"],
    );
    model.graph_mut().input = more.graph().input.clone();
    model.graph_mut().node.extend(more.graph().node.clone());
    model.graph_mut().output.extend(more.graph().output.clone());
    let fused = crate::fuse(&model);
    assert_eq!(
        fused
            .plan
            .sites
            .iter()
            .filter(|site| site.is_folded())
            .count(),
        2,
        "{:#?}",
        fused.plan.sites
    );
    assert_eq!(fused.model.graph().node[0], before);
    assert_eq!(body_operators(&fused.model), [["MatMul"], ["MatMul"]]);
}

/// An exporter writes a squeeze of an axis that may have one place in this way. Engines check both
/// branches, and refuse the model if they know that the branch that is never taken is invalid.
#[test]
fn if_decided_by_extents_becomes_its_branch() {
    let around = "input x batch 6
                  ints i = 1
                  ints first 1 = 0
                  ints rest 1 = -1
                  ints two 1 = 2
                  ints one 1 = 1
                  const half = 0.5
                  s = Shape(x)
                  d = Gather(s, i) axis=0
                  f = Cast(d) to=1
                  h = Mul(f, half)
                  n = Cast(h) to=7
                  u = Unsqueeze(n, first)
                  t = Concat(rest, u, two) axis=0
                  v = Reshape(x, t)
                  k = Shape(v)
                  e = Gather(k, i) axis=0
                  c = Equal(e, i)";
    for then in ["y = Squeeze(v, one)\n output y", "y = Neg(v)\n output y"] {
        let before = branching(around, then, "y = Identity(v)\n output y", &["r"]);
        is_proved(&before);
        let fused = crate::fuse(&before);
        assert_eq!(operators(&fused.model), ["Reshape"]);
        assert!(!unfold::fuse(&fused.model, &portable()).unwrap().changed());
    }
}

#[test]
fn identity_of_a_taken_branch_is_read_through_in_other_bodies() {
    let mut before = model("input x 2 4\ncondition q\nints c = 0\nscale w 4 4\nscale v 4 4");
    let taken = vec![
        (
            "then_branch",
            part("const z 4 = 1 2 3 4\ny = Neg(z)\noutput y").into(),
        ),
        ("else_branch", part("y = Identity(x)\noutput y").into()),
    ];
    let other = vec![
        (
            "then_branch",
            part("m = MatMul(a, w)\nz = MatMul(m, v)\noutput z").into(),
        ),
        ("else_branch", part("z = Identity(a)\noutput z").into()),
    ];
    let no = node("Cast", &["c"], &["never"], vec![("to", 9_i64.into())]);
    before.graph_mut().node = vec![
        no,
        node("If", &["never"], &["a"], taken),
        node("If", &["q"], &["b"], other),
    ];
    before.graph_mut().output.push(undeclared("b"));
    let fused = unfold::fuse(&before, &portable()).unwrap();
    // Both products are merged, and read the operand of the branch's identity.
    assert_eq!(operators(&fused.model), ["If"]);
    assert!(!unfold::fuse(&fused.model, &portable()).unwrap().changed());
}

/// A model with an If whose branches both contain an If, a constant and a scale.
fn nested(condition: &str) -> Model {
    let inner = |lines: &str, then: &str, other: &str, names: [&str; 2]| {
        let mut body = part(lines);
        let branches = vec![
            ("then_branch", part(then).into()),
            ("else_branch", part(other).into()),
        ];
        body.node
            .insert(1, node("If", &[names[0]], &[names[1]], branches));
        body
    };
    let own = inner(
        "const g 4 = 2 3 4 5\n e = Mul(s, g)\n o = Neg(i)\n output o",
        "const h 4 = 1 2 1 2\n a = Mul(e, h)\n output a",
        "b = Exp(e)\n output b",
        ["c", "i"],
    );
    let other = inner(
        "r = Relu(s)\n q = Sin(j)\n output q",
        "k = Relu(r)\n output k",
        "l = Exp(r)\n output l",
        ["asked", "j"],
    );
    let mut before = model(&format!(
        "input x batch 4\n condition asked\n const one = 1\n const two = 2\n weight w 4 3\n s = Tanh(x)\n {condition}"
    ));
    let branches = vec![("then_branch", own.into()), ("else_branch", other.into())];
    let graph = before.graph_mut();
    graph.node.push(node("If", &["c"], &["m"], branches));
    graph.node.push(node("MatMul", &["m", "w"], &["y"], vec![]));
    graph.output = vec![undeclared("y")];
    before
}

#[test]
fn branch_of_a_constant_if_folds_with_its_surroundings() {
    let before = nested("c = Less(one, two)");
    is_proved(&before);
    let fused = crate::fuse(&before);
    assert_eq!(operators(&fused.model), ["Tanh", "Neg", "MatMul"]);
    assert!(compare(&before, &fused.model, &Default::default()).passed());
    // The If stays on request, or if its condition is unknown.
    let skip = vec!["constant".to_owned()];
    let kept = unfold::fuse(&before, &unfold::FuseOptions { skip, ..portable() }).unwrap();
    assert!(operators(&kept.model).contains(&"If"));
    let asked = crate::fuse(&nested("c = Not(asked)"));
    assert!(operators(&asked.model).contains(&"If"));
    // The proof knows which branch is taken.
    let other = crate::fuse(&nested("c = Less(two, one)"));
    let proof = prove(
        &before,
        &other.model,
        &other.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Disproved { .. }), "{proof:?}");
    let (other, before) = (nested("c = Less(two, one)"), &fused.plan.tensors);
    let proof = prove(&other, &fused.model, before, &Default::default());
    assert!(matches!(proof, Proof::Disproved { .. }), "{proof:?}");
}

/// An If without readers, or with a known condition, in a branch that is never taken.
#[test]
fn branch_that_is_never_taken_is_removed() {
    for (condition, read) in [("c", "i"), ("c", "e"), ("asked", "i"), ("asked", "e")] {
        let mut other = part(&format!("e = Exp(s)\n o = Neg({read})\n output o"));
        let branches = vec![
            (
                "then_branch",
                part("const k 4 = 1 2 3 4\n a = Mul(e, k)\n b = Tanh(e)\n output a").into(),
            ),
            ("else_branch", part("z = Sin(e)\n output z").into()),
        ];
        other
            .node
            .insert(1, node("If", &[condition], &["i"], branches));
        let mut before = model(
            "input x batch 4\n condition asked\n const one = 1\n const two = 2\n s = Tanh(x)\n c = Less(one, two)",
        );
        let branches = vec![
            ("then_branch", part("y = Relu(s)\n output y").into()),
            ("else_branch", other.into()),
        ];
        before
            .graph_mut()
            .node
            .push(node("If", &["c"], &["r"], branches));
        before.graph_mut().output = vec![undeclared("r")];
        is_proved(&before);
        let after = crate::fuse(&before).model;
        assert_eq!(operators(&after), ["Tanh", "Relu"], "{condition} {read}");
        assert!(names(&after).is_empty(), "{condition} {read}");
    }
}

/// A flattened graph marks the place of each node by such metadata.
#[test]
fn metadata_named_like_the_body_marker_is_ignored() {
    let mut before = model(
        "input x batch 4\n ints one = 1\n s = Tanh(x)\n t = Identity(s)\n y = Relu(t)\n output y",
    );
    let note = StringStringEntryProto {
        key: Some("unfold.body".into()),
        value: Some("y.body/".into()),
    };
    before.graph_mut().node[0].metadata_props.push(note);
    assert_eq!(operators(&crate::fuse(&before).model), ["Tanh", "Relu"]);
}

/// An open extent may take the other branch at another size.
#[test]
fn if_that_depends_on_an_unknown_extent_stays() {
    let before = branching(
        "input x batch 4\n ints none = 0\n ints two = 2\n s = Shape(x)\n d = Gather(s, none) axis=0\n c = Less(d, two)",
        "t = Neg(x)\n output t",
        "e = Exp(x)\n output e",
        &["z"],
    );
    let mut other = before.clone();
    other.graph_mut().node.last_mut().unwrap().attribute[1]
        .g
        .as_mut()
        .unwrap()
        .node[0]
        .op_type = Some("Sin".into());
    assert!(operators(&crate::fuse(&before).model).contains(&"If"));
    let proof = prove(&before, &other, &[], &Default::default());
    assert!(!matches!(proof, Proof::Proved { .. }), "{proof:?}");
}

/// New values of the main graph must not have a name of a value in a body, because the body sees
/// both.
#[test]
fn new_names_avoid_names_in_bodies() {
    for name in [
        "m_weight_0_folded",
        "m_weight_0",
        "m_constant_0",
        "m_matmul_0",
    ] {
        let around = "input x batch 3 4\n condition c\n weight w 4 4\n weight v 4 4\n shift b 4\n scale g 4\n
                      p = MatMul(x, w)\n m = MatMul(p, v)\n a = Add(m, b)\n r = Mul(a, g)";
        let then = format!("{name} = Relu(r)\n t = Neg({name})\n output t");
        let before = branching(around, &then, "e = Tanh(r)\n output e", &["y"]);
        let after = fused(&before).model;
        assert!(
            operators(&after).contains(&"MatMul") && !names(&after).contains(&name),
            "{name}"
        );
        let made = after.graph().node.iter().flat_map(|node| &node.output);
        assert!(made.clone().all(|made| made != name), "{name}");
    }
}

/// A model that multiplies by the result of an If on a weight. The condition of the If compares two
/// numbers.
fn picking(compare: &str) -> Model {
    let around = format!(
        "input x 2 4\n const zero = 0\n const one = 1\n weight w 4 3\n c = {compare}(zero, one)"
    );
    let mut picked = branching(
        &around,
        "y = Identity(w)\n output y",
        "y = Neg(w)\n output y",
        &["table"],
    );
    let graph = picked.graph_mut();
    graph
        .node
        .push(node("MatMul", &["x", "table"], &["made"], vec![]));
    graph.output = vec![undeclared("made")];
    picked
}

#[test]
fn if_over_constants_is_proved_equal_to_its_branch() {
    for compare in ["Less", "Greater"] {
        is_proved(&picking(compare));
        assert_eq!(operators(&crate::fuse(&picking(compare)).model), ["MatMul"]);
    }
    let other = crate::fuse(&picking("Greater"));
    let proof = prove(
        &picking("Less"),
        &other.model,
        &other.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Disproved { .. }), "{proof:?}");
}

/// tract reads the first element of an empty condition, and crashes.
#[test]
fn if_with_an_empty_condition_stays() {
    let before = branching(
        "input x batch 4\n ints c 0 =\n scale g 4\n m = Mul(x, g)\n weight w 4 3\n y = MatMul(m, w)\n output y",
        "t = Neg(x)\n output t",
        "e = Relu(x)\n output e",
        &["z"],
    );
    let after = unfold::fuse(&before, &portable()).unwrap();
    assert!(!operators(&after.model).contains(&"Mul") && operators(&after.model).contains(&"If"));
}

/// A value in a body may have the same name as a later value of the graph around it.
#[test]
fn identity_of_an_output_name_used_in_a_body_stays() {
    let around = format!("{AROUND} s = Exp(x)");
    let mut model = branching(
        &around,
        "k = Relu(x)\n y = MatMul(k, w)\n output y",
        "z = MatMul(x, v)\n output z",
        &["r"],
    );
    model
        .graph_mut()
        .node
        .push(node("Identity", &["s"], &["y"], vec![]));
    model.graph_mut().output.push(undeclared("y"));
    assert_eq!(
        operators(&crate::fuse(&model).model),
        ["Exp", "If", "Identity"]
    );
}

/// Weights that bodies compute from constants are stored in these bodies.
#[test]
fn float_constants_in_bodies_are_folded() {
    let branch = |numbers: &str| {
        format!(
            "const a 4 = {numbers}\n b = Mul(a, g)\n d = Reshape(b, rows)\n y = Max(x, d)\n output y"
        )
    };
    let around = "input x batch 4\n condition c\n const g 4 = 2 3 4 5\n ints rows 2 = 1 4";
    let before = branching(around, &branch("1 2 3 4"), &branch("4 3 2 1"), &["r"]);
    is_proved(&before);
    let fused = crate::fuse(&before);
    assert_eq!(body_operators(&fused.model), [["Max"], ["Max"]]);
    let branches = bodies(fused.model.graph().node.last().unwrap());
    let stored = branches.flat_map(|body| &body.initializer);
    let read = |tensor| {
        read_f64(tensor, fused.model.externals())
            .unwrap()
            .into_raw_vec_and_offset()
            .0
    };
    let mut stored: Vec<Vec<f64>> = stored.map(read).collect();
    stored.sort_by(|one, other| one[0].total_cmp(&other[0]));
    assert_eq!(stored, [[2.0, 6.0, 12.0, 20.0], [8.0, 9.0, 8.0, 5.0]]);
    assert!(compare(&before, &fused.model, &Default::default()).passed());
    assert!(!unfold::fuse(&fused.model, &portable()).unwrap().changed());
    // A branch with another computation differs.
    let other = branching(around, &branch("1 2 3 4"), &branch("4 3 2 2"), &["r"]);
    let proof = prove(
        &other,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(matches!(proof, Proof::Disproved { .. }), "{proof:?}");
}

/// The input of a site is the value that the taken branch forwards.
#[test]
fn site_that_stays_reads_the_value_of_a_taken_branch() {
    let mut before = model(
        "input x batch 4\nconst one = 1\nconst two = 2\nscale s 4\nshift t 4\nr = Relu(x)\nc = Less(one, two)",
    );
    let branches = vec![
        ("then_branch", part("i = Identity(r)\noutput i").into()),
        ("else_branch", part("e = Exp(r)\noutput e").into()),
    ];
    let graph = before.graph_mut();
    graph.node.push(node("If", &["c"], &["h"], branches));
    graph.node.push(node("Mul", &["h", "s"], &["m"], vec![]));
    graph.node.push(node("Add", &["m", "t"], &["a"], vec![]));
    graph.node.push(node("Tanh", &["a"], &["y"], vec![]));
    graph.output = vec![undeclared("y")];
    let fused = crate::fuse(&before);
    assert_eq!(operators(&fused.model), ["Relu", "Mul", "Add", "Tanh"]);
    assert!(!unfold::fuse(&fused.model, &portable()).unwrap().changed());
}
