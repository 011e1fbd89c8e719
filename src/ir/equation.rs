//! The equation of an Einsum, with a letter for each axis.

/// The letters of the operands and of the result.
#[derive(Debug, PartialEq)]
pub(crate) struct Equation {
    /// The letters of each operand.
    pub operands: Vec<Vec<char>>,
    /// The letters of the result.
    pub result: Vec<char>,
}

impl Equation {
    /// Parses an equation for operands of these ranks. Digits stand for the axes of an ellipsis,
    /// and 0 is the last of these axes.
    ///
    /// `None` if the text is not an equation for these operands, or if an ellipsis stands for an
    /// unknown number of axes.
    pub(crate) fn read(text: &str, ranks: &[Option<usize>]) -> Option<Self> {
        let text: String = text
            .chars()
            .filter(|letter| !letter.is_whitespace())
            .collect();
        let implied = implied(&text);
        let (terms, result) = text.split_once("->").unwrap_or((&text, &implied));
        let operands: Vec<Vec<char>> = terms
            .split(',')
            .zip(ranks)
            .map(|(term, &rank)| operand(term, rank))
            .collect::<Option<_>>()?;
        let longest = operands
            .iter()
            .map(|letters| letters.iter().filter(|c| c.is_ascii_digit()).count())
            .max()?;
        let result = letters(result, longest)?;
        (terms.split(',').count() == ranks.len()).then_some(Self { operands, result })
    }
}

/// The implied result of an Einsum: the ellipsis and the letters that occur once, in alphabetical
/// order.
pub(crate) fn implied(equation: &str) -> String {
    let mut letters: Vec<char> = equation
        .chars()
        .filter(|c| c.is_alphabetic())
        .filter(|&letter| equation.matches(letter).count() == 1)
        .collect();
    letters.sort_unstable();
    let dots = if equation.contains("...") { "..." } else { "" };
    letters
        .into_iter()
        .fold(dots.to_owned(), |text, letter| text + &letter.to_string())
}

/// Whether no letter occurs twice.
pub(crate) fn is_once(letters: &[char]) -> bool {
    letters
        .iter()
        .enumerate()
        .all(|(place, letter)| !letters[..place].contains(letter))
}

fn operand(term: &str, rank: Option<usize>) -> Option<Vec<char>> {
    let own = term.replacen("...", "", 1).chars().count();
    let dots = match rank {
        Some(rank) => rank.checked_sub(own)?,
        None if term.contains("...") => return None,
        None => 0,
    };
    let letters = letters(term, dots)?;
    rank.is_none_or(|rank| rank == letters.len())
        .then_some(letters)
}

/// The letters of a term whose ellipsis stands for `dots` axes.
fn letters(term: &str, dots: usize) -> Option<Vec<char>> {
    let of_dots: String = (0..dots as u32)
        .rev()
        .map(|place| char::from_digit(place, 10))
        .collect::<Option<_>>()?;
    let is_plain = term
        .replacen("...", "", 1)
        .chars()
        .all(|letter| letter.is_ascii_alphabetic());
    is_plain.then(|| term.replacen("...", &of_dots, 1).chars().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, ranks: &[Option<usize>]) -> Option<(Vec<String>, String)> {
        let Equation { operands, result } = Equation::read(text, ranks)?;
        Some((
            operands
                .iter()
                .map(|letters| letters.iter().collect())
                .collect(),
            result.iter().collect(),
        ))
    }

    fn expected(operands: &[&str], result: &str) -> Option<(Vec<String>, String)> {
        let operands = operands.iter().map(|&text| text.to_owned()).collect();
        Some((operands, result.to_owned()))
    }

    #[test]
    fn einsum_equation_is_parsed_with_ellipsis_and_implicit_output() {
        assert_eq!(
            read("ij, jk -> ik", &[None, Some(2)]),
            expected(&["ij", "jk"], "ik")
        );
        assert_eq!(
            read("...si,...id->...sd", &[Some(4), Some(3)]),
            expected(&["10si", "0id"], "10sd")
        );
        assert_eq!(read("...i->...", &[Some(1)]), expected(&["i"], ""));
        assert_eq!(read("...i->...", &[None]), None);
        assert_eq!(read("ij->i", &[Some(3)]), None);
        assert_eq!(read("i...j->ij", &[Some(1)]), None);
        assert_eq!(read("ij,jk", &[None, None]), expected(&["ij", "jk"], "ik"));
        assert_eq!(read("ba", &[None]), expected(&["ba"], "ab"));
        assert_eq!(
            read("j...i,i", &[Some(3), Some(1)]),
            expected(&["j0i", "i"], "0j")
        );
        assert_eq!(read("ij,jk->ik", &[None]), None);
        assert_eq!(read("i1->i", &[None]), None);
        assert_eq!(read("...i->i...", &[Some(12)]), None);
    }
}
