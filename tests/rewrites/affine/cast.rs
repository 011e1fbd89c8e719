//! Affines that move through a Cast, and Casts that would round differently.

use crate::common::portable;
use unfold::onnx::{DataType, Model};
use unfold::plan::{Direction, Outcome};
use unfold::refusal::Reason;

use crate::common::text::model;
use crate::common::{declared, retype};
use crate::{folded, kept, operators};

const HALVES: [DataType; 2] = [DataType::Float16, DataType::BFloat16];

fn narrow(data_type: DataType) -> Reason {
    Reason::Narrow(data_type.name())
}

/// A model whose input `x` and these constants have another type. `TO` in the text is the code of
/// this type.
fn of_type(text: &str, shape: &[&str], constants: &[&str], data_type: DataType) -> Model {
    let mut model = model(&text.replace("TO", &data_type.code().to_string()));
    for input in model
        .graph_mut()
        .input
        .iter_mut()
        .filter(|input| input.name() == "x")
    {
        *input = declared("x", data_type, shape);
    }
    retype(&mut model, constants, data_type);
    model
}

/// An affine in float32, between the lines `before` and `behind`.
fn affine(input: &str, before: &str, behind: &str) -> String {
    format!("{input}\n scale g 4\n shift t 4\n {before}\n n = Mul(c, g)\n m = Add(n, t)\n {behind}")
}

#[test]
fn affine_passes_cast_back_to_the_type_it_was_cast_from() {
    let product = "h = Cast(m) to=TO\n weight w 4 3\n y = MatMul(h, w)\n output y";
    for data_type in HALVES {
        let text = affine("input x batch 4", "c = Cast(x) to=1", product);
        let after = folded(&of_type(&text, &["batch", "4"], &["w"], data_type));
        assert_eq!(operators(&after), ["MatMul", "Add"]);
        // The channels come before the places, forward and backward.
        let text = "input x 2 3 4
                    scale g 4 1
                    shift t 4 1
                    c = Cast(x) to=1
                    a = Transpose(c) perm=[0,2,1]
                    n = Mul(a, g)
                    m = Add(n, t)
                    b = Transpose(m) perm=[0,2,1]
                    d = Cast(b) to=11
                    h = Cast(d) to=TO
                    weight w 4 3
                    y = MatMul(h, w)
                    output y";
        folded(&of_type(text, &["2", "3", "4"], &["w"], data_type));
    }
    // Some converters put Casts around every operator that stays in float32.
    let apart = affine("input x batch 4", "c = Cast(x) to=1", product).replace(
        "m = Add(n, t)",
        "a = Cast(n) to=TO\n b = Cast(a) to=1\n m = Add(b, t)",
    );
    folded(&of_type(&apart, &["batch", "4"], &["w"], DataType::Float16));
    // The numbers that both types represent form a third type.
    let [half, brain] = HALVES;
    let text = affine(
        "input x batch 4",
        "c = Cast(x) to=1",
        &product.replace("TO", &brain.code().to_string()),
    );
    let mut crossed = of_type(&text, &["batch", "4"], &[], half);
    retype(&mut crossed, &["w"], brain);
    assert_eq!(kept(&crossed).0, narrow(brain));
    // Between the two Casts, the value is rounded to another type.
    let twice = affine(
        "input x batch 4",
        "b = Cast(x) to=16\n c = Cast(b) to=1",
        product,
    );
    assert_eq!(
        kept(&of_type(&twice, &["batch", "4"], &["w"], half)).0,
        narrow(half)
    );
}

