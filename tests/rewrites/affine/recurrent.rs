//! LSTM, GRU and RNN absorb an affine of their input into the weights of all gates.

use unfold::onnx::Model;
use unfold::refusal::Reason;

use crate::becomes;
use crate::common::text::model;
use crate::{initializer, kept};

/// An affine of three channels, and a layer with this number of gates and two hidden channels.
fn layer(op: &str, gates: usize, directions: usize, bias: bool, attributes: &str) -> Model {
    let rows = 2 * gates;
    let (name, given) = if bias {
        (", b", format!("shift b {directions} {}", 2 * rows))
    } else {
        ("", String::new())
    };
    model(&format!(
        "input x 4 2 3
         scale g 3
         shift t 3
         weight w {directions} {rows} 3
         weight r {directions} {rows} 2
         {given}
         n = Mul(x, g)
         m = Add(n, t)
         y = {op}(m, w, r{name}) hidden_size=2 {attributes}
         output y"
    ))
}

#[test]
fn lstm_gru_and_rnn_absorb_an_affine_in_every_direction() {
    for (op, gates, more) in [
        ("LSTM", 4, ""),
        ("GRU", 3, "linear_before_reset=1"),
        ("RNN", 1, ""),
    ] {
        for (directions, direction) in [(1, "forward"), (1, "reverse"), (2, "bidirectional")] {
            for layout in [0, 1] {
                let attributes = format!("direction={direction} layout={layout} {more}");
                becomes(&layer(op, gates, directions, true, &attributes), &[op]);
            }
        }
    }
}

#[test]
fn lstm_without_bias_gets_one() {
    let after = becomes(&layer("LSTM", 4, 1, false, ""), &["LSTM"]);
    let node = &after.graph().node[0];
    assert_eq!(initializer(&after, &node.input[3]).dims, [1, 16]);
}

#[test]
fn lstm_refuses_step_scales_state_scales_and_scales_after_it() {
    let by_step = model(
        "input x 4 2 3
         scale g 4 1 1
         weight w 1 8 3
         weight r 1 8 2
         n = Mul(x, g)
         y = LSTM(n, w, r) hidden_size=2
         output y",
    );
    assert_eq!(kept(&by_step).0, Reason::WrongAxis);
    let behind = model(
        "input x 4 2 3
         weight w 1 8 3
         weight r 1 8 2
         scale g 2
         v = LSTM(x, w, r) hidden_size=2
         n = Mul(v, g)
         y = Relu(n)
         output y",
    );
    assert_eq!(kept(&behind).1, Some(Reason::NotLinear("LSTM".into())));
    let state = model(
        "input x 4 2 3
         input h 1 2 2
         scale g 2
         weight w 1 8 3
         weight r 1 8 2
         n = Mul(h, g)
         y = LSTM(x, w, r, , , n) hidden_size=2
         output y",
    );
    assert_eq!(kept(&state).0, Reason::NotLinear("LSTM".into()));
    assert_eq!(
        kept(&layer("LSTM", 4, 1, true, "fancy=1")).0,
        Reason::Attribute("fancy".into())
    );
}
