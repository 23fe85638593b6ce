//! All that the control socket and the manage socket answer, as an OpenAPI 3.1 document.
//!
//! # Theory of operation
//! [`OPERATIONS`] lists every request with the types of its query, body and answer; schemas are derived from those types, whose documentation becomes
//! the descriptions. The server's tests hold the list against its routes, and each answer of the end-to-end tests against its schema.

use schemars::generate::{Contract, SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use crate::activity::Activity;
use crate::capture::{CaptureList, CaptureRequest, CaptureStatus, MEDIA_TYPE};
use crate::config::{NetworkKeys, PortKeys, UplinkKeys};
use crate::control::{
    ChangeQuery, DrainRequest, DrainStatus, FlowKey, FlowPage, FlowQuery, FlowStatus,
    InboundChange, InboundStatus, MetricsQuery, OffloadChange, OffloadSettings, PageQuery,
    PairPage, PortPage, Refusal, UpgradeRequest, UpgradeStatus, UplinkPage, WorkerPage,
};
use crate::diagnosis::Diagnosis;
use crate::events::{Event, EventQuery};
use crate::networks::{NetworkPage, NetworkTable};
use crate::plan::Plan;
use crate::status::{PortStatus, Status, Version};
use crate::trace::{Trace, TraceRequest};

/// Where schemas of types are.
const COMPONENTS: &str = "/components/schemas";

type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What is in a body.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// Nothing.
    None,
    /// A document.
    Json(SchemaOf),
    /// Server-sent events, the data of each of which is such a document.
    Events(SchemaOf),
    /// Bytes of this media type.
    Other(&'static str),
}

/// Which sockets answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// The control socket.
    Control,
    /// Behind a broker its manage socket, and the control socket answers 409; otherwise the control socket.
    Manage,
    /// The manage socket of a broker.
    Broker,
    /// Each of them.
    Both,
}

impl Sockets {
    fn description(self) -> &'static str {
        match self {
            Self::Control => "On the control socket.",
            Self::Manage => {
                "On the manage socket, for root and the user of the switch; on the control socket if the switch has a single process."
            }
            Self::Broker => {
                "On the manage socket, for root and the user of the switch; there is none if the switch has a single process."
            }
            Self::Both => "On the control socket, and on the manage socket.",
        }
    }
}

/// A request that is answered.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The method, in capitals.
    pub method: &'static str,
    /// The path; `{name}` stands for what is named.
    pub path: &'static str,
    /// Who answers.
    pub sockets: Sockets,
    /// What it does.
    summary: &'static str,
    query: Option<SchemaOf>,
    body: Content,
    /// What a success has in it.
    pub answer: Content,
    /// What it is about has an entity tag.
    is_tagged: bool,
}

const fn json<T: JsonSchema>() -> Content {
    Content::Json(of::<T>)
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// A query's keys stand for themselves, and are no component.
fn query<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    T::json_schema(generator)
}

impl Operation {
    const fn new(method: &'static str, path: &'static str, summary: &'static str) -> Self {
        let (sockets, query) = (Sockets::Control, None);
        let (body, answer, is_tagged) = (Content::None, Content::None, false);
        Self { method, path, sockets, summary, query, body, answer, is_tagged }
    }

    const fn get(path: &'static str, summary: &'static str, answer: Content) -> Self {
        Self { answer, ..Self::new("GET", path, summary) }
    }

    const fn put(
        path: &'static str,
        summary: &'static str,
        body: Content,
        answer: Content,
    ) -> Self {
        Self { body, answer, ..Self::new("PUT", path, summary) }
    }

    /// A change of the configuration.
    const fn change(
        method: &'static str,
        path: &'static str,
        summary: &'static str,
        body: Content,
    ) -> Self {
        let (sockets, answer) = (Sockets::Manage, json::<Plan>());
        let query: Option<SchemaOf> = Some(query::<ChangeQuery>);
        Self { sockets, query, body, answer, is_tagged: true, ..Self::new(method, path, summary) }
    }

