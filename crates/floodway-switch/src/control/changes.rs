//! Routes that change the switch: networks, ports, uplinks, and the whole configuration.
//!
//! They are part of the control socket of a switch of one process, and all that a broker's manage socket has.
//!
//! A change may have to wait for workers and front-ends, and whoever asks for the configuration waits for the change. Both are done on threads
//! of their own and hold up no other request.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::extract::{Body, Query};
use super::failure::Failure;
use super::table::Routes;
use crate::api::control::{ChangeQuery, ControlError, PageQuery, PortPage, UplinkPage};
use crate::api::edit::{self, Document, Kind};
use crate::api::openapi;
use crate::api::plan::Plan;
use crate::config::{Config, ConfigError};
use crate::operator::ConfigApi;

/// What answers.
type Source = Arc<dyn ConfigApi>;

/// The routes, answered by `source`.
pub(super) fn routes(source: &Source) -> Routes<()> {
    Routes::new()
        .on("GET", "/v1/openapi.json", openapi)
        .on("GET", "/v1/ports", ports)
        .on("GET", "/v1/uplinks", uplinks)
        .on("GET", "/v1/config", config)
        .on("PUT", "/v1/config", put_config)
        .with_state(Arc::clone(source))
        .merge(named(source, Kind::Network, "/v1/networks/{name}"))
        .merge(named(source, Kind::Port, "/v1/ports/{name}").merge(shown(
            source,
            Kind::Port,
            "/v1/ports/{name}",
        )))
        .merge(named(source, Kind::Uplink, "/v1/uplinks/{name}").merge(shown(
            source,
            Kind::Uplink,
            "/v1/uplinks/{name}",
        )))
}

/// Changes of what is called by the path's name.
fn named(source: &Source, kind: Kind, path: &'static str) -> Routes<()> {
    let state = Named { source: Arc::clone(source), kind };
    Routes::new()
        .on("PUT", path, put)
        .on("PATCH", path, patch)
        .on("DELETE", path, delete)
        .with_state(state)
}

/// The keys of what is called by the path's name.
fn shown(source: &Source, kind: Kind, path: &'static str) -> Routes<()> {
    let state = Named { source: Arc::clone(source), kind };
    Routes::new().on("GET", path, show).with_state(state)
}

/// What answers, and what kind of thing is asked for.
#[derive(Clone)]
struct Named {
    source: Source,
    kind: Kind,
}

async fn openapi() -> Json<Value> {
    Json(openapi::document())
}

async fn ports(
    State(source): State<Source>,
    query: Query<PageQuery>,
) -> Result<Json<PortPage>, Failure> {
    let (ports, next) = page(source, Kind::Port, query).await?;
    Ok(Json(PortPage { ports, next }))
}

async fn uplinks(
    State(source): State<Source>,
    query: Query<PageQuery>,
) -> Result<Json<UplinkPage>, Failure> {
    let (uplinks, next) = page(source, Kind::Uplink, query).await?;
    Ok(Json(UplinkPage { uplinks, next }))
}

/// The keys of those after the one whose name is the cursor, and the cursor of the next page.
async fn page(
    source: Source,
    kind: Kind,
    Query(query): Query<PageQuery>,
) -> Result<(Vec<Document>, Option<String>), Failure> {
    let page = move || {
        let config = source.configuration()?;
        let names = kind.names(&config);
        let (range, next) = query.select(&names)?;
        let keys = names[range].iter().map(|name| edit::document(&config, kind, name));
        Ok((keys.collect::<Result<_, _>>()?, next))
    };
    Ok(aside(page).await?)
}

async fn show(
    State(Named { source, kind }): State<Named>,
    Path(name): Path<String>,
) -> Result<Response, Failure> {
    let keys = aside(move || edit::document(&source.configuration()?, kind, &name)).await?;
    Ok((tagged(&tag_of(&keys)), Json(keys)).into_response())
}

