//! What handlers take out of requests, refused as all else is.

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts};

use super::failure::Failure;

/// The query of a request.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(Failure))]
pub(super) struct Query<T>(pub T);

/// The JSON document in the body of a request.
#[derive(FromRequest)]
#[from_request(via(axum::Json), rejection(Failure))]
pub(super) struct Body<T>(pub T);

impl From<QueryRejection> for Failure {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl From<JsonRejection> for Failure {
    fn from(rejection: JsonRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}
