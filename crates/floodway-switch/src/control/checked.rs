//! Holds each answer against the OpenAPI document, in tests.
//!
//! An answer that is not as the document says becomes an error (500) that says so: a test that waits for another one fails. A key that its schema does
//! not know is as wrong as one that is missing.

use std::sync::OnceLock;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::failure::error;
use crate::api::openapi;

/// Longest answer that is looked at.
const MAX_ANSWER: usize = 64 << 20;

/// `router`, with all its answers checked.
pub(super) fn checked(router: Router) -> Router {
    router.layer(middleware::from_fn(check))
}

async fn check(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let answer = next.run(request).await;
    let kind = answer.headers().get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| kind != "application/json") {
        return answer;
    }
    let (head, body) = answer.into_parts();
    let body = to_bytes(body, MAX_ANSWER).await.unwrap_or_default();
    match problem(&method, &path, head.status, &body) {
        None => Response::from_parts(head, Body::from(body)).into_response(),
        Some(problem) => {
            let message =
                format!("the answer to {method} {path} is not as OpenAPI says: {problem}");
            tracing::error!(message);
            error(StatusCode::INTERNAL_SERVER_ERROR, message)
        }
    }
}

/// What is wrong with an answer.
fn problem(method: &str, path: &str, code: StatusCode, body: &[u8]) -> Option<String> {
    let document = strict();
    let answers = answers(document, method, path);
    let answer = match code {
        StatusCode::OK => answers.and_then(|answers| answers.get("200")),
        // What is not in the document is refused as all else.
        _ => Some(&document["paths"]["/v1/status"]["get"]["responses"]["default"]),
    };
    let Some(schema) = answer.and_then(|it| it.pointer("/content/application~1json/schema")) else {
        return Some("there is no such answer".to_owned());
    };
    let schema = json!({ "allOf": [schema], "components": document["components"] });
    let instance: Value = match serde_json::from_slice(body) {
        Ok(instance) => instance,
        Err(error) => return Some(error.to_string()),
    };
    let validator = match jsonschema::draft202012::new(&schema) {
        Ok(validator) => validator,
        Err(error) => return Some(error.to_string()),
    };
    let problems = validator.iter_errors(&instance).take(3);
    let problems: Vec<_> =
        problems.map(|error| format!("{}: {error}", error.instance_path())).collect();
    (!problems.is_empty()).then(|| problems.join("; "))
}

/// The answers that the document has for a request.
fn answers<'d>(document: &'d Value, method: &str, path: &str) -> Option<&'d Value> {
    let fits = |template: &str| {
        let (known, asked) = (template.split('/'), path.split('/'));
        known.clone().count() == asked.clone().count()
            && known.zip(asked).all(|(known, asked)| known == asked || known.starts_with('{'))
    };
    let mut paths = document["paths"].as_object()?.iter();
    let (_, operations) = paths.find(|(template, _)| fits(template))?;
    operations.get(method.to_lowercase())?.get("responses")
}

/// The document with schemas that allow no keys but those that they name.
fn strict() -> &'static Value {
    static STRICT: OnceLock<Value> = OnceLock::new();
    STRICT.get_or_init(|| {
        let mut document = openapi::document();
        if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
            schemas.values_mut().for_each(close);
        }
        document
    })
}

/// An object's keys are those of its schema and of what that refers to.
fn close(schema: &mut Value) {
    let Some(keys) = schema.as_object_mut() else { return };
    if keys.contains_key("properties") && !keys.contains_key("additionalProperties") {
        keys.insert("unevaluatedProperties".to_owned(), false.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(path: &str, body: &str) -> String {
        problem("GET", path, StatusCode::OK, body.as_bytes()).unwrap_or_default()
    }

    #[test]
    fn keys_that_are_missing_wrong_or_unknown_are_seen() {
        assert_eq!(wrong("/v1/version", r#"{"version":"1"}"#), "");
        assert!(wrong("/v1/version", "{}").contains("required"));
        assert!(wrong("/v1/version", r#"{"version":1}"#).contains("/version"));
        assert!(wrong("/v1/version", r#"{"version":"1","x":1}"#).contains('x'));
        assert!(wrong("/v1/nothing", "{}").contains("no such answer"));
        let error = |body: &str| problem("GET", "/v1/x", StatusCode::NOT_FOUND, body.as_bytes());
        assert_eq!(error(r#"{"error":"no"}"#), None);
        assert!(error(r#"{"message":"no"}"#).is_some());
    }
}
