//! Builds graphs of any number of nodes. The number of sites is proportional to it.

use unfold::onnx::Model;

use super::Builder;
use super::numbers::{Kind, Numbers, Role};

/// A graph under construction, with random constants.
struct Graph {
    builder: Builder,
    numbers: Numbers,
}

impl Graph {
    fn new() -> Self {
        Graph {
            builder: Builder::new(18),
            numbers: Numbers::from_recipe("blocks"),
        }
    }

    fn nodes(&mut self) -> usize {
        self.builder.graph().node.len()
    }

    fn constant(&mut self, shape: &[usize], role: Role) -> String {
        let array = self.numbers.array(shape, role, Kind::Real);
        self.builder.constant(&array)
    }

    fn op(&mut self, op: &str, inputs: &[&str]) -> String {
        self.builder.op(op, inputs, vec![])
    }

    fn with(&mut self, op: &str, value: &str, shape: &[usize], role: Role) -> String {
        let constant = self.constant(shape, role);
        self.op(op, &[value, &constant])
    }

    fn linear(&mut self, value: &str, width: usize) -> String {
        let product = self.with("MatMul", value, &[width, width], Role::Weight);
        self.with("Add", &product, &[width], Role::Shift)
    }

    /// A site that its neighbours can absorb.
    fn affine(&mut self, value: &str, width: usize) -> String {
        let scaled = self.with("Mul", value, &[width], Role::Divisor);
        self.with("Add", &scaled, &[width], Role::Shift)
    }
}

/// A transformer without attention: residual blocks, each with an exported UN, and two linear
/// layers.
pub fn transformer(nodes: usize, width: usize) -> Model {
    let mut graph = Graph::new();
    let split = graph.builder.ints(&[0, width as i64, -1]);
    let last = graph.builder.ints(&[-1]);
    let mut x = graph
        .builder
        .input("x", &["batch", "5", &width.to_string()]);
    while graph.nodes() < nodes {
        let turn = || vec![("perm", vec![0, 2, 1].into())];
        let turned = graph.builder.op("Transpose", &[&x], turn());
        let flat = graph.op("Reshape", &[&turned, &split]);
        let mut y = graph.op("Unsqueeze", &[&flat, &last]);
        for (op, role) in [
            ("Div", Role::Divisor),
            ("Mul", Role::Divisor),
            ("Add", Role::Shift),
        ] {
            y = graph.with(op, &y, &[1, width, 1, 1], role);
        }
        let flat = graph.op("Reshape", &[&y, &split]);
        let back = graph.builder.op("Transpose", &[&flat], turn());
        let hidden = graph.linear(&back, width);
        let hidden = graph.op("Relu", &[&hidden]);
        let made = graph.linear(&hidden, width);
        x = graph.op("Add", &[&x, &made]);
    }
    graph.builder.model(&[&x])
}

/// One scale whose output very many products read. One operator joins all products.
pub fn fan(nodes: usize) -> Model {
    let mut graph = Graph::new();
    let x = graph.builder.input("x", &["batch", "4"]);
    let site = graph.with("Mul", &x, &[4], Role::Scale);
    let made: Vec<String> = (0..nodes)
        .map(|_| graph.with("MatMul", &site, &[4, 2], Role::Weight))
        .collect();
    join(graph, &made)
}

/// One value that very many sites read. Each site has its own product after it.
pub fn fans(nodes: usize) -> Model {
    let mut graph = Graph::new();
    let x = graph.builder.input("x", &["batch", "4"]);
    let branch = |graph: &mut Graph| {
        let site = graph.affine(&x, 4);
        graph.with("MatMul", &site, &[4, 2], Role::Weight)
    };
    let made: Vec<String> = (0..nodes / 3).map(|_| branch(&mut graph)).collect();
    join(graph, &made)
}

/// One value that is multiplied by very many factors separately. One product reads all results.
pub fn factors(nodes: usize) -> Model {
    let mut graph = Graph::new();
    let x = graph.builder.input("x", &["batch", "4"]);
    let made: Vec<String> = (0..nodes)
        .map(|_| graph.with("Mul", &x, &[4], Role::Divisor))
        .collect();
    product(graph, &made, 4 * nodes)
}

/// A value that is split into very many parts. Each part has its own factor, and one product reads
/// all parts.
pub fn split(nodes: usize) -> Model {
    let mut graph = Graph::new();
    let x = graph
        .builder
        .input("x", &["batch", &(2 * nodes).to_string()]);
    let extents = graph.builder.ints(&vec![2; nodes]);
    let parts = graph
        .builder
        .op_many("Split", &[&x, &extents], vec![("axis", 1.into())], nodes);
    let made: Vec<String> = parts
        .iter()
        .map(|part| graph.with("Mul", part, &[2], Role::Divisor))
        .collect();
    product(graph, &made, 2 * nodes)
}

fn product(mut graph: Graph, values: &[String], width: usize) -> Model {
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let joined = graph
        .builder
        .op("Concat", &values, vec![("axis", 1.into())]);
    let made = graph.with("MatMul", &joined, &[width, 2], Role::Weight);
    graph.builder.model(&[&made])
}

