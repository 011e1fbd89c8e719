//! `unfold diff` finds the nodes of two models that compute the same value, and the nodes that
//! differ.

use std::collections::HashMap;

use super::common::judge::inputs;
use super::common::numbers::Kind;
use super::common::reference::{self, Env, Value as Computed};
use super::*;

/// Saves models of these texts in a new folder.
pub(super) fn saved<const N: usize>(texts: [&str; N]) -> (TempDir, [PathBuf; N]) {
    let folder = tempdir().unwrap();
    let mut number = 0;
    let paths = texts.map(|body| {
        number += 1;
        let path = folder.path().join(format!("model{number}.onnx"));
        text::model(body).save(&path).unwrap();
        path
    });
    (folder, paths)
}

fn difference(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{}", run.stderr))
}

/// The names of the nodes of a block on one side.
fn names(block: &Value, side: &str) -> Vec<String> {
    let nodes = block[side].as_array().unwrap().iter();
    nodes
        .map(|node| node["name"].as_str().unwrap().to_owned())
        .collect()
}

pub(super) const CHAIN: &str = "
    input x b 4
    const w 4 4 = 1 2 0 1 0 1 3 0 2 0 1 1 1 1 0 2
    const c 4 = 1 2 3 4
    m = MatMul(x, w)
    a = Add(m, c)
    r = Relu(a)
    y = Exp(r)
    output y";

#[test]
fn diff_lists_a_rewritten_part_between_equal_values() {
    let other = "
        input in b 4
        const weight 4 4 = 1 2 0 1 0 1 3 0 2 0 1 1 1 1 0 2
        const bias 4 = 1 2 3 4
        v1 = Gemm(in, weight, bias)
        v2 = Identity(v1)
        v3 = Relu(v2)
        out = Exp(v3)
        output out";
    let (_folder, [one, two]) = saved([CHAIN, other]);
    let run = unfold([&"diff", &one, &two, &"--json"]);
    assert_eq!(run.code, DONE, "{}", run.stderr);
    let json = difference(&run);
    assert_eq!(json["judgement"]["verdict"], "same");
    let counts = serde_json::json!([
        {"all": 4, "same": 3, "only": 1, "unread": 0},
        {"all": 4, "same": 4, "only": 0, "unread": 0},
    ]);
    assert_eq!(json["nodes"], counts);
    let pairs = serde_json::json!([
        {"first": "Add_a", "second": "Gemm_v1", "kept": false},
        {"first": "Relu_r", "second": "Relu_v3", "kept": true},
        {"first": "Exp_y", "second": "Exp_out", "kept": true},
    ]);
    assert_eq!(json["aligned"], pairs);
    let blocks = json["blocks"].as_array().unwrap();
    assert_eq!(blocks.len(), 1, "{blocks:#?}");
    assert_eq!(names(&blocks[0], "first"), ["MatMul_m", "Add_a"]);
    assert_eq!(names(&blocks[0], "second"), ["Gemm_v1", "Identity_v2"]);
    assert_eq!(blocks[0]["verdict"], "same");
}

#[test]
fn diff_writes_a_page_with_both_graphs_side_by_side() {
    let other = CHAIN
        .replace("r = Relu(a)", "s = Identity(a)\n r = Relu(s)")
        .replace("MatMul(x, w)", "Gemm(x, w)");
    let (folder, [one, two]) = saved([CHAIN, &other]);
    let page = folder.path().join("page.html");
    let run = unfold([&"diff", &one, &two, &"--html", &page]);
    assert_eq!(run.code, DONE, "{}", run.stderr);
    assert!(run.stdout.contains("page written to "), "{}", run.stdout);
    let text = fs::read_to_string(&page).unwrap();
    let data = text.split("id=\"data\">").nth(1).unwrap();
    let data = data.split("</script>").next().unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["command"], "diff");
    let rows = data["rows"].as_array().unwrap().iter();
    let changes: Vec<[&str; 2]> = rows
        .map(|row| {
            let node = row.get("before").unwrap_or(&row["after"]);
            [&row["change"], &node["operator"]].map(|word| word.as_str().unwrap())
        })
        .collect();
    let expected = [
        ["changed", "MatMul"],
        ["same", "Add"],
        ["new", "Identity"],
        ["rewired", "Relu"],
        ["same", "Exp"],
    ];
    assert_eq!(changes, expected);
}

