//! Changes of networks, ports and uplinks in a configuration file, whose comments and order stay.
//!
//! The file is edited and checked before the switch is changed, and takes the old one's place at once: who reads it meanwhile sees one of both.

use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use floodway_switch::Config;
use floodway_switch::api::edit::{Document, Kind};
use floodway_switch::config::DEFAULT_NETWORK;
use serde_json::Value;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, TableLike, value};

/// What is done to a network, port or uplink.
#[derive(Clone, Copy, Debug)]
pub enum Edit<'a> {
    /// It comes, with these keys.
    Put(&'a Document),
    /// It comes, or has these keys and no others from now on.
    Replace(&'a Document),
    /// These keys change; `null` is left out.
    Patch(&'a Document),
    /// It goes.
    Remove,
}

/// A file as it is to be saved.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    text: String,
}

impl File {
    /// The file at `path` with what is called `name` edited.
    ///
    /// # Errors
    /// It cannot be read, does not have such a section, or would not be valid.
    pub fn edited(path: &Path, kind: Kind, name: &str, edit: &Edit<'_>) -> anyhow::Result<Self> {
        let failed = |error: &dyn Display| anyhow!("{}: {error}", path.display());
        let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
        let text = edited(&text, kind, name, edit).map_err(|error| failed(&error))?;
        let invalid = |error| anyhow!("the file would not be valid: {error}");
        Config::parse(&text, path).map_err(invalid)?;
        Ok(Self { path: path.to_owned(), text })
    }

    /// Puts it in the place of the old one, with the same permissions.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self) -> anyhow::Result<()> {
        // A link stays one.
        let path = fs::canonicalize(&self.path)?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(self.text.as_bytes())?;
        file.as_file().set_permissions(fs::metadata(&path)?.permissions())?;
        file.as_file().sync_all()?;
        file.persist(&path)?;
        Ok(())
    }
}

fn edited(text: &str, kind: Kind, name: &str, edit: &Edit<'_>) -> anyhow::Result<String> {
    let mut document: DocumentMut = text.parse()?;
    let none = || Item::ArrayOfTables(ArrayOfTables::new());
    let kind = kind.name();
    let sections = document.entry(kind).or_insert_with(none);
    let Some(sections) = sections.as_array_of_tables_mut() else {
        bail!("{kind}s are not written as [[{kind}]] sections");
    };
    let is_named = |section: &Table| section.get("name").and_then(Item::as_str) == Some(name);
    let position = sections.iter().position(is_named);
    let is_implied = (kind, name) == (Kind::Network.name(), DEFAULT_NETWORK);
    match (edit, position) {
        (Edit::Put(_), Some(_)) => bail!("{kind} \"{name}\" is there already"),
        (Edit::Put(keys) | Edit::Replace(keys), at) => {
            if let Some(at) = at {
                sections.remove(at);
            }
            sections.push(section(name, keys)?);
        }
        (Edit::Patch(keys), None) if is_implied => sections.push(section(name, keys)?),
        (_, None) => bail!("{kind} \"{name}\" is not there"),
        (Edit::Patch(keys), Some(at)) => {
            if let Some(section) = sections.get_mut(at) {
                merge(section, keys)?;
            }
        }
        (Edit::Remove, Some(at)) => drop(sections.remove(at)),
    }
    Ok(document.to_string())
}

/// A new section.
fn section(name: &str, keys: &Document) -> anyhow::Result<Table> {
    let mut section = Table::new();
    section.insert("name", value(name));
    merge(&mut section, keys)?;
    Ok(section)
}

/// Changes the keys of a section, those of sections below it one by one.
fn merge(section: &mut dyn TableLike, keys: &Document) -> anyhow::Result<()> {
    for (key, new) in keys {
        match (section.get_mut(key), new) {
            (_, Value::Null) => drop(section.remove(key)),
            (Some(old), Value::Object(keys)) if old.is_table_like() => {
                if let Some(below) = old.as_table_like_mut() {
                    merge(below, keys)?;
                }
            }
            (None, Value::Object(keys)) => {
                let mut below = Table::new();
                merge(&mut below, keys)?;
                if !below.is_empty() {
                    section.insert(key, Item::Table(below));
                }
            }
            (Some(Item::Value(old)), new) => {
                // A comment behind the value stays.
                let decoration = old.decor().clone();
                *old = written(key, new)?;
                *old.decor_mut() = decoration;
            }
            (_, new) => drop(section.insert(key, Item::Value(written(key, new)?))),
        }
    }
    Ok(())
}

