//! Tests proofs on bodies of If, Loop and Scan.

use ndarray::ArrayD;
use unfold::onnx::proto::{GraphProto, NodeProto, TensorProto};
use unfold::onnx::{DataType, Externals, Model, tensor};
use unfold::plan::Stored;
use unfold::prove::Proof;
use unfold::recipe::Recipe;

use super::common;
use super::common::{declared, floats, node, text, undeclared};
use super::{is_not_proved, is_proved, proof, with_new};

/// A body of these nodes with this output.
pub fn body_of(nodes: Vec<NodeProto>, output: &str) -> GraphProto {
    GraphProto {
        node: nodes,
        output: vec![undeclared(output)],
        ..Default::default()
    }
}

/// A body of one operator on a captured value.
pub fn branch(op: &str, captured: &str) -> GraphProto {
    body_of(vec![node(op, &[captured], &["inner"], vec![])], "inner")
}

/// An If with these branches.
pub fn choice(condition: &str, output: &str, then: GraphProto, otherwise: GraphProto) -> NodeProto {
    let bodies = vec![
        ("then_branch", then.into()),
        ("else_branch", otherwise.into()),
    ];
    node("If", &[condition], &[output], bodies)
}

fn if_that_captures(text: &str, captured: &str) -> Model {
    let mut model = text::model(text);
    let [then, otherwise] = ["Exp", "Exp"].map(|op| branch(op, captured));
    model
        .graph_mut()
        .node
        .push(choice("yes", "y", then, otherwise));
    model.graph_mut().output.push(undeclared("y"));
    model
}

#[test]
fn values_captured_by_a_body_are_compared() {
    let start = "input x batch 4\ncondition yes\nweight w 4 3\nscale s 3\n";
    let before = if_that_captures(&format!("{start}v = MatMul(x, w)\nz = Mul(v, s)"), "z");
    let folded = if_that_captures(&format!("{start}u = Mul(w, s)\nt = MatMul(x, u)"), "t");
    let forgotten = if_that_captures(&format!("{start}t = MatMul(x, w)"), "t");
    assert!(is_proved(&proof(&before, &folded, &[])));
    match proof(&before, &forgotten, &[]) {
        Proof::Disproved { at, .. } => assert_eq!(at, "t"),
        other => panic!("{other:?}"),
    }
}

fn reshaped_by_if(read: [&str; 2]) -> Model {
    let mut model = text::model(
        "input x 2 4\ncondition yes\nweight w 4 3\nweight v 3 3\nints other 2 = 2 3\nz = MatMul(x, w)",
    );
    let [then, otherwise] = read.map(|value| branch("Shape", value));
    model
        .graph_mut()
        .node
        .push(choice("yes", "extents", then, otherwise));
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
}

#[test]
fn if_with_equal_integer_branches_has_known_integers() {
    let plain = text::model(
        "input x 2 4\ncondition yes\nweight w 4 3\nweight v 3 3\nints other 2 = 2 3\nz = MatMul(x, w)\ny = MatMul(z, v)\noutput y",
    );
    assert!(is_proved(&proof(&reshaped_by_if(["z", "z"]), &plain, &[])));
    assert!(!is_proved(&proof(&reshaped_by_if(["z", "x"]), &plain, &[])));
}

fn floats_and_rows(extents: [&str; 2], end: &str) -> Model {
    let mut model = text::model(&format!(
        "input x 2 6\ncondition yes\nints wide 2 = 3 4\nints high 2 = 4 3\nints zero 1 = 0\nints three 1 = 3\nints rest 1 = -1\n{end}\noutput y"
    ));
    let bodies = [
        ("then_branch", "Neg", extents[0]),
        ("else_branch", "Abs", extents[1]),
    ];
    let bodies = bodies
        .map(|(name, op, extents)| (name, float_and_rows(op, extents).into()))
        .to_vec();
    model
        .graph_mut()
        .node
        .insert(0, node("If", &["yes"], &["z", "rows"], bodies));
    model
}

