//! Answers that are no success, which all look alike.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::api::control::{ControlError, Refusal};
use crate::operator::ControlApi;

/// What answers.
pub(super) type Source = Arc<dyn ControlApi>;

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

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        let code = match error {
            ControlError::UnknownPort { .. }
            | ControlError::UnknownFlow { .. }
            | ControlError::UnknownNetwork { .. }
            | ControlError::UnknownUplink { .. }
            | ControlError::UnknownInterface { .. }
            | ControlError::UnknownCapture(_) => StatusCode::NOT_FOUND,
            ControlError::TooManyCaptures(_) | ControlError::TooManyReaders(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ControlError::BadCursor(_) | ControlError::Refused(_) | ControlError::Invalid(_) => {
                StatusCode::BAD_REQUEST
            }
            ControlError::NeedsRestart(_) | ControlError::HasBroker => StatusCode::CONFLICT,
            ControlError::Forbidden(_) | ControlError::MayNotCapture(_) => StatusCode::FORBIDDEN,
            ControlError::Outdated => StatusCode::PRECONDITION_FAILED,
            ControlError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(code, error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        error(self.0, self.1)
    }
}
