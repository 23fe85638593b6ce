//! Patterns of rows' names that say what a part of a name stands for.
//!
//! `{series}` and the like stand for any text without `/`, `*` for any text. The first way in which a name fits counts, and parts are as
//! short as possible.

use std::collections::BTreeMap;

/// What the parts of a name stand for.
pub type Parts<'a> = BTreeMap<&'a str, &'a str>;

/// Returns what the parts of `name` stand for; `None` if it does not fit `pattern`.
#[must_use]
pub fn fit<'a>(pattern: &'a str, name: &'a str) -> Option<Parts<'a>> {
    let mut parts = Parts::new();
    fit_rest(pattern, name, &mut parts).then_some(parts)
}

fn fit_rest<'a>(pattern: &'a str, name: &'a str, parts: &mut Parts<'a>) -> bool {
    let Some(at) = pattern.find(['{', '*']) else { return pattern == name };
    let Some(rest) = name.strip_prefix(&pattern[..at]) else { return false };
    let (key, after) = match pattern[at..].split_once('}') {
        Some((key, after)) if pattern[at..].starts_with('{') => (Some(&key[1..]), after),
        _ => (None, &pattern[at + 1..]),
    };
    let ends = rest.char_indices().map(|(end, _)| end).chain([rest.len()]);
    for end in ends.take_while(|&end| key.is_none() || !rest[..end].contains('/')) {
        if fit_rest(after, &rest[end..], parts) {
            parts.extend(key.map(|key| (key, &rest[..end])));
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_are_found() {
        let parts = fit(
            "{panel}, {x}/data-phase {series} median",
            "3 VMs 60 %, 100 KB/data-phase 2011 median",
        );
        let expected = [("panel", "3 VMs 60 %"), ("series", "2011"), ("x", "100 KB")];
        assert_eq!(parts, Some(expected.into()));
        assert_eq!(fit("{x}/a", "b/c/a"), None, "a part does not cross a slash");
        assert_eq!(fit("*/a", "b/c/a"), Some(Parts::new()));
        assert_eq!(fit("{x} median", "a mean"), None);
        assert_eq!(fit("a{x}", "a"), Some([("x", "")].into()));
    }

    proptest! {
        #[test]
        fn no_pattern_panics(pattern in "[a{}*é/]{0,8}", name in "[aé/]{0,8}") {
            let _ = fit(&pattern, &name);
        }
    }
}