#[test]
fn affine_stops_at_cast_that_first_narrows_the_value() {
    let product = "h = Cast(m) to=TO\n weight w 4 3\n y = MatMul(h, w)\n output y";
    let stream = |data_type: DataType, text: &str| {
        let mut model = model(&text.replace("TO", &data_type.code().to_string()));
        retype(&mut model, &["w"], data_type);
        model
    };
    let both = affine("input c batch 4", "", product);
    let scaled = |by: &str| format!("input c batch 4\n {by}\n m = Mul(c, g)\n{product}");
    let [scale, exponents] = ["scale g 4", "const g 4 = 2 -0.5 1 4"].map(scaled);
    for data_type in HALVES {
        assert_eq!(kept(&stream(data_type, &both)).0, narrow(data_type));
        // A scaled number loses equally many bits before and after the scale, but the weights would
        // be rounded.
        assert_eq!(kept(&stream(data_type, &scale)).0, narrow(data_type));
    }
    // Powers of two cause no rounding, but float16 overflows above 65504.
    folded(&stream(DataType::BFloat16, &exponents));
    assert_eq!(
        kept(&stream(DataType::Float16, &exponents)).0,
        narrow(DataType::Float16)
    );
    // A Cast also loses bits of numbers, such as dates, of which a shift leaves only small
    // differences.
    let dates = affine("input d batch 4", "c = Cast(d) to=11", product);
    for (date, stays) in [(DataType::Double, true), (DataType::Float, false)] {
        let mut model = model(&dates.replace("TO", "1"));
        model.graph_mut().input[0] = declared("d", date, &["batch", "4"]);
        retype(&mut model, &["g", "t"], DataType::Double);
        match stays {
            true => assert_eq!(kept(&model).0, narrow(DataType::Float)),
            false => drop(folded(&model)),
        }
    }
}

#[test]
fn layer_norm_affine_passes_cast_to_half() {
    for data_type in HALVES {
        let text = "input x batch 4
                    scale g 4
                    shift t 4
                    n = LayerNormalization(x, g, t)
                    h = Cast(n) to=TO
                    weight w 4 3
                    shift u 3
                    k = MatMul(h, w)
                    y = Add(k, u)
                    output y";
        let mut model = model(&text.replace("TO", &data_type.code().to_string()));
        retype(&mut model, &["w", "u"], data_type);
        let fused = unfold::fuse(&model, &portable()).unwrap();
        assert!(fused.plan.sites[0].is_folded(), "{:#?}", fused.plan.sites);
    }
}

#[test]
fn narrow_producer_absorbs_affine_that_is_cast_back() {
    let wide = |behind: &str, scale: &str| {
        format!(
            "input x batch 4
             weight v 4 4
             const g 4 = {scale}
             shift t 4
             l = MatMul(x, v)
             c = Cast(l) to=1
             n = Mul(c, g)
             {behind}
             output y"
        )
    };
    let shifted = "m = Add(n, t)\n";
    let back = |data_type, text: &str| of_type(text, &["batch", "4"], &["v"], data_type);
    // The results of a Relu are its inputs and 0.
    for behind in [
        "s = Transpose(m)\n h = Cast(s) to=TO\n y = Relu(h)",
        "s = Relu(m)\n h = Cast(s) to=TO\n y = Tanh(h)",
    ] {
        for data_type in HALVES {
            let text = wide(&format!("{shifted} {behind}"), "2 -3 0.5 1");
            let fused = crate::fused(&back(data_type, &text));
            let post = fused.plan.sites[0].post.as_ref();
            assert!(
                matches!(
                    post,
                    Some(Outcome::Folded {
                        direction: Direction::Backward,
                        ..
                    })
                ),
                "{post:#?}"
            );
        }
    }
    let stays = |text: &str| kept(&back(DataType::Float16, text)).1;
    let refused = Some(narrow(DataType::Float16));
    assert_eq!(stays(&wide("y = Relu(n)", "2 -1 0.5 1")), refused);
    // Another node reads the unscaled value.
    let read = format!("{shifted} h = Cast(m) to=TO\n k = Relu(h)\n y = Relu(m)\n output k");
    assert_eq!(stays(&wide(&read, "2 -1 0.5 1")), refused);
    // A value that does not grow fits, and bfloat16 has the range of float32.
    folded(&back(
        DataType::Float16,
        &wide("y = Relu(n)", "0.5 -1 0.5 1"),
    ));
    folded(&back(
        DataType::BFloat16,
        &wide("y = Relu(n)", "2 -4 0.5 1"),
    ));
    // The weights would be rounded. This is accepted only if a rounded operator follows.
    for data_type in HALVES {
        let stays = |text: &str| kept(&back(data_type, text)).1;
        assert_eq!(
            stays(&wide("y = Relu(n)", "0.3 -1 0.5 1")),
            Some(narrow(data_type))
        );
        assert_eq!(
            stays(&wide(&format!("{shifted} y = Relu(m)"), "0.5 -1 0.5 1")),
            Some(narrow(data_type))
        );
    }
}

