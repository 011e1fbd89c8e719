//! Tests the examples of `docs/extending.md`. Each example is compiled in the module of its file,
//! and runs on a small graph.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use ndarray::{Array2, ArrayD, Axis, Ix2};

use crate::affine::Affine;
use crate::affine::apply::{RangeCheck, apply};
use crate::affine::linear::Linear;
use crate::affine::linear::transpose_matmul::TransposeMatMul;
use crate::affine::materialize::draw;
use crate::affine::planner::plan;
use crate::affine::propagate::rules::compress::Compress;
use crate::affine::recognize::act_norm::ActNorm;
use crate::affine::recognize::opaque::{self, Expanded};
use crate::affine::recognize::{Normalizer, Site, View};
use crate::affine::rule::{Rule, Side};
use crate::analysis::Analysis;
use crate::common::text::model;
use crate::ir::builder::NewConstant;
use crate::ir::editor::Editor;
use crate::ir::names::Names;
use crate::onnx::tensor::read_f64;
use crate::onnx::{Externals, Model};
use crate::passes::movement::transpose_before_expand;
use crate::passes::simplify::simplify_known;
use crate::recipe::{Numbers, Recipe, evaluate};
use crate::refusal::Reason;
use crate::report::bench::{tabs::tabs, testing};
use crate::verify::{VerifyOptions, compare};

/// The entries that the guide adds to the tables of kinds and rules.
const KINDS: &[&dyn Normalizer] = &[&ActNorm];
const RULES: &[&dyn Rule] = &[&Compress];
const LINEAR: &[&dyn Linear] = &[&TransposeMatMul];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn extending_guide_shows_these_files() {
    let guide = read("docs/extending.md");
    for (file, line) in [
        ("affine/recognize/act_norm.rs", "&act_norm::ActNorm,"),
        ("affine/propagate/rules/compress.rs", "&compress::Compress,"),
        (
            "affine/linear/transpose_matmul.rs",
            "&transpose_matmul::TransposeMatMul,",
        ),
        (
            "passes/movement/transpose_before_expand.rs",
            "&TRANSPOSE_BEFORE_EXPAND,",
        ),
        ("report/bench/tabs.rs", "pub(crate) use tabs::tabs;"),
    ] {
        assert!(guide.contains(&format!("`src/{file}`")), "{file}");
        assert!(
            guide.contains(&format!(
                "```rust\n{}```",
                read(&format!("docs/examples/extending/{file}"))
            )),
            "{file}"
        );
        assert!(
            guide.contains(&format!("```rust\n    {line}\n```"))
                || guide.contains(&format!("```rust\n{line}\n```")),
            "{line}"
        );
    }
}

/// Finds the sites of the new kind.
fn sites(known: &Analysis) -> Vec<Site> {
    let view = View::new(known);
    let nodes = known.graph.order().iter();
    nodes
        .filter_map(|&node| KINDS.iter().find_map(|kind| kind.recognize(&view, node)))
        .collect()
}

fn act_norm(module: &str) -> Model {
    model(&format!(
        "input x b 4 6
         shift {module}.b 6
         scale {module}.s 6
         weight w 6 3
         a = Add(x, {module}.b)
         n = Mul(a, {module}.s)
         y = MatMul(n, w)
         output y"
    ))
}

#[test]
fn new_kind_is_recognized_and_folds() {
    let model = act_norm("blocks.0.actnorm");
    let known = Analysis::new(&model).unwrap();
    let sites = sites(&known);
    assert_eq!(
        sites
            .iter()
            .map(|site| (site.kind.name, site.channels))
            .collect::<Vec<_>>(),
        [("ActNorm", 6)]
    );
    let plan = plan(&known, &sites, &HashMap::new(), &HashMap::new(), false);
    assert!(plan.sites[0].is_folded(), "{:?}", plan.sites[0]);
    let mut editor = Editor::new(&known.graph);
    let edits = draw(&plan, &known).unwrap();
    let changes = (&edits[..], &plan.removals[..]);
    apply(changes, &known, &mut editor, RangeCheck::Done, &|_, _| ()).unwrap();
    let mut folded = model.clone();
    *folded.graph_mut() = editor.finish();
    assert_eq!(
        folded
            .graph()
            .node
            .iter()
            .map(|node| node.op_type())
            .collect::<Vec<_>>(),
        ["MatMul", "Add"]
    );
    assert!(compare(&model, &folded, &VerifyOptions::default()).passed());
    assert!(self::sites(&Analysis::new(&act_norm("blocks.0.other")).unwrap()).is_empty());
}