/// Outputs that are one value under different names.
pub fn names(nodes: usize) -> Model {
    let mut graph = Graph::new();
    let x = graph.builder.input("x", &["batch", "4"]);
    let site = graph.affine(&x, 4);
    let made = graph.with("MatMul", &site, &[4, 2], Role::Weight);
    let outputs: Vec<String> = (0..nodes).map(|_| graph.op("Identity", &[&made])).collect();
    let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    graph.builder.model(&outputs)
}

/// One site, and scalars that nothing reads.
pub fn unread(nodes: usize) -> Model {
    let mut graph = Graph::new();
    let x = graph.builder.input("x", &["batch", "4"]);
    for _ in 0..nodes {
        graph.constant(&[], Role::Shift);
    }
    let site = graph.affine(&x, 4);
    let made = graph.with("MatMul", &site, &[4, 2], Role::Weight);
    graph.builder.model(&[&made])
}

/// One value that very many normalizers read. Each has a product after it, and all products are
/// added.
pub fn norms(nodes: usize) -> Model {
    let mut graph = Graph::new();
    let x = graph.builder.input("x", &["batch", "4"]);
    let branch = |graph: &mut Graph| {
        let [scale, shift] = [Role::Divisor, Role::Shift].map(|role| graph.constant(&[4], role));
        let normal = graph.op("LayerNormalization", &[&x, &scale, &shift]);
        graph.with("MatMul", &normal, &[4, 2], Role::Weight)
    };
    let made: Vec<String> = (0..nodes / 2).map(|_| branch(&mut graph)).collect();
    let made: Vec<&str> = made.iter().map(String::as_str).collect();
    let sum = graph.op("Sum", &made);
    graph.builder.model(&[&sum])
}

fn join(mut graph: Graph, values: &[String]) -> Model {
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let joined = graph
        .builder
        .op("Concat", &values, vec![("axis", 1.into())]);
    graph.builder.model(&[&joined])
}

/// Sites that stay, because their neighbours are not linear.
pub fn stuck(nodes: usize) -> Model {
    let mut graph = Graph::new();
    let mut x = graph.builder.input("x", &["batch", "4"]);
    for _ in 0..nodes / 2 {
        let scaled = graph.with("Mul", &x, &[4], Role::Divisor);
        x = graph.op("Relu", &[&scaled]);
    }
    graph.builder.model(&[&x])
}

/// Layers whose input is split into parts, which are scaled separately and concatenated in another
/// order.
pub fn branches(nodes: usize) -> Model {
    let mut graph = Graph::new();
    let parts = graph.builder.ints(&[2, 2, 4]);
    let mut x = graph.builder.input("x", &["batch", "8"]);
    while graph.nodes() < nodes {
        let site = graph.affine(&x, 8);
        let made = graph
            .builder
            .op_many("Split", &[&site, &parts], vec![("axis", 1.into())], 3);
        let [a, b, c] = [(0, 2), (1, 2), (2, 4)]
            .map(|(part, n): (usize, usize)| graph.with("Mul", &made[part], &[n], Role::Divisor));
        let joined = graph
            .builder
            .op("Concat", &[&c, &a, &b], vec![("axis", 1.into())]);
        let made = graph.linear(&joined, 8);
        x = graph.op("Tanh", &[&made]);
    }
    graph.builder.model(&[&x])
}

/// A vision transformer: patches, a class token, positions, and two blocks. The second block
/// consists of single operators. A head reads the class token.
pub const VIT: &str = "input i batch 6 5
     weight w 5 4
     shift b 4
     weight cls 1 1 4
     weight pos 1 7 4
     weight q 4 4
     weight p 4 4
     shift p0 4
     weight head 4 3
     const g 4 = 1 2 3 4
     shift t 4
     const eps 1 = 0.001
     ints first 1 = 0
     ints at 1 = 0
     ints one 2 = 1 4
     x0 = MatMul(i, w)
     x1 = Add(x0, b)
     shape = Shape(i)
     count = Gather(shape, at) axis=0
     wide = Concat(count, one) axis=0
     c = Expand(cls, wide)
     x2 = Concat(c, x1) axis=1
     x3 = Add(x2, pos)
     n0 = LayerNormalization(x3, g, t)
     q0 = MatMul(n0, q)
     r0 = Relu(q0)
     f0 = MatMul(r0, p)
     x4 = Add(f0, x3)
     m1 = ReduceMean(x4) axes=[-1]
     d1 = Sub(x4, m1)
     s1 = Mul(d1, d1)
     v1 = ReduceMean(s1) axes=[-1]
     e1 = Add(v1, eps)
     u1 = Sqrt(e1)
     n1 = Div(d1, u1)
     q1 = MatMul(n1, q)
     f1 = MatMul(q1, p)
     k1 = Add(f1, p0)
     x5 = Add(k1, x4)
     token = Gather(x5, first) axis=1";