#[test]
fn diff_shows_computed_tensors_that_the_other_model_stores() {
    let computed = "
        input x b 4
        const n = 4
        s = Sqrt(n)
        y = Mul(x, s)
        output y";
    let stored = "
        input x b 4
        const two = 2
        y = Mul(x, two)
        output y";
    let (_folder, [one, two]) = saved([computed, stored]);
    let run = unfold_in_columns(80, [&"diff", &one, &two, &"--accept", &"rounding"]);
    assert_eq!(run.code, DONE, "{}", run.stderr);
    let row = run
        .stdout
        .lines()
        .find(|line| line.contains("Sqrt"))
        .unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words, ["1", "Sqrt", "a", "tensor", "same", "Sqrt_s"]);
    assert!(run.stdout.lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn diff_of_different_models_ends_as_prove_does() {
    let wrong = CHAIN.replace("1 2 3 4\n", "1 2 3 9\n");
    let (_folder, [one, two]) = saved([CHAIN, &wrong]);
    let run = unfold([&"diff", &one, &two, &"--json"]);
    assert_eq!(run.code, DIFFERS, "{}", run.stderr);
    let json = difference(&run);
    let blocks = json["blocks"].as_array().unwrap();
    assert_eq!(blocks.len(), 1, "{blocks:#?}");
    assert_eq!(blocks[0]["verdict"], "different");
    assert_eq!(names(&blocks[0], "first"), ["Add_a"]);
    assert_eq!(names(&blocks[0], "second"), ["Add_a"]);
    // After the difference, both models are the same.
    let counts = serde_json::json!({"all": 4, "same": 3, "only": 1, "unread": 0});
    assert_eq!(json["nodes"], serde_json::json!([counts, counts]));
    assert_eq!(json["aligned"][0]["first"], "MatMul_m");
    assert!(
        run.stderr.contains("computes something else"),
        "{}",
        run.stderr
    );
}

#[test]
fn diff_aligns_nodes_behind_several_differences() {
    let model = "
        input x b 4
        const c 4 = 1 2 3 4
        const d 4 = 5 6 7 8
        a = Add(x, c)
        s = Sigmoid(a)
        p = Mul(s, d)
        t = Tanh(p)
        q = Sub(t, c)
        y = Exp(q)
        output y";
    let other = model
        .replace("1 2 3 4\n", "1 2 3 9\n")
        .replace("5 6 7 8", "5 6 9 8")
        .replace("Sub(t, c)", "Sub(c, t)");
    let (_folder, [one, two]) = saved([model, &other]);
    let run = unfold([&"diff", &one, &two, &"--json"]);
    assert_eq!(run.code, DIFFERS, "{}", run.stderr);
    let json = difference(&run);
    let blocks = json["blocks"].as_array().unwrap();
    let changed: Vec<_> = blocks
        .iter()
        .map(|block| ["first", "second"].map(|side| names(block, side)))
        .collect();
    let expected =
        ["Add_a", "Mul_p", "Sub_q"].map(|name| [vec![name.to_owned()], vec![name.to_owned()]]);
    assert_eq!(changed, expected);
    let counts = serde_json::json!({"all": 6, "same": 3, "only": 3, "unread": 0});
    assert_eq!(json["nodes"], serde_json::json!([counts, counts]));
}

/// Gives each value and node of a model a name without a meaning.
fn scramble(proto: &mut ModelProto) {
    let graph = proto.graph.as_mut().unwrap();
    let mut now: HashMap<String, String> = HashMap::new();
    let mut nodes = std::mem::take(&mut graph.node);
    let inputs = graph.input.iter_mut().map(|input| input.name.as_mut());
    let outputs = graph.output.iter_mut().map(|output| output.name.as_mut());
    let tensors = graph
        .initializer
        .iter_mut()
        .map(|tensor| tensor.name.as_mut());
    let ends = inputs.chain(outputs).chain(tensors).flatten();
    let made = nodes
        .iter_mut()
        .flat_map(|node| node.input.iter_mut().chain(&mut node.output));
    for name in ends.chain(made).filter(|name| !name.is_empty()) {
        let count = now.len();
        let other = now
            .entry(name.clone())
            .or_insert_with(|| format!("v{count}"));
        name.clone_from(other);
    }
    for (place, node) in nodes.iter_mut().enumerate() {
        node.name = Some(format!("n{place}"));
        node.metadata_props.clear();
    }
    graph.node = nodes;
    graph.value_info.clear();
}

/// The values of the nodes of a model, by the names of the nodes.
fn node_values(model: &Model, env: &Env) -> Vec<(String, Computed)> {
    let values = reference::values(model, env).unwrap();
    let nodes = model.graph().node.iter();
    let nodes = nodes.filter(|node| node.op_type() != "Constant");
    nodes
        .map(|node| {
            let name = if node.name().is_empty() {
                &node.output[0]
            } else {
                node.name()
            };
            (name.to_owned(), values[&node.output[0]].clone())
        })
        .collect()
}

fn are_near(a: &Computed, b: &Computed) -> bool {
    match (a, b) {
        (Computed::Floats(a), Computed::Floats(b)) => {
            let largest = a.iter().fold(0.0, |largest: f64, v| largest.max(v.abs()));
            let mut pairs = a.iter().zip(b);
            a.shape() == b.shape() && pairs.all(|(a, b)| (a - b).abs() <= 1e-5 * largest)
        }
        (Computed::Ints(a), Computed::Ints(b)) => a == b,
        _ => false,
    }
}

#[test]
fn diff_aligns_the_nodes_whose_values_are_equal_in_an_independent_run() {
    for kind in ["un", "ln", "bn"] {
        let model = Model::open(digits(kind, "dynamo")).unwrap();
        let mut fused = unfold::fuse(&model, &Default::default()).unwrap().model;
        fused = fused.into_memory().unwrap();
        let env = inputs(&model, 2, true, Kind::Real);
        scramble(&mut fused.proto);
        let mut other_env = Env::new();
        for (input, other) in model.graph().input.iter().zip(&fused.graph().input) {
            other_env.insert(other.name().to_owned(), env[input.name()].clone());
        }
        let (_folder, path) = out();
        fused.save(&path).unwrap();
        let run = unfold([&"diff", &digits(kind, "dynamo"), &path, &"--json"]);
        let json = difference(&run);
        let pairs = json["aligned"].as_array().unwrap().iter();
        let aligned: HashMap<&str, &str> = pairs
            .map(|pair| {
                (
                    pair["first"].as_str().unwrap(),
                    pair["second"].as_str().unwrap(),
                )
            })
            .collect();
        let before = node_values(&model, &env);
        let after: HashMap<String, Computed> =
            node_values(&fused, &other_env).into_iter().collect();
        let (mut equal, mut found) = (0, 0);
        for (name, value) in &before {
            if let Some(other) = aligned.get(name.as_str()) {
                assert!(
                    are_near(value, &after[*other]),
                    "{kind}: {name} is not {other}"
                );
            }
            if after.values().any(|other| are_near(value, other)) {
                equal += 1;
                found += usize::from(aligned.contains_key(name.as_str()));
            }
        }
        assert!(
            equal > 20 && found * 20 >= equal * 19,
            "{kind}: {found} of {equal}"
        );
    }
}
