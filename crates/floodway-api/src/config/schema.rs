//! The keys of sections that can be changed at run time, as JSON Schema: the lists that the parser allows.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::parse::{PORT_KEYS, UPLINK_KEYS};
use super::{limit, network, offload, permissions, queue, vcpu};

type Keys = &'static [&'static str];

/// The keys of a section, and those of sections below it by their names.
fn object(section: &str, keys: Keys, below: &[(&str, Keys)]) -> Schema {
    let properties = |keys: Keys| keys.iter().map(|key| ((*key).to_owned(), json!({})));
    let mut all: Map<String, Value> = properties(keys).collect();
    for (key, keys) in below {
        let properties = properties(keys).collect::<Map<_, _>>();
        let types = ["object", "null"];
        let section =
            json!({ "type": types, "properties": properties, "additionalProperties": false });
        all.insert((*key).to_owned(), section);
    }
    json_schema!({
        "type": "object",
        "description": format!("Keys of a [[{section}]] section of the configuration, with values as there. In an answer, keys that have their defaults are left out; in a PATCH, null stands for the default."),
        "properties": all,
        "additionalProperties": false,
    })
}

/// The keys of a `[[network]]`.
#[derive(Debug)]
pub enum NetworkKeys {}

/// The keys of a `[[port]]`.
#[derive(Debug)]
pub enum PortKeys {}

/// The keys of an `[[uplink]]`.
#[derive(Debug)]
pub enum UplinkKeys {}

impl JsonSchema for NetworkKeys {
    fn schema_name() -> Cow<'static, str> {
        "NetworkKeys".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        object("network", network::KEYS, &[])
    }
}

impl JsonSchema for PortKeys {
    fn schema_name() -> Cow<'static, str> {
        "PortKeys".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let below = [
            ("limit", limit::KEYS),
            ("offload", offload::KEYS),
            ("permissions", permissions::KEYS),
            ("vcpu", vcpu::PORT_KEYS),
        ];
        object("port", PORT_KEYS, &below)
    }
}

impl JsonSchema for UplinkKeys {
    fn schema_name() -> Cow<'static, str> {
        "UplinkKeys".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        object("uplink", UPLINK_KEYS, &[("queue", queue::KEYS)])
    }
}
