//! What cells and rows are called, in both worlds.

use super::{Transfer, Variant};

impl Transfer {
    /// The connections of a round: all of them, or with `mixed` those of each path.
    #[must_use]
    pub fn flows_label(&self, flows: &[u32]) -> String {
        if !self.mixed {
            let flows: u32 = flows.iter().sum();
            return format!("{flows} flow{}", if flows == 1 { "" } else { "s" });
        }
        let each = flows.iter().zip(&self.path);
        each.map(|(flows, path)| format!("{flows} {}", path.name)).collect::<Vec<_>>().join(" ")
    }

    /// Two variants that are compared; empty if there is no other pair.
    #[must_use]
    pub fn pair_label(&self, pair: [Variant; 2]) -> String {
        if self.pairs().len() < 2 {
            return String::new();
        }
        let [value, baseline] = pair.map(Variant::name);
        format!("{value} against {baseline}")
    }
}

/// The parts of a row's name, without those that are empty.
#[must_use]
pub fn join(parts: &[String]) -> String {
    parts.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("/")
}

/// A size in the unit that people would say, with a factor of 1000.
#[must_use]
pub fn size(bytes: u64) -> String {
    match bytes {
        1_000_000_000.. if bytes.is_multiple_of(1_000_000_000) => {
            format!("{} GB", bytes / 1_000_000_000)
        }
        1_000_000.. if bytes.is_multiple_of(1_000_000) => format!("{} MB", bytes / 1_000_000),
        1000.. if bytes.is_multiple_of(1000) => format!("{} KB", bytes / 1000),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!((size(1_000_000_000), size(1500)), ("1 GB".into(), "1500 B".into()));
    }
}
