//! Routes that change the switch: ports, and the whole configuration.
//!
//! They are part of the control socket of a switch of one process, and all that a broker's manage socket has.
//!
//! A change may have to wait for workers and front-ends, and whoever asks for the configuration waits for the change. Both are done on threads
//! of their own and hold up no other request.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;

use super::failure::Failure;
use crate::api::control::{ControlError, PageQuery, PortPage};
use crate::api::edit::{self, PortDocument};
use crate::api::plan::Plan;
use crate::config::{Config, ConfigError};
use crate::operator::ConfigApi;

/// How a change is to be made.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct How {
    /// Only say what would change.
    dry_run: bool,
}

type HowQuery = Result<Query<How>, QueryRejection>;
type Body = Result<Json<PortDocument>, JsonRejection>;

/// What answers.
type Source = Arc<dyn ConfigApi>;

/// What there is.
pub(super) const ROUTES: &str = "/v1/config, /v1/ports, /v1/ports/NAME";

/// The routes, answered by `source`.
pub(super) fn router(source: Source) -> Router {
    let port_routes = get(port).put(put_port).patch(patch_port).delete(delete_port);
    Router::new()
        .route("/v1/ports", get(ports))
        .route("/v1/ports/{name}", port_routes)
        .route("/v1/config", get(config).put(put_config))
        .with_state(source)
}

async fn ports(
    State(source): State<Source>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<PortPage>, Failure> {
    let Query(query) = query.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
    Ok(Json(aside(move || page(&source.configuration()?, &query)).await?))
}

/// The ports after that whose name is the cursor.
fn page(config: &Config, query: &PageQuery) -> Result<PortPage, ControlError> {
    let names: Vec<_> = config.ports.iter().map(|port| port.name.as_str()).collect();
    let (range, next) = query.select(&names)?;
    let ports = names[range].iter().map(|name| edit::port(config, name));
    Ok(PortPage { ports: ports.collect::<Result<_, _>>()?, next })
}

async fn port(State(source): State<Source>, Path(name): Path<String>) -> Result<Response, Failure> {
    let port = aside(move || edit::port(&source.configuration()?, &name)).await?;
    Ok((tagged(&port_tag(&port)), Json(port)).into_response())
}

async fn put_port(
    State(source): State<Source>,
    Path(name): Path<String>,
    how: HowQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Plan>, Failure> {
    let keys = document(body)?;
    change(source, how, move |running| {
        check_port(&headers, running, &name)?;
        edit::put_port(running, &name, &keys)
    })
    .await
}

async fn patch_port(
    State(source): State<Source>,
    Path(name): Path<String>,
    how: HowQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Plan>, Failure> {
    let keys = document(body)?;
    change(source, how, move |running| {
        check_port(&headers, running, &name)?;
        edit::patch_port(running, &name, &keys)
    })
    .await
}

async fn delete_port(
    State(source): State<Source>,
    Path(name): Path<String>,
    how: HowQuery,
    headers: HeaderMap,
) -> Result<Json<Plan>, Failure> {
    change(source, how, move |running| {
        check_port(&headers, running, &name)?;
        edit::remove_port(running, &name)
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
    how: HowQuery,
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
    how: HowQuery,
    edit: impl Fn(&Config) -> Result<Config, ControlError> + Send + 'static,
) -> Result<Json<Plan>, Failure> {
    let Query(how) = how.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
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

fn document(body: Body) -> Result<PortDocument, Failure> {
    let Json(keys) = body.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
    Ok(keys)
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

fn port_tag(port: &PortDocument) -> String {
    tag(&serde_json::Value::Object(port.clone()).to_string())
}

fn tagged(tag: &str) -> HeaderMap {
    let value = HeaderValue::from_str(tag).ok();
    value.map(|value| (header::ETAG, value)).into_iter().collect()
}

/// Refuses a change of a port that is not as its sender knows it.
fn check_port(headers: &HeaderMap, running: &Config, name: &str) -> Result<(), ControlError> {
    let known = edit::port(running, name).map(|port| port_tag(&port));
    check_tag(headers, &known.unwrap_or_default())
}

fn check_tag(headers: &HeaderMap, now: &str) -> Result<(), ControlError> {
    let Some(wanted) = headers.get(header::IF_MATCH) else { return Ok(()) };
    let is_any = wanted == "*" && !now.is_empty();
    if is_any || wanted == now { Ok(()) } else { Err(ControlError::Outdated) }
}
