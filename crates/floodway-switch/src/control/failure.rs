//! Answers that are no success, which all look alike.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::api::operate::{OperateError, Refusal};
use crate::operator::Operator;

/// What answers.
pub(super) type Source = Arc<dyn Operator>;

/// An answer with a code and a reason.
pub(super) fn error(code: StatusCode, message: impl Into<String>) -> Response {
    (code, Json(Refusal { error: message.into() })).into_response()
}

/// An answer that is not a success.
pub(super) struct Failure(StatusCode, String);

impl Failure {
    pub(super) fn bad_request(message: String) -> Self {
        Self(StatusCode::BAD_REQUEST, message)
    }
}

impl From<OperateError> for Failure {
    fn from(error: OperateError) -> Self {
        let code = match error {
            OperateError::UnknownPort { .. } => StatusCode::NOT_FOUND,
            OperateError::BadCursor(_) | OperateError::Refused(_) | OperateError::Invalid(_) => {
                StatusCode::BAD_REQUEST
            }
            OperateError::NeedsRestart(_) | OperateError::HasBroker => StatusCode::CONFLICT,
            OperateError::Outdated => StatusCode::PRECONDITION_FAILED,
            OperateError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(code, error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        error(self.0, self.1)
    }
}
