//! Reading the elements of tensors in each form of storage.

use ndarray::{Array, ArrayD, IxDyn, arr0, arr1};
use proptest::prelude::*;
use unfold::error::Result;
use unfold::onnx::Externals;
use unfold::onnx::proto::{Segment, TensorProto};
use unfold::onnx::{DataType, tensor};

use crate::{floats, raw};

fn typed(data_type: DataType, count: i64) -> TensorProto {
    TensorProto {
        name: Some("w".into()),
        data_type: Some(data_type.code()),
        dims: vec![count],
        ..Default::default()
    }
}

fn int32(data_type: DataType, values: &[i32]) -> TensorProto {
    TensorProto {
        int32_data: values.to_vec(),
        ..typed(data_type, values.len() as i64)
    }
}

fn f64s(tensor: &TensorProto) -> Result<ArrayD<f64>> {
    tensor::read_f64(tensor, &Externals::none())
}

fn i64s(tensor: &TensorProto) -> Result<ArrayD<i64>> {
    tensor::read_i64(tensor, &Externals::none())
}

fn refused<T>(result: Result<T>, reason: &str) {
    let message = result.err().expect(reason).to_string();
    assert!(
        message.starts_with("tensor `w`: ") && message.contains(reason),
        "{message}"
    );
}

#[test]
fn floats_of_every_type_are_read() {
    let expected = arr1(&[1.0, -2.5]).into_dyn();
    for tensor in [
        raw("w", DataType::Float16, &[2], &[0x00, 0x3c, 0x00, 0xc1]),
        raw("w", DataType::BFloat16, &[2], &[0x80, 0x3f, 0x20, 0xc0]),
        raw("w", DataType::Float, &[2], &floats([1.0, -2.5])),
        raw(
            "w",
            DataType::Double,
            &[2],
            &[1.0_f64, -2.5].map(f64::to_le_bytes).concat(),
        ),
        int32(DataType::Float16, &[0x3c00, 0xc100]),
        int32(DataType::BFloat16, &[0x3f80, 0xc020]),
        TensorProto {
            float_data: vec![1.0, -2.5],
            ..typed(DataType::Float, 2)
        },
        TensorProto {
            double_data: vec![1.0, -2.5],
            ..typed(DataType::Double, 2)
        },
    ] {
        assert_eq!(f64s(&tensor).unwrap(), expected, "{tensor:?}");
        refused(i64s(&tensor), "not integers");
    }
}

#[test]
fn integers_of_every_type_are_read() {
    use DataType::*;
    let typed_uint = |data_type, values: &[u64]| TensorProto {
        uint64_data: values.to_vec(),
        ..typed(data_type, values.len() as i64)
    };
    for (tensor, expected) in [
        (raw("w", Int8, &[2], &[0xff, 5]), vec![-1, 5]),
        (raw("w", Uint8, &[2], &[0xff, 5]), vec![255, 5]),
        (raw("w", Int16, &[2], &[0xfe, 0xff, 5, 0]), vec![-2, 5]),
        (raw("w", Uint16, &[2], &[0xfe, 0xff, 5, 0]), vec![65534, 5]),
        (raw("w", Int32, &[1], &[0xfe, 0xff, 0xff, 0xff]), vec![-2]),
        (
            raw("w", Uint32, &[1], &[0xfe, 0xff, 0xff, 0xff]),
            vec![(1 << 32) - 2],
        ),
        (raw("w", Int64, &[1], &[0xff; 8]), vec![-1]),
        (raw("w", Uint64, &[1], &[1, 0, 0, 0, 0, 0, 0, 0]), vec![1]),
        (raw("w", Bool, &[3], &[0, 1, 2]), vec![0, 1, 1]),
        (raw("w", Uint4, &[3], &[0xf1, 0x08]), vec![1, 15, 8]),
        (raw("w", Int4, &[3], &[0xf1, 0x08]), vec![1, -1, -8]),
        (
            raw("w", Uint2, &[5], &[0b11_10_01_00, 0b10]),
            vec![0, 1, 2, 3, 2],
        ),
        (
            raw("w", Int2, &[5], &[0b11_10_01_00, 0b10]),
            vec![0, 1, -2, -1, -2],
        ),
        (int32(Int32, &[-1, i32::MIN]), vec![-1, i64::from(i32::MIN)]),
        (int32(Int16, &[-32768, 32767]), vec![-32768, 32767]),
        (int32(Uint16, &[0, 65535]), vec![0, 65535]),
        (int32(Int8, &[-128, 127]), vec![-128, 127]),
        (int32(Uint8, &[0, 255]), vec![0, 255]),
        (int32(Bool, &[0, 1]), vec![0, 1]),
        (
            TensorProto {
                dims: vec![3],
                ..int32(Int4, &[0xf1, 0x08])
            },
            vec![1, -1, -8],
        ),
        (
            TensorProto {
                dims: vec![2],
                ..int32(Int4, &[-2])
            },
            vec![-2, -1],
        ),
        (
            TensorProto {
                dims: vec![2],
                ..int32(Uint4, &[0xfe])
            },
            vec![14, 15],
        ),
        (
            TensorProto {
                int64_data: vec![-1, 1],
                ..typed(Int64, 2)
            },
            vec![-1, 1],
        ),
        (typed_uint(Uint64, &[i64::MAX as u64]), vec![i64::MAX]),
        (
            typed_uint(Uint32, &[u32::MAX.into()]),
            vec![u32::MAX.into()],
        ),
    ] {
        assert_eq!(
            i64s(&tensor).unwrap(),
            arr1(&expected).into_dyn(),
            "{tensor:?}"
        );
        refused(f64s(&tensor), "not floats");
    }
}

