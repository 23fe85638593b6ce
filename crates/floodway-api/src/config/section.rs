//! Typed values out of one table of the file, by key.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::Fault;

type Value<'t, 'i> = &'t Spanned<DeValue<'i>>;

/// A table of the file under the path that errors call it by.
pub(super) struct Section<'t, 'i> {
    text: &'i str,
    path: String,
    table: &'t DeTable<'i>,
    span: Range<usize>,
}

impl<'t, 'i> Section<'t, 'i> {
    /// The whole document.
    pub(super) fn root(text: &'i str, document: &'t Spanned<DeTable<'i>>) -> Self {
        Self { text, path: String::new(), table: document.get_ref(), span: 0..0 }
    }

    /// Allows the keys in `known` and no other.
    pub(super) fn allow(&self, known: &[&str]) -> Result<(), Fault> {
        let unknown = (self.table.iter())
            .filter(|(key, _)| !known.contains(&key.get_ref().as_ref()))
            .min_by_key(|(key, _)| key.span().start);
        let Some((key, _)) = unknown else {
            return Ok(());
        };
        let advice = match nearest(key.get_ref(), known) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("remove it; the keys here are {}", known.join(", ")),
        };
        let path = self.key_path(&super::error::excerpt(key.get_ref()));
        Err(Fault::new(key.span(), format!("unknown key; {advice}")).at(path))
    }

    /// The full path of `key` in this section.
    fn key_path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The table `key`, which is written `[key]`, or `[list.key]` below `[[list]]`, if it is there.
    pub(super) fn table(&self, key: &str) -> Result<Option<Self>, Fault> {
        let Some(value) = self.table.get(key) else {
            return Ok(None);
        };
        match value.get_ref() {
            DeValue::Table(table) => Ok(Some(self.child(self.key_path(key), table, value.span()))),
            _ => {
                // In a header, elements of a list have no number.
                let (list, _) = self.path.split_once('[').unwrap_or((&self.path, ""));
                let header = if list.is_empty() { key.to_owned() } else { format!("{list}.{key}") };
                let problem = format!("must be one section: write [{header}]");
                Err(Fault::new(value.span(), problem).at(self.key_path(key)))
            }
        }
    }

    /// The tables `key`, each of which is written `[[key]]`, under paths like `port[1] "vm2"`.
    pub(super) fn tables(&self, key: &str) -> Result<Vec<Self>, Fault> {
        let Some(value) = self.table.get(key) else {
            return Ok(Vec::new());
        };
        let wrong =
            |span| Fault::new(span, format!("must be a list of sections: write [[{key}]]")).at(key);
        let DeValue::Array(items) = value.get_ref() else {
            return Err(wrong(value.span()));
        };
        let section = |(index, item): (usize, Value<'t, 'i>)| match item.get_ref() {
            DeValue::Table(table) => {
                let path = element_path(&self.key_path(key), index, table);
                Ok(self.child(path, table, item.span()))
            }
            _ => Err(wrong(item.span())),
        };
        items.iter().enumerate().map(section).collect()
    }

    fn child(&self, path: String, table: &'t DeTable<'i>, span: Range<usize>) -> Self {
        Self { text: self.text, path, table, span }
    }

    /// Path of the section, for errors that name another one.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// A fault of `key`, or of the section when the key is not there.
    pub(super) fn fault(&self, key: &str, problem: impl Into<String>) -> Fault {
        match self.table.get(key) {
            Some(value) => self.value_fault(key, value, problem),
            None => self.missing(key, problem),
        }
    }

    /// A fault of the section as a whole.
    pub(super) fn whole(&self, problem: impl Into<String>) -> Fault {
        Fault::new(self.span.clone(), problem).at(&self.path)
    }

    fn missing(&self, key: &str, problem: impl Into<String>) -> Fault {
        Fault::new(self.span.clone(), problem).at(self.key_path(key))
    }

    fn value_fault(&self, key: &str, value: Value<'t, 'i>, problem: impl Into<String>) -> Fault {
        let written = self.text.get(value.span()).unwrap_or_default();
        Fault::new(value.span(), problem).at(self.key_path(key)).with_value(written)
    }

    /// The string `key`.
    pub(super) fn string(&self, key: &str) -> Result<Option<&'t str>, Fault> {
        let Some(value) = self.table.get(key) else {
            return Ok(None);
        };
        let text = value.get_ref().as_str();
        text.map(Some).ok_or_else(|| self.value_fault(key, value, "must be a string in quotes"))
    }

    /// The string `key`; without it the error says to write `example`.
    pub(super) fn required(&self, key: &str, example: &str) -> Result<&'t str, Fault> {
        self.string(key)?
            .ok_or_else(|| self.missing(key, format!("missing; add {key} = \"{example}\"")))
    }

    /// The integer `key`, which must be in `range`.
    pub(super) fn integer<T>(&self, key: &str, range: RangeInclusive<T>) -> Result<Option<T>, Fault>
    where
        T: TryFrom<i64> + PartialOrd + Display,
    {
        let Some(value) = self.table.get(key) else {
            return Ok(None);
        };
        let must = || format!("must be an integer from {} to {}", range.start(), range.end());
        let number = (value.get_ref().as_integer())
            .and_then(|integer| i64::from_str_radix(integer.as_str(), integer.radix()).ok())
            .and_then(|integer| T::try_from(integer).ok())
            .filter(|integer| range.contains(integer));
        number.map(Some).ok_or_else(|| self.value_fault(key, value, must()))
    }

    /// The boolean `key`.
    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, Fault> {
        let Some(value) = self.table.get(key) else {
            return Ok(None);
        };
        let boolean = value.get_ref().as_bool();
        boolean.map(Some).ok_or_else(|| self.value_fault(key, value, "must be true or false"))
    }

    /// The string `key`, which must be one of the names in `choices`.
    pub(super) fn choice<T: Copy>(
        &self,
        key: &str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, Fault> {
        let Some(text) = self.string(key)? else {
            return Ok(None);
        };
        let chosen = choices.iter().find(|(name, _)| *name == text);
        chosen.map(|(_, choice)| Some(*choice)).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            let mut problem = format!("must be \"{}\"", names.join("\" or \""));
            if let Some(near) = nearest(text, &names) {
                problem += &format!("; did you mean \"{near}\"?");
            }
            self.fault(key, problem)
        })
    }

    /// The string `key` in the text form of `T`.
    pub(super) fn parsed<T: FromStr>(&self, key: &str, must: &str) -> Result<Option<T>, Fault> {
        let text = self.string(key)?;
        let parsed = text.map(|text| text.parse().map_err(|_| self.fault(key, must)));
        parsed.transpose()
    }

    /// The list of strings `key`, each in the text form of `T` and accepted by `accept`.
    pub(super) fn parsed_list<T: FromStr>(
        &self,
        key: &str,
        must: &str,
        accept: impl Fn(&T) -> bool,
    ) -> Result<Option<Vec<T>>, Fault> {
        let Some(value) = self.table.get(key) else {
            return Ok(None);
        };
        let items =
            (value.get_ref().as_array()).filter(|items| !items.is_empty()).ok_or_else(|| {
                self.value_fault(key, value, "must be a list of at least one string, or left out")
            })?;
        let parse = |(index, item): (usize, Value<'t, 'i>)| {
            let parsed = item.get_ref().as_str().and_then(|text| text.parse().ok());
            let indexed = format!("{key}[{index}]");
            parsed.filter(&accept).ok_or_else(|| self.value_fault(&indexed, item, must))
        };
        items.iter().enumerate().map(parse).collect::<Result<_, _>>().map(Some)
    }
}

/// `port[1] "vm2"`, or `port[1]` while it has no name.
fn element_path(key: &str, index: usize, table: &DeTable<'_>) -> String {
    match table.get("name").and_then(|name| name.get_ref().as_str()) {
        Some(name) => format!("{key}[{index}] {:?}", super::error::excerpt(name)),
        None => format!("{key}[{index}]"),
    }
}

/// The word of `known` that `word` is most likely a slip of.
pub(super) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let slips = |candidate: &str| strsim::damerau_levenshtein(word, candidate);
    let (distance, candidate) = known.iter().map(|&k| (slips(k), k)).min_by_key(|&(d, _)| d)?;
    let plausible = distance <= (candidate.len() / 3).max(1);
    plausible.then_some(candidate)
}