#[test]
fn if_has_known_integers_beside_different_floats() {
    let made = "e = Concat(rows, rest) axis=0\ny = Reshape(z, e)";
    let known = "e = Concat(three, rest) axis=0\ny = Reshape(z, e)";
    for (extents, are_equal) in [
        (["wide", "wide"], true),
        (["high", "high"], false),
        (["wide", "high"], false),
    ] {
        let [made, known] = [made, known].map(|end| floats_and_rows(extents, end));
        assert_eq!(
            is_proved(&proof(&made, &known, &[])),
            are_equal,
            "{extents:?}"
        );
    }
}

/// A body whose outputs are floats and an extent.
fn float_and_rows(op: &str, extents: &str) -> GraphProto {
    GraphProto {
        node: vec![
            node(op, &["x"], &["inner"], vec![]),
            node("Gather", &[extents, "zero"], &["rows"], vec![]),
        ],
        output: ["inner", "rows"].map(undeclared).to_vec(),
        ..Default::default()
    }
}

fn unknown_in_body(factor: &str, weight: &str) -> Model {
    let mut model = text::model(
        "input x 2 4\ncondition yes\nconst s = 2\nconst one = 1\nconst v 4 3 = 1 2 3 4 5 6 7 8 9 10 11 12\nconst w 4 3 = 2 4 6 8 10 12 14 16 18 20 22 24\nints e 2 = 2 4\nu = custom.Unknown(x)",
    );
    let nodes = vec![
        node("Mul", &["u", factor], &["scaled"], vec![]),
        node("Reshape", &["scaled", "e"], &["shaped"], vec![]),
        node("MatMul", &["shaped", weight], &["inner"], vec![]),
    ];
    let body = body_of(nodes, "inner");
    model
        .graph_mut()
        .node
        .push(choice("yes", "y", body.clone(), body));
    model.graph_mut().output.push(undeclared("y"));
    model
}

#[test]
fn body_over_unknown_operators_is_undecided() {
    let found = proof(
        &unknown_in_body("s", "v"),
        &unknown_in_body("one", "w"),
        &[],
    );
    assert!(matches!(found, Proof::Undecided { .. }), "{found:?}");
}

/// Parses a graph that becomes a body.
fn part(lines: &str) -> GraphProto {
    text::model(lines).proto.graph.unwrap()
}

/// Three models whose last node has bodies. In the first, a scale is between two weights in the
/// body. In the second, it is folded into the second weight. In the third, it is folded into the
/// wrong channels.
fn scaled_in_bodies(with: &dyn Fn(&str) -> Model) -> [(Model, Vec<Stored>); 3] {
    let original = with("a = MatMul(h, w)\nb = Mul(a, s)\nt = MatMul(b, v)");
    let folded = with("a = MatMul(h, w)\nt = MatMul(a, v_folded)");
    let scale = Recipe::constant("s", &[3]);
    let other = scale.pick(0, [Some(1), Some(0), Some(2)]).unwrap();
    let moved = with_new(folded.clone(), &original, "v_folded", scaled_rows(&scale));
    let lost = with_new(folded, &original, "v_folded", scaled_rows(&other));
    [(original, vec![]), moved, lost]
}

/// The second weight, with its rows multiplied by a scale.
fn scaled_rows(scale: &Recipe) -> Recipe {
    let rows = scale.reshape(&[3, 1]).unwrap();
    Recipe::constant("v", &[3, 4]).mul(&rows).unwrap()
}

const AROUND: &str =
    "condition yes\nweight w 4 3\nconst s 3 = 0.3 -0.7 1.9\nweight v 3 4\nweight o 4 4\n";

/// An If whose first branch has these nodes.
fn scaled_in_if(then: &str) -> Model {
    let mut model = text::model(&format!("input h batch 4\n{AROUND}"));
    add_chosen(&mut model, then);
    model
}

/// Adds an If whose first branch has these nodes.
fn add_chosen(model: &mut Model, then: &str) {
    let then = part(&format!("{then}\noutput t"));
    let otherwise = part("e = MatMul(h, o)\noutput e");
    let graph = model.graph_mut();
    graph.node.push(choice("yes", "y", then, otherwise));
}

/// A Loop whose body has these nodes.
fn scaled_in_loop(body: &str) -> Model {
    let mut model = text::model(&format!("input x 2 4\nindices m\n{AROUND}"));
    let formals = "indices i\ncondition c\ninput h 2 4\n";
    let lines = format!("{formals}{body}\nd = Identity(c)\nq = Softmax(t)\noutput d q t");
    let bodies = vec![("body", part(&lines).into())];
    model.graph_mut().node.extend([
        node("Loop", &["m", "yes", "x"], &["last", "all"], bodies),
        node("MatMul", &["last", "o"], &["y"], vec![]),
    ]);
    model
}