    const fn with_query(self, query: SchemaOf) -> Self {
        Self { query: Some(query), ..self }
    }

    const fn tagged(self) -> Self {
        Self { is_tagged: true, ..self }
    }

    const fn on(self, sockets: Sockets) -> Self {
        Self { sockets, ..self }
    }
}

/// All requests.
pub const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/status", "Counters and states of the whole switch", json::<Status>()),
    Operation::get("/v1/activity", "What is shown every second", json::<Activity>()),
    Operation::get("/v1/version", "The version of the switch", json::<Version>()),
    Operation::get("/v1/openapi.json", "This document", Content::Other("application/json"))
        .on(Sockets::Both),
    Operation::get("/v1/flows", "TCP connections that the offload knows", json::<FlowPage>())
        .with_query(query::<FlowQuery>),
    Operation::get(
        "/v1/pairs",
        "What guests send to each destination through uplinks",
        json::<PairPage>(),
    )
    .with_query(query::<FlowQuery>),
    Operation::get("/v1/inbound", "How the link into the host is divided", json::<InboundStatus>()),
    Operation::put("/v1/inbound", "Changes that", json::<InboundChange>(), json::<InboundStatus>()),
    Operation::get("/v1/workers", "The threads that move frames", json::<WorkerPage>())
        .with_query(query::<PageQuery>),
    Operation::get("/v1/networks", "Networks, and who is in them", json::<NetworkPage>())
        .with_query(query::<PageQuery>),
    Operation::get(
        "/v1/networks/{name}",
        "A network and its forwarding table; the entity tag is that of its keys",
        json::<NetworkTable>(),
    )
    .tagged(),
    Operation::change(
        "PUT",
        "/v1/networks/{name}",
        "A network with these keys and no others",
        json::<NetworkKeys>(),
    ),
    Operation::change(
        "PATCH",
        "/v1/networks/{name}",
        "Other values for these keys of a network",
        json::<NetworkKeys>(),
    ),
    Operation::change("DELETE", "/v1/networks/{name}", "No such network any more", Content::None),
    Operation::get(
        "/v1/ports",
        "Ports, with the keys that do not have their defaults",
        json::<PortPage>(),
    )
    .with_query(query::<PageQuery>)
    .on(Sockets::Both),
    Operation::get("/v1/ports/{name}", "The keys of a port", json::<PortKeys>())
        .tagged()
        .on(Sockets::Both),
    Operation::change(
        "PUT",
        "/v1/ports/{name}",
        "A port with these keys and no others",
        json::<PortKeys>(),
    ),
    Operation::change(
        "PATCH",
        "/v1/ports/{name}",
        "Other values for these keys of a port",
        json::<PortKeys>(),
    ),
    Operation::change("DELETE", "/v1/ports/{name}", "No such port any more", Content::None),
    Operation::get(
        "/v1/ports/{name}/offload",
        "The offload settings of a port",
        json::<OffloadSettings>(),
    ),
    Operation::put(
        "/v1/ports/{name}/offload",
        "Changes them",
        json::<OffloadChange>(),
        json::<OffloadSettings>(),
    ),
    Operation::get(
        "/v1/ports/{name}/drain",
        "How far the drain of a port is",
        json::<DrainStatus>(),
    ),
    Operation {
        body: json::<DrainRequest>(),
        answer: json::<DrainStatus>(),
        ..Operation::new("POST", "/v1/ports/{name}/drain", "Begins or ends the drain of a port")
    },
    Operation::get(
        "/v1/ports/{name}/diagnosis",
        "What is wrong with a port, and what to do about it",
        json::<Diagnosis>(),
    ),
    Operation::get("/v1/ports/{name}/status", "A port's part of the status", json::<PortStatus>()),
    Operation::get("/v1/ports/{name}/flow", "One connection of a port", json::<FlowStatus>())
        .with_query(query::<FlowKey>),
    Operation::get(
        "/v1/uplinks",
        "Uplinks, with the keys that do not have their defaults",
        json::<UplinkPage>(),
    )
    .with_query(query::<PageQuery>)
    .on(Sockets::Both),
    Operation::get("/v1/uplinks/{name}", "The keys of an uplink", json::<UplinkKeys>())
        .tagged()
        .on(Sockets::Both),
    Operation::change(
        "PUT",
        "/v1/uplinks/{name}",
        "An uplink with these keys and no others",
        json::<UplinkKeys>(),
    ),
    Operation::change(
        "PATCH",
        "/v1/uplinks/{name}",
        "Other values for these keys of an uplink",
        json::<UplinkKeys>(),
    ),
    Operation::change("DELETE", "/v1/uplinks/{name}", "No such uplink any more", Content::None),
    Operation::get("/v1/config", "The configuration that runs", Content::Other("application/toml"))
        .tagged()
        .on(Sockets::Both),
    Operation::change(
        "PUT",
        "/v1/config",
        "Makes the switch what this configuration says",
        Content::Other("application/toml"),
    ),
    Operation::get(
        "/v1/upgrade",
        "Which programs run, and how upgrades of them stand",
        json::<UpgradeStatus>(),
    )
    .on(Sockets::Broker),
    Operation {
        body: json::<UpgradeRequest>(),
        answer: json::<UpgradeStatus>(),
        ..Operation::new(
            "POST",
            "/v1/upgrade",
            "Begins an upgrade, which goes on when it is answered",
        )
    }
    .on(Sockets::Broker),
    Operation {
        body: json::<TraceRequest>(),
        answer: json::<Trace>(),
        ..Operation::new("POST", "/v1/trace", "What would become of a frame; nothing is changed")
    },
    Operation::get("/v1/events", "What happens, as it happens", Content::Events(of::<Event>))
        .with_query(query::<EventQuery>),
    Operation::get("/v1/captures", "Captures that run", json::<CaptureList>()),
    Operation {
        body: json::<CaptureRequest>(),
        answer: Content::Other(MEDIA_TYPE),
        ..Operation::new(
            "POST",
            "/v1/captures",
            "Captures frames, into an answer that grows; for root and the user of the switch",
        )
    },
    Operation::get(
        "/metrics",
        "Counters for Prometheus, as OpenMetrics if the client accepts that",
        Content::Other("text/plain"),
    )
    .with_query(query::<MetricsQuery>),
    Operation {
        answer: json::<CaptureStatus>(),
        ..Operation::new(
            "DELETE",
            "/v1/captures/{id}",
            "Ends a capture; for root and the user of the switch",
        )
    },
];