async fn put(
    State(Named { source, kind }): State<Named>,
    Path(name): Path<String>,
    how: Query<ChangeQuery>,
    headers: HeaderMap,
    Body(keys): Body<Document>,
) -> Result<Json<Plan>, Failure> {
    change(source, how, move |running| {
        check_named(&headers, running, kind, &name)?;
        edit::put(running, kind, &name, &keys)
    })
    .await
}

async fn patch(
    State(Named { source, kind }): State<Named>,
    Path(name): Path<String>,
    how: Query<ChangeQuery>,
    headers: HeaderMap,
    Body(keys): Body<Document>,
) -> Result<Json<Plan>, Failure> {
    change(source, how, move |running| {
        check_named(&headers, running, kind, &name)?;
        edit::patch(running, kind, &name, &keys)
    })
    .await
}

async fn delete(
    State(Named { source, kind }): State<Named>,
    Path(name): Path<String>,
    how: Query<ChangeQuery>,
    headers: HeaderMap,
) -> Result<Json<Plan>, Failure> {
    change(source, how, move |running| {
        check_named(&headers, running, kind, &name)?;
        edit::remove(running, kind, &name)
    })
    .await
}

async fn config(State(source): State<Source>) -> Result<Response, Failure> {
    let text = aside(move || text(&source.configuration()?)).await?;
    let kind = [(header::CONTENT_TYPE, "application/toml")];
    Ok((tagged(&tag(&text)), kind, text).into_response())
}

async fn put_config(
    State(source): State<Source>,
    how: Query<ChangeQuery>,
    headers: HeaderMap,
    body: String,
) -> Result<Json<Plan>, Failure> {
    let wanted = Config::parse(&body, "request".as_ref()).map_err(|error| match error {
        ConfigError::Invalid { line, fault, .. } => {
            ControlError::Invalid(format!("line {line}: {fault}"))
        }
        error => ControlError::Invalid(error.to_string()),
    })?;
    change(source, how, move |running| {
        check_tag(&headers, &tag(&text(running)?))?;
        Ok(wanted.clone())
    })
    .await
}

/// Makes a change.
async fn change(
    source: Source,
    Query(how): Query<ChangeQuery>,
    edit: impl Fn(&Config) -> Result<Config, ControlError> + Send + 'static,
) -> Result<Json<Plan>, Failure> {
    Ok(Json(aside(move || source.reconfigure(&edit, how.dry_run)).await?))
}

/// Does something that may have to wait on a thread of its own.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ControlError> + Send + 'static,
) -> Result<T, ControlError> {
    let done = tokio::task::spawn_blocking(work).await;
    // It cannot have panicked: that ends the process.
    done.unwrap_or_else(|error| Err(ControlError::Failed(error.to_string())))
}

fn text(config: &Config) -> Result<String, ControlError> {
    toml::to_string(config).map_err(|error| ControlError::Failed(error.to_string()))
}

/// The entity tag of a text: another text has another one.
fn tag(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

/// The entity tag of a network, port or uplink.
pub(super) fn tag_of(keys: &Document) -> String {
    tag(&Value::Object(keys.clone()).to_string())
}

/// A header with an entity tag.
pub(super) fn tagged(tag: &str) -> HeaderMap {
    let value = HeaderValue::from_str(tag).ok();
    value.map(|value| (header::ETAG, value)).into_iter().collect()
}

/// Refuses a change of something that is not as its sender knows it.
fn check_named(
    headers: &HeaderMap,
    running: &Config,
    kind: Kind,
    name: &str,
) -> Result<(), ControlError> {
    let known = edit::document(running, kind, name).map(|keys| tag_of(&keys));
    check_tag(headers, &known.unwrap_or_default())
}

fn check_tag(headers: &HeaderMap, now: &str) -> Result<(), ControlError> {
    let Some(wanted) = headers.get(header::IF_MATCH) else { return Ok(()) };
    let is_any = wanted == "*" && !now.is_empty();
    if is_any || wanted == now { Ok(()) } else { Err(ControlError::Outdated) }
}