/// A Scan whose body has these nodes, and an If that captures their result.
fn scaled_in_scan(body: &str) -> Model {
    let mut model = text::model(&format!("input x 5 2 4\ninput z 2 4\n{AROUND}"));
    let mut outer = part(&format!("input g 2 4\ninput h 2 4\n{body}"));
    let [then, otherwise] = ["Add", "Sub"].map(|op| part(&format!("a = {op}(t, g)\noutput a")));
    outer.node.push(choice("yes", "f", then, otherwise));
    outer.output = ["f", "t"].map(undeclared).to_vec();
    let attributes = vec![("body", outer.into()), ("num_scan_inputs", 1.into())];
    let graph = model.graph_mut();
    graph
        .node
        .push(node("Scan", &["z", "x"], &["y", "all"], attributes));
    model
}

#[test]
fn scale_moved_within_a_body_is_proved_unless_its_channel_changes() {
    for with_body in [scaled_in_if, scaled_in_loop, scaled_in_scan] {
        let [(original, _), (moved, recipes), (lost, wrong)] = scaled_in_bodies(&|body| {
            let mut model = with_body(body);
            model.graph_mut().output.push(undeclared("y"));
            model
        });
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
fn broken_branch_is_found_and_an_unknown_one_is_undecided() {
    let [(original, _), _, (lost, wrong)] = scaled_in_bodies(&declared_if);
    match proof(&original, &lost, &wrong) {
        Proof::Disproved { at, site, .. } => assert_eq!((at.as_str(), site), ("y", Some(3))),
        other => panic!("{other:?}"),
    }
    // The order of the branches in the file does not matter.
    let then = "a = MatMul(h, w)\nt = MatMul(a, v)";
    assert!(is_proved(&proof(
        &declared_if(then),
        &exchanged(then, false),
        &[]
    )));
    assert!(matches!(
        proof(&declared_if(then), &exchanged(then, true), &[]),
        Proof::Disproved { .. }
    ));
    // The prover does not even know the extents of an unknown operator, through which a scale may
    // have moved.
    let [(original, _), (moved, recipes), _] = scaled_in_bodies(&behind_mystery);
    assert!(matches!(
        proof(&original, &moved, &recipes),
        Proof::Undecided { .. }
    ));
    assert!(is_proved(&proof(&original, &original, &[])));
}

/// An If whose first branch has these nodes, and whose extents are declared.
fn declared_if(then: &str) -> Model {
    let mut model = scaled_in_if(then);
    let output = declared("y", DataType::Float, &["batch", "4"]);
    model.graph_mut().output.push(output);
    model
}

/// Like [`declared_if`], with the branches in the other order. If `are_renamed`, their names are
/// exchanged too.
fn exchanged(then: &str, are_renamed: bool) -> Model {
    let mut model = declared_if(then);
    let attributes = &mut model.graph_mut().node[0].attribute;
    attributes.swap(0, 1);
    if are_renamed {
        (attributes[0].name, attributes[1].name) =
            (attributes[1].name.clone(), attributes[0].name.clone());
    }
    model
}

/// An If whose first branch has these nodes after an unknown operator.
fn behind_mystery(then: &str) -> Model {
    let then = then.replace("(h,", "(m,");
    let mut model = declared_if(&format!("m = Mystery(h)\n{then}"));
    let graph = model.graph_mut().node[0].attribute[0].g.as_mut().unwrap();
    graph.node[0].domain = Some("com.example".into());
    model
}

#[test]
fn new_tensor_in_a_body_is_checked_against_its_recipe() {
    let original = with_own_tensor(None, "a = MatMul(h, w)\nb = Mul(a, s)\nt = MatMul(b, v)");
    let scale = Recipe::constant("s", &[3]).reshape(&[3, 1]).unwrap();
    let recipe = Recipe::constant("v", &[3, 4]).mul(&scale).unwrap();
    let (outside, recipes) = with_new(original.clone(), &original, "v_folded", recipe);
    let tensor = common::initializer(&outside, "v_folded").clone();
    let then = "a = MatMul(h, w)\nt = MatMul(a, v_folded)";
    assert!(is_proved(&proof(
        &original,
        &with_own_tensor(Some(tensor.clone()), then),
        &recipes
    )));
    let mut bytes = tensor::raw(&tensor, &Externals::none()).unwrap().to_vec();
    bytes[8] ^= 1;
    let mut other = tensor;
    other.raw_data = Some(bytes.into());
    match proof(&original, &with_own_tensor(Some(other), then), &recipes) {
        Proof::Disproved {
            at, site: Some(3), ..
        } => assert_eq!(at, "v_folded"),
        other => panic!("{other:?}"),
    }
}

/// An If whose first branch has these nodes and its own tensor.
fn with_own_tensor(tensor: Option<TensorProto>, then: &str) -> Model {
    let mut model = scaled_in_if(then);
    let attributes = &mut model.graph_mut().node[0].attribute;
    let body = attributes[0].g.as_mut().unwrap();
    body.initializer.extend(tensor);
    model.graph_mut().output.push(undeclared("y"));
    model
}

fn with_dead_node(functions: [&str; 2], is_there: bool) -> Model {
    let mut model = text::model("input x batch 2\ninput z 2 columns\ncondition c\nweight w 3 3");
    let [then, otherwise] = functions.map(|op| {
        let mut branch = branch(op, "x");
        if is_there {
            let dead = node("MatMul", &["z", "w"], &["dead"], vec![]);
            branch.node.insert(0, dead);
        }
        branch
    });
    model
        .graph_mut()
        .node
        .push(choice("c", "y", then, otherwise));
    model.graph_mut().output.push(undeclared("y"));
    model
}

#[test]
fn dead_nodes_in_a_body_do_not_matter() {
    // Unless the dead node is removed, the model is invalid at a size that is tried.
    let model = with_dead_node(["Relu", "Tanh"], true);
    assert!(is_proved(&proof(
        &model,
        &with_dead_node(["Relu", "Tanh"], false),
        &[]
    )));
    assert!(is_not_proved(
        &model,
        &with_dead_node(["Tanh", "Relu"], false)
    ));
}

fn with_random_bodies(name: &str) -> Model {
    let mut model = text::model("input x 2 3\ncondition c");
    for (output, name) in [("s", "one"), ("t", name)] {
        let [then, otherwise] = [name, name].map(drawn);
        model
            .graph_mut()
            .node
            .push(choice("c", output, then, otherwise));
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
}

#[test]
fn random_nodes_in_two_bodies_differ() {
    let none = text::model("input x 2 3\ncondition c\ny = Identity(x)\noutput y");
    assert!(!is_proved(&proof(&with_random_bodies("one"), &none, &[])));
    assert!(!is_proved(&proof(&with_random_bodies("two"), &none, &[])));
}

/// A body that draws random numbers with a node of this name.
fn drawn(name: &str) -> GraphProto {
    let shape = vec![("shape", vec![3_i64].into())];
    let mut drawn = node("RandomNormal", &[] as &[&str], &["r"], shape);
    drawn.name = Some(name.into());
    body_of(vec![drawn], "r")
}

fn zero(data_type: DataType) -> TensorProto {
    TensorProto {
        name: Some("z".into()),
        data_type: Some(data_type.code()),
        raw_data: Some(vec![0].into()),
        ..Default::default()
    }
}

fn quantized_in_body(zero: TensorProto) -> Model {
    let mut model = text::model("input x 2 3\ncondition c");
    let nodes = vec![
        node("QuantizeLinear", &["x", "s", "z"], &["q"], vec![]),
        node("Cast", &["q"], &["f"], vec![("to", 1_i64.into())]),
    ];
    let choice = choice("c", "y", body_of(nodes, "f"), branch("Relu", "x"));
    let graph = model.graph_mut();
    graph.initializer = vec![floats("s", &ArrayD::from_elem(vec![], 0.5)), zero];
    graph.node.push(choice);
    graph.output.push(undeclared("y"));
    model
}

#[test]
fn integer_types_in_bodies_are_compared() {
    assert!(is_not_proved(
        &quantized_in_body(zero(DataType::Uint8)),
        &quantized_in_body(zero(DataType::Int8))
    ));
}