#[test]
fn new_opaque_operator_is_inlined_by_its_formula() {
    let mut model = model(
        "input x b 4 3
         const s 3 = 2 -1 0.5
         const b 3 = 1 3 -4
         n = ActNorm2d(x, s, b)
         output n",
    );
    model.graph_mut().node[0].domain = Some("custom".into());
    let known = Analysis::new(&model).unwrap();
    let node = &model.graph().node[0];
    let [operator] = ActNorm.opaque() else {
        panic!()
    };
    assert!(operator.names.contains(&"actnorm2d"));
    let made = opaque::write(&known, node, operator, &mut Names::new(&model));
    let Expanded {
        nodes,
        constants,
        formulas,
    } = made.unwrap();
    assert_eq!(
        nodes.iter().map(|node| node.op_type()).collect::<Vec<_>>(),
        ["Mul", "Add"]
    );
    assert_eq!(
        (&nodes[0].input[0], &nodes[1].output[0]),
        (&"x".to_owned(), &"n".to_owned())
    );
    let numbers: Vec<_> = constants
        .iter()
        .map(|c| read_f64(c, &Externals::none()).unwrap())
        .collect();
    assert_eq!(
        numbers,
        [[2.0, -1.0, 0.5], [2.0, -3.0, -2.0]].map(|row| ndarray::arr1(&row).into_dyn())
    );
    let NewConstant::Floats { name, recipe, .. } = &formulas[0] else {
        panic!()
    };
    assert_eq!(
        (name.as_str(), recipe.to_string().as_str()),
        (constants[0].name(), "s")
    );
}

fn numbers(values: &[f64], shape: &[usize]) -> Numbers {
    Numbers::literal(ArrayD::from_shape_vec(shape, values.to_vec()).unwrap())
}

/// A model with an affine before a Compress.
fn compressed(attributes: &str) -> Model {
    model(&format!(
        "input x 1 2 2 3
         const signs 3 = 1 -1 1
         const zero = 0
         const s 2 1 1 = 2 -1
         const t 2 1 1 = 1 3
         which = Greater(signs, zero)
         n = Mul(x, s)
         m = Add(n, t)
         y = Compress(m, which) {attributes}
         output y"
    ))
}

#[test]
fn affine_passes_the_new_rule() {
    let before = compressed("axis=3");
    let known = Analysis::new(&before).unwrap();
    let node = before.graph().node.len() - 1;
    let rule = RULES
        .iter()
        .find(|rule| rule.is_for(known.graph.domain_op(node)))
        .unwrap();
    let affine = Affine::new(
        numbers(&[2.0, -1.0], &[1, 2, 1, 1]),
        numbers(&[1.0, 3.0], &[1, 2, 1, 1]),
    );
    let inputs = [Some(affine.clone()), None];
    let forward = rule.forward(&known.at(node), &inputs).unwrap();
    let backward = rule.backward(&known.at(node), 0, &affine).unwrap();
    for step in [forward, backward] {
        let [way] = &step.ways[..] else {
            panic!("{step:?}")
        };
        let [(0, same)] = &way[..] else {
            panic!("{step:?}")
        };
        assert!(same.scale == affine.scale && same.shift == affine.shift && step.folds.is_empty());
    }
    // Compress keeps places 0 and 2, where the sign is positive.
    let x = ArrayD::from_shape_fn(vec![1, 2, 2, 3], |at| {
        (at[1] * 6 + at[2] * 3 + at[3]) as f64
    });
    let array =
        |values: [f64; 2]| ArrayD::from_shape_vec(vec![1, 2, 1, 1], values.to_vec()).unwrap();
    let (scale, shift) = (array([2.0, -1.0]), array([1.0, 3.0]));
    let kept = |array: &ArrayD<f64>| array.select(Axis(3), &[0, 2]);
    assert_eq!(kept(&(&x * &scale + &shift)), kept(&x) * &scale + &shift);
}

#[test]
fn affine_along_the_dropped_axis_stops_at_the_new_rule() {
    let along = |axis: usize, extent: usize| {
        let mut shape = [1; 4];
        shape[axis] = extent;
        Affine::scale(numbers(
            &(0..extent).map(|i| 2.0 + i as f64).collect::<Vec<_>>(),
            &shape,
        ))
    };
    for (attributes, affine, reason) in [
        ("", along(1, 2), Reason::Attribute("axis".into())),
        ("axis=-1", along(3, 3), Reason::ReducedAxis),
    ] {
        let before = compressed(attributes);
        let known = Analysis::new(&before).unwrap();
        let at = known.at(before.graph().node.len() - 1);
        assert_eq!(
            Compress.forward(&at, &[Some(affine), None]).unwrap_err(),
            reason
        );
    }
}

/// A model that expands an input, and then transposes it.
fn expanded(lines: &str) -> Model {
    model(&format!(
        "input x 3 1 6
         {lines}
         t = Transpose(e) perm=[2,0,1]
         y = Abs(t)
         output y"
    ))
}

