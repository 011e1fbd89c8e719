//! A server that folds its model when it starts.
//!
//! `cargo run --release --example server -- models/digits/un-dynamo.onnx 127.0.0.1:8080`, and then
//! `curl --data-binary @image.f32 http://127.0.0.1:8080`. A request has 64 float32 numbers, and the
//! answer 10 scores.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use unfold::onnx::Model;
use unfold::run::{Engine, Tensor};
use unfold::verify::compare;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Loads and folds a model. If the outputs of both differ, the server runs the original.
fn load(path: &str) -> Result<Engine> {
    let model = Model::open(path)?;
    let fused = unfold::fuse(&model, &Default::default())?.model;
    let agrees = compare(&model, &fused, &Default::default()).passed();
    let served = if agrees { &fused } else { &model };
    eprintln!(
        "{path}: {} operators, {} served",
        model.graph().node.len(),
        served.graph().node.len()
    );
    Ok(Engine::load(served, &"batch=1".parse()?)?)
}

/// Reads the body of a request, of at most `limit` bytes.
fn body(stream: &TcpStream, limit: usize) -> Result<Vec<u8>> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.by_ref().take(1 << 12).read_line(&mut line)?;
        if line.trim_end().is_empty() {
            break;
        }
        if let Some(("content-length", value)) =
            line.to_ascii_lowercase().trim_end().split_once(": ")
        {
            length = value.parse()?;
        }
    }
    if length > limit {
        return Err(format!("{length} bytes are more than {limit}").into());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(body)
}

/// Runs the model on the numbers of a request, and returns a line for each score.
fn answer(engine: &Engine, stream: &TcpStream) -> Result<String> {
    let [input] = engine.inputs() else {
        return Err("the model has several inputs".into());
    };
    let count: usize = input.shape.iter().product();
    let body = body(stream, count * size_of::<f32>())?;
    let numbers: Vec<f32> = body
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let outputs = engine.run(&[Tensor::from_shape(&input.shape, &numbers)?])?;
    let scores = outputs[0].to_plain_array_view::<f32>()?;
    Ok(scores.iter().map(|score| format!("{score}\n")).collect())
}

/// Answers one request after another.
fn serve(listener: &TcpListener, engine: &Engine) -> io::Result<()> {
    for stream in listener.incoming() {
        let mut stream = stream?;
        let (status, text) = match answer(engine, &stream) {
            Ok(text) => ("200 OK", text),
            Err(error) => ("400 Bad Request", format!("{error}\n")),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close",
            text.len()
        );
        // The client may have disconnected.
        let _ = write!(stream, "{head}\r\n\r\n{text}");
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("server MODEL ADDRESS".into());
    };
    let engine = load(&model)?;
    Ok(serve(&TcpListener::bind(address)?, &engine)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends a body. Returns the status line and the body of the answer.
    fn asked(address: std::net::SocketAddr, body: &[u8]) -> (String, String) {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .unwrap();
        stream.write_all(body).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    #[test]
    fn what_is_served_is_what_the_model_says_as_it_was() {
        const MODEL: &str = "models/digits/un-dynamo.onnx";
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let engine = load(MODEL).unwrap();
        std::thread::spawn(move || serve(&listener, &engine));

        let image: Vec<f32> = (0..64).map(|at| (at * 7 % 17) as f32 / 16.0).collect();
        let body: Vec<u8> = image
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let (status, text) = asked(address, &body);
        assert_eq!(status, "HTTP/1.1 200 OK");
        let scores: Vec<f32> = text.lines().map(|line| line.parse().unwrap()).collect();

        let before =
            Engine::load(&Model::open(MODEL).unwrap(), &"batch=1".parse().unwrap()).unwrap();
        let image = Tensor::from_shape(&[1, 1, 8, 8], &image).unwrap();
        let expected = before.run(&[image]).unwrap();
        let expected = expected[0].to_plain_array_view::<f32>().unwrap();
        let largest = expected
            .iter()
            .fold(0.0f32, |most, score| most.max(score.abs()));
        assert_eq!(scores.len(), 10);
        for (score, expected) in scores.iter().zip(expected.iter()) {
            assert!(
                (score - expected).abs() <= 1e-5 * largest,
                "{score} {expected}"
            );
        }
        assert_eq!(asked(address, &body[..8]).0, "HTTP/1.1 400 Bad Request");
    }
}
