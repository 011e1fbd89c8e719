//! Loads a model into tract and runs it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tract_core::internal::{RunOptions, TractErrorContext, TypedSimplePlan, TypedSimpleState};
use tract_linalg::multithread::Executor;
use tract_onnx::Onnx;
use tract_onnx::model::ParseResult;
use tract_onnx::prelude::{
    InferenceModel, InferenceModelExt, TValue, TVec, Tensor, TractResult, TypedModel,
};

use super::dims::Dims;
use super::failure::{Failure, Stage};
use super::input::Input;
use super::origins::Origins;
use super::preconditions::{check_inputs, check_size, endless, known_operators};
use super::skeleton::{WeightStore, skeleton};
use super::specialize::{specialized, with_definitions};
use crate::onnx::Model;

/// Gives a parsed model types, and optimizes it or not.
type TypedForm = fn(InferenceModel) -> TractResult<TypedModel>;

/// A model in tract with concrete shapes. Clones share the graph and the weights.
///
/// ```no_run
/// use unfold::onnx::Model;
/// use unfold::run::{Dims, Engine, random};
///
/// let model = Model::open("model.onnx")?;
/// let engine = Engine::load(&model, &"batch=4".parse()?)?;
/// let outputs = engine.run(&random(engine.inputs(), 0))?;
/// for (name, output) in engine.outputs().iter().zip(&outputs) {
///     println!("{name}: {:?} {:?}", output.datum_type(), output.shape());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Engine {
    plan: Arc<TypedSimplePlan>,
    inputs: Vec<Input>,
    outputs: Vec<String>,
    operators: Arc<Origins>,
}

impl Engine {
    /// Loads a model that runs on one thread. `dims` gives the sizes of symbolic dimensions.
    ///
    /// # Errors
    /// If tract cannot run the model. The error names the operator.
    pub fn load(model: &Model, dims: &Dims) -> Result<Self, Failure> {
        Self::load_with(model, dims, 1)
    }

    /// Like [`Engine::load`], but matrix products run on `threads` threads.
    ///
    /// # Errors
    /// The errors of [`Engine::load`].
    pub fn load_with(model: &Model, dims: &Dims, threads: usize) -> Result<Self, Failure> {
        Self::load_as(model, dims, InferenceModelExt::into_optimized, threads)
    }

    /// Loads a model without tract's optimization. The optimization recognizes GELUs by constants, and ignores small
    /// differences of these constants.
    ///
    /// # Errors
    /// The errors of [`Engine::load`].
    #[cfg(feature = "prove")]
    pub(crate) fn load_unoptimized(model: &Model, dims: &Dims) -> Result<Self, Failure> {
        Self::load_as(model, dims, InferenceModelExt::into_typed, 1)
    }

    fn load_as(
        model: &Model,
        dims: &Dims,
        form: TypedForm,
        threads: usize,
    ) -> Result<Self, Failure> {
        let inputs = Input::from_model(model, dims)?;
        inputs.iter().try_for_each(check_size)?;
        let written = with_definitions(model, &inputs);
        let model = written.as_ref().unwrap_or(model);
        let failure = match Self::prepare(model, inputs.clone(), form, threads) {
            Ok(engine) => return Ok(engine),
            Err(failure) => failure,
        };
        match specialized(model, &inputs) {
            Some(specialized) => Self::prepare(&specialized, inputs, form, threads),
            None => Err(failure),
        }
    }

    /// Loads a model without replacing operators or folding shape arithmetic.
    fn prepare(
        model: &Model,
        inputs: Vec<Input>,
        form: TypedForm,
        threads: usize,
    ) -> Result<Self, Failure> {
        let onnx = tract_onnx::onnx()
            .with_ignore_value_info(true)
            .with_ignore_output_shapes(true);
        let operators = known_operators(&onnx, model)?;
        if let Some(scan) = endless(model.graph()) {
            let reason = "tract may look for another form of it for ever";
            let failure = Failure::new(Stage::Optimize, reason);
            return Err(failure.at(scan.op_type(), scan.label()));
        }
        let (proto, weights) = skeleton(model, &inputs)?;
        let onnx = Onnx {
            provider: weights,
            ..onnx
        };

        let parsed = operators.attempt(Stage::Load, || {
            onnx.parse(&proto, Some(WeightStore::FOLDER))
        })?;
        let ParseResult {
            model: inferred,
            unresolved_inputs,
            ..
        } = parsed;
        if let Some(value) = unresolved_inputs.first() {
            return Err(Failure::new(
                Stage::Load,
                format!("nothing gives the value `{value}`"),
            ));
        }
        drop((proto, onnx));
        let plan = operators.attempt(Stage::Optimize, || {
            TypedSimplePlan::new_with_options(form(inferred)?, &run_options(threads))
        })?;
        let outputs = model
            .graph()
            .output
            .iter()
            .map(|output| output.name().to_owned())
            .collect();
        Ok(Self {
            plan,
            inputs,
            outputs,
            operators: Arc::new(operators),
        })
    }

