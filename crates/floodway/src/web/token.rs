//! The secret that a page on an address has to know.

use std::fs::File;
use std::io::{self, Read};

/// 128 random bits.
const BYTES: usize = 16;

/// A secret, made anew for each process.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// A new one, from the kernel's random numbers.
    ///
    /// # Errors
    /// The kernel gives none.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// As it is in a URL.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns `true` if `text` is the token. How long that takes depends on the length of `text` only.
    #[must_use]
    pub fn is(&self, text: &str) -> bool {
        let differences = self.0.bytes().zip(text.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        // Not to be turned into an early exit.
        std::hint::black_box(differences) == 0 && self.0.len() == text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_equal_to_itself_only() {
        let token = Token::random().unwrap();
        let text = token.text().to_owned();
        assert_eq!(text.len(), 32);
        assert!(token.is(&text));
        assert!(!token.is("") && !token.is(&text[..31]) && !token.is(&format!("{text}0")));
        let mut other = text.into_bytes();
        other[31] ^= 1;
        assert!(!token.is(std::str::from_utf8(&other).unwrap()));
        assert!(!token.is(Token::random().unwrap().text()));
    }
}