#[test]
fn float16_scores_keep_the_scale_that_makes_them_smaller() {
    let talking = |scale: &str| {
        format!(
            "input x batch 4 4
             const g 1 = {scale}
             weight w 4 4
             n = Mul(x, g)
             k = Transpose(x) perm=[0,2,1]
             z = MatMul(n, k)
             y = MatMul(z, w)
             output y"
        )
    };
    let sites = |scale: &str, data_type| {
        let model = of_type(
            &talking(scale),
            &["batch", "4", "4"],
            &["g", "w"],
            data_type,
        );
        unfold::fuse(&model, &portable()).unwrap().plan.sites
    };
    for (scale, data_type, folds) in [
        ("0.125", DataType::Float16, false),
        ("-2", DataType::Float16, true),
        ("0.125", DataType::BFloat16, true),
        ("0.125", DataType::Float, true),
    ] {
        let sites = sites(scale, data_type);
        let [site] = &sites[..] else {
            panic!("{sites:#?}")
        };
        assert_eq!(site.is_folded(), folds, "{site:#?}");
        if let Some(Outcome::Kept { forward, .. }) = &site.post {
            assert_eq!(forward.reason, narrow(DataType::Float16));
        }
    }
    // An operand of scores is not scaled up either.
    let up = |scale: &str| {
        let text = format!(
            "input x batch 4 4
             weight v 4 4
             const g 1 = {scale}
             q = MatMul(x, v)
             k = Transpose(x) perm=[0,2,1]
             z = MatMul(q, k)
             n = Mul(z, g)
             y = Softmax(n) axis=-1
             output y"
        );
        of_type(&text, &["batch", "4", "4"], &["v", "g"], DataType::Float16)
    };
    folded(&up("0.125"));
    assert_eq!(kept(&up("8")).1, Some(narrow(DataType::Float16)));
}

#[test]
fn quantizing_operators_refuse_as_quantized() {
    let behind = |text: &str, domain: &str, inputs: &[(&str, DataType)]| {
        let mut model = model(&format!(
            "input x batch 4
             scale g 4
             shift t 4
             n = Mul(x, g)
             m = Add(n, t)
             {text}
             output y"
        ));
        let graph = model.graph_mut();
        for (name, data_type) in inputs {
            graph.input.push(declared(name, *data_type, &["4", "4"]));
        }
        graph.node.last_mut().unwrap().domain = Some(domain.into());
        model
    };
    let bytes = [("q", DataType::Uint8)];
    for (text, domain) in [
        ("const s = 0.5\n y = QuantizeLinear(m, s)", ""),
        ("y, s, z = DynamicQuantizeLinear(m)", ""),
        (
            "const s = 0.5\n y = DynamicQuantizeMatMul(m, q, s)",
            "com.microsoft",
        ),
        ("const s = 0.5\n y = QuantizeLinear(m, s)", "com.microsoft"),
    ] {
        assert_eq!(
            kept(&behind(text, domain, &bytes)).0,
            Reason::Quantized,
            "{text}"
        );
    }
    let unknown = kept(&behind("y = QuickGelu(m)", "com.microsoft", &[])).0;
    assert_eq!(
        unknown,
        Reason::UnknownOperator("com.microsoft.QuickGelu".into())
    );
}