    /// The inputs, in the order of the graph.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The names of the outputs, in the order of the graph.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// The graph that runs, after tract's optimization.
    pub fn graph(&self) -> &TypedModel {
        self.plan.model()
    }

    /// The number of operators of each kind in [`Engine::graph`], without inputs and constants.
    pub fn operators(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        let names = self
            .graph()
            .nodes()
            .iter()
            .map(|node| node.op().name().into_owned());
        for name in names.filter(|name| !["Source", "Const"].contains(&name.as_str())) {
            *counts.entry(name).or_default() += 1;
        }
        counts
    }

    /// The operator and the name of the ONNX node from which tract built the node `name` of
    /// [`Engine::graph`]. `None` if tract did not keep the name of the ONNX node.
    pub fn origin<'a>(&'a self, name: &'a str) -> Option<(&'a str, &'a str)> {
        self.operators.origin(name)
    }

    /// Runs the model, and returns its outputs.
    ///
    /// # Errors
    /// If the inputs do not have the types and shapes of [`Engine::inputs`], or if an operator
    /// fails.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        let values: Vec<TValue> = inputs.iter().map(|tensor| tensor.clone().into()).collect();
        let outputs = self.session()?.run(&values)?;
        Ok(outputs.into_iter().map(|value| (*value).clone()).collect())
    }

    /// Creates a session, which keeps its state between runs. All sessions of an engine share its
    /// weights.
    ///
    /// # Errors
    /// If tract cannot create the session.
    pub(crate) fn session(&self) -> Result<Session, Failure> {
        let state = self.operators.attempt(Stage::Run, || self.plan.spawn())?;
        Ok(Session {
            engine: self.clone(),
            state,
        })
    }
}

/// A session that runs a model many times.
#[derive(Debug)]
pub(crate) struct Session {
    engine: Engine,
    state: TypedSimpleState,
}

impl Session {
    /// Runs the model, and returns its outputs. Inputs and outputs are not copied.
    ///
    /// # Errors
    /// The errors of [`Engine::run`].
    pub(crate) fn run(&mut self, inputs: &[TValue]) -> Result<TVec<TValue>, Failure> {
        self.attempt(inputs, |state, inputs| state.run(inputs))
    }

    /// Like [`Session::run`], but calls `after` after each node, with the index of the node in
    /// [`Engine::graph`].
    ///
    /// # Errors
    /// The errors of [`Engine::run`].
    pub(crate) fn run_with(
        &mut self,
        inputs: &[TValue],
        mut after: impl FnMut(usize),
    ) -> Result<TVec<TValue>, Failure> {
        self.attempt(inputs, |state, inputs| {
            state.run_plan_with_eval(inputs, |context, node_state, node, inputs| {
                let outputs = tract_core::plan::eval(context, node_state, node, inputs);
                after(node.id);
                outputs
            })
        })
    }

    fn attempt(
        &mut self,
        inputs: &[TValue],
        run: impl FnOnce(&mut TypedSimpleState, TVec<TValue>) -> TractResult<TVec<TValue>>,
    ) -> Result<TVec<TValue>, Failure> {
        let Self { engine, state } = self;
        engine.operators.attempt(Stage::Run, || {
            check_inputs(&engine.inputs, inputs)?;
            run(state, inputs.iter().cloned().collect()).context("running")
        })
    }
}

