//! Recipes as text, such as `mul(W, reshape(γ, [384, 1]))`.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};

use super::{Op, Recipe, Windows};

/// A part of a formula whose text has more bytes than this gets a name of its own.
const WIDE: usize = 100;

/// The longest list of places that is printed. Of a longer list, only the length is printed.
const LONGEST: usize = 8;

impl Display for Recipe {
    /// Writes the formula. Shared parts and long parts come first, under names of their own.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let steps = self.steps();
        let mut uses: HashMap<_, usize> = HashMap::new();
        steps
            .iter()
            .flat_map(|step| step.inputs())
            .for_each(|input| *uses.entry(input.id()).or_default() += 1);
        let mut texts: HashMap<_, String> = HashMap::new();
        let mut named = 0;
        for step in steps {
            let inputs: Vec<&str> = step
                .inputs()
                .iter()
                .map(|input| texts[&input.id()].as_str())
                .collect();
            let mut text = text_of(step, &inputs.join(", "));
            let is_shared =
                uses.get(&step.id()).is_some_and(|&count| count > 1) && !step.inputs().is_empty();
            if step.id() != self.id() && (is_shared || text.len() > WIDE) {
                named += 1;
                write!(f, "t{named} = {text}; ")?;
                text = format!("t{named}");
            }
            texts.insert(step.id(), text);
        }
        f.write_str(&texts[&self.id()])
    }
}

fn text_of(step: &Recipe, list: &str) -> String {
    match step.op() {
        Op::Constant(name) => name.to_string(),
        Op::Literal(numbers) if step.len() == 1 => numbers[0].to_string(),
        Op::Literal(numbers) if numbers.len() == 1 => {
            format!("filled({}, {:?})", numbers[0], step.shape())
        }
        Op::Literal(numbers) => format!("[{} numbers]", numbers.len()),
        Op::Round(data_type) => format!("{}({list})", data_type.name()),
        Op::Neg => format!("neg({list})"),
        Op::Sqrt => format!("sqrt({list})"),
        Op::Add => format!("add({list})"),
        Op::Sub => format!("sub({list})"),
        Op::Mul => format!("mul({list})"),
        Op::Div => format!("div({list})"),
        Op::Reshape => format!("reshape({list}, {:?})", step.shape()),
        Op::Expand => format!("expand({list}, {:?})", step.shape()),
        Op::Transpose(perm) => format!("transpose({list}, {perm:?})"),
        Op::Concat(axis) => format!("concat({list}, axis={axis})"),
        Op::Sum(axis) => format!("sum({list}, axis={axis})"),
        Op::Max(axis) => format!("max({list}, axis={axis})"),
        Op::Exp => format!("exp({list})"),
        Op::Sigmoid => format!("sigmoid({list})"),
        Op::Softmax(axis) => format!("softmax({list}, axis={axis})"),
        Op::Flush(below) => format!("flush({list}, below={below:e})"),
        Op::Product => format!("matmul({list})"),
        Op::Conv(windows) => windows_as_text(windows, list),
        Op::Pick { axis, places } => {
            format!("pick({list}, {}, axis={axis})", places_as_text(places))
        }
    }
}

fn windows_as_text(windows: &Windows, list: &str) -> String {
    let name = if windows.transposed {
        "conv_transpose"
    } else {
        "conv"
    };
    let Windows {
        kernel,
        strides,
        dilations,
        before,
        input,
        output,
        ..
    } = windows;
    format!(
        "{name}({list}, kernel={kernel:?}, strides={strides:?}, dilations={dilations:?}, pads={before:?}, \
         from={input:?}, to={output:?})"
    )
}

fn place_as_text(place: &Option<usize>) -> String {
    match place {
        Some(place) => place.to_string(),
        None => "-".to_owned(),
    }
}

/// Writes `[3..7]` for a run of places, otherwise a list or its length. `-` stands for no place.
fn places_as_text(places: &[Option<usize>]) -> String {
    match places {
        [Some(first), rest @ ..]
            if !rest.is_empty()
                && rest
                    .iter()
                    .enumerate()
                    .all(|(i, place)| *place == Some(first + i + 1)) =>
        {
            format!("[{first}..{}]", first + places.len())
        }
        places if places.len() <= LONGEST => {
            let texts: Vec<String> = places.iter().map(place_as_text).collect();
            format!("[{}]", texts.join(", "))
        }
        places => format!("[{} places]", places.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_operations_without_effect_are_not_printed() {
        let gamma = Recipe::constant("γ", &[4]);
        let column = gamma
            .reshape(&[1, 1, 4])
            .and_then(|row| row.transpose(&[0, 2, 1]))
            .unwrap();
        assert_eq!(column.to_string(), "reshape(γ, [1, 4, 1])");
        let zeros = Recipe::concat(0, &[Recipe::number(0.0, 1), Recipe::number(0.0, 1)]).unwrap();
        assert_eq!(
            zeros.pick(0, [Some(1), None, None]).unwrap().to_string(),
            "filled(0, [3])"
        );
        assert_eq!(gamma.pick(0, (0..4).map(Some)).unwrap().to_string(), "γ");
        assert_eq!(
            gamma.mul(&Recipe::filled(1.0, &[4])).unwrap().to_string(),
            "γ"
        );
    }

    #[test]
    fn shared_operand_is_printed_with_a_name() {
        let sum = Recipe::constant("a", &[2])
            .add(&Recipe::constant("b", &[2]))
            .unwrap();
        assert_eq!(
            sum.mul(&sum).unwrap().to_string(),
            "t1 = add(a, b); mul(t1, t1)"
        );
    }

    #[test]
    fn picked_ranges_are_printed_by_their_ends() {
        let whole = Recipe::constant("W", &[20]);
        assert_eq!(
            whole.pick(0, (3..12).map(Some)).unwrap().to_string(),
            "pick(W, [3..12], axis=0)"
        );
        assert_eq!(
            whole.pick(0, [Some(7), None]).unwrap().to_string(),
            "pick(W, [7, -], axis=0)"
        );
    }
}
