//! The tokens of the textual syntax: punctuation, identifiers, quoted names and numbers.

use std::str::FromStr;

use crate::error::{Error, Result};

/// A position in a text, and the functions that read tokens from it.
pub(super) struct Lexer<'t> {
    text: &'t str,
    at: usize,
}

/// A number whose type is not declared.
pub(super) enum Number {
    Int(i64),
    Float(f32),
}

impl<'t> Lexer<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    /// Skips spaces and comments, and returns the next character without reading it.
    pub(super) fn peek(&mut self) -> Option<char> {
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start().len();
            if !self.rest().starts_with('#') {
                return self.rest().chars().next();
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    /// Reads `token` if it is next. Returns whether it was next.
    pub(super) fn takes(&mut self, token: &str) -> bool {
        self.peek();
        let is_next = self.rest().starts_with(token);
        if is_next {
            self.at += token.len();
        }
        is_next
    }

    /// Reads a token.
    ///
    /// # Errors
    /// If it is not next.
    pub(super) fn expect(&mut self, token: &str) -> Result<()> {
        if self.takes(token) {
            return Ok(());
        }
        self.unexpected(&format!("`{token}`"))
    }

    /// Returns the next identifier without reading it. It is empty if something else is next.
    pub(super) fn peek_identifier(&mut self) -> &'t str {
        let begins = self
            .peek()
            .is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
        let rest = self.rest();
        let end = rest.find(|next: char| !next.is_ascii_alphanumeric() && next != '_');
        if begins {
            &rest[..end.unwrap_or(rest.len())]
        } else {
            ""
        }
    }

    /// Reads an identifier.
    ///
    /// # Errors
    /// If another token is next.
    pub(super) fn identifier(&mut self) -> Result<&'t str> {
        let name = self.peek_identifier();
        if name.is_empty() {
            return self.unexpected("an identifier");
        }
        self.at += name.len();
        Ok(name)
    }

    /// Whether an identifier or a quoted name is next.
    pub(super) fn is_at_name(&mut self) -> bool {
        self.peek() == Some('"') || !self.peek_identifier().is_empty()
    }

    /// Reads an identifier or a quoted name.
    ///
    /// # Errors
    /// If another token is next.
    pub(super) fn name(&mut self) -> Result<String> {
        match self.peek() {
            Some('"') => self.quoted(),
            _ if self.is_at_name() => Ok(self.identifier()?.to_owned()),
            _ => self.unexpected("a name"),
        }
    }

    /// Reads a string in quotes. Inside it, a `\` precedes each `"` and `\`.
    ///
    /// # Errors
    /// If another token is next, or the string does not end.
    pub(super) fn quoted(&mut self) -> Result<String> {
        self.expect("\"")?;
        let mut value = String::new();
        let mut characters = self.rest().char_indices();
        while let Some((at, next)) = characters.next() {
            match next {
                '"' => {
                    self.at += at + 1;
                    return Ok(value);
                }
                '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
                _ => value.push(next),
            }
        }
        self.error("a string does not end")
    }

    /// Reads an integer, or a float if the number does not parse as an integer.
    ///
    /// # Errors
    /// If another token is next.
    pub(super) fn number(&mut self) -> Result<Number> {
        let word = self.peek_word();
        if let Ok(value) = word.parse() {
            self.at += word.len();
            return Ok(Number::Int(value));
        }
        self.float().map(Number::Float)
    }

    /// Reads an integer of type `T`.
    ///
    /// # Errors
    /// If another token is next, or if the integer exceeds the type.
    pub(super) fn integer<T: FromStr>(&mut self) -> Result<T> {
        self.parsed("an integer")
    }

    /// Reads a float of type `T`, in any notation.
    ///
    /// # Errors
    /// If another token is next.
    pub(super) fn float<T: FromStr>(&mut self) -> Result<T> {
        self.parsed("a number")
    }

    /// Reads the next word as a value of type `T`.
    fn parsed<T: FromStr>(&mut self, expected: &str) -> Result<T> {
        let word = self.peek_word();
        let Ok(value) = word.parse() else {
            return self.unexpected(expected);
        };
        self.at += word.len();
        Ok(value)
    }

    /// Returns the following letters, digits, signs and points without reading them.
    fn peek_word(&mut self) -> &'t str {
        self.peek();
        let rest = self.rest();
        let end = rest.find(|next: char| !next.is_ascii_alphanumeric() && !"+-._".contains(next));
        &rest[..end.unwrap_or(rest.len())]
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    /// Returns an error about the next token.
    pub(super) fn unexpected<T>(&mut self, expected: &str) -> Result<T> {
        let found = match (self.peek(), self.peek_word()) {
            (None, _) => "the end".to_owned(),
            (Some(next), "") => format!("`{next}`"),
            (_, word) => format!("`{word}`"),
        };
        self.error(&format!("expected {expected}, found {found}"))
    }

    /// Returns an error at the current position.
    pub(super) fn error<T>(&self, reason: &str) -> Result<T> {
        let before = &self.text[..self.at];
        let line_begin = before.rfind('\n').map_or(0, |end| end + 1);
        Err(Error::Text {
            line: before.matches('\n').count() + 1,
            column: before[line_begin..].chars().count() + 1,
            reason: reason.to_owned(),
        })
    }
}