#[test]
fn elements_outside_their_type_are_refused() {
    use DataType::*;
    for tensor in [
        int32(Int8, &[128]),
        int32(Uint8, &[-1]),
        int32(Int16, &[40000]),
        int32(Uint16, &[-1]),
        TensorProto {
            uint64_data: vec![1 << 32],
            ..typed(Uint32, 1)
        },
        raw("w", Uint64, &[1], &[0xff; 8]),
    ] {
        refused(i64s(&tensor), "outside of its element type");
    }
    refused(
        f64s(&int32(Float16, &[0x10000])),
        "outside of its element type",
    );
}

#[test]
fn contradicting_shapes_and_contents_are_refused() {
    let bytes = floats([1.0, 2.0]);
    refused(
        f64s(&raw("w", DataType::Float, &[3], &bytes)),
        "takes 12 bytes, and it holds 8",
    );
    refused(
        f64s(&raw("w", DataType::Float, &[1], &bytes)),
        "takes 4 bytes, and it holds 8",
    );
    refused(f64s(&raw("w", DataType::Float, &[-2], &bytes)), "negative");
    refused(
        f64s(&raw("w", DataType::Float, &[1 << 40, 1 << 40], &bytes)),
        "too large",
    );
    refused(
        f64s(&raw("w", DataType::Float, &[i64::MAX / 4], &bytes)),
        "bytes",
    );
    refused(
        f64s(&TensorProto {
            data_type: Some(99),
            ..raw("w", DataType::Float, &[2], &bytes)
        }),
        "99",
    );
    refused(
        f64s(&TensorProto {
            data_type: None,
            ..raw("w", DataType::Float, &[2], &bytes)
        }),
        "0",
    );
    let both = TensorProto {
        float_data: vec![1.0],
        ..raw("w", DataType::Float, &[2], &bytes)
    };
    refused(f64s(&both), "two places");
    let wrong = TensorProto {
        int64_data: vec![1, 2],
        ..typed(DataType::Float, 2)
    };
    refused(f64s(&wrong), "holds 0");
    let segment = Some(Segment::default());
    refused(
        f64s(&TensorProto {
            segment,
            ..raw("w", DataType::Float, &[2], &bytes)
        }),
        "segment",
    );
    refused(i64s(&typed(DataType::String, 0)), "not integers");
    refused(
        tensor::raw(&typed(DataType::String, 1), &Externals::none()),
        "size",
    );
}

#[test]
fn scalars_and_empty_tensors_are_read() {
    let scalar = raw("w", DataType::Float, &[], &floats([7.0]));
    assert_eq!(f64s(&scalar).unwrap(), arr0(7.0).into_dyn());
    for dims in [&[0][..], &[0, 3], &[3, 0, 2]] {
        let shape: Vec<usize> = dims.iter().map(|&dim| dim as usize).collect();
        let empty = TensorProto {
            dims: dims.to_vec(),
            ..typed(DataType::Float, 0)
        };
        assert_eq!(f64s(&empty).unwrap(), Array::<f64, _>::zeros(IxDyn(&shape)));
    }
}

#[test]
fn raw_elements_are_not_copied() {
    let tensor = raw("w", DataType::Float, &[2], &floats([1.0, 2.0]));
    let bytes = tensor::raw(&tensor, &Externals::none()).unwrap();
    assert_eq!(bytes.as_ptr(), tensor.raw_data.unwrap().as_ptr());
}

#[test]
fn make_i64_stores_a_shape() {
    let tensor = tensor::make_i64("shape", &[0, -1, 64]);
    assert_eq!((tensor.name(), &tensor.dims[..]), ("shape", &[3][..]));
    assert_eq!(i64s(&tensor).unwrap(), arr1(&[0, -1, 64]).into_dyn());
}

proptest! {
    #[test]
    fn floats_are_stored_and_read_exactly(values in prop::collection::vec(any::<f32>(), 0..50)) {
        let values = values.iter().filter(|value| !value.is_nan()).copied().map(f64::from);
        let values = Array::from_iter(values).into_dyn();
        for data_type in [DataType::Float, DataType::Double] {
            let tensor = tensor::make("w", data_type, &values.view()).unwrap();
            prop_assert_eq!(&f64s(&tensor).unwrap(), &values);
        }
    }

    #[test]
    fn float32_is_rounded_once(value in any::<f64>()) {
        match tensor::make("w", DataType::Float, &arr0(value).into_dyn().view()) {
            Ok(tensor) if !value.is_nan() => {
                prop_assert_eq!(f64s(&tensor).unwrap(), arr0(f64::from(value as f32)).into_dyn());
            }
            Ok(_) => {}
            Err(_) => prop_assert!(value.is_finite() && (value as f32).is_infinite()),
        }
    }
}
