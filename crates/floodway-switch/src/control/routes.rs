//! What the control socket answers. A new route is a line in [`router`] and a handler.

use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};

use super::changes::aside;
use super::failure::{Failure, Source, error};
use super::metrics::{Format, MetricsQuery};
use super::{captures, changes, events, metrics};
use crate::api::activity::Activity;
use crate::api::control::{
    DrainRequest, DrainStatus, FlowKey, FlowPage, FlowQuery, FlowStatus, InboundChange,
    InboundStatus, OffloadChange, OffloadSettings, PageQuery, PairPage, PairQuery,
};
use crate::api::diagnosis::Diagnosis;
use crate::api::networks::{self, NetworkPage, NetworkTable};
use crate::api::status::{PortStatus, Status, Version};
use crate::api::trace::{Trace, TraceRequest};
use crate::operator::ConfigApi;

/// What there is beside the configuration, for who asks for something else.
const ROUTES: &str = "/v1/status, /v1/activity, /v1/version, /v1/flows, /v1/pairs, /v1/inbound, /v1/ports/NAME/offload, /v1/ports/NAME/drain, /v1/ports/NAME/diagnosis, /v1/ports/NAME/status, /v1/ports/NAME/flow, /v1/networks, /v1/networks/NAME, /v1/trace, /v1/captures, /v1/events, /metrics";

/// The routes, answered by `source`; captures are for root and the user `owner`.
pub(super) fn router(source: Source, owner: u32) -> Router {
    let of_captures = Router::new()
        .route("/v1/captures", get(captures::list).post(captures::begin))
        .route("/v1/captures/{id}", delete(captures::end))
        .with_state(captures::Owned { source: Arc::clone(&source), owner });
    let configuration = changes::router(Arc::clone(&source) as Arc<dyn ConfigApi>);
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/activity", get(activity))
        .route("/v1/version", get(version))
        .route("/v1/flows", get(flows))
        .route("/v1/pairs", get(pairs))
        .route("/v1/inbound", put(set_inbound).get(inbound))
        .route("/v1/ports/{name}/offload", put(set_offload).get(offload))
        .route("/v1/ports/{name}/drain", get(drain_status).post(drain))
        .route("/v1/ports/{name}/diagnosis", get(diagnosis))
        .route("/v1/ports/{name}/status", get(port_status))
        .route("/v1/ports/{name}/flow", get(flow))
        .route("/v1/networks", get(networks))
        .route("/v1/networks/{name}", get(network))
        .route("/v1/trace", post(trace))
        .route("/v1/events", get(events::follow))
        .route("/metrics", get(prometheus))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(source)
        .merge(configuration)
        .merge(of_captures)
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
    query: Result<Query<FlowQuery>, QueryRejection>,
) -> Result<Json<FlowPage>, Failure> {
    let Query(query) = query.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
    Ok(Json(source.flows(&query)?))
}

async fn pairs(
    State(source): State<Source>,
    query: Result<Query<PairQuery>, QueryRejection>,
) -> Result<Json<PairPage>, Failure> {
    let Query(query) = query.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
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
    change: Result<Json<OffloadChange>, JsonRejection>,
) -> Result<Json<OffloadSettings>, Failure> {
    let Json(change) = change.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
    Ok(Json(aside(move || source.offload(&port, &change)).await?))
}

async fn inbound(State(source): State<Source>) -> Result<Json<InboundStatus>, Failure> {
    Ok(Json(source.inbound(&InboundChange::default())?))
}

async fn set_inbound(
    State(source): State<Source>,
    change: Result<Json<InboundChange>, JsonRejection>,
) -> Result<Json<InboundStatus>, Failure> {
    let Json(change) = change.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
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
    query: Result<Query<FlowKey>, QueryRejection>,
) -> Result<Json<FlowStatus>, Failure> {
    let Query(key) = query.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
    Ok(Json(source.flow(&port, &key)?))
}

async fn networks(
    State(source): State<Source>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<NetworkPage>, Failure> {
    let Query(query) = query.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
    let page = move || networks::page(&source.configuration()?, &source.status(), &query);
    Ok(Json(aside(page).await?))
}

async fn network(
    State(source): State<Source>,
    Path(name): Path<String>,
) -> Result<Json<NetworkTable>, Failure> {
    let table = move || networks::table(&source.configuration()?, &source.status(), &name);
    Ok(Json(aside(table).await?))
}

async fn trace(
    State(source): State<Source>,
    request: Result<Json<TraceRequest>, JsonRejection>,
) -> Result<Json<Trace>, Failure> {
    let Json(request) = request.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
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
    request: Result<Json<DrainRequest>, JsonRejection>,
) -> Result<Json<DrainStatus>, Failure> {
    let Json(request) = request.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
    Ok(Json(aside(move || source.drain(&port, Some(request.draining))).await?))
}

async fn prometheus(
    State(source): State<Source>,
    query: Result<Query<MetricsQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let Query(query) = query.map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let inbound = source.inbound(&InboundChange::default()).ok();
    Ok(match metrics::encode(source.status(), inbound, query, format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be encoded"),
    })
}

pub(super) async fn unknown(uri: Uri) -> Response {
    let message = format!("no route {}; there are {ROUTES}, {}", uri.path(), changes::ROUTES);
    error(StatusCode::NOT_FOUND, message)
}

pub(super) async fn wrong_method(uri: Uri) -> Response {
    error(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not answer to this method", uri.path()))
}