/// All paths that control sockets answer, each once, in the order of [`OPERATIONS`].
#[must_use]
pub fn paths() -> Vec<&'static str> {
    let mut paths = Vec::new();
    for Operation { path, sockets, .. } in OPERATIONS {
        if *sockets != Sockets::Broker && !paths.contains(path) {
            paths.push(*path);
        }
    }
    paths
}

/// Paths by their names, and the schemas of what is asked for and of answers.
type Written = (Map<String, Value>, Map<String, Value>, Map<String, Value>);

fn write() -> Written {
    // What a client may leave out and what an answer always has differ.
    let generator = |contract: Contract| {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = COMPONENTS.into();
            settings.contract = contract;
        });
        SchemaGenerator::new(settings)
    };
    let mut writer = Writer {
        asked: generator(Contract::Deserialize),
        answered: generator(Contract::Serialize),
    };
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method.to_lowercase()] = writer.operation(operation);
    }
    (paths, writer.asked.take_definitions(true), writer.answered.take_definitions(true))
}

/// The document.
#[must_use]
pub fn document() -> Value {
    let (paths, mut schemas, mut answered) = write();
    schemas.append(&mut answered);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Floodway",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "HTTP/1.1 over Unix stream sockets: the control socket, and the manage socket beside it. Lists come in pages: `next` of one is `cursor` of the following one.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "http://floodway", "description": "curl --unix-socket /run/floodway/control.sock" }],
        "paths": paths,
        "components": { "schemas": schemas },
    })
}

