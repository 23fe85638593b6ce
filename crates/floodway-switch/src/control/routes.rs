//! What the control socket answers. A new route is a line in [`routes`], a handler, and a line in [`openapi::OPERATIONS`].

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};

use super::changes::aside;
use super::extract::{Body, Query};
use super::failure::{Failure, Source, error};
use super::metrics::Format;
use super::table::Routes;
use super::{captures, changes, events, metrics};
use crate::api::activity::Activity;
use crate::api::control::{
    DrainRequest, DrainStatus, FlowKey, FlowPage, FlowQuery, FlowStatus, InboundChange,
    InboundStatus, MetricsQuery, OffloadChange, OffloadSettings, PageQuery, PairPage, PairQuery,
    WorkerPage,
};
use crate::api::diagnosis::Diagnosis;
use crate::api::edit::{self, Kind};
use crate::api::networks::{self, NetworkPage};
use crate::api::openapi;
use crate::api::status::{PortStatus, Status, Version};
use crate::api::trace::{Trace, TraceRequest};
use crate::operator::ConfigApi;

/// The routes, answered by `source`; captures are for root and the user `owner`.
pub(super) fn routes(source: Source, owner: u32) -> Routes<()> {
    let of_captures = Routes::new()
        .on("GET", "/v1/captures", captures::list)
        .on("POST", "/v1/captures", captures::begin)
        .on("DELETE", "/v1/captures/{id}", captures::end)
        .with_state(captures::Owned { source: Arc::clone(&source), owner });
    let configuration = changes::routes(&(Arc::clone(&source) as Arc<dyn ConfigApi>));
    Routes::new()
        .on("GET", "/v1/status", status)
        .on("GET", "/v1/activity", activity)
        .on("GET", "/v1/version", version)
        .on("GET", "/v1/flows", flows)
        .on("GET", "/v1/pairs", pairs)
        .on("GET", "/v1/inbound", inbound)
        .on("PUT", "/v1/inbound", set_inbound)
        .on("GET", "/v1/workers", workers)
        .on("GET", "/v1/ports/{name}/offload", offload)
        .on("PUT", "/v1/ports/{name}/offload", set_offload)
        .on("GET", "/v1/ports/{name}/drain", drain_status)
        .on("POST", "/v1/ports/{name}/drain", drain)
        .on("GET", "/v1/ports/{name}/diagnosis", diagnosis)
        .on("GET", "/v1/ports/{name}/status", port_status)
        .on("GET", "/v1/ports/{name}/flow", flow)
        .on("GET", "/v1/networks", networks)
        .on("GET", "/v1/networks/{name}", network)
        .on("POST", "/v1/trace", trace)
        .on("GET", "/v1/events", events::follow)
        .on("GET", "/metrics", prometheus)
        .with_state(source)
        .merge(configuration)
        .merge(of_captures)
}

/// A router of these routes.
pub(super) fn router(source: Source, owner: u32) -> Router {
    let router = routes(source, owner).into_router();
    router.fallback(unknown).method_not_allowed_fallback(wrong_method)
}

async fn status(State(source): State<Source>) -> Json<Status> {
    Json(source.status())
}

async fn activity(State(source): State<Source>) -> Json<Activity> {
    Json(source.activity())
}

async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION").to_owned() })
}

async fn flows(
    State(source): State<Source>,
    Query(query): Query<FlowQuery>,
) -> Result<Json<FlowPage>, Failure> {
    Ok(Json(source.flows(&query)?))
}

async fn pairs(
    State(source): State<Source>,
    Query(query): Query<PairQuery>,
) -> Result<Json<PairPage>, Failure> {
    Ok(Json(source.pairs(&query)?))
}

async fn offload(
    State(source): State<Source>,
    Path(port): Path<String>,
) -> Result<Json<OffloadSettings>, Failure> {
    Ok(Json(source.offload(&port, &OffloadChange::default())?))
}

async fn set_offload(
    State(source): State<Source>,
    Path(port): Path<String>,
    Body(change): Body<OffloadChange>,
) -> Result<Json<OffloadSettings>, Failure> {
    Ok(Json(aside(move || source.offload(&port, &change)).await?))
}

async fn inbound(State(source): State<Source>) -> Result<Json<InboundStatus>, Failure> {
    Ok(Json(source.inbound(&InboundChange::default())?))
}

async fn set_inbound(
    State(source): State<Source>,
    Body(change): Body<InboundChange>,
) -> Result<Json<InboundStatus>, Failure> {
    Ok(Json(aside(move || source.inbound(&change)).await?))
}

async fn diagnosis(
    State(source): State<Source>,
    Path(port): Path<String>,
) -> Result<Json<Diagnosis>, Failure> {
    Ok(Json(source.diagnose(&port)?))
}

async fn port_status(
    State(source): State<Source>,
    Path(port): Path<String>,
) -> Result<Json<PortStatus>, Failure> {
    Ok(Json(source.port_status(&port)?))
}

async fn flow(
    State(source): State<Source>,
    Path(port): Path<String>,
    Query(key): Query<FlowKey>,
) -> Result<Json<FlowStatus>, Failure> {
    Ok(Json(source.flow(&port, &key)?))
}

async fn networks(
    State(source): State<Source>,
    Query(query): Query<PageQuery>,
) -> Result<Json<NetworkPage>, Failure> {
    let page = move || networks::page(&source.configuration()?, &source.status(), &query);
    Ok(Json(aside(page).await?))
}

async fn network(
    State(source): State<Source>,
    Path(name): Path<String>,
) -> Result<Response, Failure> {
    let table = move || {
        let config = source.configuration()?;
        let tag = changes::tag_of(&edit::document(&config, Kind::Network, &name)?);
        Ok((tag, networks::table(&config, &source.status(), &name)?))
    };
    let (tag, table) = aside(table).await?;
    Ok((changes::tagged(&tag), Json(table)).into_response())
}

async fn workers(
    State(source): State<Source>,
    Query(query): Query<PageQuery>,
) -> Result<Json<WorkerPage>, Failure> {
    let mut workers = source.status().workers;
    let names: Vec<_> = workers.iter().map(|worker| worker.index.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let (range, next) = query.select(&names)?;
    Ok(Json(WorkerPage { workers: workers.drain(range).collect(), next }))
}

async fn trace(
    State(source): State<Source>,
    Body(request): Body<TraceRequest>,
) -> Result<Json<Trace>, Failure> {
    Ok(Json(aside(move || source.trace(&request)).await?))
}

async fn drain_status(
    State(source): State<Source>,
    Path(port): Path<String>,
) -> Result<Json<DrainStatus>, Failure> {
    Ok(Json(source.drain(&port, None)?))
}

async fn drain(
    State(source): State<Source>,
    Path(port): Path<String>,
    Body(request): Body<DrainRequest>,
) -> Result<Json<DrainStatus>, Failure> {
    Ok(Json(aside(move || source.drain(&port, Some(request.draining))).await?))
}

async fn prometheus(
    State(source): State<Source>,
    Query(query): Query<MetricsQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let inbound = source.inbound(&InboundChange::default()).ok();
    Ok(match metrics::encode(source.status(), inbound, query, format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be encoded"),
    })
}

pub(super) async fn unknown(uri: Uri) -> Response {
    let routes = openapi::paths().join(", ");
    let message = format!("no route {}; there are {routes}", uri.path());
    error(StatusCode::NOT_FOUND, message)
}

pub(super) async fn wrong_method(uri: Uri) -> Response {
    error(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not answer to this method", uri.path()))
}