fn run_options(threads: usize) -> RunOptions {
    let executor = if threads > 1 {
        Executor::multithread(threads)
    } else {
        Executor::SingleThread
    };
    RunOptions {
        executor: Some(executor),
        ..RunOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::{AttributeProto, AttributeType, NodeProto};
    use crate::onnx::tensor::{DataType, make_i64};
    use crate::run::random;
    use crate::run::testing::{affine, floats, model, node, value, with_int};
    use tract_onnx::prelude::tensor2;

    #[test]
    fn engine_matches_hand_computed_outputs() {
        let engine = Engine::load(
            &affine([1.0, -2.0, 0.5], [0.0, 10.0, -1.0]),
            &"n=2".parse().unwrap(),
        )
        .unwrap();
        let outputs = engine
            .run(&[tensor2(&[[1_f32, 2.0, 4.0], [-1.0, 0.0, 8.0]])])
            .unwrap();
        assert_eq!(outputs, [tensor2(&[[1_f32, 6.0, 1.0], [-1.0, 10.0, 3.0]])]);
        assert_eq!(engine.outputs(), ["y"]);
    }

    #[test]
    fn session_reruns_and_reports_every_node() {
        let engine = Engine::load(&affine([1.0; 3], [1.0; 3]), &Dims::default()).unwrap();
        let inputs: Vec<TValue> = random(engine.inputs(), 3)
            .into_iter()
            .map(Into::into)
            .collect();
        let mut session = engine.session().unwrap();
        let first = session.run(&inputs).unwrap();
        let mut nodes = Vec::new();
        assert_eq!(
            session.run_with(&inputs, |node| nodes.push(node)).unwrap(),
            first
        );
        assert_eq!(nodes, engine.plan.order_without_consts());
    }

    /// Checks the size of an input that has this shape.
    fn check_shape(shape: &[&str]) -> Result<(), Failure> {
        let inputs = vec![value("x", DataType::Float, shape)];
        let model = model(inputs, vec![], vec![node("Relu x -> y")], &["y"]);
        check_size(&Input::from_model(&model, &Dims::default()).unwrap()[0])
    }

    #[test]
    fn input_shape_beyond_memory_is_an_error() {
        for shape in [
            &["1", "4611686018427387904"][..],
            &["4294967296", "4294967296", "2"],
            &["4294967296", "4"],
        ] {
            assert!(
                check_shape(shape)
                    .unwrap_err()
                    .reason
                    .contains("more elements"),
                "{shape:?}"
            );
        }
        assert!(check_shape(&["4294967296", "0"]).is_ok());
    }

    /// Loads a Scan whose body has a state and a product.
    fn load_scan(product: &str) -> Result<Engine, Failure> {
        let inputs = ["s", "u"].map(|name| value(name, DataType::Float, &["2", "2"]));
        let nodes = vec![node("Relu s -> t"), node(product)];
        let body = model(inputs.to_vec(), vec![], nodes, &["t", "q"]);
        let mut scan = with_int(node("Scan s0, us -> s1, qs"), "num_scan_inputs", 1);
        scan.attribute.push(AttributeProto {
            name: Some("body".into()),
            r#type: Some(AttributeType::Graph.into()),
            g: Some(Box::new(body.proto.graph.unwrap())),
            ..Default::default()
        });
        let inputs = vec![
            value("s0", DataType::Float, &["2", "2"]),
            value("us", DataType::Float, &["3", "2", "2"]),
        ];
        let model = model(inputs, vec![], vec![scan], &["s1", "qs"]);
        Engine::load(&model, &Dims::default())
    }

    #[test]
    fn scan_that_tract_may_unroll_forever_is_refused() {
        let failure = load_scan("MatMul u, u -> q").unwrap_err();
        assert_eq!(
            (failure.operator.as_deref(), failure.node.as_deref()),
            (Some("Scan"), Some("the Scan"))
        );
        assert!(
            load_scan("Add u, u -> q")
                .err()
                .is_none_or(|failure| !failure.reason.contains("for ever"))
        );
    }

    #[test]
    fn strided_slice_after_reshape_runs() {
        let constants = vec![
            make_i64("square", &[0, 4, 4]),
            make_i64("start", &[0]),
            make_i64("end", &[9]),
            make_i64("axis", &[1]),
            make_i64("step", &[2]),
        ];
        let nodes = vec![
            node("Reshape x, square -> image"),
            node("Slice image, start, end, axis, step -> y"),
        ];
        let model = model(
            vec![value("x", DataType::Float, &["1", "16"])],
            constants,
            nodes,
            &["y"],
        );
        let engine = Engine::load(&model, &Dims::default()).unwrap();
        let x =
            Tensor::from_shape(&[1, 16], &(0..16_u8).map(f32::from).collect::<Vec<_>>()).unwrap();
        let rows = [0_f32, 1.0, 2.0, 3.0, 8.0, 9.0, 10.0, 11.0];
        assert_eq!(
            engine.run(&[x]).unwrap(),
            [Tensor::from_shape(&[1, 2, 4], &rows).unwrap()]
        );
    }

    fn load_one(node: NodeProto) -> Result<Engine, Failure> {
        let inputs = vec![value("x", DataType::Float, &["3"])];
        let model = model(inputs, vec![], vec![node], &["y"]);
        Engine::load(&model, &Dims::default())
    }

    #[test]
    fn unknown_operator_is_named_in_the_failure() {
        let failure = load_one(node("Frobnicate x -> y")).unwrap_err();
        assert_eq!(
            failure.to_string(),
            "tract cannot load Frobnicate `the Frobnicate`: tract does not have this operator"
        );

        let mut foreign = node("Relu x -> y");
        foreign.domain = Some("com.example".into());
        let failure = load_one(foreign).unwrap_err();
        assert_eq!(failure.operator.as_deref(), Some("Relu"));
        assert!(failure.reason.contains("com.example"), "{failure}");
    }

    #[test]
    fn unpreparable_operator_is_named_in_the_failure() {
        let wide = floats("wide", &ndarray::Array2::zeros((5, 4)).into_dyn().view());
        let inputs = vec![value("x", DataType::Float, &["2", "3"])];
        let failure = Engine::load(
            &model(
                inputs,
                vec![wide],
                vec![node("MatMul x, wide -> y")],
                &["y"],
            ),
            &Dims::default(),
        );
        let failure = failure.unwrap_err();
        assert_eq!(
            (failure.operator.as_deref(), failure.node.as_deref()),
            (Some("MatMul"), Some("the MatMul"))
        );
        assert!(!failure.to_string().contains('\n'));
    }

    #[test]
    fn wrong_inputs_are_reported() {
        let engine = Engine::load(&affine([1.0; 3], [0.0; 3]), &Dims::default()).unwrap();
        let failure = engine.run(&[tensor2(&[[1_f32]])]).unwrap_err();
        assert_eq!(
            failure.reason,
            "the input `x` is F32 [2, 3], and F32 [1, 1] was given"
        );
        assert_eq!(
            engine.run(&[]).unwrap_err().reason,
            "the model has 1 inputs, and 0 were given"
        );
    }

    #[test]
    fn typed_and_external_weights_are_loaded() {
        let mut typed = affine([3.0; 3], [0.0; 3]);
        let scale = &mut typed.graph_mut().initializer[0];
        scale.raw_data = None;
        scale.float_data = vec![3.0; 3];
        let mut external = affine([3.0; 3], [0.0; 3]);
        external.external = true;
        let folder = tempfile::tempdir().unwrap();
        external.save(folder.path().join("model.onnx")).unwrap();
        let external = Model::open(folder.path().join("model.onnx")).unwrap();
        for model in [typed, external] {
            let engine = Engine::load(&model, &"n=1".parse().unwrap()).unwrap();
            assert_eq!(
                engine.run(&[tensor2(&[[1_f32, 2.0, 3.0]])]).unwrap(),
                [tensor2(&[[3_f32, 6.0, 9.0]])]
            );
        }
    }

    #[test]
    fn outputs_are_equal_for_one_and_two_threads() {
        let weights = floats(
            "w",
            &ndarray::Array2::from_shape_fn((64, 256), |(i, j)| (i * j % 7) as f64)
                .into_dyn()
                .view(),
        );
        let inputs = vec![value("x", DataType::Float, &["m", "64"])];
        let model = model(
            inputs,
            vec![weights],
            vec![with_int(node("Gemm x, w -> y"), "transB", 0)],
            &["y"],
        );
        let dims: Dims = "m=128".parse().unwrap();
        let (one, two) = (
            Engine::load(&model, &dims).unwrap(),
            Engine::load_with(&model, &dims, 2).unwrap(),
        );
        let inputs = random(one.inputs(), 0);
        assert_eq!(one.run(&inputs).unwrap(), two.run(&inputs).unwrap());
    }
}