struct Writer {
    /// Makes schemas of what is asked for.
    asked: SchemaGenerator,
    /// Makes schemas of answers.
    answered: SchemaGenerator,
}

impl Writer {
    fn operation(&mut self, operation: &Operation) -> Value {
        let mut answer = json!({ "description": "Done" });
        if let Some(content) = content(operation.answer, &mut self.answered) {
            answer["content"] = content;
        }
        if operation.is_tagged && operation.method == "GET" {
            let description = "Entity tag, for If-Match of a change";
            answer["headers"] =
                json!({ "ETag": { "description": description, "schema": { "type": "string" } } });
        }
        let refusal = of::<Refusal>(&mut self.answered);
        let refusal = json!({ "description": "Not done, and why",
            "content": { "application/json": { "schema": refusal } } });
        let mut value = json!({
            "operationId": operation_id(operation),
            "summary": operation.summary,
            "description": operation.sockets.description(),
            "parameters": self.parameters(operation),
            "responses": { "200": answer, "default": refusal },
        });
        if let Some(content) = content(operation.body, &mut self.asked) {
            value["requestBody"] = json!({ "required": true, "content": content });
        }
        value
    }

    fn parameters(&mut self, operation: &Operation) -> Vec<Value> {
        let parameter = |name: &str, place: &str, schema: Value| json!({ "name": name, "in": place, "required": place == "path", "schema": schema });
        let named =
            operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let string = || json!({ "type": "string" });
        let mut all: Vec<_> = named.map(|name| parameter(name, "path", string())).collect();
        let query = operation.query.map(|query| query(&mut self.asked));
        let keys = query.as_ref().and_then(|schema| schema.get("properties")?.as_object());
        all.extend(
            keys.into_iter().flatten().map(|(key, schema)| parameter(key, "query", schema.clone())),
        );
        if operation.is_tagged && operation.method != "GET" {
            all.push(parameter("If-Match", "header", string()));
        }
        all
    }
}

/// Media types of a body and their schemas.
fn content(content: Content, generator: &mut SchemaGenerator) -> Option<Value> {
    Some(match content {
        Content::None => return None,
        Content::Json(schema) => json!({ "application/json": { "schema": schema(generator) } }),
        Content::Events(schema) => json!({ "text/event-stream": {
            "schema": { "type": "string", "contentMediaType": "application/json",
                "contentSchema": schema(generator) } } }),
        Content::Other("application/json") => {
            json!({ "application/json": { "schema": { "type": "object" } } })
        }
        Content::Other(kind) => json!({ kind: { "schema": { "type": "string" } } }),
    })
}

/// The name of an operation for programs: method and path as words.
fn operation_id(operation: &Operation) -> String {
    let words = operation.path.split(['/', '.']).filter(|word| !["", "v1", "json"].contains(word));
    let words = words.map(|word| word.trim_matches(['{', '}']).to_owned());
    std::iter::once(operation.method.to_lowercase()).chain(words).collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// All references in a document.
    fn references<'v>(value: &'v Value, found: &mut BTreeSet<&'v str>) {
        match value {
            Value::Object(keys) => {
                found.extend(keys.get("$ref").and_then(Value::as_str));
                keys.values().for_each(|value| references(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn references_lead_somewhere_and_nothing_is_without_one() {
        let document = document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for reference in &found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        let schemas = document["components"]["schemas"].as_object().unwrap();
        assert_eq!(found.len(), schemas.len());
        assert!(schemas.len() > 50, "{}", schemas.len());
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let names: BTreeSet<_> = OPERATIONS.iter().map(operation_id).collect();
        assert_eq!(names.len(), OPERATIONS.len());
        assert!(names.contains("patch_ports_name") && names.contains("get_openapi"));
    }

    #[test]
    fn a_type_that_is_asked_for_and_answered_is_the_same_in_both() {
        let (_, asked, answered) = write();
        for (name, schema) in asked.iter().filter(|(name, _)| answered.contains_key(*name)) {
            assert_eq!(schema, &answered[name], "{name}");
        }
    }
}
