//! Paths and queries of requests.

use crate::control::{FlowKey, FlowQuery};
use crate::edit::Kind;

/// The path of a network, port or uplink.
pub(super) fn route_of(kind: Kind, name: &str) -> String {
    format!("/v1/{}s/{}", kind.name(), escape(name))
}

pub(super) fn flow_route(port: &str, FlowKey { guest, peer, vlan }: &FlowKey) -> String {
    let vlan = vlan.map(|vlan| format!("&vlan={vlan}")).unwrap_or_default();
    let [guest, peer] = [guest, peer].map(|end| escape(&end.to_string()));
    format!("{}/flow?guest={guest}&peer={peer}{vlan}", route_of(Kind::Port, port))
}

/// The query of a page.
pub(super) fn fields(query: &FlowQuery) -> String {
    let limit = query.limit.map(|limit| limit.to_string());
    given([("port", &query.port), ("limit", &limit), ("cursor", &query.cursor)])
}

/// A query of the fields that have values.
pub(super) fn given<const N: usize>(fields: [(&str, &Option<String>); N]) -> String {
    let fields = fields.iter().filter_map(|(key, value)| Some((*key, value.as_deref()?)));
    let fields: Vec<_> = fields.map(|(key, value)| format!("{key}={}", escape(value))).collect();
    fields.join("&")
}

/// `text` as it may stand in a path or query: all but unreserved characters as percent and two digits (RFC 3986).
pub(super) fn escape(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}
