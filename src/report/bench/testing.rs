//! A report for tests.

use super::data::*;
use crate::report::class::Class;

fn interval(value: f64, spread: f64) -> Interval {
    Interval {
        value,
        low: value - spread,
        high: value + spread,
    }
}

fn measured(name: &str, seconds: f64, spread: f64) -> Measured {
    let measurement = Measurement {
        latency: Latency {
            median: interval(seconds, 0.001),
            p95: seconds * 1.1,
            throughput: 8.0 / seconds,
        },
        ratios: vec![Ratio {
            reference: "LN twin".into(),
            ratio: interval(seconds / 0.1, spread),
            rounds: 30,
        }],
        memory: Memory {
            live_peak: 24_600_000,
            live_peak_at: "MatMul fc1".into(),
            live_at_normalizers: Some(9_700_000),
            curve: (0..200)
                .map(|step| 5_000_000 + (step % 20) * 980_000)
                .collect(),
            normalizer_steps: vec![3, 4, 43],
            heap_peak: Some(25_000_000),
            allocated: Some(600_000_000),
            resident_peak: None,
        },
        file_bytes: 89_000_000,
        weight_bytes: 88_000_000,
        time: Class::ALL
            .map(|class| Share {
                class,
                seconds: seconds / 4.0,
            })
            .to_vec(),
        seconds: vec![],
    };
    Measured {
        name: name.into(),
        outcome: Attempt::Ran(Box::new(measurement)),
    }
}

pub(crate) fn report() -> Report {
    Report {
        model: "vit <small>.onnx".into(),
        version: "0.1.0".into(),
        machine: Machine {
            processor: "A processor".into(),
            cores: 2,
            system: "linux x86_64".into(),
        },
        settings: vec![Setting {
            label: "batch=8".into(),
            threads: 1,
            rounds: 30,
            interrupted: false,
            variants: vec![
                measured("LN twin", 0.1, 0.0),
                measured("as exported", 0.101, 0.02),
                measured("fused", 0.08, 0.01),
                Measured {
                    name: "floor".into(),
                    outcome: Attempt::Failed {
                        reason: "tract cannot prepare Slice `q`: Invalid axis".into(),
                    },
                },
            ],
        }],
        sites: vec![ReportedSite {
            name: "blocks.0.norm1".into(),
            kind: "UN".into(),
            channels: 384,
            outcome: "folded forward into MatMul blocks.0.attn.qkv".into(),
        }],
        notes: vec!["Fused and as exported agree: relative error 3.1e-6.".into()],
        differs: false,
    }
}