#[test]
fn new_rewrite_transposes_before_the_expand() {
    let before = expanded("ints s 3 = 1 4 6\n e = Expand(x, s)");
    let known = Analysis::new(&before).unwrap();
    let edits = transpose_before_expand::edits(&known);
    let mut editor = Editor::new(&known.graph);
    let changes = (&edits[..], &[][..]);
    apply(changes, &known, &mut editor, RangeCheck::Done, &|_, _| ()).unwrap();
    let mut after = before.clone();
    *after.graph_mut() = simplify_known(editor, vec![], &known, &HashMap::new());
    let operators: Vec<&str> = after
        .graph()
        .node
        .iter()
        .map(|node| node.op_type())
        .collect();
    assert_eq!(operators, ["Transpose", "Expand", "Abs"]);
    assert!(compare(&before, &after, &VerifyOptions::default()).passed());
    for twin in [
        "ints s 4 = 2 3 4 6\n e = Expand(x, s)",
        "indices s 3\n e = Expand(x, s)",
        "ints s 3 = 1 4 6\n e = Expand(x, s)\n output e",
    ] {
        let twin = expanded(twin);
        let known = Analysis::new(&twin).unwrap();
        assert!(transpose_before_expand::edits(&known).is_empty());
    }
}

fn product(attributes: &str) -> Model {
    let mut model = model(&format!(
        "input x 2 3
         const w 3 2 = 1 2 3 4 5 6
         y = TransposeMatMul(x, w) {attributes}
         output y"
    ));
    model.graph_mut().node[0].domain = Some("com.microsoft".into());
    model
}

#[test]
fn new_linear_operator_absorbs_an_affine() {
    let model = product("alpha=0.5");
    let known = Analysis::new(&model).unwrap();
    let linear = LINEAR
        .iter()
        .find(|linear| linear.is_for(known.graph.domain_op(0)))
        .unwrap();
    assert!(!linear.is_for(("", "TransposeMatMul")));
    let at = known.at(0);
    let affine = Affine::new(
        numbers(&[2.0, -1.0, 0.5], &[1, 3]),
        numbers(&[1.0, 3.0, -4.0], &[1, 3]),
    );
    let step = linear.forward(&at, &[Some(affine.clone()), None]).unwrap();
    assert!(matches!(step.folds[..], [(Side::Operand(0), _)]));
    let weight = at.constant(1).unwrap();
    let numbers_of = |recipe: &Recipe| -> Array2<f64> {
        let read = |name: &str| known.constants.read(known.graph.value(name).unwrap());
        evaluate(recipe, &read)
            .unwrap()
            .into_dimensionality::<Ix2>()
            .unwrap()
    };
    let scaled = numbers_of(
        &linear
            .scaled(&at, &weight, Side::Operand(0), &affine.scale)
            .unwrap(),
    );
    let image = numbers_of(&linear.image(&at, Some(&weight), 0, &affine.shift).unwrap());
    let by_result = numbers_of(
        &linear
            .scaled(
                &at,
                &weight,
                Side::Result,
                &numbers(&[10.0, 100.0], &[1, 2]),
            )
            .unwrap(),
    );
    assert_eq!(
        scaled,
        ndarray::arr2(&[[2.0, 4.0], [-3.0, -4.0], [2.5, 3.0]])
    );
    assert_eq!(
        by_result,
        ndarray::arr2(&[[10.0, 200.0], [30.0, 400.0], [50.0, 600.0]])
    );
    // 0.5·(1·1 + 3·3 − 4·5) and 0.5·(1·2 + 3·4 − 4·6)
    assert_eq!(image, ndarray::arr2(&[[-5.0, -5.0]]));
}

#[test]
fn new_linear_operator_refuses_unknown_attributes() {
    let affine = Affine::scale(numbers(&[2.0, -1.0, 0.5], &[1, 3]));
    for (attributes, name) in [("transB=1", "transB"), ("transBatchA=1", "transBatchA")] {
        let model = product(attributes);
        let known = Analysis::new(&model).unwrap();
        let refusal = TransposeMatMul
            .forward(&known.at(0), &[Some(affine.clone()), None])
            .unwrap_err();
        assert_eq!(refusal, Reason::Attribute(name.into()));
    }
}

#[test]
fn new_report_form_has_all_rows() {
    let text = tabs(&testing::report());
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    // Each of the three variants has a row in the tables of latency, memory and shares.
    assert_eq!(rows.len(), 9);
    assert_eq!(rows[0][..2], ["LN twin", "100 ms"]);
    assert_eq!(rows[3][..2], ["LN twin", "24.6 MB"]);
}