/// A value as TOML has it.
fn written(key: &str, new: &Value) -> anyhow::Result<toml_edit::Value> {
    let failed = |error: &dyn Display| anyhow!("{key}: {error}");
    let text = toml::Value::try_from(new).map_err(|error| failed(&error))?.to_string();
    text.parse().map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FILE: &str = "# Ours.\n[[port]] # the first\nname = \"vm1\"\nsocket = \"/tmp/1\" # here\nmtu = 9000 # jumbo\n\n\
        [port.offload]\ntransmit = true\n\n# The second.\n[[port]]\nname = \"vm2\"\nsocket = \"/tmp/2\"\n";

    fn keys(value: Value) -> Document {
        match value {
            Value::Object(keys) => keys,
            other => panic!("{other}"),
        }
    }

    fn edit(name: &str, edit: &Edit<'_>) -> String {
        edited(FILE, Kind::Port, name, edit).unwrap()
    }

    #[test]
    fn comments_and_order_stay() {
        let change =
            keys(json!({ "mtu": 1400, "offload": { "transmit": false, "budget": 65536 } }));
        let expected = FILE
            .replace("mtu = 9000 # jumbo", "mtu = 1400 # jumbo")
            .replace("transmit = true", "transmit = false\nbudget = 65536");
        assert_eq!(edit("vm1", &Edit::Patch(&change)), expected);
        let default = keys(json!({ "mtu": null }));
        assert_eq!(edit("vm1", &Edit::Patch(&default)), FILE.replace("mtu = 9000 # jumbo\n", ""));
        let expected = FILE.split("\n# The second.").next().unwrap();
        assert_eq!(edit("vm2", &Edit::Remove), expected);
        let new = keys(json!({ "socket": "/tmp/3", "offload": { "receive": true } }));
        let expected = format!(
            "{FILE}\n[[port]]\nname = \"vm3\"\nsocket = \"/tmp/3\"\n\n[port.offload]\nreceive = true\n"
        );
        let written = edit("vm3", &Edit::Put(&new));
        assert_eq!(written, expected);
        Config::parse(&written, Path::new("f.toml")).unwrap();
    }

    #[test]
    fn a_port_that_is_not_in_the_file_is_named() {
        let error = |name: &str, edit: &Edit<'_>| {
            edited(FILE, Kind::Port, name, edit).unwrap_err().to_string()
        };
        assert_eq!(error("vm9", &Edit::Remove), "port \"vm9\" is not there");
        assert_eq!(error("vm1", &Edit::Put(&Document::new())), "port \"vm1\" is there already");
    }

    #[test]
    fn networks_and_uplinks_are_sections_like_ports() {
        let red = edited(FILE, Kind::Network, "red", &Edit::Put(&keys(json!({ "vid": 10 }))));
        let up0 = keys(json!({ "kind": "tap", "device": "fw0", "tagged": ["red"] }));
        let both = edited(&red.unwrap(), Kind::Uplink, "up0", &Edit::Put(&up0)).unwrap();
        let expected = format!(
            "{FILE}\n[[network]]\nname = \"red\"\nvid = 10\n\n\
             [[uplink]]\nname = \"up0\"\ndevice = \"fw0\"\nkind = \"tap\"\ntagged = [\"red\"]\n"
        );
        assert_eq!(both, expected);
        let jumbo = keys(json!({ "mtu": 9000 }));
        let default = edited(FILE, Kind::Network, "default", &Edit::Patch(&jumbo)).unwrap();
        assert!(default.ends_with("\n[[network]]\nname = \"default\"\nmtu = 9000\n"), "{default}");
    }
}
